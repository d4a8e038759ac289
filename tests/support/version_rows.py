"""Rows of several versions of a library: published ones of NCCL on B200, and planted steps."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from places import AICONFIGURATOR
from sample_cases import case_row

from commbench.features.versions.series import all_series
from commbench.features.versions.steps import Finding, find_steps
from commbench.report.summary import Results
from commbench.results.row import Row

BYTES = {"half": 2, "int8": 1}
DTYPES = {"half": "float16", "int8": "int8"}
OPERATIONS = {"alltoall": "all_to_all"}

needs_published = pytest.mark.skipif(not AICONFIGURATOR.is_dir(), reason="the files are not here")


def case(benchmark: str, version: str, size: int, seconds: float, **more: Any) -> Row:
    values = {
        "benchmark": benchmark,
        "backend": "nccl",
        "layout": "1x8",
        "message_bytes": size,
        "library": f"NCCL {version}",
        "library_version": version,
        "status": "ok",
        "median_s": seconds,
    }
    return case_row(**values | more)


def published() -> list[Row]:
    """The rows of B200; the n-th row of a case is of the n-th run."""
    rows = []
    seen = Counter[tuple[Any, ...]]()
    for path in sorted(AICONFIGURATOR.glob("b200*nccl_perf.parquet")):
        for each in pq.read_table(path).to_pylist():
            size = each["message_size"] * BYTES[each["nccl_dtype"]]
            name = OPERATIONS.get(each["op_name"], each["op_name"])
            key = (name, each["nccl_dtype"], each["num_gpus"], size, each["version"])
            seen[key] += 1
            rows.append(
                case(
                    name,
                    each["version"],
                    size,
                    each["latency"] * 1e-3,
                    dtype=DTYPES[each["nccl_dtype"]],
                    layout=f"1x{each['num_gpus']}",
                    run_id=f"{each['version']}-{seen[key]}",
                )
            )
    return rows


def results_of(rows: list[Row]) -> Results:
    records = tuple({"run_id": run} for run in dict.fromkeys(row.run_id for row in rows))
    return Results(rows, records, {}, ())


def planted(factor: float, launches: int, noise: float, seed: int) -> list[Row]:
    """Five versions, three operations of 10 sizes; from the fourth version on, 1 to 8 MiB of
    all_reduce take `factor` times as long."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, version in enumerate(("1.9", "1.10", "1.11", "1.12", "2.0")):
        for launch in range(launches):
            for name in ("all_reduce", "all_gather", "broadcast"):
                for power in range(16, 26):
                    is_slow = name == "all_reduce" and 20 <= power <= 23 and number >= 3
                    seconds = 2.0**power / 1e9 * (factor if is_slow else 1.0)
                    seconds *= float(np.exp(noise * rng.standard_t(4)))
                    run = f"{version}-{launch}"
                    rows.append(case(name, version, 2**power, seconds, run_id=run))
    return rows


def found_in(rows: list[Row]) -> list[Finding]:
    series = all_series(results_of(rows), "library_version")
    return find_steps(series.measurements, series.neighbours)
