"""Soaks of streams: a line for each with how its rate rose, and its intervals as iperf3 prints
them. Networks count bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.case_names import case_names
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
HEADS = ("at the end", "first second", "full speed\nafter s", "least\nthen", "resent\nsegments")
MEANINGS = (
    "at the end: median of the last fifth of the intervals; full speed:"
    f" {100 * FULL_SPEED_SHARE:.0f} % of that, in two intervals; least: the slowest interval then"
)
INTERVALS = ("interval.repetitions", "interval.busy_s")
SENDER = ("sender.retransmits", "sender.cwnd_bytes", "sender.rtt_s")
INTERVAL_HEADS = (
    "from\ns",
    "to\ns",
    "transfer\nMB",
    "rate",
    "Retr",
    "Cwnd\nKiB",
    "RTT\nms",
    "",
)


def is_stream_soak(row: Row) -> bool:
    return row.get("end_gb_per_s") is not None


def repetition_bytes(row: Row) -> int:
    """Of a measured repetition: all writes between two stamps."""
    return int(row["operations_per_sample"]) * int(row["message_bytes"])


def bit_unit(rates_gb_per_s: Sequence[float]) -> Unit:
    """Mb/s up to 10 Gb/s, so that a link of 1 Gb/s has its digits."""
    return GIGABITS if max(rates_gb_per_s, default=0.0) >= 10 * GIGABITS.size else MEGABITS


def streams_text(rows: Sequence[Row], terminal: Terminal) -> str:
    """A line for each soak of a stream; empty without any."""
    soaks = [row for row in rows if is_stream_soak(row)]
    if not soaks:
        return ""
    unit = bit_unit([row["end_gb_per_s"] for row in soaks])
    heads = [
        f"{head}\n{unit.name}" if number in (0, 1) else head for number, head in enumerate(HEADS)
    ]
    columns = [TableColumn("stream"), *(TableColumn(head, right=True) for head in heads)]
    cells = [(name, *_cells(row, unit)) for name, row in zip(case_names(soaks), soaks, strict=True)]
    sentences = [slow_start_text(soaks, unit), MEANINGS]
    notes = [terminal.paragraph(text) for text in sentences if text]
    return "\n".join([table_text(columns, cells, terminal), *notes])


def _cells(row: Row, unit: Unit) -> tuple[str, ...]:
    after_s = row["full_speed_s"]
    resent = row["retransmits"]
    return (
        unit.text(row["end_gb_per_s"]),
        unit.text(row["first_second_gb_per_s"]),
        NO_NUMBER if after_s is None else f"{after_s:.1f}",
        unit.text(row["least_gb_per_s"]),
        NO_NUMBER if resent is None else str(resent),
    )


def slow_start_text(soaks: Sequence[Row], unit: Unit) -> str:
    """How many fresh connections were slower in their first second; empty where none lasted for
    two seconds."""
    known = [row for row in soaks if row["first_second_gb_per_s"] is not None]
    slow = [
        row
        for row in known
        if row["first_second_gb_per_s"] < FULL_SPEED_SHARE * row["end_gb_per_s"]
    ]
    if not known:
        return ""
    counted = plural(len(known), "stream", "streams")
    if not slow:
        return f"The first second is as fast as the end in {counted}."
    firsts, ends = (
        [row[name] for row in slow] for name in ("first_second_gb_per_s", "end_gb_per_s")
    )
    low, high = (unit.text(value) for value in (min(firsts), max(firsts)))
    span = low if low == high else f"{low} to {high}"
    return (
        f"The first second is slower than the end in {len(slow)} of {counted}: {span} {unit.name},"
        f" then {unit.text(median(ends))}."
    )


def stream_sentences(soaks: Sequence[Row]) -> list[str]:
    """One for each stream, and one for their first seconds."""
    if not soaks:
        return []
    unit = bit_unit([row["end_gb_per_s"] for row in soaks])
    lines = [
        f"{name}: {unit.text(row['end_gb_per_s'])} {unit.name} at the end{_speed_text(row)}."
        for name, row in zip(case_names(soaks), soaks, strict=True)
    ]
    return [*filter(None, [slow_start_text(soaks, unit)]), *lines]


def _speed_text(row: Row) -> str:
    after_s = row["full_speed_s"]
    return ", where it may still rise" if after_s is None else f", full speed after {after_s:.1f} s"


# ---------------------------------------------------------------- intervals


@dataclass(frozen=True)
class _Lines:
    """Columns [n]: when each interval begins and what was in it; counters of the sender are NaN
    where there are none."""

    begin_s: NDArray[np.float64]
    repetitions: NDArray[np.float64]
    busy_s: NDArray[np.float64]
    sender: NDArray[np.float64]  # [n, 3]: see SENDER; retransmits since the one before


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

    def text(self, title: str, terminal: Terminal, every: bool = False) -> str:
        """A line for each interval, or at most INTERVAL_LINES, of several; empty without any."""
        lines = self._lines()
        if len(lines.begin_s) < 2:
            return ""
        each = 1 if every else -(-len(lines.begin_s) // INTERVAL_LINES)
        firsts = np.arange(0, len(lines.begin_s), each)
        transfer_bytes, busy_s = (
            np.add.reduceat(values, firsts)
            for values in (lines.repetitions * self._repetition_bytes, lines.busy_s)
        )
        rates = transfer_bytes / busy_s * 1e-9
        unit = bit_unit(rates.tolist())
        step_s = float(lines.begin_s[1])
        ends_s = [*lines.begin_s[firsts[1:]], lines.begin_s[-1] + min(step_s, lines.busy_s[-1])]
        resent = np.add.reduceat(lines.sender[:, 0], firsts)
        lasts = np.append(firsts[1:], len(lines.begin_s)) - 1
        cells = [
            (
                f"{lines.begin_s[first]:.2f}",
                f"{end_s:.2f}",
                format_number(moved / 1e6),
                unit.text(rate),
                _number(segments, "{:.0f}"),
                _number(lines.sender[last, 1] / 1024, "{:.0f}"),
                _number(lines.sender[last, 2] * 1e3, "{:.3g}"),
                "#" * max(1, round(LONGEST_BAR * rate / rates.max())),
            )
            for first, last, end_s, moved, rate, segments in zip(
                firsts, lasts, ends_s, transfer_bytes.tolist(), rates.tolist(), resent, strict=True
            )
        ]
        heads = [
            f"{head}\n{unit.name}" if number == 3 else head
            for number, head in enumerate(INTERVAL_HEADS)
        ]
        columns = [TableColumn(head, right=True) for head in heads[:-1]] + [TableColumn(heads[-1])]
        whole = transfer_bytes.sum() / busy_s.sum() * 1e-9
        total = (
            f"{title}: {format_number(transfer_bytes.sum() / 1e6)} MB in {ends_s[-1]:.2f} s,"
            f" {unit.text(whole)} {unit.name}"
        )
        if each > 1:
            total += f"; a line for {each} intervals of {step_s:g} s (show --intervals: for each)"
        return f"{terminal.paragraph(total)}\n{table_text(columns, cells, terminal)}"

    def _lines(self) -> _Lines:
        """The sender's clock may be another one than the receiver's: both count from the start."""
        repetitions, busy_s = (_columns(self._values[name]) for name in INTERVALS)
        begin_s = repetitions[0]
        sender = np.full((len(begin_s), len(SENDER)), np.nan)
        if self._values[SENDER[0]] and len(begin_s) > 1:
            at_s = _columns(self._values[SENDER[0]])[0]
            readings = np.column_stack([_columns(self._values[name])[1] for name in SENDER])
            half_s = begin_s[1] / 2
            edges_s = np.append(begin_s, begin_s[-1] + begin_s[1])
            newest = np.clip(np.searchsorted(at_s, edges_s + half_s) - 1, 0, None)
            sender = readings[newest[1:]]
            sender[:, 0] -= readings[newest[:-1], 0]
        return _Lines(begin_s, repetitions[1], busy_s[1], sender)


def _columns(values: Mapping[int, float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds since the first reading, and the values."""
    ordered = sorted(values)
    instants = np.array(ordered, dtype=np.int64)
    begin = ordered[0] if ordered else 0
    numbers = np.array([values[t_ns] for t_ns in ordered], dtype=np.float64)
    return (instants - begin).astype(np.float64) * 1e-9, numbers


def _number(value: float, form: str) -> str:
    return NO_NUMBER if np.isnan(value) else form.format(value)
