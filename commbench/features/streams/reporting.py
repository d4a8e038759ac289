"""Soaks in a report."""

from __future__ import annotations

from commbench.report.reporting import Reporting

from .answers import answers, first_seconds
from .over_time import over_time

REPORTING = Reporting(sections={"curves": over_time}, answers=answers, on_matrix=first_seconds)
