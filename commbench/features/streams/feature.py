"""Soaks in a report."""

from __future__ import annotations

from commbench.report.features import Feature

from .answers import answers, first_seconds

FEATURE = Feature(answers=answers, on_matrix=first_seconds)
