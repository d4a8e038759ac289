"""Runs of one suite on a simulated healthy cluster, as a session writes them: twelve cases whose
launches vary by 3 %."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from generated_results import WAYS, record_of, row

from commbench.results.columns import arrow_schema

SUITE = [
    (name, size)
    for name in ("all_reduce", "broadcast", "p2p_latency")
    for size in (8, 512, 4096, 65536)
]
LIBRARY = "torch 2.13.0+cpu gloo"
Change = Callable[[dict[str, Any]], dict[str, Any] | None]


def healthy_run(
    output: Path,
    number: int,
    *,
    day: int = 1,
    host: str = "n1",
    change: Change = lambda values: values,
    **record: Any,
) -> Path:
    """A run on a day of a month. `change` returns the row that is written in place of one, or None
    to leave it out; `record`: of run.json."""
    folder = output / f"202601{day:02}T000000.{number:06d}-0000"
    folder.mkdir(parents=True)
    rng = np.random.default_rng([number, day])
    rows = []
    started = datetime(2026, 1, day, tzinfo=timezone.utc)
    for benchmark, size in SUITE:
        values = row(folder.name, benchmark, WAYS[0], "1x2", size, rng)
        values |= {"hosts": host, "library": LIBRARY, "started_at": started}
        changed = change(values)
        rows += [] if changed is None else [changed]
    pq.write_table(pa.Table.from_pylist(rows, arrow_schema("cases")), folder / "cases.parquet")
    of_run = record_of(folder.name, WAYS[0], "1x2", host)
    of_run["started_at"] = started.isoformat()
    of_run["backend"]["library"] = LIBRARY
    (folder / "run.json").write_text(json.dumps(of_run | record))
    return folder


def slower(factor: float, benchmark: str = "all_reduce") -> Change:
    """All cases of a benchmark take so many times as long."""

    def change(values: dict[str, Any]) -> dict[str, Any]:
        if values["benchmark"] == benchmark:
            values["median_s"] *= factor
        return values

    return change
