"""Rows of cases.parquet over message size, as crossovers and the best of each size read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

OCTAVES = (2 ** np.arange(3, 25)).tolist()


def size_rows(
    times: dict[str, list[float]], sizes: list[int] = OCTAVES, half: float = 0.02, **more: Any
) -> pd.DataFrame:
    """Rows of backends of one run with their seconds for each size, and intervals of -+ half over
    visits."""
    fixed = {
        "benchmark": "all_reduce",
        "status": "ok",
        "layout": "1x2",
        "run_id": "r",
        **more,
        "interval_of": "visits",
    }
    rows = [
        {"backend": name, "message_bytes": size, "median_s": time, **fixed}
        for name, values in times.items()
        for size, time in zip(sizes, values, strict=True)
    ]
    frame = pd.DataFrame(rows)
    return frame.assign(ci_low_s=frame.median_s * (1 - half), ci_high_s=frame.median_s * (1 + half))
