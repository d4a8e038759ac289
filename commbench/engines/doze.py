"""Waiting for an instant without holding a core all the time."""

from __future__ import annotations

import time

LONG_NS, AWAKE_NS = 4_000_000, 2_000_000  # a wait that sleeps, and how long before its end it is awake again


def doze(left_ns: int) -> None:
    """Through all but the end of a long wait: the library's own threads may need the core, and who spins loses it."""
    if left_ns > LONG_NS:
        time.sleep((left_ns - AWAKE_NS) * 1e-9)
