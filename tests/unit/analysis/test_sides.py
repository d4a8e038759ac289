"""Sides from folders, files and data frames: what each has, and what it is compared by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import relaunched, with_column
from hypothesis import given
from hypothesis import strategies as st
from launch_frames import QUIET, launches
from sample_cases import case_row
from simulated_words import NOISY_RUN

import commbench
from commbench.analysis.compare import compare
from commbench.analysis.sides import (
    PAYLOAD,
    ComparedVariable,
    Side,
    by_each_value,
    parse_by,
    read_side,
    save,
    select_rows,
    variable_text,
)
from commbench.core.errors import ConfigError
from commbench.core.variables import NAMES
from commbench.report.compared_sides import side_lines


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five launches of six cases."""
    output = tmp_path_factory.mktemp("results")
    run = commbench.run(*NOISY_RUN, f"output={output}", "trial=0")
    for launch in range(1, 5):
        relaunched(run, launch)
    return output


def copied(results: Path, target: Path) -> list[Path]:
    """The runs of the results, in a folder that may be broken."""
    for file in results.rglob("*"):
        if file.is_file():
            to = target / file.relative_to(results)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(file.read_bytes())
    return sorted(target.iterdir())


def test_a_folder_is_all_its_runs(results: Path) -> None:
    side = read_side("NEW", [results])
    assert (len(side.rows), len(side.runs), side.problems) == (30, 5, ())
    assert side.label == str(results)
    assert len(read_side("NEW", [results, results]).rows) == 30


def test_unreadable_runs_are_named_and_the_others_used(results: Path, tmp_path: Path) -> None:
    runs = copied(results, tmp_path)
    (runs[0] / "cases.parquet").write_bytes(b"PAR1 this is not parquet PAR1")
    (runs[1] / "run.json").write_text("{")
    record = json.loads((runs[2] / "run.json").read_text())
    (runs[2] / "run.json").write_text(json.dumps(record | {"schema_version": 0}))
    side = read_side("NEW", [tmp_path])
    assert len({row.run_id for row in side.rows}) == 2
    assert len(side.problems) == 3
    for run, problem in zip(runs, side.problems, strict=False):
        assert str(run) in problem and "\n" not in problem
    assert (
        "schema version 0, this commbench reads 4; read it with the commbench that wrote it"
        in side.problems[2]
    )
    with pytest.warns(UserWarning, match=runs[0].name):
        table = compare(results, [str(run) for run in (runs[0], runs[4])])
    assert set(table.new_launches) == {1}


def test_a_saved_side_is_a_base(results: Path, tmp_path: Path) -> None:
    side = read_side("NEW", [results])
    save(side, tmp_path / "baseline.parquet")
    again = read_side("BASE", [tmp_path / "baseline.parquet"])
    assert again.runs == side.runs and again.problems == ()
    assert again.rows == side.rows
    table = compare(tmp_path / "baseline.parquet", results)
    assert set(table.verdict) == {"SAME"}


def test_the_cases_of_a_run_are_a_side(results: Path) -> None:
    file = sorted(results.iterdir())[0] / "cases.parquet"
    side = read_side("BASE", [file])
    assert len(side.rows) == 6 and len(side.runs) == 1


def test_a_table_without_a_version_is_used_and_told(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "plain.parquet"
    cases = commbench.load(results)
    cases["env"] = [list(json.loads(text).items()) for text in cases["env"]]
    cases.to_parquet(file)
    side = read_side("BASE", [file])
    assert side.problems == (f"{file} names no schema version: taken as 4",)
    with pytest.warns(UserWarning, match="names no schema version"):
        assert set(compare(file, results).sides) == {"both"}


def test_bad_files_are_refused(results: Path, tmp_path: Path) -> None:
    table = pq.read_table(sorted(results.iterdir())[0] / "cases.parquet")
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "text.parquet").write_text("median_s,1\n")
    pq.write_table(pa.table({"city": ["x"], "people": [1]}), tmp_path / "foreign.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "rowless.parquet")
    pq.write_table(table.replace_schema_metadata({"schema_version": "0"}), tmp_path / "old.parquet")
    words = table.set_column(
        table.schema.get_field_index("median_s"), "median_s", pa.array(["fast"] * 6)
    )
    pq.write_table(words, tmp_path / "words.parquet")
    pq.write_table(with_column(table, "run_id", None), tmp_path / "nameless.parquet")
    lines = {
        "empty": "empty.parquet is empty",
        "text": "text.parquet can't be read: ",
        "foreign": (
            "is not a table of cases: it has the columns city, people, but not benchmark, backend"
        ),
        "rowless": "rowless.parquet has no cases",
        "old": (
            "schema version 0, this commbench reads 4; read it with the commbench that wrote it"
        ),
        "words": "column median_s is not of type double",
        "nameless": "has rows without run_id or case_id",
        "absent": "neither a folder with runs",
    }
    for name, line in lines.items():
        with pytest.raises(ConfigError, match=f"BASE.*{line}"):
            read_side("BASE", [tmp_path / f"{name}.parquet"])


def test_mixed_units_are_refused(results: Path, tmp_path: Path) -> None:
    table = pq.read_table(sorted(results.iterdir())[0] / "cases.parquet")
    at = table.schema.get_field_index("median_s")
    scaled = pa.array([1e6 * median_s for median_s in table["median_s"].to_pylist()])
    other = pa.field("median_s", pa.float64(), metadata={"unit": "us"})
    pq.write_table(table.set_column(at, other, scaled), tmp_path / "us.parquet")
    with pytest.raises(
        ConfigError, match=r"us.parquet: column median_s is in us, commbench's in s; mixed units"
    ):
        compare(results, tmp_path / "us.parquet")
    runs = copied(results, tmp_path / "runs")
    (runs[2] / "cases.parquet").write_bytes((tmp_path / "us.parquet").read_bytes())
    with pytest.raises(ConfigError, match="mixed units"):
        compare(results, tmp_path / "runs")


def test_a_run_that_goes_on_is_read_from_its_parts(results: Path, tmp_path: Path) -> None:
    runs = copied(results, tmp_path)
    for run in runs:
        (run / "parts").mkdir()
        (run / "cases.parquet").rename(run / "parts" / "000000.cases.parquet")
    assert len(read_side("NEW", [tmp_path]).rows) == 30


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        ((), "none"),
        (0, "0"),
        (8.0, "8"),
        (0.5, "0.5"),
        (True, "true"),
        ((("A", "1"), ("B", "2")), "A=1 B=2"),
    ],
)
def test_a_value_has_one_text(value: object, text: str) -> None:
    assert variable_text(value) == text


def test_no_value_is_called_as_its_key_calls_it() -> None:
    assert variable_text(None, "payload") == "integers"
    assert variable_text(None, "traffic") == "uniform"
    assert variable_text(None, "root") == variable_text(None, "label") == "none"


def test_each_side_counts_its_own_rows_and_runs() -> None:
    """Of one folder with two backends, of which one has an engine more."""
    gloo = launches(QUIET, backend="gloo")
    mpi = [
        launches(QUIET, backend="mpi", engine=engine).assign(run_id=[f"m{n}" for n in range(5)])
        for engine in ("python", "native")
    ]
    both = pd.concat([gloo, *mpi])
    by = parse_by(["backend=gloo:mpi"])
    records = tuple({"run_id": f"{run}{n}"} for run in ("r00", "m") for n in range(5))
    base, new = (
        select_rows(replace(read_side(name, both), runs=records), by) for name in ("BASE", "NEW")
    )
    assert [line.split(": ")[1] for line in side_lines(base, new)] == [
        "5 launches, 5 rows",
        "5 launches, 10 rows",
    ]
    assert {run["run_id"][0] for run in base.runs} == {"r"}
    assert {run["run_id"][0] for run in new.runs} == {"m"}
    table = compare(both, both, by="backend=gloo:mpi")
    assert table[["sides", "engine", "reason"]].fillna("").to_numpy().tolist() == [
        ["both", "python", ""],
        ["new", "native", "engine native, in BASE python"],
    ]


def test_what_may_differ_is_parsed() -> None:
    assert parse_by(["backend=gloo:mpi", " engine ", ""]) == (
        ComparedVariable("backend", "gloo", "mpi"), ComparedVariable("engine"),
    )  # fmt: skip


@given(st.text(max_size=30))
def test_any_other_word_is_refused(word: str) -> None:
    name = word.strip().partition("=")[0]
    is_entry = name.startswith(("env.", "backend_options."))
    if name in set(NAMES) - set(PAYLOAD) or is_entry or not word.strip():
        return
    with pytest.raises(ConfigError, match="--by"):
        parse_by([word])


@pytest.mark.parametrize(
    ("values", "base", "settings"),
    [
        (["65536", "null", "16384"], "null", ["16384", "65536"]),
        (["9", "10", "8"], "8", ["9", "10"]),
    ],
)
def test_several_settings_are_compared_with_none_or_with_the_first(
    values: list[str], base: str, settings: list[str]
) -> None:
    rows = tuple(case_row(backend_options={"buffer_bytes": value}) for value in values)
    compared = by_each_value(Side("NEW", rows), parse_by(["backend_options.buffer_bytes"]))
    assert [(each.base, each.new) for (each,) in compared] == [(base, new) for new in settings]
