"""Calls that the host launches and waits for, against their replay in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from commbench.analysis.case_names import telling, unusual_texts
from commbench.analysis.families import WHOSE
from commbench.core.units import format_bytes, format_seconds
from commbench.results.columns import VARIABLES, grouped
from commbench.results.load import Paths, read_case_rows
from commbench.results.row import Measured, Row

if TYPE_CHECKING:
    import pandas as pd

OVERHEAD_CASE = (
    "benchmark",
    "backend",
    "layout",
    "dtype",
    "pair",
    "message_bytes",
    *WHOSE,
)
# pairs meet before each repetition that events time, and before each block that a host times
LAUNCH_KEY = (
    *(column.name for column in VARIABLES if column.name not in ("timer", "sync")),
    "hosts",
)
LAUNCH_HEADS = ("benchmark", "case", "message", "host waits", "graph", "launch", "share")


def launch_overhead(*paths: Paths) -> pd.DataFrame:
    """One row per case that was measured with timer=host_sync and graph: host_sync_s,
    graph_s, overhead_s.

        commbench.launch_overhead("results").sort_values("overhead_s")

    Raises CommbenchError like load.
    """
    import pandas as pd

    rows = [
        (*(getattr(each.row, name) for name in OVERHEAD_CASE), *each.times_s)
        for each in launch_overheads(read_case_rows(paths))
    ]
    frame = pd.DataFrame(rows, columns=[*OVERHEAD_CASE, "host_sync_s", "graph_s", "overhead_s"])
    return frame.fillna({"label": ""})


@dataclass(frozen=True)
class LaunchOverhead:
    """The medians over all runs of a case with both timers; `row` is one of the host's."""

    row: Measured
    host_sync_s: float
    graph_s: float

    @property
    def overhead_s(self) -> float:
        return self.host_sync_s - self.graph_s

    @property
    def times_s(self) -> tuple[float, float, float]:
        return self.host_sync_s, self.graph_s, self.overhead_s


def launch_overheads(rows: Iterable[Row]) -> list[LaunchOverhead]:
    """The launch overheads of the rows that are ok, by benchmark and size."""
    measured = [row for row in rows if isinstance(row, Measured)]
    waited, replayed = (
        grouped((row for row in measured if row.timer == timer), _launch_key)
        for timer in ("host_sync", "graph")
    )
    both = [
        LaunchOverhead(own[0], _median_s(own), _median_s(replayed[key]))
        for key, own in waited.items()
        if key in replayed
    ]
    return sorted(both, key=_overhead_order)


def _launch_key(row: Row) -> tuple[object, ...]:
    return (row.label or "", *(getattr(row, name) for name in LAUNCH_KEY))


def _median_s(rows: Sequence[Measured]) -> float:
    return median(row.median_s for row in rows)


def _overhead_order(each: LaunchOverhead) -> tuple[str | int, ...]:
    row = each.row
    return row.benchmark, row.backend, row.layout, row.pair or "", row.message_bytes


def overhead_cells(overheads: Sequence[LaunchOverhead]) -> list[tuple[str, ...]]:
    """The rows of a table with the headings LAUNCH_HEADS."""
    named = ("backend", "layout", "pair", "dtype")
    told = telling([each.row for each in overheads])
    more = [name for name in told if name not in ("benchmark", *named)]
    return [
        (
            each.row.benchmark,
            " ".join(
                (
                    *(value for name in named if (value := getattr(each.row, name))),
                    *unusual_texts(each.row, more),
                )
            ),
            format_bytes(each.row.message_bytes),
            *map(format_seconds, each.times_s),
            f"{100 * each.overhead_s / each.host_sync_s:.0f} %",
        )
        for each in overheads
    ]
