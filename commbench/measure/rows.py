"""Samples -> statistics -> a row of cases.parquet, and the raw tables beside it; what the user expects of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.buffers.host import slot_bytes
from commbench.config.settings import Expectation
from commbench.core.case import Planned, Shape
from commbench.core.columns import CASES, VARIABLES
from commbench.core.layout import Layout
from commbench.core.pairs import pairs_text
from commbench.core.program import AllReduce
from commbench.hardware.link_limits import COPY, bandwidth_limit
from commbench.hardware.nvml import throttled

from .conditions import Conditions
from .samples import Block, Counts, Failure, Refused, Samples, repetition_times
from .statistics import Z95, Series, flags, summarise

VISIBLE_SHARE = 0.05  # of a number, from which on its cause must be flagged
CALL_SHARE = 0.1  # of the number that the call itself costs
DEVICE_TIMED = ("device_event", "graph", "throughput")
EVENT_NS = 500  # what CUDA's events resolve (CUDA Runtime API, cudaEventElapsedTime)
GB = 1e9
RING, TREE, NVLS = "RING", "TREE", "NVLS"
LINE_RATE_RATIO = 63 / 48  # line rate over the rate NCCL plans with, where that is largest: PCIe 5
SUMMED_BY_SWITCH = (NVLS, "LDMC")  # kernels for symmetric memory: AllReduce_RSxLDMC_AGxSTMC
COMPARE = {">=": float.__ge__, "<=": float.__le__, ">": float.__gt__, "<": float.__lt__}
Outcome = Samples | Refused | Failure


def row(job: Planned, outcome: Outcome, conditions: Conditions, started: datetime) -> dict[str, Any]:
    """One row without the identity of the run; numbers are null unless the status is ok."""
    layout = Layout.parse(job.case.layout)
    values: dict[str, Any] = {column.name: None for column in CASES}
    values |= {column.name: getattr(job.case, column.name) for column in VARIABLES}
    values |= {
        "case_id": job.case.case_id,
        "order": job.order,
        "started_at": started,
        "flags": [],
        "nodes": layout.nodes,
        "ranks_per_node": layout.ranks_per_node,
        "world_size": layout.size,
        **({} if job.skip else conditions.evidence.of(job)),
    }
    match outcome:
        case Refused(reason):
            return values | {"status": "skipped", "reason": reason}
        case Failure(reason):
            return values | {"status": "failed", "reason": reason}
        case Samples(wrong_elements=wrong) if wrong:
            reason = f"{wrong} elements are not what they must be; numbers are withheld"
            return values | {"status": "invalid", "reason": reason, "wrong_elements": wrong}
    return values | {"status": "ok", "reason": None} | _numbers(job, outcome, conditions)


def split_rounds(job: Planned, outcome: Outcome) -> list[tuple[Planned, Outcome]]:
    """A round of pairs gives a row per pair, from the stamps of its own two ranks; any other case stays one."""
    if job.case.schedule != "rounds" or len(job.case.pairs) < 2:
        return [(job, outcome)]
    singles = [replace(job, case=replace(job.case, pair=pairs_text([pair]))) for pair in job.case.pairs]
    if not isinstance(outcome, Samples):
        return [(single, outcome) for single in singles]
    return [(single, _samples_of_ranks(outcome, single.active)) for single in singles]


def _samples_of_ranks(samples: Samples, ranks: tuple[int, ...]) -> Samples:
    rows = [samples.ranks.index(rank) for rank in ranks]
    blocks = tuple(replace(block, stamps=block.stamps[rows]) for block in samples.blocks if block.decided is None)
    counts = []
    for one in samples.counts:
        chosen = np.isin(one.rank, ranks)
        counts.append(Counts(one.rank[chosen], one.t_ns[chosen], one.name[chosen], one.value[chosen]))
    return replace(samples, ranks=ranks, blocks=blocks, counts=tuple(counts), series=None, first_call_s=None)


# ---------------------------------------------------------------- raw tables


def sample_table(job: Planned, samples: Samples, run_id: str) -> dict[str, NDArray[Any]]:
    """The columns of samples.parquet: one row per rank and repetition, in the order they ran."""
    parts = [_block_columns(block, np.asarray(samples.ranks)) for block in samples.blocks]
    if not parts:
        return {}
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    elapsed = table["end_ns"] - table["start_ns"]
    if job.case.timing_mode in DEVICE_TIMED:  # events give a difference, not an instant on a host's clock
        table |= dict.fromkeys(("start_ns", "end_ns"), np.full(len(elapsed), None, dtype=object))
    return {**_identity_columns(job, run_id, len(elapsed)), **table, "elapsed_ns": elapsed}


def _block_columns(block: Block, ranks: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    rows, n, _ = block.stamps.shape
    return {
        "phase": np.full(rows * n, block.phase, dtype=object),
        "block": np.full(rows * n, block.index),
        "repetition": np.tile(np.arange(block.first, block.first + n), rows),
        "rank": np.repeat(ranks, n) if block.decided is None else block.decided,
        "start_ns": block.stamps[:, :, 0].reshape(-1),
        "end_ns": block.stamps[:, :, 1].reshape(-1),
    }


def count_table(job: Planned, samples: Samples, run_id: str) -> dict[str, NDArray[Any]]:
    """The columns of counters.parquet."""
    if not samples.counts:
        return {}
    table = {
        name: np.concatenate([getattr(counts, name) for counts in samples.counts])
        for name in ("rank", "t_ns", "name", "value")
    }
    return {**_identity_columns(job, run_id, len(table["rank"])), **table}


def _identity_columns(job: Planned, run_id: str, length: int) -> dict[str, NDArray[Any]]:
    texts = {"run_id": run_id, "case_id": job.case.case_id}
    return {name: np.full(length, text, dtype=object) for name, text in texts.items()}


# ---------------------------------------------------------------- numbers


def _numbers(job: Planned, samples: Samples, conditions: Conditions) -> dict[str, Any]:
    operations = job.shape.operations_per_sample * samples.block_k
    times = _measured_times(job, samples, operations)
    summary = asdict(summarise(times, Z95))
    summary["repetitions"] = samples.repetitions or summary["repetitions"]
    rates = _rates(job, summary, conditions)
    algorithm = conditions.evidence.algorithm(job)
    impossible = impossible_reason(job, rates["efficiency"], rates["limit_name"], algorithm)
    clock = "device" if job.case.timing_mode in DEVICE_TIMED else "monotonic"
    return {
        **summary,
        **rates,
        "reason": impossible,
        "headline": job.shape.headline,
        "operations_per_sample": operations,
        "block_k": samples.block_k,
        "clock": "virtual" if samples.engine == "virtual" else clock,
        "stop_reason": samples.stop_reason,
        "clock_error_s": samples.clock_error_s,
        "late_repetitions": samples.late_repetitions,
        "first_call_s": _first_call_s(job, samples),
        "overhead_s": _overhead_s(job, samples, conditions),
        "wrong_elements": 0,
        "flags": [
            *flags(times, Z95),
            *(["impossible"] if impossible else []),
            *_machine_flags(job, samples, conditions, summary["median_s"]),
        ],
    }


def _measured_times(job: Planned, samples: Samples, operations: int) -> Series:
    """Seconds per operation of each measured repetition."""
    if samples.series is not None:
        return samples.series / operations
    shape = Shape(operations, job.shape.bytes_per_sample, job.shape.headline)
    return repetition_times(samples.stamps("measure"), shape, job.senders, job.senders[0])


def _first_call_s(job: Planned, samples: Samples) -> float | None:
    if samples.first_call_s is not None:
        return samples.first_call_s / job.shape.operations_per_sample
    times = repetition_times(samples.stamps("connect"), job.shape, job.senders, job.senders[0])
    return float(times[0]) if len(times) else None


def _overhead_s(job: Planned, samples: Samples, conditions: Conditions) -> float | None:
    """The calibrated call is a collective on the host's clock: it says nothing about a send or about GPU events."""
    if job.case.pairs or job.case.timing_mode in DEVICE_TIMED:
        return None
    return conditions.overhead_s.get(samples.engine)


def _rates(job: Planned, summary: Mapping[str, Any], conditions: Conditions) -> dict[str, Any]:
    """From times, never averaged: bytes over a statistic of the time (Hoefler & Belli 2015, rule 3)."""
    median_s = summary["median_s"]
    operation_bytes = job.shape.bytes_per_sample / job.shape.operations_per_sample
    factor = job.benchmark.bus_factor(job.size)
    # a rank alone communicates with nobody: in place nothing moves at all, else it is a copy
    algbw = None if job.size == 1 else _gb_per_s(operation_bytes, median_s)
    busbw = None if factor is None or algbw is None else factor * algbw
    evidence = conditions.evidence
    limit_gb_per_s, limit_name = bandwidth_limit(
        job, conditions.wires, conditions.world.node_of, evidence.gpus, evidence.topologies, evidence.copy_gb_per_s
    ) or (None, None)
    return {
        "algbw_gb_per_s": algbw,
        "algbw_ci_low_gb_per_s": None if algbw is None else _gb_per_s(operation_bytes, summary["ci_high_s"]),
        "algbw_ci_high_gb_per_s": None if algbw is None else _gb_per_s(operation_bytes, summary["ci_low_s"]),
        "busbw_gb_per_s": busbw,
        "wire_gb_per_s": wire_gb_per_s(job, algbw, evidence.algorithm(job)),
        "limit_gb_per_s": limit_gb_per_s,
        "limit_name": limit_name,
        "efficiency": None if busbw is None or limit_gb_per_s is None else busbw / limit_gb_per_s,
        "message_rate_per_s": 1 / median_s if median_s else None,
    }


def _gb_per_s(operation_bytes: float, seconds: float | None) -> float | None:
    return operation_bytes / seconds / GB if seconds and operation_bytes else None


def _machine_flags(job: Planned, samples: Samples, conditions: Conditions, median_s: float) -> list[str]:
    """Flags that come from the machine and not from the series."""
    if samples.engine == "virtual":
        return []
    case, layout = job.case, Layout.parse(job.case.layout)
    device_timed = case.timing_mode in DEVICE_TIMED
    read_ns = EVENT_NS if device_timed else 2 * conditions.clock.p50_ns
    sample_s = median_s * job.shape.operations_per_sample * samples.block_k
    overhead_s, threads = _overhead_s(job, samples, conditions), conditions.threads_per_rank * (case.streams or 1)
    masks = {int(mask) for one in samples.counts for mask in one.value[one.name == "gpu.throttle_reasons"]}
    same_clock = layout.nodes == 1 and not device_timed and case.sync == "barrier"
    raised = {
        "oversubscribed": layout.ranks_per_node * threads > conditions.cores,
        "timer_limited": read_ns * 1e-9 > VISIBLE_SHARE * sample_s,
        "python_bound": samples.engine == "python" and overhead_s is not None and overhead_s > CALL_SHARE * median_s,
        "in_cache": case.cache == "rotate" and _rotated_bytes(job) < 2 * conditions.cache_bytes,
        "thinned": samples.series is not None and len(samples.series) < (samples.repetitions or 0),
        "throttled": any(throttled(mask) for mask in masks),
        "zero_payload": samples.block_k > 1 and any(job.program(rank).reset for rank in job.active),
        "skewed": same_clock and _start_skew_s(samples) > VISIBLE_SHARE * median_s,
    }
    return [flag for flag, present in raised.items() if present]


def _rotated_bytes(job: Planned) -> int:
    """Of the largest buffer of any rank, all copies."""
    specs = (spec for rank in job.active for spec in job.program(rank).buffers)
    return max((slot_bytes(spec) * spec.slots * job.pool for spec in specs), default=0)


def _start_skew_s(samples: Samples) -> float:
    """Median difference between the ranks' starts, for ranks that share a clock."""
    starts = samples.stamps("measure")[:, :, 0]
    return float(np.median(starts.max(axis=0) - starts.min(axis=0))) * 1e-9 if starts.size else 0.0


# ---------------------------------------------------------------- load of the wire, by the algorithm that ran


def wire_gb_per_s(job: Planned, algbw_gb_per_s: float | None, algorithm: str | None) -> float | None:
    """GB/s that the busiest link of a GPU carries in one direction; None where no formula is known.

    The bus factor is that of a ring, whatever ran (as in nccl-tests). For n ranks and S bytes a ring carries what the
    bus factor says; a tree 2 S, the root half of it (a maintainer in NVIDIA/nccl#457); NVLS on one node S (n + 1) / n
    (NVIDIA/nccl-tests#239).
    """
    name, nodes = (algorithm or "").upper(), Layout.parse(job.case.layout).nodes
    factor: float | None = None
    if name == RING:
        factor = job.benchmark.bus_factor(job.size)
    elif name == TREE and _is_all_reduce(job):
        factor = 2.0
    elif name == NVLS and _is_all_reduce(job) and nodes == 1:
        factor = (job.size + 1) / job.size
    return None if factor is None or algbw_gb_per_s is None else factor * algbw_gb_per_s


def _is_all_reduce(job: Planned) -> bool:
    steps = job.program(0).steps
    return bool(steps) and isinstance(steps[0], AllReduce)


def impossible_reason(
    job: Planned, efficiency: float | None, limit_name: str | None = None, algorithm: str | None = None
) -> str | None:
    """Why a row may show more than its limit; None where it does not.

    A tree between two nodes is not among the causes, though often named as one: it is faster than a ring's factor
    allows, but the limit is that of the fewest bytes any algorithm can move.
    """
    if efficiency is None or efficiency <= 1:
        return None
    name, ran = limit_name or "", (algorithm or "").upper()
    planned_rate = "NVLink" in name or "PCIe" in name
    possible = {
        "NVLS: the switch sums, a link carries (n+1)/n of the message and not 2(n-1)/n": (
            planned_rate and _is_all_reduce(job) and (not ran or any(word in ran for word in SUMMED_BY_SWITCH))
        ),
        "SHARP: the network sums, so fewer bytes enter and leave a node": (
            not planned_rate and not job.case.pairs and name != COPY and (not ran or "COLLNET" in ran)
        ),
        "NVLink through a third GPU instead of PCIe": bool(job.case.pairs) and "PCIe" in name,
        "the limit is the rate that NCCL plans with, below the line rate of the link": (
            planned_rate and efficiency <= LINE_RATE_RATIO
        ),
        "the limit was measured, and that varies": name == COPY,
        "the bus factor, the limit or a clock is wrong": True,
    }
    causes = ", or ".join(cause for cause, applies in possible.items() if applies)
    return f"busbw is {efficiency:.3g} x its limit ({limit_name or 'of no name'}): {causes}"


# ---------------------------------------------------------------- what the user expects


def missed_expectations(expected: Expectation, rows: list[dict[str, Any]]) -> list[str]:
    """A line for each measured case that misses an expectation, or one line where it matches no case at all."""
    chosen = [one for one in rows if expected.benchmark in (None, one["benchmark"])]
    numbers = [one for one in chosen if isinstance(one[expected.column], int | float)]
    if not numbers:
        return [f"expect {expected.text}: no measured case has {expected.column}"]
    missed = [one for one in numbers if not COMPARE[expected.comparison](float(one[expected.column]), expected.bound)]
    return [
        f"expect {expected.text}: {one['benchmark']} {one['layout']} {one['message_bytes']} B"
        f" has {one[expected.column]:g}"
        for one in missed
    ]
