"""How the numbers of a row are shown, everywhere: name, unit, width, and when there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from commbench.core.layout import ACROSS_NODES, link_of
from commbench.core.states import LimitKind
from commbench.core.texts import some_of, span_text
from commbench.core.units import NO_NUMBER, SECONDS, Unit, format_number
from commbench.results.intervals import interval_of
from commbench.results.row import Row
from commbench.stats.interval import Interval, widest

# of rates in GB/s
RATES: Mapping[str, float] = {"kB/s": 1e-6, "MB/s": 1e-3, "GB/s": 1.0}
LIMIT_WORDS: Mapping[LimitKind, str] = {
    "memory": "memory",
    "nvlink": "published rate of the link",
    "pcie": "published rate of the link",
    "line": "published rate of the link",
    "network": "network",
    "told": "network",
}
MOST_LIMITS = 3  # that a text names
LEAST_SHOWN = 0.01  # a smaller number is written in a smaller unit
MOST_SHOWN = 100_000.0  # and a column of larger ones in a larger one


@dataclass(frozen=True, eq=False)
class Quantity:
    """A column of cases.parquet with an interval. `units` are ascending; the usual one is taken
    unless a column of numbers is too small or too large for it."""

    column: str
    name: str
    units: Mapping[str, float]
    usual: str

    def of(self, row: Row) -> Interval | None:
        return interval_of(row, self.column)

    def unit(self, rows: Iterable[Row]) -> Unit:
        """The unit of a column with these rows."""
        seen = [getattr(row, self.column) for row in rows if getattr(row, self.column)]
        names = list(self.units)
        at = names.index(self.usual)
        if not seen:
            return Unit(self.usual, self.units[self.usual])
        sizes = list(self.units.values())
        while at and min(seen) < LEAST_SHOWN * sizes[at] and max(seen) < MOST_SHOWN * sizes[at - 1]:
            at -= 1
        while at < len(names) - 1 and min(seen) >= MOST_SHOWN * sizes[at]:
            at += 1
        return Unit(names[at], sizes[at])


MEDIAN = Quantity("median_s", "time", dict(reversed(SECONDS.items())), "us")
ALGBW = Quantity("algbw_gb_per_s", "bandwidth", RATES, "GB/s")
BUSBW = Quantity("busbw_gb_per_s", "busbw", RATES, "GB/s")
# of a collective: its size over time
COLLECTIVE_ALGBW = Quantity("algbw_gb_per_s", "algbw", RATES, "GB/s")
MESSAGE_RATE = Quantity("message_rate_per_s", "message rate", {"messages/s": 1.0}, "messages/s")


def is_measured(row: Row) -> bool:
    return row.status == "ok"


def is_collective(row: Row) -> bool:
    return not row.pair and row.busbw_gb_per_s is not None


def is_stream_soak(row: Row) -> bool:
    """Whether its time is the mean of writes that followed one another."""
    return row.end_gb_per_s is not None


def has_several_pairs(row: Row) -> bool:
    """Whether several pairs send windows of messages at once, whose rate is quoted."""
    return " " in (row.pair or "") and row.window is not None


def has_bandwidth(row: Row) -> bool:
    """Whether its bandwidth says more than its time: not of a single message at a time."""
    return quoted([row])[-1] is not MEDIAN


def quoted(rows: Sequence[Row]) -> tuple[Quantity, ...]:
    """What people quote of a benchmark: of windows and streams the bandwidth, of several pairs also
    the messages per second, of single messages the time, of a collective time and bus
    bandwidth."""
    if any(map(is_collective, rows)):
        return MEDIAN, BUSBW
    is_rate = any(row.window is not None or row.is_stream for row in rows)
    if any(map(has_several_pairs, rows)):
        return MESSAGE_RATE, ALGBW
    return (ALGBW,) if is_rate else (MEDIAN,)


def in_full(rows: Sequence[Row]) -> tuple[Quantity, ...]:
    """What is quoted where there is room: of a collective also algbw, if it is not the busbw."""
    collectives = filter(is_collective, rows)
    apart = any(row.algbw_gb_per_s != row.busbw_gb_per_s for row in collectives)
    return (MEDIAN, COLLECTIVE_ALGBW, BUSBW) if apart else quoted(rows)


def number_of(rows: Sequence[Row], quantity: Quantity) -> Interval | None:
    """Of the rows of a cell; of several launches the median with the widest interval."""
    intervals = [interval for row in rows if (interval := quantity.of(row)) is not None]
    if len(intervals) < 2:
        return next(iter(intervals), None)
    return widest(median(each.value for each in intervals), intervals)


def value_text(rows: Sequence[Row], quantity: Quantity, unit: Unit) -> str:
    """`~165`, in a cell; the status of a row without numbers stands in place of its time."""
    number = number_of(rows, quantity)
    if number is not None:
        return number.value_text(unit.text)
    lost = [row.status for row in rows if row.status != "ok"]
    return lost[0] if lost and quantity is MEDIAN else NO_NUMBER


def width_text(rows: Sequence[Row], quantity: Quantity) -> str:
    number = number_of(rows, quantity)
    return "" if number is None else number.width_text()


def text_with_unit(row: Row, quantity: Quantity, beside: Sequence[Row] = ()) -> str:
    """`~74.1 us ±12%`, of a single number, in one unit with those beside it; `-` without one."""
    interval = quantity.of(row)
    unit = quantity.unit(beside or [row])
    if interval is None:
        return NO_NUMBER
    return f"{interval.value_text(unit.text)} {unit.name} {interval.width_text()}"


def line_share_text(rows: Sequence[Row]) -> str:
    """The percentage of what the line between nodes carries, of several launches the median; `-`
    within a node, where the limit is the memory's."""
    across = [row for row in rows if row.pair and link_of(row.layout, row.pair) == ACROSS_NODES]
    shares = [row.efficiency for row in across if row.efficiency is not None]
    return format_number(100 * median(shares)) if shares else NO_NUMBER


def limit_text(rows: Sequence[Row]) -> str:
    """`limit 6.83 to 34.6 GB/s: memory (measured copy by a core)`; empty where none is known."""
    known = [row for row in rows if row.limit_gb_per_s]
    if not known:
        return ""
    rates = span_text([row.limit_gb_per_s for row in known], format_number)
    limits = sorted({(str(row.limit_name), row.limit_kind) for row in known})
    texts = [f"{LIMIT_WORDS[kind]} ({name})" if kind else name for name, kind in limits]
    return f"limit {rates} GB/s: {', '.join(some_of(texts, MOST_LIMITS))}"
