"""Soaks in a report."""

from __future__ import annotations

from commbench.report.features import Feature

from .answers import answers, first_seconds
from .over_time import over_time

FEATURE = Feature(sections={"curves": over_time}, answers=answers, on_matrix=first_seconds)
