"""`commbench export`: what pandas reads back, what a spreadsheet does not run, and what is
refused."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from generated_results import run_of
from hypothesis import given
from hypothesis import strategies as st
from sample_cases import case_row

import commbench
from commbench.core.errors import CommbenchError, ConfigError
from commbench.features.export.command import (
    DEFAULT_COLUMNS,
    QUOTE,
    RUN_BY_SPREADSHEETS,
    csv_text,
)
from commbench.features.export.command import export as command
from commbench.results.columns import CASES, COUNTERS, SAMPLES, SCHEMA_VERSION
from commbench.results.load import load_run
from commbench.results.parquet import Parquet
from commbench.results.row import Row
from commbench.results.run_folder import write_json
from commbench.results.writer import Entry

STARTED = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)
RUN = {"schema_version": SCHEMA_VERSION, "run_id": "r", "cases": 2}


def case(case_id: str, **more: Any) -> Row:
    values = {
        "run_id": "r",
        "case_id": case_id,
        "status": "ok",
        "started_at": STARTED,
        "warnings": [],
        "env": {},
        "benchmark": "p2p_latency",
        "backend": "gloo",
        "layout": "1x2",
        "engine": "python",
        "timing": "quick",
        "sync": "none",
        "cache": "warm",
        "elements": 2,
    }
    return case_row(**values | more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two cases, samples and counters."""
    path = tmp_path / "run"
    path.mkdir()
    writer = Parquet()
    writer.begin(RUN, str(path))
    texts = {"run_id": np.full(2, "r", dtype=object), "case_id": np.full(2, "a", dtype=object)}
    index = np.arange(2)
    samples = texts | {
        "phase": np.full(2, "measure", dtype=object),
        "block": index,
        "repetition": index,
        "rank": index,
    }
    samples |= {"start_ns": index + 2**62, "end_ns": index, "elapsed_ns": index, "visit": index + 1}
    counters = texts | {
        "rank": index,
        "t_ns": index,
        "name": np.full(2, "-rtt", dtype=object),
        "value": index - 0.5,
    }
    measured = {
        "window": 64,
        "median_s": 0.1 + 0.2,
        "in_place": True,
        "label": "=1+1",
        "warnings": ["overhead", "skewed"],
    }
    writer.cases([Entry(case("a", env={"B": "2", "A": "=1"}, **measured), samples, counters)])
    writer.cases([Entry(case("b", status="skipped", reason='a, "b"\nc', order=-3))])
    writer.end(RUN)
    return path


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> pd.DataFrame:
    capsys.readouterr()
    assert command([*words, "--csv", "-"]) == 0
    return pd.read_csv(io.StringIO(capsys.readouterr().out))


# ---------------------------------------------------------------- tables


def test_cases_have_plain_names_and_exact_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = exported(capsys, str(folder), "--columns", "all")
    assert list(frame) == [column.name for column in CASES]
    second, first = (row for _, row in frame.iterrows())
    assert (first.median_s, first.window) == (0.1 + 0.2, 64)
    assert json.loads(first["warnings"]) == ["overhead", "skewed"]
    assert json.loads(first.env) == {"A": "=1", "B": "2"}
    assert first.started_at == "2026-01-02T03:04:05.000006Z"
    assert (second.reason, second.order) == ('a, "b"\nc', -3)
    assert pd.isna(second.median_s)


def test_integers_beside_a_null_stay_integers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command([str(folder), "--csv", "-", "--columns", "window, message_bytes,in_place,window"])
    assert capsys.readouterr().out == "window,message_bytes,in_place\n,8,\n64,8,True\n"


def test_cases_have_the_columns_that_people_look_at_and_what_differs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = exported(capsys, str(folder))
    variables = ["benchmark", "backend", "layout", "pair", "message_bytes"]
    assert list(frame)[:5] == variables and {"window", "in_place", "env"} <= {*frame}
    results = ["status", "median_s", "ci_low_s", "ci_high_s", "algbw_gb_per_s"]
    assert list(frame)[-7:] == [*results, "busbw_gb_per_s", "warnings"]
    assert "dtype" not in frame, "all have the same"


def test_where_twelve_columns_tell_the_rows_apart_there_are_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A latency has no window and a bandwidth no reduction: that follows from the benchmark."""
    for number in (0, 3):  # gloo in 1x2 and in 1x4
        run_of(tmp_path, number)
    assert tuple(exported(capsys, str(tmp_path))) == DEFAULT_COLUMNS
    assert len(DEFAULT_COLUMNS) == 12
    run_of(tmp_path, 12)  # gloo in 1x2 once more
    added = {*exported(capsys, str(tmp_path))} - {*DEFAULT_COLUMNS}
    assert added == {"run_id"}


@pytest.mark.parametrize(("table", "columns"), [("samples", SAMPLES), ("counters", COUNTERS)])
def test_the_other_tables(
    table: str, columns: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = exported(capsys, str(folder), "--table", table)
    assert list(frame) == [column.name for column in columns]
    assert len(frame) == 2
    if table == "samples":
        assert list(frame.start_ns) == [2**62, 2**62 + 1]
    else:
        assert list(frame.value) == [-0.5, 0.5]
        assert list(frame["name"]) == ["'-rtt", "'-rtt"]


def test_a_real_run_of_many_operations_comes_back(tmp_path: Path) -> None:
    run = commbench.run(
        "backend=simulated",
        "benchmark=[p2p_latency,all_gather,barrier]",
        "layout=1x3",
        "sizes=[8,1200]",
        "timing=quick",
        "timing.warmup_s=0",
        "writer=parquet",
        "label=@home",
        f"output={tmp_path / 'results'}",
    )
    file = tmp_path / "cases.csv"
    assert command([str(tmp_path / "results"), "--csv", str(file), "--columns", "all"]) == 0
    cases = commbench.load(run)
    table = pd.read_csv(file)
    assert set(table.label) == {"'@home"}
    for name in ("median_s", "ci_low_s", "message_bytes", "busbw_gb_per_s", "lag1", "window"):
        np.testing.assert_array_equal(table[name].astype(float), cases[name].astype(float))
    assert (pd.to_datetime(table.started_at) == cases.started_at).all()
    assert list(table.reason.fillna("")) == list(cases.reason.fillna(""))


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\n=1", " =1", "'=1", "'"]
)
def test_what_a_spreadsheet_would_run_gets_a_quote(text: str) -> None:
    frame = pd.DataFrame({"label": [text], "reason": ["a=1"], "lag1": [-0.25]})
    assert list(csv.reader(io.StringIO(csv_text(frame, "cases"), newline="")))[1] == [
        f"'{text}",
        "a=1",
        "-0.25",
    ]


def test_line_breaks_inside_a_text_are_newlines() -> None:
    """A bare carriage return would end the line for many readers."""
    text = csv_text(pd.DataFrame({"reason": ["a\rb\r\nc"], "label": ["\r=1"]}), "cases")
    assert text == 'reason,label\n"a\nb\nc","\'\n=1"\n'


TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=12
) | st.sampled_from(["=1", "'", "NA"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "label": TEXT,
            "reason": st.none() | TEXT,
            "window": st.none() | st.integers(-(2**53), 2**53),
            "median_s": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "env": st.dictionaries(TEXT, TEXT, max_size=2),
            "warnings": st.lists(st.sampled_from(["overhead", "=x", "skewed"]), max_size=3),
        }
    ),
    min_size=1,
    max_size=5,
)


def unquoted(text: str) -> str:
    return text.removeprefix(QUOTE)


@given(ROWS)
def test_pandas_reads_back_what_was_written(rows: list[dict[str, Any]]) -> None:
    frame = pd.DataFrame(rows).astype({"window": "float64", "median_s": "float64"})
    text = csv_text(frame, "cases")
    texts = dict.fromkeys(("label", "reason", "env", "warnings"), str)
    table = pd.read_csv(
        io.StringIO(text, newline=""),
        dtype=texts,
        keep_default_na=False,
        na_values={"window": "", "median_s": ""},
    )
    assert len(table) == len(rows)
    assert table.median_s.to_numpy() == pytest.approx(
        frame.median_s.to_numpy(), rel=1e-15, abs=0, nan_ok=True
    )
    for row, (_, cells) in zip(rows, table.iterrows(), strict=True):
        assert unquoted(cells.label) == row["label"]
        assert unquoted(cells.reason) == (row["reason"] or "")
        assert json.loads(cells.env) == row["env"]
        assert json.loads(cells["warnings"]) == row["warnings"]
        assert (None if pd.isna(cells.window) else cells.window) == row["window"]
    written = csv.DictReader(io.StringIO(text, newline=""))
    assert not [
        row for row in written for name in texts if row[name].startswith(RUN_BY_SPREADSHEETS)
    ]


# ---------------------------------------------------------------- the file


def test_a_file_that_exists_is_kept_unless_forced(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    words = [str(folder), "--csv", str(file), "--columns", "case_id"]
    assert command(words) == 0
    file.write_text("mine")
    with pytest.raises(ConfigError, match=r"out\.csv exists; choose another file, or add --force"):
        command(words)
    assert file.read_text() == "mine"
    assert command([*words, "--force"]) == 0
    assert file.read_text() == "case_id\nb\na\n"


def test_the_number_of_rows_and_the_file_are_printed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command([str(folder), "--csv", str(tmp_path / "out.csv"), "--table", "samples"])
    assert capsys.readouterr().out == f"2 rows of samples: {tmp_path / 'out.csv'}\n"


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (
            ["--csv", "-", "--columns", "median_s,medain_s"],
            "'medain_s' is not in cases; allowed: all, benchmark, backend",
        ),
        (["--csv", "-", "--columns", ""], "'' is not in cases"),
        (
            ["--csv", "-", "--table", "samples", "--columns", "median_s"],
            "'median_s' is not in samples; allowed: all, run_id",
        ),
        (["--csv", "-", "--table", "rows"], "invalid choice: 'rows'"),
        (["--csv", "-", "--xlsx"], "unrecognized arguments: --xlsx"),
        (["--csv", "{tmp}"], "is a folder; name a file in it"),
        (["--csv", "{tmp}/none/out.csv"], "/none; make it, or choose another"),
    ],
)
def test_wrong_options_end_in_one_line(
    words: list[str], seen: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        command([str(folder), *(word.replace("{tmp}", str(tmp_path)) for word in words)])
    assert seen in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_place_without_results_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(CommbenchError, match=r"no run\.json below"):
        command([str(tmp_path), "--csv", str(tmp_path / "out.csv")])
    assert not (tmp_path / "out.csv").exists()


def test_json_lines_become_parquet_files_when_their_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("benchmark=all_reduce", "sizes=[8,64]", "timing=fixed", "timing.repetitions=5")
    with monkeypatch.context() as patched:
        patched.setattr("commbench.results.fan_out.is_installed", lambda module: False)
        run = commbench.run("backend=simulated", *words, f"output={tmp_path}")
    record = load_run(run)
    write_json(run / "run.json", {**record, "status": "running"})
    with pytest.raises(ConfigError, match="has not ended"):
        command([str(run), "--parquet"])
    assert not (run / "cases.parquet").exists()
    write_json(run / "run.json", record)
    assert command([str(run), "--parquet"]) == 0
    cases = commbench.load(run / "cases.parquet")
    assert set(cases["message_bytes"]) == {8, 64}


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(["--help"])
    assert caught.value.code == 0
    assert "--columns A,B,C" in capsys.readouterr().out
