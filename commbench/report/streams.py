"""Soaks of streams: a line for each with how its rate rose, and its intervals as iperf3 prints
them. Networks count bits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.case_names import case_names
from commbench.analysis.reference import fact
from commbench.core.states import Row
from commbench.core.terminal import TableColumn, Terminal, table_text
from commbench.core.units import format_number, plural
from commbench.stats.thresholds import FULL_SPEED_SHARE

from .quantities import NO_NUMBER, Unit

MEGABITS = Unit("Mb/s", 1e-3 / 8)  # in GB/s, as the columns of cases.parquet
GIGABITS = Unit("Gb/s", 1 / 8)
INTERVAL_LINES = 20  # of one stream, unless all are asked for
LONGEST_BAR = 24  # characters
RAMP = ("end_gb_per_s", "first_second_gb_per_s", "full_speed_s", "least_gb_per_s", "retransmits")
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
    f" full speed: the start of two intervals with {100 * FULL_SPEED_SHARE:.0f} % of that; least:"
    " the slowest interval from there on; Retr: sent again"
)
INTERVALS = ("interval.repetitions", "interval.busy_s")
SENDER = ("sender.retransmits", "sender.cwnd_bytes", "sender.rtt_s")
INTERVAL_HEADS = ("from\ns", "to\ns", "transfer\nMB", "rate", "Retr", "Cwnd\nKiB", "RTT\nms", "")
FORMS = ("{:.2f}", "{:.2f}", "", "", "{:.0f}", "{:.0f}", "{:.3g}")  # empty: format_number
WORD_END = re.compile(r" (?![kKMGT]?i?B\b)")  # 16 KiB is one word
Column = NDArray[np.float64]


def is_stream_soak(row: Row) -> bool:
    return row.get("end_gb_per_s") is not None


def repetition_bytes(row: Row) -> int:
    """Of a measured repetition: all writes between two stamps."""
    return int(row["operations_per_sample"]) * int(row["message_bytes"])


def bit_unit(soaks: Sequence[Row]) -> Unit:
    """One for all: Mb/s up to 10 Gb/s at their ends, so that a link of 1 Gb/s has its digits."""
    ends = [row["end_gb_per_s"] for row in soaks]
    return GIGABITS if max(ends, default=0.0) >= 10 * GIGABITS.size else MEGABITS


def streams_text(rows: Sequence[Row], terminal: Terminal) -> str:
    """A line for each soak of a stream; empty without any."""
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
    """The heading with what all of their names begin with, and the rest of each; of several
    launches of a case with their number."""
    names = case_names(soaks)
    counts = Counter(names)
    words = [
        WORD_END.split(f"{name}, trial {row['trial']}" if counts[name] > 1 else name)
        for name, row in zip(names, soaks, strict=True)
    ]
    alike = takewhile(lambda column: len({*column}) == 1, zip(*words, strict=False))
    count = min(len([*alike]), *(len(each) - 1 for each in words)) if len(words) > 1 else 1
    benchmark, *shared = words[0][:count]
    return f"{benchmark}\n{' '.join(shared)}", [" ".join(each[count:]) for each in words]


def _cells(row: Row, unit: Unit) -> tuple[str, ...]:
    after_s = row["full_speed_s"]
    resent = row["retransmits"]
    # within a node the limit is the memory's, of which a stream uses little
    share = row["efficiency"] if fact(row, "span") == "between" else None
    return (
        unit.text(row["algbw_gb_per_s"]),
        NO_NUMBER if share is None else format_number(100 * share),
        unit.text(row["end_gb_per_s"]),
        unit.text(row["first_second_gb_per_s"]),
        NO_NUMBER if after_s is None else f"{after_s:.1f}",
        unit.text(row["least_gb_per_s"]),
        NO_NUMBER if resent is None else str(resent),
    )


def _is_slow_at_first(row: Row) -> bool:
    first = row["first_second_gb_per_s"]
    return first is not None and first < FULL_SPEED_SHARE * row["end_gb_per_s"]


def slow_start_text(soaks: Sequence[Row], unit: Unit) -> str:
    """How many fresh connections were slower in their first second; empty where none lasted long
    enough."""
    known = [row for row in soaks if row["first_second_gb_per_s"] is not None]
    slow = [row for row in known if _is_slow_at_first(row)]
    counted = plural(len(known), "stream", "streams")
    if not slow:
        return f"The first second is no slower than the end in {counted}." if known else ""
    firsts = [row["first_second_gb_per_s"] for row in slow]
    ends = [row["end_gb_per_s"] for row in slow]
    many = len(slow) > 1
    return (
        f"The first second is slower than the end in {len(slow)} of {counted}:"
        f" {'their first seconds' if many else 'its first second'}: {_span(firsts, unit)};"
        f" {'their ends' if many else 'its end'}: {_span(ends, unit)}."
    )


def _span(rates: Sequence[float], unit: Unit) -> str:
    ends = dict.fromkeys(map(unit.text, (min(rates), max(rates))))
    return f"{' to '.join(ends)} {unit.name}"


def stream_sentences(soaks: Sequence[Row]) -> list[str]:
    """One for their first seconds, and one for each stream."""
    if not soaks:
        return []
    unit = bit_unit(soaks)
    lines = [
        f"{name}: {unit.text(row['end_gb_per_s'])} {unit.name} at the end{_ramp_text(row, unit)}."
        for name, row in zip(case_names(soaks), soaks, strict=True)
    ]
    return [*filter(None, [slow_start_text(soaks, unit)]), *lines]


def _ramp_text(row: Row, unit: Unit) -> str:
    first = f", {unit.text(row['first_second_gb_per_s'])} in the first second"
    after_s = row["full_speed_s"]
    full_speed = (
        "; the rate may still rise" if after_s is None else f", full speed after {after_s:.1f} s"
    )
    return f"{first if _is_slow_at_first(row) else ''}{full_speed}"


# ---------------------------------------------------------------- intervals


@dataclass(frozen=True)
class _Lines:
    """Columns [n]: of each interval its ends, what arrived, and what the sender's connections did;
    NaN where that is not known."""

    begin_s: Column
    end_s: Column
    moved_bytes: Column
    busy_s: Column
    resent: Column
    cwnd_bytes: Column  # at its end, as the round trip
    rtt_s: Column

    @property
    def rates_gb_per_s(self) -> Column:
        """By the whole interval; NaN where nothing was measured."""
        spent_s = np.where(self.busy_s > 0, self.end_s - self.begin_s, np.nan)
        return self.moved_bytes * 1e-9 / spent_s

    def merged(self, each: int) -> _Lines:
        """With so many neighbours as one."""
        firsts = np.arange(0, len(self.begin_s), each)
        lasts = np.append(firsts[1:], len(self.begin_s)) - 1
        return _Lines(
            begin_s=self.begin_s[firsts],
            end_s=self.end_s[lasts],
            moved_bytes=np.add.reduceat(self.moved_bytes, firsts),
            busy_s=np.add.reduceat(self.busy_s, firsts),
            resent=np.add.reduceat(self.resent, firsts),
            cwnd_bytes=self.cwnd_bytes[lasts],
            rtt_s=self.rtt_s[lasts],
        )


class StreamLine:
    """The intervals of a stream, from the counters of its case."""

    def __init__(self, repetition_bytes: int) -> None:
        self._repetition_bytes = repetition_bytes
        self._values: dict[str, dict[int, float]] = {name: {} for name in (*INTERVALS, *SENDER)}

    def add(self, counters: Mapping[str, Any]) -> None:
        """Columns of counters.parquet."""
        if not counters:
            return
        columns = (counters[name] for name in ("t_ns", "name", "value"))
        for t_ns, name, value in zip(*columns, strict=True):
            if name in self._values:
                self._values[name][int(t_ns)] = float(value)

    def text(self, title: str, unit: Unit, terminal: Terminal, every: bool = False) -> str:
        """A line for each interval, or at most INTERVAL_LINES, of several; empty without any."""
        intervals = len(self._values[INTERVALS[0]])
        if intervals < 2:
            return ""
        each = 1 if every else -(-intervals // INTERVAL_LINES)
        single = self._lines()
        lines = single.merged(each)
        rates = lines.rates_gb_per_s
        columns = [
            TableColumn(f"{head}\n{unit.name}" if head == "rate" else head, right=bool(head))
            for head in INTERVAL_HEADS
        ]
        numbers = (
            lines.begin_s,
            lines.end_s,
            lines.moved_bytes / 1e6,
            rates / unit.size,
            lines.resent,
            lines.cwnd_bytes / 1024,
            lines.rtt_s * 1e3,
        )
        lengths = np.nan_to_num(LONGEST_BAR * rates / np.nanmax(rates)).round().astype(int)
        cells = [
            (*map(_number, FORMS, values), "#" * length)
            for *values, length in zip(*numbers, lengths, strict=True)
        ]
        moved_bytes = single.moved_bytes.sum()
        whole = unit.text(moved_bytes * 1e-9 / single.end_s[-1])
        total = (
            f"{title}: {format_number(moved_bytes / 1e6)} MB in {single.end_s[-1]:.2f} s,"
            f" {whole} {unit.name}"
        )
        if each > 1:
            step_s = single.begin_s[1]
            total += (
                f"; a line for {each} intervals of {step_s:g} s (show RUN --intervals: for each)"
            )
        return f"{terminal.paragraph(total)}\n{table_text(columns, cells, terminal)}"

    def _lines(self) -> _Lines:
        """The sender's clock may be another one than the receiver's: both count from the start."""
        begin_s, repetitions = _columns(self._values[INTERVALS[0]])
        _, busy_s = _columns(self._values[INTERVALS[1]])
        step_s = begin_s[1]
        edges_s = np.append(begin_s, begin_s[-1] + step_s)
        end_s = np.append(begin_s[1:], begin_s[-1] + min(step_s, busy_s[-1]))
        resent, cwnd_bytes, rtt_s = np.full((3, len(begin_s)), np.nan)
        at_s, segments = _columns(self._values[SENDER[0]])
        if len(at_s):
            newest = np.clip(np.searchsorted(at_s, edges_s + step_s / 2) - 1, 0, None)
            resent = np.diff(segments[newest])
            cwnd_bytes, rtt_s = (_columns(self._values[name])[1][newest[1:]] for name in SENDER[1:])
        moved_bytes = repetitions * self._repetition_bytes
        return _Lines(begin_s, end_s, moved_bytes, busy_s, resent, cwnd_bytes, rtt_s)


def _columns(values: Mapping[int, float]) -> tuple[Column, Column]:
    """Seconds since the first reading, and the values."""
    ordered = sorted(values)
    instants = np.array(ordered, dtype=np.int64)
    begin = ordered[0] if ordered else 0
    numbers = np.array([values[t_ns] for t_ns in ordered], dtype=np.float64)
    return (instants - begin).astype(np.float64) * 1e-9, numbers


def _number(form: str, value: float) -> str:
    if np.isnan(value):
        return NO_NUMBER
    return form.format(value) if form else format_number(value)
