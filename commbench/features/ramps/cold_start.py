"""The first call of each case, and the ramp from there to the steady rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commbench.core.states import PHASES
from commbench.results.load import CASE_KEY, Paths, counting_mask, read_case_rows, read_rows
from commbench.results.row import Measured
from commbench.stats.thresholds import FULL_SPEED_SHARE

if TYPE_CHECKING:
    import pandas as pd

RUNNING_MEDIAN = 5  # repetitions of the running median
COLD_START_CASE = (
    "run_id",
    "trial",
    "label",
    "case_id",
    "benchmark",
    "backend",
    "engine",
    "dtype",
    "layout",
    "pair",
    "root",
    "window",
    "streams",
    "message_bytes",
    "first_call_s",
)
CONNECT, WARMUP, MEASURE = range(len(PHASES))
RAMP_SAMPLES = (
    *CASE_KEY,
    "phase",
    "block",
    "repetition",
    "rank",
    "start_ns",
    "elapsed_ns",
    "visit",
)


def cold_start(*paths: Paths) -> pd.DataFrame:
    """One row per case and launch that is ok, from all runs below the folders; raises
    CommbenchError like load.

        commbench.cold_start("results")[["message_bytes", "first_call_s", "ramp_s"]]

    first_call_s: seconds of the whole first call: a round trip, a window of messages, a collective.
    steady_s: seconds per operation, the case's median. ramp_repetitions: how many repetitions, from
    the first call on, came before the rate reached 95 % of the steady one: before the first
    repetition that, like the median of it and the next four, takes at most steady_s / 0.95. ramp_s:
    the sum of their durations, by the ranks whose clock counts (counting_mask). ramp_wall_s: from
    the start of the first call to that repetition on the rank's own clock (the latest rank): an
    upper bound, because it includes the checks and decisions between phases.

    The columns of the ramp are null where the rate was never reached.
    """
    import pandas as pd
    import pyarrow.compute as pc

    cases = read_case_rows(paths)
    first_visit = pc.field("visit") <= 1
    shown = pc.field("phase").isin(PHASES) & first_visit  # others are in no statistic
    frame = read_rows(paths, "samples", columns=RAMP_SAMPLES, where=shown)
    frame["phase"] = pd.Categorical(frame["phase"], PHASES).codes.astype(np.int64)
    samples = dict(iter(frame.groupby(CASE_KEY)))
    rows = [
        {name: getattr(case, name) for name in COLD_START_CASE}
        | _ramp(case, samples[case.run_id, case.case_id])
        for case in cases
        if isinstance(case, Measured) and (case.run_id, case.case_id) in samples
    ]
    kinds = dict.fromkeys(
        ("trial", "root", "window", "streams", "message_bytes", "ramp_repetitions"), "Int64"
    )
    kinds |= dict.fromkeys(("first_call_s", "steady_s", "ramp_s", "ramp_wall_s"), "float64")
    derived = ("steady_s", "ramp_repetitions", "ramp_s", "ramp_wall_s")
    return pd.DataFrame(rows, columns=[*COLD_START_CASE, *derived]).astype(kinds)


def _ramp(case: Measured, samples: pd.DataFrame) -> dict[str, float | None]:
    """The derived columns of one case."""
    # pandas' own arithmetic takes most of the time where cases are many
    own = {str(name): column.to_numpy() for name, column in samples.items()}
    most = int(own["repetition"].max()) + 1
    steps, row = np.unique(own["phase"] * most + own["repetition"], return_inverse=True)
    ranks, column = np.unique(own["rank"], return_inverse=True)
    starts, elapsed = np.full((2, steps.size, ranks.size), np.nan)
    starts[row, column] = own["start_ns"].astype(float) * 1e-9
    elapsed[row, column] = own["elapsed_ns"].astype(float) * 1e-9
    phase = steps // most
    block_k = case.block_k or 1
    operations = np.where(phase == MEASURE, 1, 1 / block_k) * (case.operations_per_sample or 1)
    sample_s = np.fmax.reduce(elapsed[:, counting_mask(case, ranks)], axis=1)
    operation_s = sample_s / operations
    steady_s = case.median_s
    first = {"first_call_s": case.first_call_s, "steady_s": steady_s}
    steady = np.full(operation_s.size, steady_s)
    warm = operation_s[phase == WARMUP]
    if block_k > 1 and warm.size:
        # where block_k samples share two stamps, the single repetitions before them include the
        # reading of the clock
        steady[phase != MEASURE] = max(steady_s, float(np.median(warm[warm.size // 2 :])))
    relative = operation_s / steady
    if relative.size < RUNNING_MEDIAN:
        return first
    running = np.median(np.lib.stride_tricks.sliding_window_view(relative, RUNNING_MEDIAN), axis=1)
    reached = np.flatnonzero(np.maximum(running, relative[: running.size]) <= 1 / FULL_SPEED_SHARE)
    if not reached.size:
        return first
    at = int(reached[0])
    wall_s = np.fmax.reduce(starts[at] - starts[0])  # NaN: no rank has stamps (a device clock)
    return {
        **first,
        "ramp_repetitions": at,
        "ramp_s": float(sample_s[:at].sum()),
        "ramp_wall_s": float(wall_s),
    }
