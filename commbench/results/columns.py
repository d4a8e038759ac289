"""The columns of the result files: name, type, unit and meaning.

SCHEMA_VERSION history:
  4  2026-11-26: timing_mode is named timer, launch trial, segment launch; sync=window sync=clock.
     Earlier versions are not read. 2026-11-28: limit_kind, core_wait_share, fast_mode_s,
     slow_mode_s, slow_share; sync=clock and its columns are gone
  3  2026-11-25: case ids of the variables that differ from their defaults, so that a new variable
     changes no id of an earlier run; variables in the order of tables

Results and variables may be added within a version, with a date: they are null, or the default of
the variable, in the rows of earlier runs. Any other change of a variable, identity, unit or meaning
needs a new version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar, cast, get_args

from commbench.core.errors import Unreadable
from commbench.core.states import (
    FinalReason,
    Row,
    UnfinishedReason,
)
from commbench.core.units import format_bytes, natural_key, short_pairs
from commbench.core.variables import NAMES, TABLE, VariableKind, is_usual

GroupItem = TypeVar("GroupItem")
GroupKey = TypeVar("GroupKey", bound=Hashable)
ColumnKind = Literal[VariableKind, "number", "texts", "numbers", "time"]
ColumnRole = Literal["variable", "identity", "result"]

INTERRUPTED = "interrupted"  # stop reason of a case that needs another visit
STOP_REASONS: tuple[str, ...] = get_args(FinalReason)
UNFINISHED: tuple[str, ...] = get_args(UnfinishedReason)
SCHEMA_VERSION = 4
GOOD_LEVEL = 0.95  # of an interval; that of a row that does not say it


@dataclass(frozen=True)
class Column:
    """A column of a table of results."""

    name: str
    kind: ColumnKind
    role: ColumnRole
    unit: str
    meaning: str


def _columns(role: ColumnRole, table: str) -> tuple[Column, ...]:
    """The columns of a table of name, kind, unit and meaning, which may take several lines."""
    rows = re.sub(r"\n +(?=[^|\n]+$)", " ", table.strip(), flags=re.MULTILINE).splitlines()
    columns = []
    for row in rows:
        name, kind, unit, meaning = map(str.strip, row.split("|"))
        columns.append(Column(name, cast(ColumnKind, kind), role, unit, meaning))
    return tuple(columns)


VARIABLES = tuple(
    Column(each.name, each.kind, "variable", each.unit, each.meaning) for each in TABLE
)
IDENTITY = _columns(
    "identity",
    """
    run_id     | text    |   | folder of the run; sorts in the order of runs
    case_id    | text    |   | hash of the independent variables; equal in every run
    sweep_id   | text    |   | jobs that were started by one command
    trial      | integer |   | key `trial`: runs that differ in nothing else repeat one another, as
                                in `-m trial=0,1,2`
    label      | text    |   | given by the user
    hosts      | text    |   | names of the nodes of the ranks, sorted
    launch     | integer |   | number of the start of the run's processes that measured it last:
                                timing=rigorous has several, resuming adds one
    order      | integer |   | position of the case in its run
    started_at | time    |   | wall clock, UTC
    status     | text    |   | ok, skipped, failed, invalid
    reason     | text    |   | why status is not ok, or details of a flag
    warnings   | texts   |   | flags: what to know before quoting the median
    """,
)
RESULTS = _columns(
    "result",
    """
    library_version        | text    |      | version in `library`; null if it has none
    bytes_per_rank         | integer | B    | block of a rank, where a collective divides the
                                              message
    busiest_bytes          | integer | B    | traffic: most that a rank sends to or receives from
                                              others, whichever is more
    imbalance              | number  |      | traffic: busiest_bytes over the mean of all ranks
    within_nodes_bytes     | integer | B    | traffic: between ranks of the same node
    between_nodes_bytes    | integer | B    | traffic: between ranks of different nodes
    source                 | integer |      | first rank of the pair, the initiator; null for
                                              several pairs at once
    destination            | integer |      | second rank of the pair; null likewise
    nodes                  | integer |      | nodes of the layout
    ranks_per_node         | integer |      | ranks on each of them
    world_size             | integer |      | ranks of the layout
    headline               | text    |      | whose clock gives a time: initiator, the first rank of
                                              a pair; receiver, its second; max_over_ranks, the
                                              slowest rank; max_over_senders, the slowest first rank
                                              of several pairs
    median_of              | text    |      | what is timed: median_s is the median of its times, as
                                              in half a round trip, window / messages (a window's
                                              time over its messages), collective
    messages_per_call      | integer |      | messages to a peer in one call to the library; null
                                              for collectives
    operations_per_sample  | integer |      | messages or collectives per sample
    block_k                | integer |      | samples between two stamps; more than 1 if the clock
                                              would be visible
    compute_amount         | integer |      | overlap: ns slept, bytes copied or matrices of 64 x 64
                                              multiplied in a sample
    clock                  | text    |      | monotonic: CLOCK_MONOTONIC; device: the GPU's events;
                                              virtual: simulated
    repetitions            | integer |      | measured samples
    effective_repetitions  | number  |      | repetitions, corrected for autocorrelation
    stop_reason            | text    |      | why it ended: STOP_REASONS; otherwise running,
                                              interrupted
    unmeasured_s           | number  | s    | soak: its duration minus the time in repetitions; a
                                              stall of over 1 s in one counts as outside
    end_gb_per_s           | number  | GB/s | soak of a stream: rate at its end, the median of the
                                              last fifth of its intervals
    first_second_gb_per_s  | number  | GB/s | the same: rate in its first second; null below 1.5 s,
                                              and where intervals are longer
    full_speed_s           | number  | s    | the same: from its start to 95 % of end_gb_per_s; null
                                              where it may still be rising
    least_gb_per_s         | number  | GB/s | the same: its slowest interval after that
    warmup_s               | number  | s    | warm-up time of all visits
    steady                 | flag    |      | every warm-up ended because times were steady, not at
                                              its limit
    lag1                   | number  |      | autocorrelation of consecutive samples (of those kept)
    retransmits            | integer |      | TCP segments that backend=tcp resent while measuring,
                                              on all ranks
    first_call_s           | number  | s    | whole first call, round trip or window; excludes
                                              earlier connection setup
    empty_sample_s         | number  | s    | time between two stamps without a step; contained in
                                              every sample
    skew_s                 | number  | s    | from the first to the last rank's start; null without
                                              a common clock
    core_wait_share        | number  |      | of the measured time: ready to run, but without a
                                              core; rank that waited longest, median over visits;
                                              null where the kernel does not tell
    min_s                  | number  | s    | fastest operation
    median_s               | number  | s    | median operation: half a round trip, one message, or
                                              one collective; of a soak of a stream the mean write,
                                              all its time / all writes
    ci_low_s               | number  | s    | lower end of the interval of the median
    ci_high_s              | number  | s    | upper end of the interval
    interval_of            | text    |      | what ci_low_s and ci_high_s are computed from: the
                                              medians of the visits, of the launches, or the
                                              repetitions of the only visit
    interval_level         | number  |      | confidence level of the interval, such as 0.95, or
                                              0.75 for 3 visits
    visits                 | integer |      | measurements of the case across the run; median_s is
                                              their median, over launches that of the launches'
    visit_spread           | number  |      | largest over smallest median of the visits
    visits_s               | number  | s    | from the start of the first visit to the end of the
                                              last, without the time between starts of a run
    visit_medians_s        | numbers | s    | median of each visit, in chronological order
    visit_launches         | numbers |      | launch of each visit
    fast_mode_s            | number  | s    | two typical times, at least a factor of 2 apart: the
                                              median of the faster repetitions; else null
    slow_mode_s            | number  | s    | the same of the slower repetitions
    slow_share             | number  |      | the share of the slower repetitions
    mean_s                 | number  | s    | mean operation
    p90_s                  | number  | s    | nearest rank; null below 29 samples, or if a sample is
                                              several operations
    p95_s                  | number  | s    | null below 59 samples
    p99_s                  | number  | s    | null below 299 samples
    p999_s                 | number  | s    | null below 2995 samples
    max_s                  | number  | s    | slowest operation
    outliers               | integer |      | samples more than 1.5 interquartile ranges outside the
                                              quartiles (Tukey)
    algbw_gb_per_s         | number  | GB/s | bytes of one operation / median_s, 10^9 B/s
    algbw_ci_low_gb_per_s  | number  | GB/s | the same at ci_high_s
    algbw_ci_high_gb_per_s | number  | GB/s | the same at ci_low_s
    busbw_gb_per_s         | number  | GB/s | algbw x bus factor of the operation; null where not
                                              defined
    wire_gb_per_s          | number  | GB/s | load on the wire, where the algorithm is known
    message_rate_per_s     | number  | 1/s  | operations per second
    limit_gb_per_s         | number  | GB/s | upper bound of busbw_gb_per_s, per direction
    limit_name             | text    |      | which limit that is
    limit_kind             | text    |      | memory: a measured copy; nvlink, pcie: what NCCL plans
                                              with; line: GPU to host; network; told: limit=
    efficiency             | number  |      | busbw / limit
    overhead_s             | number  | s    | collectives: all_reduce on a group of one rank, by the
                                              same engine
    wrong_elements         | integer |      | elements with a wrong value, in all checks
    cuda_ipc_effective     | text    |      | whether CUDA IPC was used; null where it does not
                                              apply
    transport              | text    |      | transport that was used, as far as the library reports
                                              it
    link                   | text    |      | NV#, PIX, PXB, PHB, NODE, SYS, NET or SELF, from the
                                              topology matrix
    """.replace("STOP_REASONS", ", ".join(STOP_REASONS)),
)
CASES = VARIABLES + IDENTITY + RESULTS
SAMPLES = _columns(
    "identity",
    """
    run_id     | text    |    | folder of the run
    case_id    | text    |    | hash of the independent variables
    phase      | text    |    | connect, warmup, measure; late: a rank began after the agreed
                                instant; check: untimed
    block      | integer |    | number of the block: repetitions between two decisions
    repetition | integer |    | number of the repetition within the phase
    rank       | integer |    | rank of the layout
    start_ns   | integer | ns | on this rank's clock; null if only a device's clock was read
    end_ns     | integer | ns | like start_ns
    elapsed_ns | integer | ns | of the whole sample, not of one operation
    """,
) + _columns(
    "result",
    """
    visit      | integer |    | visit of the case, from 1; blocks and repetitions are counted across
                                visits
    """,
)
COUNTERS = _columns(
    "identity",
    """
    run_id  | text    |    | folder of the run
    case_id | text    |    | hash of the independent variables
    rank    | integer |    | rank of the layout
    t_ns    | integer | ns | on this rank's clock
    name    | text    |    | name of the counter
    value   | number  |    | value of the counter at that time
    """,
)
TABLES = {"cases": CASES, "samples": SAMPLES, "counters": COUNTERS}


@cache
def arrow_schema(table: str) -> Any:
    """The pyarrow schema of a table, units and meanings in the fields' metadata."""
    import pyarrow as pa

    kinds = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "flag": pa.bool_(),
        "texts": pa.list_(pa.string()),
        "numbers": pa.list_(pa.float64()),
        "map": pa.map_(pa.string(), pa.string()),
        "time": pa.timestamp("us", tz="UTC"),
    }
    fields = [
        pa.field(
            column.name,
            kinds[column.kind],
            metadata={"unit": column.unit, "meaning": column.meaning},
        )
        for column in TABLES[table]
    ]
    return pa.schema(fields, metadata={"schema_version": str(SCHEMA_VERSION)})


def of_same_run(row: Row, differing: Container[str]) -> tuple[Any, ...]:
    """What rows of a run have in common that differ in these variables at most."""
    return (row.get("run_id"), *(hashable(row[name]) for name in NAMES if name not in differing))


def case_text(case: Row) -> str:
    """A row, or the fields of a Case, as `p2p_latency 1x2 0-1 1 KiB`; of many pairs, the first and
    the last. Of an overlap with its part: `all_reduce 1x2 1 KiB, matmul together`; of a job with
    what it is replayed with: `replay 1x2, gaps matmul late 1:2ms`."""
    size = format_bytes(case["message_bytes"]) if case["message_bytes"] else ""
    place = short_pairs(case["pair"] or "") or place_text(case.get("node"))
    text = " ".join(filter(None, (case["benchmark"], case["layout"], place, size)))
    replayed = [
        f"{name} {case[name]}" for name in ("gaps", "late") if not is_usual(name, case.get(name))
    ]
    part = " ".join(filter(None, (case.get("overlap"), case.get("timed"), *replayed)))
    return f"{text}, {part}" if part else text


def place_text(node: str | None) -> str:
    """`node 3`, or how many nodes run at once; empty for None."""
    nodes = (node or "").split()
    return f"{len(nodes)} nodes at once" if len(nodes) > 1 else "".join(f"node {n}" for n in nodes)


def row_order(row: Row) -> tuple[Any, ...]:
    """Sort key of a row, or of the fields of a Case."""
    return tuple(natural_key(row[name]) for name in NAMES)


def hashable(value: Any) -> Any:
    """The value of a variable; a map as a tuple of sorted pairs."""
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


def grouped(
    items: Iterable[GroupItem], key: Callable[[GroupItem], GroupKey]
) -> dict[GroupKey, list[GroupItem]]:
    """The items by their key, in the order in which they come."""
    groups: dict[GroupKey, list[GroupItem]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def check_version(version: object, where: str) -> None:
    """Raise Unreadable for results that this version can't read."""
    if version != SCHEMA_VERSION:
        raise Unreadable(
            f"{where} has schema version {version}, this commbench reads {SCHEMA_VERSION}; read it"
            " with the commbench that wrote it (run.json names the version)"
        )
