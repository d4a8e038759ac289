"""A row of cases.parquet: the independent variables of a case, who measured it, and its result.

The fields are the columns, with their units and meanings. docs/design.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from statistics import median
from typing import Any, Literal, get_args, get_type_hints

from commbench.core.states import (
    HALF_ROUND_TRIP,
    STOP_REASONS,
    UNFINISHED,
    CaseStatus,
    Headline,
    LimitKind,
    StopReason,
)
from commbench.core.variables import Kind, Options, Variables, kind_of
from commbench.stats.thresholds import FEW_LAUNCHES

ColumnRole = Literal["variable", "identity", "result"]
IntervalOf = Literal["visits", "launches", "repetitions"]


def identity(meaning: str, *, unit: str = "", default: Any = None) -> Any:
    """A field of Row that says which measurement it is."""
    return _column("identity", meaning, unit, default)


def result(meaning: str, *, unit: str = "") -> Any:
    """A field of Row that was measured or derived; None where it is not known."""
    return _column("result", meaning, unit, None)


def _column(role: ColumnRole, meaning: str, unit: str, default: Any) -> Any:
    return field(default=default, metadata={"role": role, "meaning": meaning, "unit": unit})


@dataclass(frozen=True, kw_only=True)
class Row(Variables):
    """A case of a run. Without a number, `reason` says why."""

    run_id: str = identity("folder of the run; sorts in the order of runs", default="")
    case_id: str = identity("hash of the independent variables; equal in every run", default="")
    sweep_id: str | None = identity("jobs that were started by one command")
    trial: int | None = identity(
        "key `trial`: runs that differ in nothing else repeat one another, as in `-m trial=0,1,2`"
    )
    label: str | None = identity("given by the user")
    hosts: str | None = identity("names of the nodes of the ranks, sorted")
    launch: int | None = identity(
        "number of the start of the run's processes that measured it last: timing=rigorous has"
        " several, resuming adds one"
    )
    order: int | None = identity("position of the case in its run")
    started_at: datetime | None = identity("wall clock, UTC")
    imported_from: str | None = identity(
        "another tool that measured it, with its version and the SHA-256 of its file"
    )
    status: CaseStatus = identity("ok, skipped, failed, invalid", default="ok")
    reason: str | None = identity("why status is not ok, or details of a flag")
    warnings: tuple[str, ...] = identity(
        "flags: what to know before quoting the median", default=()
    )

    library_version: str | None = result("version in `library`; null if it has none")
    bytes_per_rank: int | None = result(
        "block of a rank, where a collective divides the message", unit="B"
    )
    busiest_bytes: int | None = result(
        "traffic: most that a rank sends to or receives from others, whichever is more", unit="B"
    )
    imbalance: float | None = result("traffic: busiest_bytes over the mean of all ranks")
    within_nodes_bytes: int | None = result("traffic: between ranks of the same node", unit="B")
    between_nodes_bytes: int | None = result("traffic: between ranks of different nodes", unit="B")
    source: int | None = result(
        "first rank of the pair, the initiator; null for several pairs at once"
    )
    destination: int | None = result("second rank of the pair; null likewise")
    nodes: int | None = result("nodes of the layout")
    ranks_per_node: int | None = result("ranks on each of them")
    world_size: int | None = result("ranks of the layout")
    headline: Headline | None = result(
        "whose clock gives a time: initiator, the first rank of a pair; receiver, its second;"
        " max_over_ranks, the slowest rank; max_over_senders, the slowest first rank of several"
        " pairs"
    )
    counted_ranks: tuple[int, ...] | None = result(
        "the only ranks whose clocks count; null: as the headline says"
    )
    median_of: str | None = result(
        "what is timed: median_s is the median of its times, as in half a round trip, window /"
        " messages (a window's time over its messages), collective"
    )
    messages_per_call: int | None = result(
        "messages to a peer in one call to the library; null for collectives"
    )
    operations_per_sample: int | None = result("messages or collectives per sample")
    block_k: int | None = result(
        "samples between two stamps; more than 1 if the clock would be visible"
    )
    compute_amount: int | None = result(
        "overlap: ns slept, bytes copied or matrices of 64 x 64 multiplied in a sample"
    )
    clock: str | None = result(
        "monotonic: CLOCK_MONOTONIC; device: the GPU's events; virtual: simulated"
    )
    repetitions: int | None = result("measured samples")
    effective_repetitions: float | None = result("repetitions, corrected for autocorrelation")
    stop_reason: StopReason | None = result(
        f"why it ended: {', '.join(STOP_REASONS)}; otherwise {', '.join(UNFINISHED)}"
    )
    duration_s: float | None = result("soak: how long it was to be repeated", unit="s")
    unmeasured_s: float | None = result(
        "soak: its duration minus the time in repetitions; a stall of over 1 s in one counts as"
        " outside",
        unit="s",
    )
    end_gb_per_s: float | None = result(
        "soak of a stream: rate at its end, the median of the last fifth of its intervals",
        unit="GB/s",
    )
    first_second_gb_per_s: float | None = result(
        "the same: rate in its first second; null below 1.5 s, and where intervals are longer",
        unit="GB/s",
    )
    full_speed_s: float | None = result(
        "the same: from its start to 95 % of end_gb_per_s; null where it may still be rising",
        unit="s",
    )
    least_gb_per_s: float | None = result("the same: its slowest interval after that", unit="GB/s")
    warmup_s: float | None = result("warm-up time of all visits", unit="s")
    steady: bool | None = result("every warm-up ended because times were steady, not at its limit")
    lag1: float | None = result("autocorrelation of consecutive samples (of those kept)")
    retransmits: int | None = result(
        "TCP segments that backend=tcp resent while measuring, on all ranks"
    )
    first_call_s: float | None = result(
        "whole first call, round trip or window; excludes earlier connection setup", unit="s"
    )
    empty_sample_s: float | None = result(
        "time between two stamps without a step; contained in every sample", unit="s"
    )
    skew_s: float | None = result(
        "from the first to the last rank's start; null without a common clock", unit="s"
    )
    core_wait_share: float | None = result(
        "of the measured time: ready to run, but without a core; rank that waited longest, median"
        " over visits; null where the kernel does not tell"
    )
    min_s: float | None = result("fastest operation", unit="s")
    median_s: float | None = result(
        "median operation: half a round trip, one message, or one collective; of a soak of a"
        " stream the mean write, all its time / all writes",
        unit="s",
    )
    ci_low_s: float | None = result("lower end of the interval of the median", unit="s")
    ci_high_s: float | None = result("upper end of the interval", unit="s")
    interval_of: IntervalOf | None = result(
        "what ci_low_s and ci_high_s are computed from: the medians of the visits, of the"
        " launches, or the repetitions of the only visit"
    )
    interval_level: float | None = result(
        "confidence level of the interval, such as 0.95, or 0.75 for 3 visits"
    )
    visits: int | None = result(
        "measurements of the case across the run; median_s is their median, over launches that of"
        " the launches'"
    )
    visit_spread: float | None = result("largest over smallest median of the visits")
    visits_s: float | None = result(
        "from the start of the first visit to the end of the last, without the time between"
        " starts of a run",
        unit="s",
    )
    visit_medians_s: tuple[float, ...] | None = result(
        "median of each visit, in chronological order", unit="s"
    )
    visit_launches: tuple[int, ...] | None = result("launch of each visit")
    fast_mode_s: float | None = result(
        "two typical times, at least a factor of 2 apart: the median of the faster repetitions;"
        " else null",
        unit="s",
    )
    slow_mode_s: float | None = result("the same of the slower repetitions", unit="s")
    slow_share: float | None = result("the share of the slower repetitions")
    mean_s: float | None = result("mean operation", unit="s")
    p90_s: float | None = result(
        "nearest rank; null below 29 samples, or if a sample is several operations", unit="s"
    )
    p95_s: float | None = result("null below 59 samples", unit="s")
    p99_s: float | None = result("null below 299 samples", unit="s")
    p999_s: float | None = result("null below 2995 samples", unit="s")
    max_s: float | None = result("slowest operation", unit="s")
    outliers: int | None = result(
        "samples more than 1.5 interquartile ranges outside the quartiles (Tukey)"
    )
    algbw_gb_per_s: float | None = result(
        "bytes of one operation / median_s, 10^9 B/s", unit="GB/s"
    )
    algbw_ci_low_gb_per_s: float | None = result("the same at ci_high_s", unit="GB/s")
    algbw_ci_high_gb_per_s: float | None = result("the same at ci_low_s", unit="GB/s")
    busbw_gb_per_s: float | None = result(
        "algbw x bus factor of the operation; null where not defined", unit="GB/s"
    )
    wire_gb_per_s: float | None = result(
        "load on the wire, where the algorithm is known", unit="GB/s"
    )
    message_rate_per_s: float | None = result("operations per second", unit="1/s")
    limit_gb_per_s: float | None = result(
        "upper bound of busbw_gb_per_s, per direction", unit="GB/s"
    )
    limit_name: str | None = result("which limit that is")
    limit_kind: LimitKind | None = result(
        "memory: a measured copy; nvlink, pcie: what NCCL plans with; line: GPU to host; network;"
        " told: limit="
    )
    efficiency: float | None = result("busbw / limit")
    overhead_s: float | None = result(
        "collectives: all_reduce on a group of one rank, by the same engine", unit="s"
    )
    wrong_elements: int | None = result("elements with a wrong value, in all checks")
    payload_seed: int | None = result("payload=rounding: of the values")
    error_ulp_max: float | None = result(
        "payload=rounding: largest distance of a result from the exact sum, in units in the last"
        " place of the type; of all ranks and launches"
    )
    error_ulp_rms: float | None = result("payload=rounding: root of the mean square")
    other_bits_again: float | None = result(
        "payload=rounding: share of the elements with other bits in one of three more calls"
    )
    other_bits_on_ranks: float | None = result(
        "payload=rounding: with other bits than on the first rank; of all_reduce"
    )
    other_bits_in_place: float | None = result(
        "payload=rounding: with other bits in place than out of place"
    )
    other_bits_in_halves: float | None = result(
        "payload=rounding: with other bits when each block is reduced in two halves"
    )
    other_bits_beside: float | None = result(
        "payload=rounding: of half of the ranks, with other bits while the others reduce; of"
        " all_reduce"
    )
    result_hash: str | None = result("payload=rounding: of the bits of the results of all ranks")
    launch_hashes: tuple[str, ...] | None = result("payload=rounding: that of each launch")
    cuda_ipc_effective: str | None = result(
        "whether CUDA IPC was used; null where it does not apply"
    )
    registered: str | None = result(
        "what the library used the buffers as, by its log or kernels: window, local, none; null:"
        " not known"
    )
    transport: str | None = result("transport that was used, as far as the library reports it")
    link: str | None = result(
        "NV#, PIX, PXB, PHB, NODE, SYS, NET or SELF, from the topology matrix"
    )

    @property
    def is_stream(self) -> bool:
        """As of a Shape. An imported one may not tell whose clock counted."""
        return self.headline == "receiver" or self.benchmark == "stream"

    @property
    def is_soak(self) -> bool:
        """Whether it was repeated for a given time, and has a time line. Files without `duration_s`
        have the name of the timing."""
        return self.duration_s is not None or self.timing == "soak"

    @property
    def is_half_round_trip(self) -> bool:
        """Whether its time is that of a ping-pong: not with a computation beside the messages."""
        return HALF_ROUND_TRIP in (self.median_of or "")


class Measured(Row):
    """A row with status ok: it has these numbers."""

    median_s: float

    @property
    def launch_medians(self) -> tuple[float, ...]:
        """Of timing=rigorous the median of the visits of each launch; else the row's own."""
        by_launch = dict[int, list[float]]()
        visits = zip(self.visit_launches or (), self.visit_medians_s or (), strict=False)
        for launch, median_s in visits:
            by_launch.setdefault(launch, []).append(median_s)
        if len(by_launch) < FEW_LAUNCHES:
            return (self.median_s,)
        return tuple(map(median, by_launch.values()))


def row_of(values: Mapping[str, Any]) -> Row:
    """The row with these values by column, in types of Python as parquet and JSON lines have them;
    None and names that are no columns are left out."""
    typed = {
        name: FROM_PLAIN[KINDS[name]](value) if KINDS[name] in FROM_PLAIN else value
        for name, value in values.items()
        if value is not None and name in KINDS
    }
    return _kind_of_row(typed)(**typed)


def column_values(name: str, values: Iterable[Any]) -> list[Any]:
    """The values of a stored column as rows have them: its default in place of null."""
    default = DEFAULTS.get(name)
    convert = FROM_PLAIN.get(KINDS[name])
    if convert is not None:
        return [default if value is None else convert(value) for value in values]
    return [default if value is None else value for value in values]


def stored_row(names: Iterable[str], values: Iterable[Any]) -> Row:
    """A row with these values of column_values; like row_of, in a tenth of its time: a dataclass
    sets each field by itself."""
    own = dict(zip(names, values, strict=True))
    row = object.__new__(_kind_of_row(own))
    vars(row).update(own)  # the class has the defaults of the others
    return row


def _kind_of_row(values: Mapping[str, Any]) -> type[Row]:
    is_measured = values.get("status") == "ok" and values.get("median_s") is not None
    return Measured if is_measured else Row


def plain_values(row: Row) -> dict[str, Any]:
    """The values by column, maps as dictionaries."""
    return {
        name: dict(getattr(row, name)) if kind == "map" else getattr(row, name)
        for name, kind in KINDS.items()
    }


def _options(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Options:
    return tuple(sorted(dict(pairs).items()))


def _words(hint: Any) -> tuple[str, ...]:
    """The words that a type allows; none where it allows any."""
    parts = get_args(hint)
    return tuple(
        word for part in parts for word in ((part,) if isinstance(part, str) else _words(part))
    )


HINTS = get_type_hints(Row)
DEFAULTS = {each.name: each.default for each in fields(Row) if each.default is not MISSING}
KINDS: Mapping[str, Kind] = {name: kind_of(hint) for name, hint in HINTS.items()}
# of the columns beside the variables, whose words a later commbench may add to
WORDS: Mapping[str, tuple[str, ...]] = {
    each.name: words
    for each in fields(Row)
    if "role" in each.metadata and (words := _words(HINTS[each.name]))
}
FROM_PLAIN: Mapping[Kind, Callable[[Any], Any]] = {
    "map": _options,
    "texts": tuple,
    "numbers": tuple,
    "integers": tuple,
}
