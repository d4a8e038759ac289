"""Soaks of streams: a line for each with how its rate rose. Networks count bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count, takewhile
from operator import itemgetter
from statistics import median

from commbench.analysis.case_names import case_names
from commbench.core.layout import SELF, link_of
from commbench.core.terminal import TableColumn, Terminal, table_text
from commbench.core.texts import span_text
from commbench.core.units import NO_NUMBER, Unit, bit_rate_unit, format_number, plural
from commbench.report.quantities import is_stream_soak, line_share_text
from commbench.results.columns import grouped
from commbench.results.row import Row
from commbench.stats.thresholds import FULL_SPEED_SHARE

HEADS = {  # without the unit; of a narrow terminal the last ones are left out
    "rate\n{unit}": 0,
    "of limit\n%": 1,
    "at the end\n{unit}": 0,
    "first second\n{unit}": 2,
    "full speed\nafter s": 3,
    "least\nafter": 4,
    "Retr\nsegments": 1,
}
MEANINGS = (
    "rate: all bytes over the whole time; at the end: median of the last fifth of the intervals;"
    f" full speed: the end of the first of two intervals with {100 * FULL_SPEED_SHARE:.0f} % of"
    " that; least: the slowest interval from its start on; Retr: sent again"
)
WORD_END = re.compile(r" (?![kKMGT]?i?B\b)")  # 16 KiB is one word


def repetition_bytes(row: Row) -> int:
    """Of a measured repetition: all writes between two stamps."""
    return (row.operations_per_sample or 1) * row.message_bytes


def bit_unit(soaks: Sequence[Row]) -> Unit:
    """One for all, which fits the rate at the end of most."""
    ends = [row.end_gb_per_s for row in soaks if row.end_gb_per_s is not None]
    return bit_rate_unit(median(ends or [0.0]))


def streams_text(rows: Sequence[Row], terminal: Terminal) -> str:
    """A line for each soak of a stream (rows as until_full_speed has them); empty without any."""
    soaks = [row for row in rows if is_stream_soak(row)]
    if not soaks:
        return ""
    unit = bit_unit(soaks)
    shared, names = _names(soaks)
    columns = [TableColumn(shared)]
    for head, priority in HEADS.items():
        columns.append(TableColumn(head.format(unit=unit.name), right=True, priority=priority))
    cells = [(name, *_cells(row, unit)) for name, row in zip(names, soaks, strict=True)]
    sentences = [slow_start_text(soaks, unit), MEANINGS]
    notes = [terminal.paragraph(text) for text in sentences if text]
    return "\n".join([table_text(columns, cells, terminal), *notes])


def _names(soaks: Sequence[Row]) -> tuple[str, list[str]]:
    """The heading with what all of their names begin with, and the rest of each."""
    words = [WORD_END.split(name) for name in _numbered(case_names(soaks), soaks)]
    alike = takewhile(lambda column: len({*column}) == 1, zip(*words, strict=False))
    shared_words = min(len([*alike]), *(len(each) - 1 for each in words)) if len(words) > 1 else 1
    heading = " ".join(words[0][:shared_words]).replace(" ", "\n", 1)
    return heading, [" ".join(each[shared_words:]) for each in words]


def _numbered(names: Sequence[str], soaks: Sequence[Row]) -> Iterator[str]:
    """Several runs of a case with their trials, or their numbers where these do not tell them
    apart."""
    runs = grouped(zip(names, soaks, strict=True), itemgetter(0))
    trials = {name: [row.trial for _, row in own] for name, own in runs.items()}
    numbers = {name: count(1) for name in runs}
    for name, row in zip(names, soaks, strict=True):
        number = next(numbers[name])
        if len(runs[name]) == 1:
            yield name
        elif len(set(trials[name])) == len(trials[name]):
            yield f"{name}, trial {row.trial}"
        else:
            yield f"{name}, run {number}"


def _cells(row: Row, unit: Unit) -> tuple[str, ...]:
    after_s = row.full_speed_s
    resent = row.retransmits
    return (
        unit.text(row.algbw_gb_per_s),
        line_share_text([row]),
        unit.text(row.end_gb_per_s),
        unit.text(row.first_second_gb_per_s),
        NO_NUMBER if after_s is None else f"{after_s:.1f}",
        unit.text(row.least_gb_per_s),
        NO_NUMBER if resent is None else str(resent),
    )


def _fresh_over_reused(row: Row) -> float | None:
    """The rate of the first second over that at the end."""
    first = row.first_second_gb_per_s
    return first / row.end_gb_per_s if first is not None and row.end_gb_per_s else None


def _is_slow_at_first(row: Row) -> bool:
    share = _fresh_over_reused(row)
    return share is not None and share < FULL_SPEED_SHARE


def slow_start_text(soaks: Sequence[Row], unit: Unit) -> str:
    """How many fresh connections were slower in their first second than reused ones, those at the
    end, and by how much; empty where none lasted long enough. A rank's stream to itself crosses no
    network."""
    known = [
        row
        for row in soaks
        if row.first_second_gb_per_s is not None and link_of(row.layout, row.pair) != SELF
    ]
    slow = [row for row in known if _is_slow_at_first(row)]
    counted = plural(len(known), "stream", "streams")
    if not slow:
        return f"A fresh connection is no slower than a reused one in {counted}." if known else ""
    factors = span_text([*map(_fresh_over_reused, slow)], format_number)
    firsts = span_text([row.first_second_gb_per_s for row in slow], unit.text)
    ends = span_text([row.end_gb_per_s for row in slow], unit.text)
    return (
        f"A fresh connection is slower than a reused one in {len(slow)} of {counted}: its first"
        f" second has {factors} x the rate at the end ({firsts} of {ends} {unit.name})."
    )


def stream_sentences(soaks: Sequence[Row]) -> list[str]:
    """One for fresh connections, and one for each stream."""
    if not soaks:
        return []
    unit = bit_unit(soaks)
    lines = [
        f"{name}: {unit.text(row.end_gb_per_s)} {unit.name} at the end{_ramp_text(row, unit)}."
        for name, row in zip(case_names(soaks), soaks, strict=True)
    ]
    return [*filter(None, [slow_start_text(soaks, unit)]), *lines]


def _ramp_text(row: Row, unit: Unit) -> str:
    first = f", {unit.text(row.first_second_gb_per_s)} in the first second"
    after_s = row.full_speed_s
    full_speed = (
        "; the rate may still rise" if after_s is None else f", full speed after {after_s:.1f} s"
    )
    return f"{first if _is_slow_at_first(row) else ''}{full_speed}"
