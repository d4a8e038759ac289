"""How much is measured: the rule that ends a case, and how many samples lie between two stamps."""

from __future__ import annotations

import math

from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.clock import ClockCost

from .deadlines import BLOCK_S
from .statistics import StopRule

LARGEST_N = {"initiator": 10_000, "max_over_ranks": 2_000, "max_over_senders": 2_000}
LARGEST_WINDOWS = 200  # repetitions of a window of messages
TIMER_SHARE = 0.05  # of a sample that two clock reads may take (Hoefler & Belli 2015)
LARGEST_BLOCK_K = 64
SEVERAL, SEVERAL_K = ("throughput", "graph"), 20  # timing modes of several samples a stamp; as nccl-tests repeats


def stop_rule(job: Planned, settings: Settings) -> StopRule:
    """By the timing that was asked for, and by what a repetition of this case is."""
    timing, windowed = settings.timing, (job.case.window or 1) > 1
    largest = LARGEST_WINDOWS if windowed else LARGEST_N[job.shape.headline]
    return StopRule(
        target=timing.target,
        z=timing.z,
        min_repetitions=None,
        max_repetitions=largest if timing.repetitions is None else timing.repetitions,
        budget_s=settings.case_s,
        fixed=timing.repetitions,
    )


def samples_a_stamp(job: Planned, engine: str, clock: ClockCost, sample_s: float) -> int:
    """block_k: several samples between two stamps where the clock would be a visible part of one (method 2.1).

    Calls that follow one another without a wait, and graphs, are made of several by definition.
    """
    if job.case.timing_mode in SEVERAL:
        return max(1, min(SEVERAL_K, int(BLOCK_S / sample_s))) if sample_s > 0 else SEVERAL_K
    if not job.benchmark.self_synchronising or job.case.sync != "none" or engine == "virtual":
        return 1
    needed_s = 2 * clock.p50_ns * 1e-9 / TIMER_SHARE
    return min(LARGEST_BLOCK_K, math.ceil(needed_s / sample_s)) if sample_s > 0 else 1
