"""The clock of all host timing: CLOCK_MONOTONIC in integer nanoseconds, and what reading it costs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

now_ns = time.perf_counter_ns  # CLOCK_MONOTONIC on Linux: the same clock the native engine reads
CALIBRATION_READS = 100_000


@dataclass(frozen=True)
class ClockCost:
    """Nanoseconds between two consecutive reads."""

    p50_ns: float
    p99_ns: float
    max_ns: float


def calibrate(reads: int = CALIBRATION_READS) -> ClockCost:
    """Read the clock back to back and describe the gaps (method: Hoefler & Belli 2015, timer overhead)."""
    clock = now_ns
    stamps = np.fromiter((clock() for _ in range(reads)), dtype=np.int64, count=reads)
    gaps = np.diff(stamps)
    p50, p99 = np.percentile(gaps, [50, 99])
    return ClockCost(float(p50), float(p99), float(gaps.max()))
