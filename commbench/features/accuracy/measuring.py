"""payload=rounding in a run: other values, and what is found out about their sums."""

from __future__ import annotations

from commbench.measure.measuring import Measuring

from .findings import COLUMNS, probe
from .rounding import around

MEASURING = Measuring(
    around=around,
    probe=probe,
    columns={name: column.merged for name, column in COLUMNS.items()},
)
