"""The traffic of a run: its columns."""

from __future__ import annotations

from commbench.measure.measuring import Measuring

from .columns import traffic_columns

MEASURING = Measuring(of_case=traffic_columns)
