"""cases.jsonl: complete lines whatever happens, and JSON that every reader takes."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sample_cases
from hypothesis import given
from hypothesis import strategies as st
from sample_cases import case_row
from small_disk import Disk

import commbench
from commbench.core.errors import Unreadable, Unsaved
from commbench.results.columns import CASES, SCHEMA_VERSION, Column
from commbench.results.jsonl import CASES_JSONL, Jsonl, json_rows, line
from commbench.results.writer import Entry

RUN = {"run_id": "r", "backend": {"name": "gloo", "library": "x 1.2"}}


def entry(case_id: str, **more: Any) -> Entry:
    known = {"run_id": "r", "env": {"A": "b"}, "warnings": ["skewed"]}
    return Entry(case_row(case_id=case_id, **known | more))


def objects(folder: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (folder / CASES_JSONL).read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(json_line, parse_constant=refuse) for json_line in text.splitlines()]


def test_a_line_is_there_as_soon_as_its_case_is(tmp_path: Path) -> None:
    writer = Jsonl()
    writer.begin(RUN, str(tmp_path))
    assert objects(tmp_path) == []
    for count, case_id in enumerate(("a", "b", "a"), start=1):
        writer.cases([entry(case_id, median_s=float(count))])
        assert len(objects(tmp_path)) == count
    cases = objects(tmp_path)
    assert [(case["case_id"], case["median_s"]) for case in cases] == [
        ("a", 1.0),
        ("b", 2.0),
        ("a", 3.0),
    ]
    assert list(cases[0]) == ["schema_version", *(column.name for column in CASES)]
    assert (cases[0]["schema_version"], cases[0]["env"]) == (SCHEMA_VERSION, {"A": "b"})
    writer.end(RUN)


KILLED = """
import os, signal, sys
sys.path.append(sys.argv[2])
from commbench.results.jsonl import Jsonl
from commbench.results.writer import Entry
from sample_cases import case_row
writer = Jsonl()
writer.begin({"run_id": "r"}, sys.argv[1])
for index in range(3):
    writer.cases([Entry(case_row(case_id=str(index)))])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_keeps_complete_lines(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(sample_cases.__file__).parent)]
    done = subprocess.run(words, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [case["case_id"] for case in objects(tmp_path)] == ["0", "1", "2"]


@pytest.mark.parametrize("torn", ["", '{"case_id": "b", "med'])
def test_a_run_that_goes_on_appends_and_drops_a_torn_line(tmp_path: Path, torn: str) -> None:
    (tmp_path / CASES_JSONL).write_text('{"case_id": "a"}\n' + torn)
    writer = Jsonl()
    writer.begin(RUN, str(tmp_path))
    writer.cases([entry("c")])
    writer.end(RUN)
    assert [case["case_id"] for case in objects(tmp_path)] == ["a", "c"]


def test_lines_that_a_full_disk_refuses_are_rescued(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writer = Jsonl()
    writer.begin(RUN, str(disk.path))
    writer.cases([entry("a")])
    disk.fill()
    for case_id in "bcd":
        writer.cases([entry(case_id, reason="long" * 2000)])
    with pytest.raises(
        Unsaved, match=r"cases\.jsonl is not complete \(No space left on device\); 3 lines"
    ) as seen:
        writer.end({**RUN, "status": "interrupted"})
    assert [case["case_id"] for case in objects(disk.path)] == ["a"]
    refuge = Path(str(seen.value).rpartition(" are in ")[2]).parent
    assert [case["case_id"] for case in objects(refuge)] == ["b", "c", "d"]


@pytest.mark.parametrize("damaged", ["[1]", "null", "7", "{"])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, damaged: str) -> None:
    (tmp_path / CASES_JSONL).write_text(damaged + "\n")
    with pytest.raises(Unreadable, match=r"cases\.jsonl line 1"):
        json_rows(tmp_path)


# ---------------------------------------------------------------- values


@given(
    st.dictionaries(
        st.text(),
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    )
)
def test_values_that_json_knows_are_written_on_one_line_and_read_back(
    values: dict[str, Any],
) -> None:
    text = line(values)
    assert text.endswith("\n")
    assert len(text.split("\n")) == 2
    infinite = {
        name: None
        for name, value in values.items()
        if isinstance(value, float) and abs(value) == float("inf")
    }
    assert json.loads(text) == values | infinite


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (np.float64("nan"), None),
        (np.float32("-inf"), None),
        (np.float64(0.1), 0.1),
        (np.int64(2**62), 2**62),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([1.5, np.nan]), [1.5, None]),
        ([float("inf"), {"a": np.nan}], [None, {"a": None}]),
        ((1, 2), [1, 2]),
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc), "2026-01-02T03:04:05.000006+00:00"),
    ],
)
def test_values_that_json_does_not_know_become_the_nearest_that_it_knows(
    value: Any, expected: Any
) -> None:
    parsed = json.loads(line({"value": value}))["value"]
    assert parsed == expected
    assert type(parsed) is type(expected)


# ---------------------------------------------------------------- a run


def test_pandas_reads_what_a_run_has_written(tmp_path: Path) -> None:
    folder = commbench.run(
        "backend=simulated",
        "benchmark=[p2p_latency,all_gather,barrier]",
        "layout=1x3",
        "sizes=[8,1200]",
        "timing=quick",
        "timing.warmup_s=0",
        "writer=[parquet,jsonl]",
        "env.A=b",
        "label=007",
        f"output={tmp_path}",
    )
    cases = commbench.load(folder).sort_values("order", ignore_index=True)
    lines = pd.read_json(folder / CASES_JSONL, lines=True, dtype=False)
    latest = lines.drop_duplicates("case_id", keep="last").sort_values(
        "order", kind="stable", ignore_index=True
    )
    assert set(latest.status) == {"ok", "skipped"}
    assert list(latest.case_id) == list(cases.case_id)
    assert set(latest.label) == {"007"}
    assert latest.env[0] == {"A": "b"}
    assert (pd.to_datetime(latest.started_at) == cases.started_at).all()
    for name in ("median_s", "message_bytes", "busbw_gb_per_s", "window"):
        np.testing.assert_allclose(
            latest[name].astype(float), cases[name].astype(float), rtol=1e-12
        )
        newest = {case["case_id"]: case[name] for case in objects(folder)}
        exact = [
            math.nan if newest[case_id] is None else newest[case_id] for case_id in cases.case_id
        ]
        np.testing.assert_array_equal(exact, cases[name].astype(float))


@pytest.mark.parametrize("column", CASES, ids=lambda column: column.name)
def test_a_column_of_another_kind_is_named(tmp_path: Path, column: Column) -> None:
    wrong = "5" if column.kind in ("integer", "number", "flag") else 5
    values = {"schema_version": SCHEMA_VERSION, "case_id": "a"} | {column.name: wrong}
    (tmp_path / CASES_JSONL).write_text(line(values))
    with pytest.raises(Unreadable, match=f"line 1: column {column.name} is not of kind"):
        json_rows(tmp_path)
