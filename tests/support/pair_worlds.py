"""Rows of all pairs of a world, with what is planted among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sample_cases import case_row

from commbench.results.row import Row, plain_values, row_of

Pair = tuple[int, int]
INTERVAL = 0.02  # half-width of a planted interval


def row(pair: str | None, median_s: float | None, ranks_per_node: int = 8, **more: Any) -> Row:
    low, high = (
        (None, None) if median_s is None else (median_s * (1 - INTERVAL), median_s * (1 + INTERVAL))
    )
    times = {"median_s": median_s, "ci_low_s": low, "ci_high_s": high}
    names = {"run_id": "r", "benchmark": "p2p_latency", "message_bytes": 1024, "pair": pair}
    return case_row(**names | {"status": "ok"} | times | {"layout": f"2x{ranks_per_node}"} | more)


def changed(entry: Row, values: dict[str, Any]) -> Row:
    return row_of(plain_values(entry) | values)


def world(
    size: int,
    planted: dict[Pair, float] | None = None,
    slow_rank: int | None = None,
    factor: float = 1.0,
    between: float = 1.0,
    ranks_per_node: int = 8,
    noise: float = 0.0,
    seed: int = 0,
    **more: Any,
) -> list[Row]:
    """All pairs at 2 us; other nodes take `between`, links of the slow rank `factor` times as
    long."""
    random = np.random.default_rng(seed)
    rows = []
    for first in range(size):
        for second in range(size):
            time = 2e-6 * float(np.exp(noise * random.standard_normal()))
            time *= between if first // ranks_per_node != second // ranks_per_node else 1.0
            time *= factor if slow_rank in (first, second) and first != second else 1.0
            time *= (planted or {}).get((first, second), 1.0)
            rows.append(row(f"{first}-{second}", time, ranks_per_node, **more))
    return rows
