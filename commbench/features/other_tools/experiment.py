"""What a file of another tool says: the starts of the tool in it, with a row for each number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from commbench.core.layout import Layout
from commbench.core.units import format_bytes
from commbench.core.variables import NAMES
from commbench.results.row import Measured, Row

from .printed import Printed, contradiction

GB = 1e9
MOST_PROBLEMS = 5  # that are named
WITHOUT_RATE = ("p2p_latency", "barrier")
ONE_PATH = ("p2p_bandwidth", "stream")  # whose bus bandwidth is their bandwidth
DIVIDED = ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter")


def bus_factor(benchmark: str, ranks: int | None) -> float | None:
    """Of a collective, as nccl-tests and commbench have them; None where it is not known."""
    if benchmark in ONE_PATH or benchmark in ("broadcast", "reduce"):
        return 1.0
    if not ranks:
        return None
    if benchmark == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if benchmark in DIVIDED else None


@dataclass(frozen=True)
class RankPlace:
    """A rank as a file names it; None for what it does not say."""

    rank: int
    host: str | None = None
    gpu: str | None = None
    group: int = 0


def layout_of(places: Sequence[RankPlace]) -> Layout | None:
    """Nodes x ranks per node; None where a rank has no host, nodes have not the same number of
    ranks, or several groups of ranks run at once."""
    hosts = Counter(place.host for place in places)
    if not places or None in hosts or len(set(hosts.values())) > 1:
        return None
    if len({place.group for place in places}) > 1:
        return None
    return Layout(len(hosts), next(iter(hosts.values())))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One start of a tool, or what was measured under the same conditions.

    rows: without what the experiment has. repeats: what a case is that comes again: another visit
    of the same start, or another launch, which becomes a run of its own. settings: what else the
    file says, for run.json. notes: what to know of it, in sentences. `is_cut`: it ended early.
    """

    tool: str
    version: str | None = None
    backend: str
    library: str | None = None
    rows: Sequence[Row]
    repeats: Literal["visits", "launches"] = "visits"
    ranks: int | None = None
    layout: Layout | None = None
    places: Sequence[RankPlace] = ()
    started_at: datetime | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    is_cut: bool = False

    @property
    def tool_text(self) -> str:
        """nccl-tests 2.13.9."""
        return " ".join(filter(None, (self.tool, self.version)))


@dataclass
class Problems:
    """What could not be read: the first ones by the numbers of their lines, and how many."""

    named: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, text: str, line: int | None = None) -> None:
        self.count += 1
        if len(self.named) < MOST_PROBLEMS:
            self.named.append(text if line is None else f"line {line}: {text}")

    def texts(self) -> list[str]:
        more = self.count - len(self.named)
        return [*self.named, *([f"and {more} more like these"] if more else [])]


@dataclass(frozen=True)
class FileContent:
    """The experiments of a file, and what in it could not be read."""

    experiments: Sequence[Experiment]
    problems: Problems = field(default_factory=Problems)


def measured(
    benchmark: str,
    message_bytes: int,
    time_s: Printed,
    *,
    ranks: int | None = None,
    rate: Printed | None = None,
    bus_rate: Printed | None = None,
    line: int | None = None,
    wrong: int | None = None,
    **columns: Any,
) -> Row:
    """A row with a time, checked against the rates (B/s) that the file has beside it: one that
    contradicts them, or whose data was wrong, has no numbers. A column that is not given is null.

    The sizes of a file may be of one rank: such a row has `bytes_per_rank`.
    """
    unsaid = dict.fromkeys(("backend", "layout", "engine", "elements", "cache", "sync", "timing"))
    values: dict[str, Any] = {**unsaid, "dtype": None, **columns}
    values |= {"benchmark": benchmark, "message_bytes": message_bytes, "wrong_elements": wrong}
    values |= {"median_s": time_s.value, "mean_s": time_s.value, "visits": 1, "repetitions": 1}
    if bus_rate is not None and benchmark not in WITHOUT_RATE:
        values["busbw_gb_per_s"] = bus_rate.value / GB
    row = Measured(**values)
    factor = bus_factor(benchmark, ranks)
    if wrong:
        return withheld(row, f"{wrong} elements are not what they must be", line)
    if not time_s.value:
        return withheld(row, "a time of 0: below the digits that the tool prints", line)
    pairs = ((rate, 1.0, "its rate"), (bus_rate, factor, "its bus bandwidth"))
    for given, scale, name in pairs:
        if given is not None and scale is not None:
            text = contradiction(round(message_bytes * scale), time_s, given, name)
            if text is not None:
                return withheld(row, text, line)
    return row


def withheld(row: Row, reason: str, line: int | None) -> Row:
    """The row as one that is invalid, without its numbers."""
    where = "" if line is None else f"line {line}: "
    kept = {name: getattr(row, name) for name in (*NAMES, "bytes_per_rank", "wrong_elements")}
    return Row(**kept, status="invalid", reason=f"{where}{reason}; numbers are withheld")


def size_problem(size: int, count: int, item_bytes: int | None, blocks: int | None) -> str | None:
    """Why a size and a number of elements of one block contradict each other; None where they do
    not, or where one of them is not known. `blocks`: None for any number."""
    block = count * (item_bytes or 0)
    if not block:
        return None
    is_right = size % block == 0 if blocks is None else size == block * blocks
    if is_right:
        return None
    return (
        f"{count} elements of {item_bytes} bytes are {format_bytes(block * (blocks or 1))}, but"
        f" its size is {format_bytes(size)}"
    )
