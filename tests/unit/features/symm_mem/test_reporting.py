"""The table that says up to which size which way is fastest, of planted times."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import record_of, row
from sample_cases import GPU_CASE

from commbench.cli.main import main
from commbench.results.columns import arrow_schema

SIZES = [8, 1 << 10, 1 << 16, 1 << 20, 1 << 24]
LAUNCHES = 6
# (registration, algorithm): microseconds in a graph by size; eager all take 10 us more
TIMES = {
    ("none", None): [20, 20, 22, 40, 200],
    ("symmetric", None): [9, 9, 12, 22, 70],
    ("none", "one_shot"): [4, 4, 6, 40, 900],
    ("none", "two_shot"): [6, 6, 9, 30, 130],
    ("none", "multimem"): [5, 5, 8, 12, 100],
}
EAGER_US = {"graph": 0.0, "host_sync": 10.0}


def planted_run(output: Path, number: int, backend: str, ways: list[Any], **more: Any) -> None:
    """A run of `ways`, with medians of launches that vary by 1 %."""
    folder = output / f"20260101T000000.{number:06d}-0000"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(number)
    rows = []
    for registration, algorithm in ways:
        for timer, eager_us in EAGER_US.items():
            for size, time_us in zip(SIZES, TIMES[registration, algorithm], strict=True):
                case = replace(
                    GPU_CASE,
                    backend=backend,
                    layout="1x8",
                    dtype="bfloat16",
                    message_bytes=size,
                    elements=size // 2,
                    reduction="sum",
                    cache="rotate",
                    sync="barrier",
                    timing="rigorous",
                    timer=timer,
                    registration=registration,
                    algorithm=algorithm,
                )
                median = (time_us + eager_us) * 1e-6
                of_launches = median * rng.lognormal(0, 0.01, LAUNCHES)
                rows.append(
                    row(folder.name, "all_reduce", (backend, "python", 0, 1), "1x8", size, rng)
                    | vars(case)
                    | {"case_id": case.case_id, "library": f"torch 2.13.0 {backend}"}
                    | {"median_s": median, "ci_low_s": median * 0.99, "ci_high_s": median * 1.01}
                    | {"interval_of": "launches", "interval_level": 0.99, "visits": LAUNCHES}
                    | {"visit_medians_s": of_launches.tolist()}
                    | {"visit_launches": [*range(LAUNCHES)]}
                    | more
                )
    known = {field.name for field in arrow_schema("cases")}
    table = [{name: value for name, value in each.items() if name in known} for each in rows]
    pq.write_table(pa.Table.from_pylist(table, arrow_schema("cases")), folder / "cases.parquet")
    record = record_of(folder.name, (backend, "python"), "1x8", "node")
    (folder / "run.json").write_text(json.dumps(record))


def test_the_report_says_up_to_which_size_which_is_fastest_eager_and_in_a_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nccl = [("none", None), ("symmetric", None)]
    planted_run(tmp_path, 0, "nccl", nccl)
    memory = {"backend_options": [("library", "auto"), ("memory", "cuda")]}
    planted_run(tmp_path, 1, "symm_mem", [way for way in TIMES if way not in nccl], **memory)
    assert main(["report", str(tmp_path), "--top", "50"]) == 0
    text = capsys.readouterr().out
    _, _, section = text.partition("Fastest by size, with symmetric memory\n")
    lines = [re.split(r"\s{2,}", line) for line in section.splitlines()[1:7]]
    of_timer = {
        "graph": [
            ["8 B", "64 KiB", "symm_mem 1x8 (algorithm one_shot)"],
            ["1 MiB", "1 MiB", "symm_mem 1x8 (algorithm multimem)"],
            ["16 MiB", "16 MiB", "nccl 1x8 (registration symmetric)"],
        ],
    }
    of_timer["host_sync"] = of_timer["graph"]
    expected = [
        [f"all_reduce timer {timer}", "8", *line]
        for timer, each in of_timer.items()
        for line in each
    ]
    assert lines == expected


def test_a_report_without_symmetric_memory_has_no_such_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted_run(tmp_path, 0, "nccl", [("none", None), ("symmetric", None)])
    assert main(["report", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "with symmetric memory" not in text
    assert "nccl 1x8 (registration symmetric)" in text
