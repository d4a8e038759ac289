"""Result folders as a session writes them, without measuring: as many runs and cases as a test asks
for."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sample_cases import CASE

from commbench.results.columns import SCHEMA_VERSION, arrow_schema

SIZES = [8 * 4**step for step in range(10)]
WAYS = (
    ("gloo", "python", 60e-6, 1.2e9),
    ("mpi", "native", 0.5e-6, 0.9e9),
    ("mpi", "python", 1.4e-6, 0.8e9),
)
BENCHMARKS = (
    "all_reduce",
    "broadcast",
    "p2p_latency",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "all_to_all",
    "reduce_scatter",
    "exchange",
)
LAYOUTS = ("1x2", "1x4", "2x2", "4x1")


COLUMNS = ("interval_of", "interval_level", "visits", "library", "full_speed_s")


def run_of(
    output: Path, number: int, hostname: str = "node", launches: int = 1, **record: Any
) -> Path:
    """A run of 100 cases, ten benchmarks of ten sizes; its way and layout follow from its number.

    With several `launches` its rows are those of timing=rigorous. `record`: of run.json, but for
    COLUMNS.
    """
    rng = np.random.default_rng(number)
    folder = output / f"20260101T000000.{number:06d}-0000"
    folder.mkdir(parents=True)
    way = WAYS[number % len(WAYS)]
    layout = LAYOUTS[number // len(WAYS) % len(LAYOUTS)]
    rows = [row(folder.name, name, way, layout, size, rng) for name in BENCHMARKS for size in SIZES]
    columns = {name: record.pop(name) for name in COLUMNS if name in record}
    if launches > 1:
        columns |= {"interval_of": "launches", "interval_level": 0.99, "visits": 6 * launches}
    for values in rows:
        values |= columns
        if launches > 1:
            visits = values["median_s"] * rng.lognormal(0, 0.03, 6 * launches)
            values |= {
                "visit_medians_s": visits.tolist(),
                "visit_launches": np.repeat(range(launches), 6).tolist(),
            }
    table = pa.Table.from_pylist(rows, arrow_schema("cases"))
    pq.write_table(table, folder / "cases.parquet")
    (folder / "run.json").write_text(
        json.dumps(record_of(folder.name, way, layout, hostname) | record)
    )
    return folder


def with_column(table: pa.Table, name: str, value: Any) -> pa.Table:
    """The table with this value in all rows of a column; a list has a value for each row."""
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    values = value if isinstance(value, list) else [value] * len(table)
    return table.set_column(at, field, pa.array(values, field.type))


def relaunched(run: Path, launch: int) -> Path:
    """The cases and the record of a run once more, as another launch of it."""
    folder = run.with_name(f"{run.name}-{launch}")
    folder.mkdir()
    record = json.loads((run / "run.json").read_text()) | {"run_id": folder.name, "trial": launch}
    cases = pq.read_table(run / "cases.parquet")
    for name in ("run_id", "trial"):
        cases = with_column(cases, name, record[name])
    metadata = cases.schema.metadata | {b"commbench_run": json.dumps(record).encode()}
    pq.write_table(cases.replace_schema_metadata(metadata), folder / "cases.parquet")
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def row(
    run_id: str, benchmark: str, way: Any, layout: str, size: int, rng: np.random.Generator
) -> dict[str, Any]:
    """One measured case: alpha + size / rate with 3 % of noise."""
    backend, engine, alpha, rate = way
    pair = "0-1" if benchmark.startswith("p2p") else None
    case = replace(
        CASE,
        benchmark=benchmark,
        backend=backend,
        engine=engine,
        timing="quick",
        sync="barrier",
        layout=layout,
        pair=pair,
        message_bytes=size,
        elements=size // 4,
        schedule="serial" if pair else None,
    )
    median = (alpha + size / rate) * float(rng.lognormal(0, 0.03))
    nodes, per_node = map(int, layout.split("x"))
    return {
        **asdict(case),
        "run_id": run_id,
        "case_id": case.case_id,
        "status": "ok",
        "warnings": ["skewed"] if size == 8 else [],
        "nodes": nodes,
        "ranks_per_node": per_node,
        "world_size": nodes * per_node,
        "label": "",
        "trial": 0,
        "operations_per_sample": 1,
        "block_k": 1,
        "repetitions": 30,
        "median_s": median,
        "ci_low_s": median * 0.98,
        "ci_high_s": median * 1.02,
        "algbw_gb_per_s": size / median / 1e9,
        "limit_gb_per_s": 12.5,
        "limit_name": "100 Gb/s",
        "limit_kind": "network",
        "efficiency": size / median / 12.5e9,
    }


def record_of(run_id: str, way: Any, layout: str, hostname: str) -> dict[str, Any]:
    node = {
        "host.hostname": hostname,
        "host.cpu_model": "Test CPU",
        "versions.torch": "2.13.0",
        "host.load_1min": 0.5,
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "status": "done",
        "timing": "quick",
        "label": "",
        "backend": {"name": way[0], "library": way[0]},
        "layouts": [layout],
        "world": {"size": 4, "nodes": 1, "launcher": "none"},
        "cuda_ipc": {"asked": "auto", "effective": None},
        "provenance": {"nodes": [node], "differences": {}},
    }
