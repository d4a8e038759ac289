"""What an overlap hides and what it costs, from the times of its cases: communication and
computation, each alone and both at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import truediv

from commbench.analysis.case_names import telling, unusual_texts
from commbench.core.units import format_number
from commbench.report.showing import DerivedTable
from commbench.report.table import Table
from commbench.results.columns import case_text, grouped, of_same_run
from commbench.results.intervals import known_interval
from commbench.results.row import Row
from commbench.stats.interval import Interval, of_formula

OF_ONE_OVERLAP = ("overlap", "compute", "timed")  # what its cases differ in
IN_OVERLAP_TEXT = ("benchmark", "layout", "pair", "message_bytes", *OF_ONE_OVERLAP)
OVERLAP_HEADS = ("operation", "beside", "hidden\n%", "communication\nx", "computation\nx")
OVERLAP_MEANING = (
    "hidden: share of the communication that the computation covers, 1 - (together - compute) /"
    " communication; x: time beside the other / time alone; <=: the operation may end earlier"
)


@dataclass(frozen=True)
class OverlapResult:
    """`row` is that of the communication alone. `hidden`: 0 to 1, as the OSU benchmarks define it.
    The slowdowns are times beside the other over times alone; None where they were not measured.
    Without `is_end_seen` that of the communication is at most the given one."""

    row: Row
    overlap: str
    compute: str | None
    hidden: Interval
    communication_slowdown: Interval
    is_end_seen: bool
    compute_slowdown: Interval | None


def derived(rows: Iterable[Row]) -> DerivedTable:
    cells = overlap_cells(overlap_results(rows))
    return DerivedTable(
        "Communication beside computation", Table.of(OVERLAP_HEADS, cells), OVERLAP_MEANING
    )


def overlap_cells(results: Sequence[OverlapResult]) -> list[tuple[str, ...]]:
    """The cells of each result by OVERLAP_HEADS; an operation is named with the variables in which
    its results differ."""
    rows = [result.row for result in results]
    of_benchmark = {
        benchmark: [name for name in telling(alike) if name not in IN_OVERLAP_TEXT]
        for benchmark, alike in grouped(rows, lambda row: str(row.benchmark)).items()
    }
    return [_overlap_row(result, of_benchmark[result.row.benchmark]) for result in results]


def _overlap_row(result: OverlapResult, names: Sequence[str]) -> tuple[str, ...]:
    row = result.row
    more = unusual_texts(row, names)
    slowdown = result.compute_slowdown
    at_most = "" if result.is_end_seen else "<= "
    return (
        ", ".join((case_text(replace(row, timed=None)), *more)),
        result.overlap if result.compute is None else f"{result.overlap} {result.compute}",
        (100 * result.hidden).text(format_number),
        at_most + result.communication_slowdown.text(format_number),
        "-" if slowdown is None else slowdown.text(format_number),
    )


def overlap_results(rows: Iterable[Row]) -> list[OverlapResult]:
    """Of each overlap whose communication and computation alone, and both together, have times; by
    run and all other variables, in the order of the rows."""
    timed = [row for row in rows if row.timed and known_interval(row) is not None]
    operations = grouped(timed, lambda row: of_same_run(row, OF_ONE_OVERLAP))
    return [result for alike in operations.values() for result in _results(alike)]


def _results(rows: Sequence[Row]) -> Iterator[OverlapResult]:
    """Of the rows of one operation with one set of variables."""
    alone = next((row for row in rows if row.timed == "communication"), None)
    if alone is None:
        return
    computing = (row for row in rows if row.overlap is not None)
    groups = grouped(computing, lambda row: (row.overlap or "", row.compute))
    for (overlap, compute), own in groups.items():
        times = {str(row.timed): median for row in (alone, *own) if (median := known_interval(row))}
        if {"compute", "together"} <= set(times):
            yield _result(alone, overlap, compute, times)


def _result(
    row: Row, overlap: str, compute: str | None, times: Mapping[str, Interval]
) -> OverlapResult:
    communication = times["communication"]
    together = times["together"]
    beside = times.get("compute_beside")
    return OverlapResult(
        row,
        overlap,
        compute,
        of_formula(hidden_share, together, times["compute"], communication),
        of_formula(truediv, together, communication),
        _ends_later(together, beside),
        None if beside is None else of_formula(truediv, beside, times["compute"]),
    )


def hidden_share(together_s: float, compute_s: float, communication_s: float) -> float:
    """OSU's overlap."""
    return max(0.0, 1.0 - (together_s - compute_s) / communication_s)


def _ends_later(together: Interval, beside: Interval | None) -> bool:
    """Whether the operation surely ended after the computation beside it, so that its own end was
    seen."""
    return beside is not None and together.low > beside.high
