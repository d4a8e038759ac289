"""Launches of one case as a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from sample_cases import case_row

from commbench.results.columns import CASES, VARIABLES
from commbench.results.row import plain_values

VALUES: dict[str, Any] = {
    "benchmark": "all_reduce",
    "backend": "gloo",
    "engine": "python",
    "timer": "host",
    "timing": "default",
    "sync": "barrier",
    "device": "cpu",
    "dtype": "float32",
    "layout": "1x2",
    "pair": None,
    "message_bytes": 8,
    "elements": 2,
    "window": None,
    "in_place": True,
    "reduction": "sum",
    "root": None,
    "schedule": None,
    "streams": None,
    "staging": "none",
    "cache": "warm",
    "cuda_ipc": "auto",
    "interface": None,
    "env": {},
}
QUIET = [1.000e-3, 1.001e-3, 1.002e-3, 0.999e-3, 1.003e-3]


def row(launch: int, median_s: float | None, **more: Any) -> dict[str, Any]:
    """An all_reduce over two ranks, unless told otherwise; the case_id is the text of its
    variables."""
    values = plain_values(case_row(**VALUES, run_id=f"r{launch:03d}", trial=launch, status="ok"))
    values |= {"median_s": median_s, "clock": "monotonic", "operations_per_sample": 1}
    values |= {
        "algbw_gb_per_s": more.get("message_bytes", 8) / median_s / 1e9 if median_s else None
    }
    values |= more
    return values | {"case_id": str([values[column.name] for column in VARIABLES])}


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=[column.name for column in CASES])


def launches(medians: Sequence[float | None], **more: Any) -> pd.DataFrame:
    """One case, a launch a median."""
    return frame(row(launch, median_s, **more) for launch, median_s in enumerate(medians))
