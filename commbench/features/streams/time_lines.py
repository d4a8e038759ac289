"""The intervals of a soak below the table of its run: times with a bar, or of a stream what iperf3
prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.case_names import case_names
from commbench.core.terminal import TableColumn, Terminal, table_text
from commbench.core.units import NO_NUMBER, Unit, format_number, format_seconds
from commbench.report.quantities import is_stream_soak
from commbench.results.row import Row

from .rates import bit_unit, repetition_bytes

MOST_LINES = 20  # of one case, unless all are asked for
MOST_INTERVALS = 4096  # kept of one case; when there are more, neighbours are merged
LONGEST_BAR = 24  # characters
TIMES = ("interval.median_s", "interval.min_s", "interval.max_s", "interval.repetitions")
TIME_HEADS = ("from\ns", "median\nus", "min\nus", "max\nus", "repetitions")
INTERVALS = ("interval.repetitions", "interval.busy_s")
SENDER = ("sender.retransmits", "sender.cwnd_bytes", "sender.rtt_s")
INTERVAL_HEADS = ("from\ns", "to\ns", "transfer\nMB", "rate", "Retr", "Cwnd\nKiB", "RTT\nms", "")
NUMBER_FORMATS = ("{:.2f}", "{:.2f}", "", "", "{:.0f}", "{:.0f}", "{:.3g}")  # empty: format_number

Column = NDArray[np.float64]


def time_line(row: Row) -> TimeLine | StreamLine:
    """An empty one for the intervals of a soak."""
    if not row.is_stream:
        return TimeLine()
    return StreamLine(repetition_bytes(row))


def _readings(counters: Mapping[str, Any]) -> Iterator[tuple[int, str, float]]:
    """The time, name and value of each counter."""
    columns = (counters.get(name, ()) for name in ("t_ns", "name", "value"))
    for t_ns, name, value in zip(*columns, strict=True):
        yield int(t_ns), str(name), float(value)


def time_line_texts(
    rows: Sequence[Row],
    time_lines: Mapping[str, TimeLine | StreamLine],
    terminal: Terminal,
    every: bool,
) -> list[str]:
    """Those of all soaks, but of several streams only where every interval is asked for: each has
    its line in a table."""
    streams = [row for row in rows if is_stream_soak(row)]
    shows_intervals = every or len(streams) == 1
    ids = [row.case_id for row in rows]
    name_of = dict(zip(ids, case_names(rows), strict=True)) if time_lines else {}
    texts = []
    for case_id, line in time_lines.items():
        name = name_of.get(case_id, case_id)
        if isinstance(line, TimeLine):
            texts.append(line.text(name, terminal))
        elif streams and shows_intervals:
            texts.append(line.text(name, bit_unit(streams), terminal, every))
    if streams and not shows_intervals:
        texts.append("the intervals of each stream: commbench show RUN --intervals")
    return texts


# ---------------------------------------------------------------- times


class TimeLine:
    """The intervals of a soak in bounded memory: [n, (begin in s, median, min, max in s,
    repetitions)]."""

    def __init__(self) -> None:
        self._intervals = np.empty((0, 5))

    def add(self, counters: Mapping[str, Any]) -> None:
        """Add the counters interval.* of a case."""
        values: dict[int, dict[str, float]] = {}
        for t_ns, name, value in _readings(counters):
            if name in TIMES:
                values.setdefault(t_ns, {})[name] = value
        rows = [[t_ns / 1e9, *(values[t_ns][name] for name in TIMES)] for t_ns in sorted(values)]
        self._intervals = np.concatenate([self._intervals, np.array(rows).reshape(-1, 5)])
        while len(self._intervals) > MOST_INTERVALS:
            self._intervals = _merged(self._intervals, 2)

    def text(self, title: str, terminal: Terminal) -> str:
        """A table of at most MOST_LINES lines; empty without intervals."""
        if len(self._intervals) < 2:
            return ""
        begin_s, end_s = self._intervals[[0, -1], 0]
        lines = _merged(self._intervals, -(-len(self._intervals) // MOST_LINES))
        longest = lines[:, 1].max() or 1.0
        columns = [
            TableColumn(text, right=True, priority=index) for index, text in enumerate(TIME_HEADS)
        ]
        columns.append(TableColumn("median", priority=len(columns)))
        rows = [
            (
                f"{at_s - begin_s:.1f}",
                *(format_number(1e6 * seconds) for seconds in (median_s, min_s, max_s)),
                f"{repetitions:.0f}",
                "#" * max(1, round(LONGEST_BAR * median_s / longest)),
            )
            for at_s, median_s, min_s, max_s, repetitions in lines.tolist()
        ]
        head = (
            f"{title}: time line of {format_seconds(end_s - begin_s)}, median: mean of the medians"
            " of its intervals"
        )
        return f"{terminal.paragraph(head)}\n{table_text(columns, rows, terminal)}"


def _merged(intervals: NDArray[np.float64], each: int) -> NDArray[np.float64]:
    """The intervals with `each` neighbours merged into one."""
    firsts = np.arange(0, len(intervals), each)
    _, median_s, min_s, max_s, repetitions = intervals.T
    medians_s = np.add.reduceat(median_s, firsts) / np.diff(firsts, append=len(intervals))
    ends_s = np.minimum.reduceat(min_s, firsts), np.maximum.reduceat(max_s, firsts)
    return np.stack(
        [intervals[firsts, 0], medians_s, *ends_s, np.add.reduceat(repetitions, firsts)], axis=1
    )


# ---------------------------------------------------------------- streams


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
        for t_ns, name, value in _readings(counters):
            if name in self._values:
                self._values[name][t_ns] = value

    def text(self, title: str, unit: Unit, terminal: Terminal, every: bool = False) -> str:
        """A line for each interval, or at most MOST_LINES, of several; empty without any."""
        intervals = len(self._values[INTERVALS[0]])
        if intervals < 2:
            return ""
        each = 1 if every else -(-intervals // MOST_LINES)
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
            (*map(_number, NUMBER_FORMATS, values), "#" * length)
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
