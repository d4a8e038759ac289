"""Costs beside the steady rate: the first call and the ramp after it, soaks over time, and launching from the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.columns import VARIABLES
from commbench.core.units import format_bytes, format_seconds
from commbench.measure.samples import PHASES

from .load import load
from .samples import senders

if TYPE_CHECKING:
    import pandas as pd

STEADY_SHARE = 0.95  # of the steady rate
WINDOW = 5  # repetitions of the running median
COLD_START_CASE = (
    "run_id", "launch", "label", "case_id", "benchmark", "backend", "engine", "dtype", "layout", "pair", "root",
    "window", "streams", "message_bytes", "first_call_s",
)  # fmt: skip
DERIVED = ("steady_s", "ramp_repetitions", "ramp_s", "ramp_wall_s")
CONNECT, WARMUP, MEASURE = range(len(PHASES))

INTERVAL = "interval."  # names of a soak's counters begin with it
CASE_KEY = ("run_id", "case_id")
SOAK_CASE = ("label", "benchmark", "backend", "layout", "pair", "message_bytes")
SOAK_INTERVAL = (*CASE_KEY, *SOAK_CASE, "at_s", "repetitions", "busy_s", "rate_gb_per_s")
SOAK_SPEED = (*CASE_KEY, *SOAK_CASE, "steady_gb_per_s", "full_speed_s", "least_gb_per_s")
WAITED, REPLAYED = "host_sync", "graph"
LAUNCH_KEY = [column.name for column in VARIABLES if column.name not in ("timing_mode", "env")]
LAUNCH_HEADS = ("benchmark", "case", "message", "host waits", "graph", "launch", "share")

Times = NDArray[np.float64]


def cold_start(*paths: str | Path) -> pd.DataFrame:
    """One row per case and launch that is ok, from all runs below the folders; raises CommbenchError like load.

    first_call_s, steady_s: seconds per operation of the first call and of the median measured repetition.
    ramp_repetitions: how many repetitions, from the first call on, came before the rate reached 95 % of the steady
    one: before the first repetition that, as well as the median of it and the next four, takes at most
    steady_s / 0.95.
    ramp_s: the sum of their durations, which is what a program pays that does nothing else.
    ramp_wall_s: from the start of the first call to that repetition on the rank's own clock (the latest rank), with
    the checks and decisions between phases: an upper bound. Null where the rate was never reached.

    The duration of a repetition is the maximum over the senders of its pairs or over all ranks, whichever gives the
    case's own median_s.
    """
    import pandas as pd

    cases = load(*paths)
    cases = cases[cases["status"] == "ok"]
    samples = dict(iter(load(*paths, table="samples").groupby(["run_id", "case_id"])))
    rows = [
        {name: case[name] for name in COLD_START_CASE} | _ramp(case, samples[case["run_id"], case["case_id"]])
        for case in cases.to_dict("records")
        if (case["run_id"], case["case_id"]) in samples
    ]
    kinds = dict.fromkeys(("launch", "root", "window", "streams", "message_bytes", "ramp_repetitions"), "Int64")
    kinds |= dict.fromkeys(("first_call_s", "steady_s", "ramp_s", "ramp_wall_s"), "float64")
    return pd.DataFrame(rows, columns=[*COLD_START_CASE, *DERIVED]).astype(kinds)


def _ramp(case: dict[Any, Any], samples: pd.DataFrame) -> dict[str, float | None]:
    """The derived columns of one case."""
    samples = samples[samples["phase"].isin(PHASES)]  # late repetitions are in no statistic
    phases = samples["phase"].map(PHASES.index)
    values = ["start_ns", "elapsed_ns"]
    table = samples.assign(phase=phases).pivot(index=["phase", "repetition"], columns="rank", values=values)
    phase = table.index.get_level_values("phase").to_numpy()
    ranks = table.columns.get_level_values("rank").unique().to_numpy()
    starts, elapsed = (table[[name]].to_numpy(dtype=np.float64) * 1e-9 for name in values)
    operations = np.where(phase == MEASURE, 1, 1 / case["block_k"]) * case["operations_per_sample"]
    sample_s = _sample_times(case, elapsed, ranks, np.where(phase == MEASURE, operations, np.nan))
    operation_s = sample_s / operations
    steady_s = float(np.median(operation_s[phase == MEASURE])) if (phase == MEASURE).any() else case["median_s"]
    at = _steady_from(operation_s / _steady_reference(operation_s, phase, steady_s, case["block_k"]))
    if at is None:
        return {"steady_s": steady_s, "ramp_repetitions": None, "ramp_s": None, "ramp_wall_s": None}
    return {
        "steady_s": steady_s,
        "ramp_repetitions": at,
        "ramp_s": float(sample_s[:at].sum()),
        "ramp_wall_s": _latest(starts[at] - starts[0]),
    }


def _sample_times(case: dict[Any, Any], elapsed: Times, ranks: NDArray[np.int64], operations: Times) -> Times:
    """Seconds of each sample [n] from those of all ranks [n, ranks]; `operations` is NaN outside of the measured phase.

    The case does not store whose clock counts; its median shows it.
    """
    sending = np.isin(ranks, senders(case))
    candidates = [np.fmax.reduce(elapsed, axis=1), np.fmax.reduce(elapsed[:, sending], axis=1, initial=np.nan)]
    measured = np.isfinite(operations)
    medians = np.array([np.median((sample_s / operations)[measured]) for sample_s in candidates if measured.any()])
    misses = np.nan_to_num(np.abs(medians - case["median_s"]), nan=np.inf)
    chosen: Times = candidates[int(np.argmin(misses)) if measured.any() else 0]
    return chosen


def _steady_reference(operation_s: Times, phase: NDArray[np.int64], steady_s: float, block_k: float) -> Times:
    """The steady time [n] to compare each repetition with.

    Where block_k samples share two time stamps, the single repetitions before them include the cost of reading the
    clock, so they are compared with the second half of the warm-up.
    """
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


# ---------------------------------------------------------------- soaks


def soak_intervals(*paths: str | Path) -> pd.DataFrame:
    """One row per interval of each soak below the folders; raises CommbenchError like load.

    at_s since the start of the soak, repetitions that began in the interval, busy_s spent in them, rate_gb_per_s
    (their bytes / busy_s, 10^9 B/s).
    """
    counters = load(*paths, table="counters")
    counters = counters[counters["name"].str.startswith(INTERVAL)]
    table = counters.assign(name=counters["name"].str.removeprefix(INTERVAL))
    wide = table.pivot_table(index=[*CASE_KEY, "t_ns"], columns="name", values="value").reset_index()
    wide = wide.reindex(columns=[*CASE_KEY, "t_ns", "repetitions", "busy_s"])
    cases = load(*paths).drop(columns="repetitions")
    found = wide.merge(cases, on=list(CASE_KEY))
    found["at_s"] = (found["t_ns"] - found.groupby(list(CASE_KEY))["t_ns"].transform("min")) * 1e-9
    bytes_each = found["operations_per_sample"] * found["message_bytes"]
    found["rate_gb_per_s"] = (found["repetitions"] * bytes_each / found["busy_s"] * 1e-9).astype("float64")
    return found[list(SOAK_INTERVAL)].sort_values([*CASE_KEY, "at_s"])


def full_speed(intervals: pd.DataFrame) -> pd.DataFrame:
    """One row per soak of soak_intervals.

    steady_gb_per_s: the median interval; full_speed_s: the start of the first interval with at least 95 % of it;
    least_gb_per_s: the slowest interval after that one.
    """
    import pandas as pd

    rows = []
    for _, soak in intervals.groupby(list(CASE_KEY), sort=False):
        steady = float(soak["rate_gb_per_s"].median())
        fast = soak[soak["rate_gb_per_s"] >= STEADY_SHARE * steady]
        begun = float(fast["at_s"].iloc[0])
        least = float(soak.loc[soak["at_s"] >= begun, "rate_gb_per_s"].min())
        head = soak.iloc[0][[*CASE_KEY, *SOAK_CASE]].to_dict()
        rows.append({**head, "steady_gb_per_s": steady, "full_speed_s": begun, "least_gb_per_s": least})
    return pd.DataFrame(rows, columns=list(SOAK_SPEED))


# ---------------------------------------------------------------- launching a call from the host


@dataclass(frozen=True)
class LaunchOverhead:
    """Median seconds over all runs, with the host waiting for the call and replayed as a graph."""

    benchmark: str
    backend: str
    layout: str
    dtype: str
    pair: str | None
    message_bytes: int
    host_sync_s: float
    graph_s: float

    @property
    def overhead_s(self) -> float:
        return self.host_sync_s - self.graph_s

    def cells(self) -> Sequence[str]:
        where = " ".join(filter(None, (self.backend, self.layout, self.pair, self.dtype)))
        return (
            self.benchmark, where, format_bytes(self.message_bytes), format_seconds(self.host_sync_s),
            format_seconds(self.graph_s), format_seconds(self.overhead_s),
            f"{100 * self.overhead_s / self.host_sync_s:.0f} %",
        )  # fmt: skip


def launch_overhead(*paths: str | Path) -> pd.DataFrame:
    """One row per case that was measured with timing_mode=host_sync and graph: host_sync_s, graph_s, overhead_s.

    Raises CommbenchError like load.
    """
    import pandas as pd

    rows = [asdict(one) | {"overhead_s": one.overhead_s} for one in launch_overheads(load(*paths))]
    return pd.DataFrame(rows, columns=[*(one.name for one in fields(LaunchOverhead)), "overhead_s"])


def launch_overheads(cases: pd.DataFrame) -> list[LaunchOverhead]:
    """The launch overheads of the rows that are ok, by benchmark and size."""
    modes = cases[(cases["status"] == "ok") & cases["timing_mode"].isin([WAITED, REPLAYED])]
    found = list(_overheads(modes)) if len(modes) else []
    return sorted(found, key=lambda one: (one.benchmark, one.backend, one.layout, one.pair or "", one.message_bytes))


def _overheads(cases: pd.DataFrame) -> Iterator[LaunchOverhead]:
    exported = cases["env"].map(lambda env: str(sorted(env.items())) if isinstance(env, dict) else str(env))
    for _, group in cases.groupby([*(cases[name] for name in LAUNCH_KEY), exported], dropna=False, sort=False):
        medians: dict[Any, Any] = group.groupby("timing_mode")["median_s"].median().to_dict()
        if len(medians) == 2:
            one = group.iloc[0]
            pair = one["pair"] if isinstance(one["pair"], str) else None
            benchmark, backend, layout, dtype = (str(one[name]) for name in ("benchmark", "backend", "layout", "dtype"))
            size = int(one["message_bytes"])
            yield LaunchOverhead(benchmark, backend, layout, dtype, pair, size, medians[WAITED], medians[REPLAYED])
