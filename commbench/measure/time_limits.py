"""Limits of time: the rule that ends a case, how many samples lie between two stamps, and when a rank is late."""

from __future__ import annotations

import math

from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.clock import ClockCost

from .statistics import StopRule

BLOCK_S = 0.5  # the longest time without a decision
MEMORY_S_PER_BYTE = 1 / 0.2e9  # slow enough for a first touch on a busy machine
MAX_REPETITIONS = {"initiator": 10_000, "max_over_ranks": 2_000, "max_over_senders": 2_000}
MAX_WINDOW_REPETITIONS = 200  # where a repetition is a window of messages
TIMER_SHARE = 0.05  # of a sample that two clock reads may take (Hoefler & Belli 2015)
MAX_BLOCK_K = 64
BATCHED_MODES, BATCH_K = ("throughput", "graph"), 20  # timing modes with several samples per stamp; as in nccl-tests


def stop_rule(job: Planned, settings: Settings) -> StopRule:
    """The rule for a case, by the requested timing and by what one repetition of the case is."""
    timing, windowed = settings.timing, (job.case.window or 1) > 1
    most = MAX_WINDOW_REPETITIONS if windowed else MAX_REPETITIONS[job.shape.headline]
    return StopRule(
        target=timing.target,
        z=timing.z,
        min_repetitions=None,
        max_repetitions=most if timing.repetitions is None else timing.repetitions,
        budget_s=settings.case_s,
        fixed=timing.repetitions,
    )


def samples_per_stamp(job: Planned, engine: str, clock: ClockCost, sample_s: float) -> int:
    """block_k: several samples between two stamps where reading the clock would be a visible part of one.

    Calls that follow one another without a wait, and graphs, consist of several by definition.
    """
    if job.case.timing_mode in BATCHED_MODES:
        return max(1, min(BATCH_K, int(BLOCK_S / sample_s))) if sample_s > 0 else BATCH_K
    if not job.benchmark.self_synchronising or job.case.sync != "none" or engine == "virtual":
        return 1
    needed_s = 2 * clock.p50_ns * 1e-9 / TIMER_SHARE
    return min(MAX_BLOCK_K, math.ceil(needed_s / sample_s)) if sample_s > 0 else 1


def block_deadline_s(job: Planned, settings: Settings) -> float:
    """How long a block of this case may take before absent ranks are reported missing."""
    return settings.budget.late_s + 20 * BLOCK_S + 10 * job.node_bytes * MEMORY_S_PER_BYTE


def case_deadline_s(job: Planned, settings: Settings) -> float:
    """How long a rank that takes no part in this case waits for the next one."""
    return 3 * block_deadline_s(job, settings) + 3 * settings.case_s
