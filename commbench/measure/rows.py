"""The row of a case in cases.parquet, as a function of its visits and of the conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from commbench.core.case import Planned, version_of
from commbench.core.layout import Layout, ends_of_pair
from commbench.core.program import AllReduce
from commbench.core.variables import EVENT_TIMED, MODEL_ENGINE, NAMES, Case
from commbench.hardware.link_limits import Limit, bandwidth_limit
from commbench.results.flags import FLAGS
from commbench.results.row import Measured, Row
from commbench.stats.interval import Interval
from commbench.stats.series import Modes, summarise, tukey_outliers
from commbench.stats.thresholds import WAITED_SHARE

from .conditions import Conditions, fits_in_cache
from .measuring import case_columns, found_columns
from .samples import Failure, Refused, Wrong
from .visits import CaseRecord, Visit, changes, estimate, modes_of, spread

VISIBLE_SHARE = 0.05  # of a number: larger disturbances are flagged
CALL_SHARE = 0.1  # of the median that the call itself may take
EVENT_S = 500e-9  # resolution of CUDA's events (CUDA Runtime API, cudaEventElapsedTime)
GB = 1e9
PERCENTILES = ("p90_s", "p95_s", "p99_s", "p999_s")
NVLS = "NVLS"
# the largest ratio of the line rate to the rate that NCCL plans with: PCIe 5
LINE_RATE_RATIO = 63 / 48
SUMMED_BY_SWITCH = (NVLS, "LDMC")  # kernels for symmetric memory: AllReduce_RSxLDMC_AGxSTMC


@dataclass(frozen=True)
class RowFacts:
    """What is known of a row besides its visits. Each fact is found out once, for all rows that
    are `alike`."""

    planned: Planned
    conditions: Conditions

    @staticmethod
    def alike(planned: Planned, conditions: Conditions) -> Hashable:
        """What the facts of a row of a case depend on: of a pair its nodes, unless its path or its
        GPUs are known."""
        evidence = conditions.evidence
        nccl = evidence.nccl
        if len(planned.case.pairs) != 1 or nccl.logged or nccl.kinds or evidence.gpus:
            return planned.case.case_id
        (pair,) = planned.case.pairs
        nodes = [conditions.world.node_of(planned.members[rank]) for rank in pair]
        wires = [evidence.reported.interfaces[node : node + 1] for node in nodes]
        small_shm = [node in conditions.small_shm_nodes for node in nodes]
        return pair[0] == pair[1], nodes[0] == nodes[1], *wires, *small_shm

    @cached_property
    def base(self) -> dict[str, Any]:
        """The columns that do not depend on a result."""
        planned = self.planned
        conditions = self.conditions
        layout = Layout.parse(planned.case.layout)
        nodes = conditions.world.nodes_of(planned.members)
        hosts = {name for node, name in enumerate(conditions.hosts) if node in nodes}
        return {
            **{name: getattr(planned.case, name) for name in NAMES},
            "order": planned.order,
            "hosts": " ".join(sorted(hosts)) or None,
            "nodes": layout.nodes,
            "ranks_per_node": layout.ranks_per_node,
            "world_size": layout.size,
            "library_version": version_of(planned.case.library),
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
            None if self.is_in_cache else self.conditions.core_copy_gb_per_s,
            evidence.nvlink_joins_nodes(planned),
        )

    @cached_property
    def is_in_cache(self) -> bool:
        """Whether the buffers fit into the last-level cache; with device=cuda, into that of the
        GPU."""
        return fits_in_cache(self.planned, self.conditions.cache_bytes)

    @cached_property
    def algorithm(self) -> str | None:
        return self.conditions.evidence.nccl.algorithm(self.planned)

    @cached_property
    def bus_factor(self) -> float | None:
        return self.planned.bus_factor

    @cached_property
    def rewrites(self) -> bool:
        """Whether a buffer is written several times in a sample. Two ranks tell: one of them
        receives. Not asked of pairs, which may be millions."""
        planned = self.planned
        programs = map(planned.program, planned.active[:2])
        return not planned.case.pairs and any(program.rewrites for program in programs)

    @cached_property
    def has_one_clock(self) -> bool:
        """Whether the ranks start together, and their stamps can be compared: not on several nodes,
        and not events of several GPUs."""
        planned = self.planned
        if planned.case.sync == "none" or len(planned.active) < 2:
            return False
        nodes = {self.conditions.world.node_of(planned.members[rank]) for rank in planned.active}
        by_events = planned.case.timer in EVENT_TIMED
        return planned.case.has_model_clock or (len(nodes) == 1 and not by_events)

    @cached_property
    def network_problem(self) -> str | None:
        """That the library took TCP instead of the network that the machine has, with the cure."""
        expected = self.conditions.evidence.unused_network(self.planned)
        if expected is None:
            return None
        return f"messages take {self.base['transport']}, but {expected}"

    @cached_property
    def unregistered(self) -> str | None:
        return self.conditions.evidence.nccl.unregistered(self.planned)

    @cached_property
    def operation(self) -> dict[str, Any]:
        """The columns of what a sample of the operation is, and what it costs to time and to call
        it."""
        planned = self.planned
        case = planned.case
        shape = planned.shape
        blocks = planned.benchmark.blocks(planned.size) or 1
        by_events = case.timer in EVENT_TIMED
        # the calibrated call is a collective by the host's clock: not comparable with a send or
        # with GPU events
        is_calibrated = not case.pairs and not by_events
        empty_s = self.conditions.empty_sample_s.get(case.engine)
        overhead_s = self.conditions.overhead_s.get(case.engine)
        return {
            "headline": shape.headline,
            "counted_ranks": shape.ranks,
            "median_of": shape.median_of,
            **case_columns(planned, self.conditions.world.node_of),
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
        threads = ranks_per_node * conditions.threads_per_rank * case.threads_of_streams
        members = (self.planned.members[rank] for rank in self.planned.active)
        on_nodes = Counter(map(conditions.world.node_of, members))
        is_shm_small = any(on_nodes[node] > 1 for node in conditions.small_shm_nodes)
        is_shared = case.buffers == "shared"
        has_one_buffer = is_shared and (case.window or 1) > 1
        return {
            "oversubscribed": (
                threads > conditions.cores or conditions.evidence.shares_gpu(self.planned)
            ),
            "in_cache": case.cache == "rotate" and self.is_in_cache,
            "fallback": self.network_problem is not None or is_shm_small,
            "unregistered": self.unregistered is not None,
            # an exchange shares the buffer that it sends, and receives into its own
            "unchecked": has_one_buffer or (self.rewrites and not is_shared),
        }


def row(
    facts: RowFacts,
    case: Case,
    outcome: CaseRecord | Refused | Failure | Wrong,
    started_at: datetime | None = None,
) -> Row:
    """One row without the identity of the run; numbers are None unless the status is ok.
    `started_at` is the start of a visit without numbers."""
    values = facts.base | {
        "case_id": case.case_id,
        "pair": case.pair,
        **ends_of_pair(case.pair),
        "started_at": started_at,
    }
    match outcome:
        case Refused(reason):
            return Row(**values, status="skipped", reason=reason)
        case Failure(reason):
            return Row(**values, status="failed", reason=reason)
        case Wrong(elements):
            reason = f"{elements} elements are not what they must be; numbers are withheld"
            return Row(**values, status="invalid", reason=reason, wrong_elements=elements)
    return Measured(**values | _numbers(facts, outcome))


# ---------------------------------------------------------------- numbers


def _numbers(facts: RowFacts, record: CaseRecord) -> dict[str, Any]:
    """Each column from one source, and what is said about them together."""
    visits = record.visits
    modes = modes_of(visits)
    median = _around_modes(estimate(visits, facts.conditions.z), modes)
    rates = rate_columns(facts, median)
    numbers = (
        median_columns(visits, median)
        | _mode_columns(modes)
        | time_columns(facts.planned, visits)
        | rates
        | visit_columns(facts, visits)
        | facts.operation
        | found_columns([visit.findings for visit in visits])
    )
    impossible = impossible_reason(facts.planned, rates["efficiency"], facts.limit, facts.algorithm)
    reasons = (
        impossible,
        facts.network_problem,
        facts.unregistered,
        *changes(visits),
        record.broken,
    )
    raised = {
        "impossible": impossible is not None,
        **_machine_flags(facts, visits, numbers),
    }
    return numbers | {
        "started_at": visits[0].started_at,
        "stop_reason": record.stop_reason,
        "reason": "; ".join(filter(None, reasons)) or None,
        "warnings": tuple(name for name in FLAGS if raised.get(name)),
    }


def _around_modes(median: Interval, modes: Modes | None) -> Interval:
    """The interval with both typical times in it: a repetition takes one of them, and the median
    stays at one or the other by chance."""
    if modes is None or not median.is_known:
        return median
    return replace(median, low=min(median.low, modes.fast), high=max(median.high, modes.slow))


def _mode_columns(modes: Modes | None) -> dict[str, Any]:
    if modes is None:
        return {}
    return {
        "fast_mode_s": modes.fast,
        "slow_mode_s": modes.slow,
        "slow_share": modes.slow_share,
    }


def median_columns(visits: Sequence[Visit], median: Interval) -> dict[str, Any]:
    """The median of the visits and its interval."""
    return {
        "median_s": median.value,
        "ci_low_s": median.low if median.is_known else None,
        "ci_high_s": median.high if median.is_known else None,
        "interval_of": median.of,
        "interval_level": median.level,
        "visits": len(visits),
        "visit_spread": spread(visits) if len(visits) > 1 else None,
        "visit_medians_s": tuple(visit.median_s for visit in visits),
        "visit_launches": tuple(visit.launch for visit in visits),
    }


def time_columns(planned: Planned, visits: Sequence[Visit]) -> dict[str, Any]:
    """Statistics of the times of all visits together."""
    times = np.concatenate([visit.times for visit in visits])
    # a percentile of windows is not one of messages
    has_percentiles = planned.shape.single and visits[-1].block_k == 1
    weights = [visit.repetitions for visit in visits]
    return {
        **summarise(times),
        **({} if has_percentiles else dict.fromkeys(PERCENTILES)),
        "outliers": tukey_outliers(times),
        "effective_repetitions": sum(visit.effective_repetitions for visit in visits),
        "lag1": float(np.average([visit.lag1 for visit in visits], weights=weights)),
    }


def visit_columns(facts: RowFacts, visits: Sequence[Visit]) -> dict[str, Any]:
    """What was noted in the visits: warm-up, counters, skew."""
    first = visits[0]
    last = visits[-1]
    skews_s = [visit.skew_s for visit in visits if visit.skew_s is not None]
    waits = [visit.core_wait_share for visit in visits if visit.core_wait_share is not None]
    retransmits = [count for visit in visits for count in visit.retransmits.values()]
    return {
        "operations_per_sample": facts.planned.shape.operations * last.block_k,
        "block_k": last.block_k,
        "compute_amount": last.compute_amount,
        "warmup_s": sum(visit.warmup_s for visit in visits),
        "steady": all(visit.is_steady for visit in visits),
        "first_call_s": first.first_call_s,
        "retransmits": round(sum(retransmits)) if retransmits else None,
        "repetitions": sum(visit.repetitions for visit in visits),
        "wrong_elements": 0,  # with wrong ones a row has no numbers
        "visits_s": None if facts.planned.case.has_model_clock else last.end_s,
        # the time between the starts of the first and the last rank
        "skew_s": median(skews_s) if facts.has_one_clock and skews_s else None,
        "core_wait_share": median(waits) if waits else None,
    }


def _messages_per_call(planned: Planned, conditions: Conditions) -> int | None:
    """None for a collective."""
    posted = planned.messages_per_peer
    if not posted and not planned.case.pairs:
        return None
    return max(1, posted) if conditions.joins_messages else 1


def _clock_of_times(planned: Planned) -> str:
    if planned.case.has_model_clock:
        return MODEL_ENGINE
    return "device" if planned.case.timer in EVENT_TIMED else "monotonic"


def rate_columns(facts: RowFacts, median: Interval) -> dict[str, Any]:
    """Rates are computed from times and never averaged (Hoefler & Belli 2015, rule 3)."""
    planned = facts.planned
    median_s = median.value
    low_s, high_s = (median.low, median.high) if median.is_known else (None, None)
    operation_bytes = planned.shape.moved_bytes / planned.shape.operations
    factor = facts.bus_factor
    # a collective of a single rank does not communicate: in place it moves nothing, else it is a
    # copy
    alone = planned.size == 1 and factor is None and not planned.case.pairs
    moved_bytes = 0.0 if alone else operation_bytes
    algbw = _gb_per_s(moved_bytes, median_s)
    busbw = None if factor is None or algbw is None else factor * algbw
    limit = facts.limit
    return {
        "algbw_gb_per_s": algbw,
        "algbw_ci_low_gb_per_s": _gb_per_s(moved_bytes, high_s),
        "algbw_ci_high_gb_per_s": _gb_per_s(moved_bytes, low_s),
        "busbw_gb_per_s": busbw,
        "wire_gb_per_s": wire_gb_per_s(planned, algbw, facts.algorithm),
        "limit_gb_per_s": limit and limit.gb_per_s,
        "limit_name": limit and limit.name,
        "limit_kind": limit and limit.kind,
        "efficiency": None if busbw is None or limit is None else busbw / limit.gb_per_s,
        "message_rate_per_s": 1 / median_s if median_s and planned.shape.rated else None,
    }


def _gb_per_s(operation_bytes: float, seconds: float | None) -> float | None:
    return operation_bytes / seconds / GB if seconds and operation_bytes else None


def _machine_flags(
    facts: RowFacts, visits: Sequence[Visit], numbers: Mapping[str, Any]
) -> dict[str, bool]:
    """Flags about the machine; `numbers` are those of the row."""
    case = facts.planned.case
    if case.has_model_clock:
        return {}
    median_s = numbers["median_s"]
    sample_s = median_s * numbers["operations_per_sample"]
    timer_s = (
        EVENT_S
        if case.timer in EVENT_TIMED
        else facts.conditions.empty_sample_s.get(case.engine, 0.0)
    )
    call_is_long = (numbers["overhead_s"] or 0.0) > CALL_SHARE * median_s
    is_host_bound = call_is_long or any(visit.is_host_bound for visit in visits)
    return facts.flags | {
        "overhead": (
            timer_s > VISIBLE_SHARE * sample_s or (case.engine == "python" and is_host_bound)
        ),
        "waited": (numbers["core_wait_share"] or 0.0) > WAITED_SHARE,
        "throttled": any(visit.is_throttled for visit in visits),
        "skewed": (numbers["skew_s"] or 0.0) > VISIBLE_SHARE * sample_s,
    }


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
    factors = {"RING": planned.bus_factor}
    if planned.operation is AllReduce:
        factors["TREE"] = 2.0
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
    limit: Limit | None,
    algorithm: str | None = None,
) -> str | None:
    """Why a row may exceed its limit; None if it does not, or the limit is a measured rate.

    A tree between two nodes, often named as a cause, is none: it is faster than the factor of a
    ring allows, but the limit is for the fewest bytes that any algorithm can move.
    """
    if efficiency is None or efficiency <= 1.0 or limit is None or limit.kind == "memory":
        return None
    ran = (algorithm or "").upper()
    is_planned = limit.kind in ("nvlink", "pcie")
    crosses_nodes = Layout.parse(planned.case.layout).nodes > 1
    possible = {
        "NVLS: the switch sums, a link carries (n+1)/n of the message and not 2(n-1)/n": (
            is_planned
            and planned.operation is AllReduce
            and (not ran or any(word in ran for word in SUMMED_BY_SWITCH))
        ),
        "SHARP: the network sums, so fewer bytes enter and leave a node": (
            not is_planned
            and crosses_nodes
            and not planned.case.pairs
            and (not ran or "COLLNET" in ran)
        ),
        "NVLink through a third GPU instead of PCIe": (
            bool(planned.case.pairs) and limit.kind == "pcie"
        ),
        "the limit is the rate that NCCL plans with, below the line rate of the link": (
            is_planned and efficiency <= LINE_RATE_RATIO
        ),
        "limit= tells less than the line carries": limit.kind == "told",
        "the bus factor, the limit or a clock is wrong": True,
    }
    causes = ", or ".join(cause for cause, applies in possible.items() if applies)
    return f"busbw is {efficiency:.3g} x its limit ({limit.name}): {causes}"
