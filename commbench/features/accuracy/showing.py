"""Sums below a run, in a report, and beside the verdicts of a comparison."""

from __future__ import annotations

from commbench.report.showing import Showing

from .compared import cells, change, summary
from .tables import derived

SHOWING = Showing(
    tables=(derived,),
    compared_cells=cells,
    compared_summary=summary,
    change=change,
    changing=("launch_hashes",),
)
