"""Raw samples as one time per repetition, for a comparison or a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .load import run_tables

if TYPE_CHECKING:
    import pandas as pd

Series = NDArray[np.float64]

MEDIAN_TOLERANCE = 0.01  # between a case's median and that of its samples


def repetition_times(folder: Path, cases: pd.DataFrame) -> dict[str, Series]:
    """case_id -> seconds per operation of each measured repetition, for the cases of one run that have samples.

    A case whose samples do not give its own median_s within 1 % is left out. Raises CommbenchError for files that
    can't be read.
    """
    import pyarrow as pa

    columns = ("run_id", "case_id", "phase", "repetition", "rank", "elapsed_ns")
    tables = run_tables(folder, "samples", columns, [("phase", "==", "measure")])
    samples = pa.concat_tables(tables).drop_columns(["run_id", "phase"]).to_pandas()
    by_case = dict(iter(samples.sort_values("repetition", kind="stable").groupby("case_id")))
    rows = (case for case in cases.to_dict("records") if case["case_id"] in by_case)
    times = {case["case_id"]: _case_times(case, by_case[case["case_id"]]) for case in rows}
    return {case_id: series for case_id, series in times.items() if series is not None}


def senders(case: Mapping[Any, Any]) -> list[int]:
    """The sending ranks of a point-to-point case; empty for a collective."""
    pairs = case["pair"].split() if isinstance(case["pair"], str) else []
    return [int(pair.split("-")[0]) for pair in pairs]


def _case_times(case: Mapping[Any, Any], samples: pd.DataFrame) -> Series | None:
    """The maximum over all ranks or over the senders, whichever gives the case's median; samples by repetition."""
    of_senders = samples["rank"].isin(senders(case))
    parts = [part for part in (samples, samples[of_senders]) if len(part)]
    candidates = [_slowest_ns(part) * 1e-9 / case["operations_per_sample"] for part in parts]
    misses = [abs(float(np.median(times)) / case["median_s"] - 1) for times in candidates]
    best = int(np.argmin(misses))
    return candidates[best] if misses[best] <= MEDIAN_TOLERANCE else None


def _slowest_ns(samples: pd.DataFrame) -> Series:
    """The maximum over the ranks of each repetition."""
    repetition = samples["repetition"].to_numpy()
    starts = np.flatnonzero(np.diff(repetition, prepend=repetition[0] - 1))
    return np.maximum.reduceat(samples["elapsed_ns"].to_numpy(dtype=np.float64), starts)
