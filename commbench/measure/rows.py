"""Samples -> statistics -> a row of cases.parquet, and the raw table beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.buffers.host import slot_bytes
from commbench.core.case import Planned, Shape, World
from commbench.core.clock import ClockCost
from commbench.core.columns import CASES, VARIABLES
from commbench.core.layout import Layout
from commbench.core.pairs import pairs_text
from commbench.hardware.link_limits import Wire, bandwidth_limit
from commbench.hardware.nvml import throttled

from .headline import repetition_times
from .samples import Block, Counts, Failure, Refused, Samples
from .statistics import Z95, Series, flags, summarise
from .transports import TransportEvidence
from .wire_load import impossible, wire_gb_per_s

VISIBLE = 0.05  # a share of a number from which on its cause must be told
CALL_SHARE = 0.1  # of the number that is the price of the call
DEVICE_TIMED = ("device_event", "graph", "throughput")
EVENT_NS = 500  # what CUDA's events resolve (CUDA Runtime API, cudaEventElapsedTime)
GB = 1e9
Outcome = Samples | Refused | Failure


@dataclass(frozen=True)
class Circumstances:
    """What a row needs beside its case: the same for all cases of a run."""

    clock: ClockCost
    overhead_s: Mapping[str, float]  # engine -> floor of a call
    cores: float  # that a node's ranks may use
    threads_per_rank: int
    cache_bytes: int
    evidence: TransportEvidence
    world: World
    wires: tuple[Wire | None, ...]  # of each node


def row(job: Planned, outcome: Outcome, around: Circumstances, started: datetime) -> dict[str, Any]:
    """One row without the run's identity; numbers are null unless the status is ok."""
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
        **({} if job.skip else around.evidence.of(job)),
    }
    match outcome:
        case Refused(reason):
            return values | {"status": "skipped", "reason": reason}
        case Failure(reason):
            return values | {"status": "failed", "reason": reason}
        case Samples(wrong_elements=wrong) if wrong:
            reason = f"{wrong} elements are not what they must be; numbers are withheld"
            return values | {"status": "invalid", "reason": reason, "wrong_elements": wrong}
    return values | {"status": "ok", "reason": None} | _numbers(job, outcome, around)


def split(job: Planned, outcome: Outcome) -> list[tuple[Planned, Outcome]]:
    """A round of pairs gives a row each, from the stamps of its own two ranks; everything else stays one."""
    if job.case.schedule != "rounds" or len(job.case.pairs) < 2:
        return [(job, outcome)]
    singles = [replace(job, case=replace(job.case, pair=pairs_text([pair]))) for pair in job.case.pairs]
    if not isinstance(outcome, Samples):
        return [(single, outcome) for single in singles]
    return [(single, _own(outcome, single.active)) for single in singles]


def _own(samples: Samples, ranks: tuple[int, ...]) -> Samples:
    rows = [samples.ranks.index(rank) for rank in ranks]
    blocks = tuple(replace(block, stamps=block.stamps[rows]) for block in samples.blocks if block.decided is None)
    counts = tuple(_of_ranks(one, ranks) for one in samples.counts)
    return replace(samples, ranks=ranks, blocks=blocks, counts=counts, series=None, first_call_s=None)


def _of_ranks(counts: Counts, ranks: tuple[int, ...]) -> Counts:
    own = np.isin(counts.rank, ranks)
    return Counts(counts.rank[own], counts.t_ns[own], counts.name[own], counts.value[own])


def sample_table(job: Planned, samples: Samples, run_id: str) -> dict[str, NDArray[Any]]:
    """The columns of samples.parquet: one row a rank and repetition, in the order they ran."""
    parts = [_block_columns(block, np.asarray(samples.ranks)) for block in samples.blocks]
    if not parts:
        return {}
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    elapsed = table["end_ns"] - table["start_ns"]
    if job.case.timing_mode in DEVICE_TIMED:  # an event tells a difference, and no instant that a host knows
        table |= dict.fromkeys(("start_ns", "end_ns"), np.full(len(elapsed), None, dtype=object))
    return {**_identity(job, run_id, len(elapsed)), **table, "elapsed_ns": elapsed}


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
    return {**_identity(job, run_id, len(table["rank"])), **table}


def _identity(job: Planned, run_id: str, length: int) -> dict[str, NDArray[Any]]:
    texts = {"run_id": run_id, "case_id": job.case.case_id}
    return {name: np.full(length, text, dtype=object) for name, text in texts.items()}


def _numbers(job: Planned, samples: Samples, around: Circumstances) -> dict[str, Any]:
    operations = job.shape.operations_per_sample * samples.block_k
    times = _times(job, samples, operations)
    summary = asdict(summarise(times, Z95))
    summary["repetitions"] = samples.repetitions or summary["repetitions"]
    rates = _rates(job, summary, around)
    above = impossible(job, rates["efficiency"], rates["limit_name"], around.evidence.algorithm(job))
    noted = flags(times, Z95) + (["impossible"] if above else [])
    return {
        **summary,
        **rates,
        "reason": above,
        "headline": job.shape.headline,
        "operations_per_sample": operations,
        "block_k": samples.block_k,
        "clock": _clock(job, samples),
        "stop_reason": samples.stop_reason,
        "clock_error_s": samples.clock_error_s,
        "late_repetitions": samples.late_repetitions,
        "first_call_s": _first_call_s(job, samples),
        "overhead_s": _floor_s(job, samples, around),
        "wrong_elements": 0,
        "flags": [*noted, *_circumstantial(job, samples, around, summary["median_s"])],
    }


def _clock(job: Planned, samples: Samples) -> str:
    if samples.engine == "virtual":
        return "virtual"
    return "device" if job.case.timing_mode in DEVICE_TIMED else "monotonic"


def _times(job: Planned, samples: Samples, operations: int) -> Series:
    """Seconds per operation of each measured repetition."""
    if samples.series is not None:
        return samples.series / operations
    shape = Shape(operations, job.shape.bytes_per_sample, job.shape.headline)
    return repetition_times(samples.stamps("measure"), shape, job.senders, job.senders[0])


def _floor_s(job: Planned, samples: Samples, around: Circumstances) -> float | None:
    """The call that was calibrated is a collective by the host's clock: it says nothing of a send, nor of an event."""
    return None if job.case.pairs or job.case.timing_mode in DEVICE_TIMED else around.overhead_s.get(samples.engine)


def _rates(job: Planned, summary: Mapping[str, Any], around: Circumstances) -> dict[str, Any]:
    """From times, never averaged: bytes over a statistic of the time (Hoefler & Belli 2015, rule 3)."""
    median_s = summary["median_s"]
    operation_bytes = job.shape.bytes_per_sample / job.shape.operations_per_sample
    factor = job.benchmark.bus_factor(job.size)
    # alone a rank has nobody to talk to: in place nothing moves at all, else it is a copy
    algbw = None if job.size == 1 else _rate(operation_bytes, median_s)
    busbw = None if factor is None or algbw is None else factor * algbw
    seen = around.evidence
    limit_gb_per_s, limit_name = bandwidth_limit(
        job, around.wires, around.world.node_of, seen.gpus, seen.topologies, seen.copy_gb_per_s
    ) or (None, None)
    return {
        "algbw_gb_per_s": algbw,
        "algbw_ci_low_gb_per_s": None if algbw is None else _rate(operation_bytes, summary["ci_high_s"]),
        "algbw_ci_high_gb_per_s": None if algbw is None else _rate(operation_bytes, summary["ci_low_s"]),
        "busbw_gb_per_s": busbw,
        "wire_gb_per_s": wire_gb_per_s(job, algbw, seen.algorithm(job)),
        "limit_gb_per_s": limit_gb_per_s,
        "limit_name": limit_name,
        "efficiency": None if busbw is None or limit_gb_per_s is None else busbw / limit_gb_per_s,
        "message_rate_per_s": 1 / median_s if median_s else None,
    }


def _rate(operation_bytes: float, seconds: float | None) -> float | None:
    return operation_bytes / seconds / GB if seconds and operation_bytes else None


def _first_call_s(job: Planned, samples: Samples) -> float | None:
    if samples.first_call_s is not None:
        return samples.first_call_s / job.shape.operations_per_sample
    times = repetition_times(samples.stamps("connect"), job.shape, job.senders, job.senders[0])
    return float(times[0]) if len(times) else None


def _circumstantial(job: Planned, samples: Samples, around: Circumstances, median_s: float) -> list[str]:
    """Flags that come from the machine and not from the series."""
    if samples.engine == "virtual":
        return []
    on_host = job.case.timing_mode not in DEVICE_TIMED and job.case.sync == "barrier"
    read_ns = EVENT_NS if job.case.timing_mode in DEVICE_TIMED else 2 * around.clock.p50_ns
    layout, sample_s = Layout.parse(job.case.layout), median_s * job.shape.operations_per_sample * samples.block_k
    floor, threads = _floor_s(job, samples, around), around.threads_per_rank * (job.case.streams or 1)
    found = {
        "oversubscribed": layout.ranks_per_node * threads > around.cores,
        "timer_limited": read_ns * 1e-9 > VISIBLE * sample_s,
        "python_bound": samples.engine == "python" and floor is not None and floor > CALL_SHARE * median_s,
        "in_cache": job.case.cache == "rotate" and _rotated_bytes(job) < 2 * around.cache_bytes,
        "thinned": samples.series is not None and len(samples.series) < (samples.repetitions or 0),
        "throttled": any(throttled(mask) for mask in _throttle_masks(samples)),
        "zero_payload": samples.block_k > 1 and any(job.program(rank).reset for rank in job.active),
        "skewed": on_host and layout.nodes == 1 and _skew_s(samples) > VISIBLE * median_s,
    }
    return [name for name, present in found.items() if present]


def _throttle_masks(samples: Samples) -> set[int]:
    """NVML's reasons for a slower clock, as they were read around the blocks."""
    return {int(mask) for one in samples.counts for mask in one.value[one.name == "gpu.throttle_reasons"]}


def _rotated_bytes(job: Planned) -> int:
    """Of the largest buffer of any rank, all copies."""
    specs = (spec for rank in job.active for spec in job.program(rank).buffers)
    return max((slot_bytes(spec) * spec.slots * job.pool for spec in specs), default=0)


def _skew_s(samples: Samples) -> float:
    """Median difference of the ranks' starts; they share a clock on one node only."""
    starts = samples.stamps("measure")[:, :, 0]
    return float(np.median(starts.max(axis=0) - starts.min(axis=0))) * 1e-9 if starts.size else 0.0
