"""A Case and a row of cases.parquet that tests change where they need to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from commbench.core.variables import Case
from commbench.results.row import Row, row_of

CASE = Case(
    benchmark="p2p_latency",
    backend="simulated",
    engine="virtual",
    timer="host",
    timing="fixed",
    sync="none",
    device="cpu",
    dtype="float32",
    layout="1x2",
    pair=None,
    message_bytes=8,
    elements=2,
    window=None,
    in_place=None,
    reduction=None,
    root=None,
    schedule=None,
    streams=None,
    staging="none",
    cache="warm",
    cuda_ipc="auto",
    interface=None,
)
# what a backend whose memory is a GPU's is asked for
GPU_CASE = replace(
    CASE,
    benchmark="all_reduce",
    engine="python",
    device="cuda",
    timer="host_sync",
    in_place=True,
)


def case_row(**values: Any) -> Row:
    """A row with these values, lists and maps as they are stored; of all others the defaults."""
    names = {"backend": "gloo", "engine": "python", "sync": "barrier", "timing": "quick"}
    return row_of(vars(CASE) | names | values)


RUN = {
    "run_id": "r",
    "backend": {"name": "gloo", "library": "x"},
    "world": {"size": 4, "nodes": 1},
    "timing": "quick",
    "label": "",
}


def measured_row(benchmark: str, **values: Any) -> Row:
    """A row of a case of RUN that was measured; the case_id is the text of what a test has
    changed."""
    known = {
        "benchmark": benchmark,
        "case_id": str(values),
        "layout": "1x4",
        "message_bytes": 1024,
        "elements": 256,
        "world_size": 4,
        "in_place": True,
        "reduction": "sum",
        "wrong_elements": 0,
        "mean_s": 2e-6,
        "min_s": 1e-6,
        "max_s": 9e-6,
        "median_s": 2e-6,
        "algbw_gb_per_s": 0.5,
        "busbw_gb_per_s": 0.75,
    }
    return case_row(**known | values)


# a short soak, as words of the command line
SOAK = (
    "backend=simulated",
    "layout=1x2",
    "timing=soak",
    "timing.duration_s=0.02",
    "timing.interval_s=0.005",
    "timing.warmup_s=0",
    "benchmark=p2p_latency",
    "sizes=[8]",
    "writer=parquet",
)
