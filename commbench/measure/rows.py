"""The row of a case in cases.parquet, the raw tables of its samples and counters, and the user's
expectations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.benchmarks.each_node import OnEachNode
from commbench.config.keys import EVENT_TIMED
from commbench.core.case import Planned, version_of
from commbench.core.layout import Layout, ends_of_pair
from commbench.core.program import AllReduce
from commbench.core.variables import MODEL_ENGINE, Case
from commbench.hardware.link_limits import COPY, HOST_COPY, Limit, bandwidth_limit
from commbench.hardware.nvml import throttled
from commbench.results.columns import CASES, VARIABLES

from .conditions import Conditions, copied_bytes
from .samples import Failure, Outcome, Refused, Samples
from .traffic_columns import traffic_columns
from .visits import CaseRecord, Estimate, SeriesStatistics, series_statistics

VISIBLE_SHARE = 0.05  # of a number: larger disturbances are flagged
GAPS_SHARE = 0.01  # of a soak that may pass outside its repetitions
CALL_SHARE = 0.1  # of the median that the call itself may take
EVENT_S = 500e-9  # resolution of CUDA's events (CUDA Runtime API, cudaEventElapsedTime)
LASTING_FLAGS = frozenset({"throttled", "python_bound"})  # kept from earlier starts of the run
GB = 1e9
PERCENTILES = ("p90_s", "p95_s", "p99_s", "p999_s")
RECORD_COLUMNS = (
    "block_k",
    "compute_amount",
    "stop_reason",
    "warmup_s",
    "steady",
    "clock_error_s",
    "late_repetitions",
    "first_call_s",
    "retransmits",
    "repetitions",
    "unmeasured_s",
    "wrong_elements",  # 0: with wrong ones a row has no numbers
)
RING = "RING"
TREE = "TREE"
NVLS = "NVLS"
# the largest ratio of the line rate to the rate that NCCL plans with: PCIe 5
LINE_RATE_RATIO = 63 / 48
MEASURED_LIMIT_RATIO = 1.1  # a limit that was measured varies
SUMMED_BY_SWITCH = (NVLS, "LDMC")  # kernels for symmetric memory: AllReduce_RSxLDMC_AGxSTMC


@dataclass(frozen=True)
class RowFacts:
    """What is known of a row besides its times. Each fact is found out once, for all pairs of a
    round that share it."""

    planned: Planned
    conditions: Conditions

    @cached_property
    def base(self) -> dict[str, Any]:
        """All columns, without those of a result."""
        planned = self.planned
        conditions = self.conditions
        layout = Layout.parse(planned.case.layout)
        nodes = conditions.world.nodes_of(planned.members)
        hosts = {name for node, name in enumerate(conditions.hosts) if node in nodes}
        values: dict[str, Any] = {column.name: None for column in CASES}
        values |= {column.name: getattr(planned.case, column.name) for column in VARIABLES}
        return values | {
            "case_id": planned.case.case_id,
            "order": planned.order,
            "warnings": [],
            "hosts": " ".join(sorted(hosts)) or None,
            "nodes": layout.nodes,
            "ranks_per_node": layout.ranks_per_node,
            "world_size": layout.size,
            "library_version": version_of(planned.case.library),
            **ends_of_pair(planned.case.pair),
            **({} if planned.skip else conditions.evidence.of(planned)),
        }

    @cached_property
    def limit(self) -> Limit | None:
        """The limit of the bus bandwidth, with its name."""
        planned = self.planned
        evidence = self.conditions.evidence
        return bandwidth_limit(
            planned,
            evidence.wires(planned),
            self.conditions.world.node_of,
            evidence.gpus,
            evidence.topologies,
            None if self.is_in_cache else evidence.copy_gb_per_s,
            self.conditions.core_copy_gb_per_s(self.copied_bytes),
            evidence.nvlink_joins_nodes(planned),
        )

    @cached_property
    def copied_bytes(self) -> int:
        return copied_bytes(self.planned)

    @property
    def is_in_cache(self) -> bool:
        """Whether the buffers fit into the last-level cache; with device=cuda, into that of the
        GPU."""
        return self.copied_bytes < 2 * self.conditions.cache_bytes

    @cached_property
    def algorithm(self) -> str | None:
        return self.conditions.evidence.algorithm(self.planned)

    @cached_property
    def bus_factor(self) -> float | None:
        return self.planned.bus_factor

    @cached_property
    def rewrites(self) -> bool:
        """Whether a buffer is written several times in a sample. Two ranks tell: one of them
        receives. Not asked of pairs, which may be millions: their windows have the flag
        one_buffer."""
        planned = self.planned
        programs = (planned.program(rank) for rank in planned.active[:2])
        return not planned.case.pairs and any(program.rewrites for program in programs)

    @cached_property
    def has_reset(self) -> bool:
        planned = self.planned
        return any(planned.program(rank).reset for rank in planned.active)

    @cached_property
    def has_one_clock(self) -> bool:
        """Whether the ranks start together, and their stamps can be compared: not on several nodes,
        and not events of several GPUs."""
        planned = self.planned
        if planned.case.sync == "none" or len(planned.active) < 2:
            return False
        nodes = {self.conditions.world.node_of(planned.members[rank]) for rank in planned.active}
        by_events = planned.case.timing_mode in EVENT_TIMED
        return planned.case.has_model_clock or (len(nodes) == 1 and not by_events)

    @cached_property
    def operation(self) -> dict[str, Any]:
        """The columns of what a sample of the operation is, and what it costs to time and to call
        it."""
        planned = self.planned
        case = planned.case
        shape = planned.shape
        blocks = planned.benchmark.blocks(planned.size) or 1
        by_events = case.timing_mode in EVENT_TIMED
        # the calibrated call is a collective by the host's clock: not comparable with a send or
        # with GPU events
        is_calibrated = not case.pairs and not by_events
        empty_s = self.conditions.empty_sample_s.get(case.engine)
        overhead_s = self.conditions.overhead_s.get(case.engine)
        return {
            "headline": shape.headline,
            "median_of": shape.median_of,
            **traffic_columns(planned, self.conditions.world.node_of),
            "bytes_per_rank": case.message_bytes // blocks or None,
            "messages_per_call": _messages_per_call(planned, self.conditions),
            "clock": _clock_of_times(planned),
            "empty_sample_s": None if by_events else empty_s,
            "overhead_s": overhead_s if is_calibrated else None,
        }

    @cached_property
    def flags(self) -> dict[str, bool]:
        """Flags that do not depend on a result."""
        case = self.planned.case
        conditions = self.conditions
        ranks_per_node = Layout.parse(case.layout).ranks_per_node
        threads = ranks_per_node * conditions.threads_per_rank * (case.streams or 1)
        members = (self.planned.members[rank] for rank in self.planned.active)
        on_nodes = Counter(conditions.world.node_of(member) for member in members)
        return {
            "oversubscribed": threads > conditions.cores,
            "in_cache": case.cache == "rotate" and self.is_in_cache,
            "shared_gpu": conditions.evidence.shares_gpu(self.planned),
            "rdma_unused": conditions.evidence.rdma_unused(self.planned),
            "small_shm": any(on_nodes[node] > 1 for node in conditions.small_shm_nodes),
            "one_buffer": case.buffers == "shared" and (case.window or 1) > 1,
        }


def row(
    planned: Planned,
    outcome: CaseRecord | Refused | Failure,
    conditions: Conditions,
    started: datetime,
) -> dict[str, Any]:
    """One row without the identity of the run; numbers are None unless the status is ok."""
    return row_of(RowFacts(planned, conditions), outcome, started)


def row_of(
    facts: RowFacts, outcome: CaseRecord | Refused | Failure, started: datetime
) -> dict[str, Any]:
    """See `row`."""
    values = facts.base | {"started_at": started}
    match outcome:
        case Refused(reason):
            values |= {"status": "skipped", "reason": reason}
        case Failure(reason):
            values |= {"status": "failed", "reason": reason}
        case CaseRecord(wrong_elements=wrong) if wrong:
            reason = f"{wrong} elements are not what they must be; numbers are withheld"
            values |= {"status": "invalid", "reason": reason, "wrong_elements": wrong}
        case _:
            values |= {"status": "ok", **_numbers(facts, outcome)}
    return values


def split_rounds(planned: Planned, outcome: Outcome) -> list[tuple[Planned, Outcome]]:
    """The outcome of each pair of a round and of each node, from the stamps of its own ranks; other
    cases have one outcome."""
    singles = single_cases(planned)
    if len(singles) == 1 or not isinstance(outcome, Samples):
        return [(single, outcome) for single in singles]
    return [
        (single, outcome.of_ranks(tuple(planned.benchmark.active(single.case, planned.size))))
        for single in singles
    ]


def single_cases(planned: Planned) -> list[Planned]:
    """A planned case for each row of a case."""
    singles = planned.case.single_cases
    if len(singles) == 1:
        return [planned]
    if isinstance(planned.benchmark, OnEachNode):
        return [_of_one_node(planned, planned.benchmark, single) for single in singles]
    return [replace(planned, case=single) for single in singles]


def _of_one_node(planned: Planned, benchmark: OnEachNode, case: Case) -> Planned:
    """The operation among the ranks of one node, as if they were a layout of their own."""
    ranks = benchmark.active(case, planned.size)
    members = tuple(planned.members[rank] for rank in ranks)
    return replace(planned, case=case, benchmark=benchmark.inner, members=members)


def row_ids(planned: Planned) -> tuple[str, ...]:
    """The case ids of the rows of a case."""
    return planned.case.row_ids


# ---------------------------------------------------------------- raw tables


def sample_table(
    planned: Planned, samples: Samples, run_id: str, visit: int = 1
) -> dict[str, NDArray[Any]]:
    """The columns of samples.parquet: one row per rank and repetition of a visit, in the order they
    ran."""
    if not samples.blocks:
        return {}
    parts = []
    for block in samples.blocks:
        rows, n, _ = block.stamps.shape
        columns = {
            "phase": np.full(rows * n, block.phase, dtype=object),
            "block": np.full(rows * n, block.index),
            "repetition": np.tile(np.arange(block.first, block.first + n), rows),
            "rank": (
                np.repeat(np.asarray(samples.ranks), n) if block.decided is None else block.decided
            ),
            "start_ns": block.stamps[:, :, 0].reshape(-1),
            "end_ns": block.stamps[:, :, 1].reshape(-1),
        }
        parts.append(columns)
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    elapsed = table["end_ns"] - table["start_ns"]
    if len({block.phase for block in samples.blocks}) == 1:
        table["phase"] = _constant(samples.blocks[0].phase, len(elapsed))
    # events give a difference, not an instant on a host's clock
    if planned.case.timing_mode in EVENT_TIMED:
        table |= dict.fromkeys(("start_ns", "end_ns"), _constant(None, len(elapsed)))
    identity = {
        "run_id": _constant(run_id, len(elapsed)),
        "case_id": _constant(planned.case.case_id, len(elapsed)),
    }
    return {**identity, **table, "elapsed_ns": elapsed, "visit": np.full(len(elapsed), visit)}


def count_table(case_id: str, samples: Samples, run_id: str) -> dict[str, NDArray[Any]]:
    """The columns of counters.parquet."""
    if not samples.counts:
        return {}
    lengths = [len(counts.values) for counts in samples.counts]
    return {
        "run_id": _constant(run_id, sum(lengths)),
        "case_id": _constant(case_id, sum(lengths)),
        "rank": np.repeat([counts.rank for counts in samples.counts], lengths),
        "t_ns": np.repeat([counts.t_ns for counts in samples.counts], lengths),
        "name": np.array(
            [name for counts in samples.counts for name in counts.values], dtype=object
        ),
        "value": np.array(
            [value for counts in samples.counts for value in counts.values.values()],
            dtype=np.float64,
        ),
    }


def _constant(value: str | None, length: int) -> NDArray[np.object_]:
    """A column [length] of one value that takes no memory: its stride is 0, which the parquet
    writer recognises."""
    return np.broadcast_to(np.array(value, dtype=object), length)


# ---------------------------------------------------------------- numbers


def _numbers(facts: RowFacts, record: CaseRecord) -> dict[str, Any]:
    """Each column from one of four sources, and what is said about them together."""
    statistics = series_statistics(record.visits, record.times, record.z)
    rates = rate_columns(facts, statistics.median)
    numbers = (
        series_columns(facts.planned, record, statistics)
        | rates
        | record_columns(facts, record)
        | operation_columns(facts, record)
    )
    impossible = impossible_reason(
        facts.planned, rates["efficiency"], rates["limit_name"], facts.algorithm
    )
    reasons = (impossible, statistics.levels_text, record.broken)
    return numbers | {
        "reason": "; ".join(filter(None, reasons)) or None,
        "warnings": [
            *statistics.warnings,
            *(["impossible"] if impossible else []),
            *(["last_write"] if facts.rewrites else []),
            *_machine_flags(facts, record, numbers),
        ],
    }


def series_columns(
    planned: Planned, record: CaseRecord, statistics: SeriesStatistics
) -> dict[str, Any]:
    """What follows from the times of the visits alone."""
    median = statistics.median
    visits = record.visits
    # a percentile of windows is not one of messages
    has_percentiles = planned.shape.single and record.block_k == 1
    return {
        **statistics.summary,
        **({} if has_percentiles else dict.fromkeys(PERCENTILES)),
        "outliers": statistics.outliers,
        "median_s": median.median_s,
        "ci_low_s": median.low_s,
        "ci_high_s": median.high_s,
        "interval_of": median.of,
        "interval_level": median.level,
        "visits": len(visits),
        "visit_spread": statistics.spread,
        "visit_medians_s": [visit.median_s for visit in visits],
        "visit_segments": [visit.segment for visit in visits],
        "effective_repetitions": statistics.effective_repetitions,
        "lag1": statistics.lag1,
    }


def record_columns(facts: RowFacts, record: CaseRecord) -> dict[str, Any]:
    """What rank 0 has noted in the visits: warm-up, clocks, counters, why they ended."""
    has_skew = facts.has_one_clock and bool(record.skews_s)
    return {
        **{name: getattr(record, name) for name in RECORD_COLUMNS},
        "visits_s": None if facts.planned.case.has_model_clock else record.visits_s,
        # the time between the starts of the first and the last rank
        "skew_s": median(record.skews_s) if has_skew else None,
    }


def operation_columns(facts: RowFacts, record: CaseRecord) -> dict[str, Any]:
    """What a sample of the operation is, and what it costs to time and to call it."""
    operations = facts.planned.shape.operations_per_sample * record.block_k
    return facts.operation | {"operations_per_sample": operations}


def _messages_per_call(planned: Planned, conditions: Conditions) -> int | None:
    """None for a collective."""
    posted = planned.messages_per_peer
    if not posted and not planned.case.pairs:
        return None
    return max(1, posted) if conditions.joins_messages else 1


def _clock_of_times(planned: Planned) -> str:
    if planned.case.has_model_clock:
        return MODEL_ENGINE
    return "device" if planned.case.timing_mode in EVENT_TIMED else "monotonic"


def rate_columns(facts: RowFacts, median: Estimate) -> dict[str, Any]:
    """Rates are computed from times and never averaged (Hoefler & Belli 2015, rule 3)."""
    planned = facts.planned
    median_s = median.median_s
    operation_bytes = planned.shape.bytes_per_sample / planned.shape.operations_per_sample
    factor = facts.bus_factor
    # a collective of a single rank does not communicate: in place it moves nothing, else it is a
    # copy
    alone = planned.size == 1 and factor is None and not planned.case.pairs
    moved_bytes = 0.0 if alone else operation_bytes
    algbw = _gb_per_s(moved_bytes, median_s)
    busbw = None if factor is None or algbw is None else factor * algbw
    limit_gb_per_s, limit_name = facts.limit or (None, None)
    return {
        "algbw_gb_per_s": algbw,
        "algbw_ci_low_gb_per_s": _gb_per_s(moved_bytes, median.high_s),
        "algbw_ci_high_gb_per_s": _gb_per_s(moved_bytes, median.low_s),
        "busbw_gb_per_s": busbw,
        "wire_gb_per_s": wire_gb_per_s(planned, algbw, facts.algorithm),
        "limit_gb_per_s": limit_gb_per_s,
        "limit_name": limit_name,
        "efficiency": None if busbw is None or limit_gb_per_s is None else busbw / limit_gb_per_s,
        "message_rate_per_s": 1 / median_s if median_s and not planned.case.timed else None,
    }


def _gb_per_s(operation_bytes: float, seconds: float | None) -> float | None:
    return operation_bytes / seconds / GB if seconds and operation_bytes else None


def _machine_flags(facts: RowFacts, record: CaseRecord, numbers: Mapping[str, Any]) -> list[str]:
    """Flags about the machine and not about the series of times; `numbers` are those of the row."""
    case = facts.planned.case
    conditions = facts.conditions
    median_s = numbers["median_s"]
    skew_s = numbers["skew_s"]
    if case.has_model_clock:
        return []
    timer_s = (
        EVENT_S
        if case.timing_mode in EVENT_TIMED
        else conditions.empty_sample_s.get(case.engine, 0.0)
    )
    sample_s = median_s * numbers["operations_per_sample"]
    late = record.late_repetitions or 0
    unmeasured_s = numbers["unmeasured_s"] or 0.0
    is_started_together = case.sync == "barrier" and len(facts.planned.active) > 1
    raised = {
        "oversubscribed": facts.flags["oversubscribed"],
        "timer_limited": timer_s > VISIBLE_SHARE * sample_s,
        "python_bound": (
            case.engine == "python"
            and (
                (numbers["overhead_s"] or 0.0) > CALL_SHARE * median_s
                or record.host_bound_share > VISIBLE_SHARE
            )
        ),
        "in_cache": facts.flags["in_cache"],
        "shared_gpu": facts.flags["shared_gpu"],
        "thinned": record.thinned,
        "rdma_unused": facts.flags["rdma_unused"],
        "throttled": any(throttled(mask) for mask in record.throttle_masks),
        "small_shm": facts.flags["small_shm"],
        "one_buffer": facts.flags["one_buffer"],
        "zero_payload": record.block_k > 1 and facts.has_reset,
        "unsteady": not record.steady,
        "disturbed": record.disturbed(conditions.disturbed),
        "skewed": skew_s is not None and skew_s > VISIBLE_SHARE * sample_s,
        "skew_unknown": skew_s is None and is_started_together,
        "clock_limited": (record.clock_error_s or 0.0) > VISIBLE_SHARE * sample_s,
        "gaps": unmeasured_s > GAPS_SHARE * (unmeasured_s + record.spent_s),
        "late_starts": late > VISIBLE_SHARE * (late + record.repetitions),
    }
    before = (
        set()
        if record.earlier is None
        else LASTING_FLAGS.intersection(record.earlier.row["warnings"])
    )
    return [flag for flag, present in raised.items() if present or flag in before]


# ---------------------------------------------------------------- rates by the algorithm that ran


def wire_gb_per_s(
    planned: Planned, algbw_gb_per_s: float | None, algorithm: str | None
) -> float | None:
    """GB/s that the busiest link of a GPU carries in one direction; None if no formula is known.

    For n ranks and S bytes a ring carries what the bus factor says, which is always that of a ring
    (as in nccl-tests); a tree 2 S, its root half of that (a maintainer in NVIDIA/nccl#457); NVLS on
    one node S (n + 1) / n (NVIDIA/nccl-tests#239).
    """
    if algbw_gb_per_s is None or algorithm is None:
        return None
    factors = {RING: planned.bus_factor}
    if planned.operation is AllReduce:
        factors[TREE] = 2.0
        factors[NVLS] = (
            (planned.size + 1) / planned.size
            if Layout.parse(planned.case.layout).nodes == 1
            else None
        )
    factor = factors.get(algorithm.upper())
    return None if factor is None else factor * algbw_gb_per_s


def impossible_reason(
    planned: Planned,
    efficiency: float | None,
    limit_name: str | None = None,
    algorithm: str | None = None,
) -> str | None:
    """Why a row may exceed its limit; None if it does not.

    A tree between two nodes, often named as a cause, is none: it is faster than the factor of a
    ring allows, but the limit is for the fewest bytes that any algorithm can move.
    """
    name = limit_name or ""
    allowed = MEASURED_LIMIT_RATIO if name in (COPY, HOST_COPY) else 1.0
    if efficiency is None or efficiency <= allowed:
        return None
    ran = (algorithm or "").upper()
    planned_rate = "NVLink" in name or "PCIe" in name
    possible = {
        "NVLS: the switch sums, a link carries (n+1)/n of the message and not 2(n-1)/n": (
            planned_rate
            and planned.operation is AllReduce
            and (not ran or any(word in ran for word in SUMMED_BY_SWITCH))
        ),
        "SHARP: the network sums, so fewer bytes enter and leave a node": (
            not planned_rate
            and not planned.case.pairs
            and name not in (COPY, HOST_COPY)
            and (not ran or "COLLNET" in ran)
        ),
        "NVLink through a third GPU instead of PCIe": bool(planned.case.pairs) and "PCIe" in name,
        "the limit is the rate that NCCL plans with, below the line rate of the link": (
            planned_rate and efficiency <= LINE_RATE_RATIO
        ),
        "the limit was measured, and that varies": name in (COPY, HOST_COPY),
        "the bus factor, the limit or a clock is wrong": True,
    }
    causes = ", or ".join(cause for cause, applies in possible.items() if applies)
    return f"busbw is {efficiency:.3g} x its limit ({limit_name or 'of no name'}): {causes}"
