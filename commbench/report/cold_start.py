"""Cold starts: what the first call costs, and how long it takes to the steady rate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.measure.samples import PHASES

from .load import load

if TYPE_CHECKING:
    import pandas as pd

STEADY_SHARE = 0.95  # of the steady rate
WINDOW = 5  # repetitions of the running median
CASE = (
    "run_id", "launch", "label", "case_id", "benchmark", "backend", "engine", "dtype", "layout", "pair", "root",
    "window", "streams", "message_bytes", "first_call_s",
)  # fmt: skip
DERIVED = ("steady_s", "ramp_repetitions", "ramp_s", "ramp_wall_s")
CONNECT, WARMUP, MEASURE = range(len(PHASES))

Times = NDArray[np.float64]


def cold_start(*paths: str | Path) -> pd.DataFrame:
    """One row a case and launch that is ok, from all runs below the folders; raises CommbenchError like load.

    first_call_s, steady_s: seconds per operation of the first call and of the median measured repetition.
    ramp_repetitions: how many came, from the first call on, before the rate was 95 % of the steady one: before the
    first repetition that, as well as the median of it and the four after it, takes at most steady_s / 0.95.
    ramp_s: how long those took, the sum of their durations: what a program pays that does nothing else.
    ramp_wall_s: from the first call's start to that repetition's on the rank's own clock (the latest rank), with
    the checks and decisions that lie between phases: an upper bound. Null where a rate was never reached.

    A repetition's duration is that of the case's headline: the maximum over the senders of its pairs or over all
    ranks, whichever gives the case's own median_s.
    """
    import pandas as pd

    cases = load(*paths)
    cases = cases[cases["status"] == "ok"]
    samples = dict(iter(load(*paths, table="samples").groupby(["run_id", "case_id"])))
    rows = [
        {name: case[name] for name in CASE} | _ramp(case, samples[case["run_id"], case["case_id"]])
        for case in cases.to_dict("records")
        if (case["run_id"], case["case_id"]) in samples
    ]
    kinds = dict.fromkeys(("launch", "root", "window", "streams", "message_bytes", "ramp_repetitions"), "Int64")
    kinds |= dict.fromkeys(("first_call_s", "steady_s", "ramp_s", "ramp_wall_s"), "float64")
    return pd.DataFrame(rows, columns=[*CASE, *DERIVED]).astype(kinds)


def _ramp(case: dict[Any, Any], samples: pd.DataFrame) -> dict[str, float | None]:
    """The derived columns of one case."""
    samples = samples[samples["phase"].isin(PHASES)]  # late ones are in no statistic
    phases = samples["phase"].map(PHASES.index)
    values = ["start_ns", "elapsed_ns"]
    table = samples.assign(phase=phases).pivot(index=["phase", "repetition"], columns="rank", values=values)
    phase = table.index.get_level_values("phase").to_numpy()
    ranks = table.columns.get_level_values("rank").unique().to_numpy()
    starts, elapsed = (table[[name]].to_numpy(dtype=np.float64) * 1e-9 for name in values)
    operations = np.where(phase == MEASURE, 1, 1 / case["block_k"]) * case["operations_per_sample"]
    sample_s = _headline(case, elapsed, ranks, np.where(phase == MEASURE, operations, np.nan))
    operation_s = sample_s / operations
    steady_s = float(np.median(operation_s[phase == MEASURE])) if (phase == MEASURE).any() else case["median_s"]
    at = _steady_from(operation_s / _reference(operation_s, phase, steady_s, case["block_k"]))
    if at is None:
        return {"steady_s": steady_s, "ramp_repetitions": None, "ramp_s": None, "ramp_wall_s": None}
    return {
        "steady_s": steady_s,
        "ramp_repetitions": at,
        "ramp_s": float(sample_s[:at].sum()),
        "ramp_wall_s": _latest(starts[at] - starts[0]),
    }


def _headline(case: dict[Any, Any], elapsed: Times, ranks: NDArray[np.int64], operations: Times) -> Times:
    """Seconds of each sample, from those of all ranks [n, ranks]; operations are NaN where it was not measured.

    The cases do not say whose clock counts, but their median does.
    """
    pairs = case["pair"].split() if isinstance(case["pair"], str) else []
    senders = np.isin(ranks, [int(pair.split("-")[0]) for pair in pairs])
    candidates = [np.fmax.reduce(elapsed, axis=1), np.fmax.reduce(elapsed[:, senders], axis=1, initial=np.nan)]
    measured = np.isfinite(operations)
    medians = np.array([np.median((sample_s / operations)[measured]) for sample_s in candidates if measured.any()])
    misses = np.nan_to_num(np.abs(medians - case["median_s"]), nan=np.inf)
    chosen: Times = candidates[int(np.argmin(misses)) if measured.any() else 0]
    return chosen


def _reference(operation_s: Times, phase: NDArray[np.int64], steady_s: float, block_k: float) -> Times:
    """What each repetition is compared with. Where block_k samples share two stamps, because the clock is a visible
    part of one, the single ones before them are compared with the last half of the warm-up."""
    reference = np.full(operation_s.size, steady_s)
    warm = operation_s[phase == WARMUP]
    if block_k > 1 and warm.size:
        reference[phase != MEASURE] = max(steady_s, float(np.median(warm[warm.size // 2 :])))
    return reference


def _steady_from(relative: Times) -> int | None:
    """Index of the first repetition at 95 % of the steady rate, with the median of it and the following ones."""
    if relative.size < WINDOW:
        return None
    running = np.median(np.lib.stride_tricks.sliding_window_view(relative, WINDOW), axis=1)
    reached = np.maximum(running, relative[: running.size]) <= 1 / STEADY_SHARE
    return int(reached.argmax()) if reached.any() else None


def _latest(seconds: Times) -> float | None:
    """The maximum over ranks; None where no rank has stamps (a device clock)."""
    known = seconds[np.isfinite(seconds)]
    return float(known.max()) if known.size else None
