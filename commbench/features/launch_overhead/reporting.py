"""What launching a call costs as a table of a report."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.report.reporting import Reporting
from commbench.report.section import Section
from commbench.report.sections import table
from commbench.report.summary import Summary

from .overheads import LAUNCH_HEADS, launch_overheads, overhead_cells


def costs(summary: Summary) -> Iterator[Section]:
    overheads = launch_overheads(summary.results.of_operations)
    yield Section(
        "Cost of launching a call: waiting for it, and replaying it in a graph",
        tables=table(LAUNCH_HEADS, overhead_cells(overheads)),
        is_folded=True,
    )


REPORTING = Reporting(sections={"costs": costs})
