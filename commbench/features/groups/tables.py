"""What operations of several groups at once cost each other, and what is won by it, from the times
of each alone and of all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv

from commbench.core.errors import ConfigError
from commbench.core.texts import microseconds_text
from commbench.core.units import format_bytes, format_number
from commbench.report.showing import DerivedTable
from commbench.report.table import Table
from commbench.results.columns import grouped, of_same_run
from commbench.results.intervals import known_interval
from commbench.results.row import Row
from commbench.stats.interval import Interval, of_formula

from .operations import GroupOperations, parse_group_operations

GAIN_HEADS = (
    "operation", "beside", "layout", "message", "alone\nus", "at once\nus", "slowdown\nx", "p99\nx",
    "gain\nx",
)  # fmt: skip
GAIN_MEANING = (
    "slowdown: time at once / time alone; p99: the same of single operations, without interval;"
    " gain: sum of the times alone / time until the last has ended: above 1, at once is faster than"
    " one after another"
)


@dataclass(frozen=True)
class GroupGain:
    """`operation` is one of those at once, or all of them: then `slowdown` is None and `gain` is
    not. `row` is that of the operations at once."""

    row: Row
    operation: str
    beside: str
    alone: Interval
    at_once: Interval
    slowdown: Interval | None = None
    p99_slowdown: float | None = None
    gain: Interval | None = None

    def cells(self) -> tuple[str, ...]:
        """By GAIN_HEADS."""
        return (
            self.operation,
            self.beside,
            f"{self.row.backend} {self.row.layout}",
            format_bytes(self.row.message_bytes),
            self.alone.text(microseconds_text),
            self.at_once.text(microseconds_text),
            "-" if self.slowdown is None else self.slowdown.text(format_number),
            format_number(self.p99_slowdown),
            "-" if self.gain is None else self.gain.text(format_number),
        )


def derived(rows: Iterable[Row]) -> DerivedTable:
    cells = [gain.cells() for gain in group_gains(rows)]
    return DerivedTable("Groups at once", Table.of(GAIN_HEADS, cells), GAIN_MEANING)


def group_gains(rows: Iterable[Row]) -> list[GroupGain]:
    """Of all operations at once that were also measured alone; by run and all other variables."""
    measured = [row for row in rows if row.groups and known_interval(row) is not None]
    together = grouped(measured, lambda row: of_same_run(row, ("groups",)))
    return [gain for alike in together.values() for gain in _gains(alike)]


def _gains(rows: Sequence[Row]) -> Iterator[GroupGain]:
    by_text = {str(row.groups): row for row in rows}
    for text, row in by_text.items():
        try:
            operations = parse_group_operations(text)
        except ConfigError:  # a file that something else has written
            continue
        if len(operations.entries) < 2:
            continue
        if operations.timed is None:
            yield from _gain_of_all(row, operations, by_text)
        else:
            yield from _slowdown_of_one(row, operations, operations.timed, by_text)


def _gain_of_all(
    row: Row, operations: GroupOperations, by_text: Mapping[str, Row]
) -> Iterator[GroupGain]:
    alone_rows = [by_text.get(entry.text) for entry in operations.entries]
    alone = [time for each in alone_rows if each and (time := known_interval(each)) is not None]
    together = known_interval(row)
    if together is None or len(alone) < len(operations.entries):
        return
    one_after_another = of_formula(lambda *times: sum(times), *alone)
    gain = of_formula(truediv, one_after_another, together)
    yield GroupGain(row, operations.text, "", one_after_another, together, gain=gain)


def _slowdown_of_one(
    row: Row, operations: GroupOperations, timed: int, by_text: Mapping[str, Row]
) -> Iterator[GroupGain]:
    entry = operations.entries[timed]
    alone_row = by_text.get(entry.text)
    alone = None if alone_row is None else known_interval(alone_row)
    at_once = known_interval(row)
    if alone_row is None or alone is None or at_once is None:
        return
    others = (other.text for other in operations.entries if other != entry)
    tail_s = row.p99_s
    alone_tail_s = alone_row.p99_s
    p99_slowdown = tail_s / alone_tail_s if tail_s and alone_tail_s else None
    yield GroupGain(
        row,
        entry.text,
        ", ".join(others),
        alone,
        at_once,
        of_formula(truediv, at_once, alone),
        p99_slowdown,
    )
