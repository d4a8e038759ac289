"""Folders of runs that were killed, or damaged later: whole cases are read, or one line names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commbench
from commbench.core.columns import arrow_schema
from commbench.core.errors import CommbenchError
from commbench.report.load import load_run

FIXED = ("timing=fixed", "timing.repetitions=5", "timing.warmup_repetitions=1", "timing.warmup_s=0")
CASES = 3
CUTS = 12  # a file


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run at its end."""
    output = tmp_path_factory.mktemp("finished")
    words = ("backend=simulated", "writer=parquet", "benchmark=all_reduce", "sizes=[8,16,24]", *FIXED)
    return commbench.run(*words, f"output={output}")


@pytest.fixture(scope="module")
def killed(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run as it would be without its end: a part a case, and half a file aside."""
    folder = tmp_path_factory.mktemp("killed") / finished.name
    (folder / "parts").mkdir(parents=True)
    shutil.copy(finished / "run.json", folder)
    cases = pq.read_table(finished / "cases.parquet")
    samples = pq.read_table(finished / "samples.parquet")
    for index, case_id in enumerate(cases["case_id"].to_pylist()):
        chosen = samples.filter(pa.compute.equal(samples["case_id"], case_id))
        pq.write_table(chosen, folder / "parts" / f"{index:06d}.samples.parquet")
        pq.write_table(cases.slice(index, 1), folder / "parts" / f"{index:06d}.cases.parquet")
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.rglob("*") if one.is_file())


def read(folder: Path, **more: Any) -> tuple[int, int, int]:
    """Cases, cases with samples, and keys of run.json."""
    samples = commbench.load(folder, table="samples", **more).case_id.nunique()
    return len(commbench.load(folder, **more)), samples, len(load_run(folder))


def test_the_two_ends_of_a_run_read_alike(finished: Path, killed: Path) -> None:
    assert read(finished) == read(killed)
    assert read(killed)[:2] == (CASES, CASES)


@pytest.mark.parametrize("end", ["finished", "killed"])
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_torn_files_aside_change_nothing(
    end: str, data: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = request.getfixturevalue(end)
    target = data.draw(st.sampled_from(files(folder)))
    content = target.read_bytes()
    aside = target.with_suffix(".tmp")
    aside.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        assert read(folder)[:2] == (CASES, CASES)
    finally:
        aside.unlink()


@pytest.mark.parametrize("end", ["finished", "killed"])
def test_a_file_that_is_cut_is_named_and_the_others_used(
    end: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(end)
    for target in files(source):
        content = target.read_bytes()
        for cut in sorted({len(content) * step // CUTS for step in range(CUTS)} | {1, 4, len(content) - 2}):
            folder = tmp_path / f"{target.name}-{cut}"
            shutil.copytree(source, folder)
            torn = folder / target.relative_to(source)
            torn.write_bytes(content[:cut])
            with pytest.raises(CommbenchError) as seen:
                read(folder)
            assert str(torn) in str(seen.value) and "\n" not in str(seen.value)
            with pytest.warns(UserWarning, match=f"{target.name} .*left out"):
                table = "samples" if "samples" in target.name else "cases"
                left = commbench.load(folder, table=table, skip_damaged=True)
            whole = target.name == "run.json"
            assert left.case_id.nunique() == (CASES if whole else 0 if end == "finished" else CASES - 1)
            shutil.rmtree(folder)


def test_a_run_that_died_between_merging_and_removing_its_parts(finished: Path, killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    shutil.copy(finished / "cases.parquet", folder)
    (folder / "parts" / "000000.cases.parquet").unlink()
    assert read(folder)[:2] == (CASES, CASES)


def test_each_file_tells_its_schema_version(killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    part = folder / "parts" / "000001.cases.parquet"
    for version, seen in (("99", "99"), ("x", "x")):
        table = pq.read_table(part).replace_schema_metadata({"schema_version": version})
        pq.write_table(table, part)
        with pytest.raises(
            CommbenchError, match=f"000001.cases.parquet has schema version {seen}, this commbench reads"
        ):
            commbench.load(folder, skip_damaged=True)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"schema_version": 99}))
    for path in (folder, tmp_path):
        with pytest.raises(CommbenchError, match=r"run\.json has schema version 99"):
            commbench.load(path, skip_damaged=True)


def test_foreign_tables_are_named(killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    part = folder / "parts" / "000009.cases.parquet"
    pq.write_table(pa.table({"city": ["x"]}), part)
    with pytest.raises(CommbenchError, match=r"000009\.cases\.parquet can't be read: "):
        commbench.load(folder)
    part.unlink()
    (folder / "run.json").write_text("[1]")
    with pytest.raises(CommbenchError, match=r"run\.json is not the record of a run: it holds a list"):
        commbench.load(folder)


def test_results_may_be_added_within_a_version(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    file = folder / "cases.parquet"
    rows = pq.read_table(file)
    later = rows.drop_columns(["clock_error_s"]).append_column("colour", pa.nulls(len(rows)))
    pq.write_table(later, file)
    seen = commbench.load(folder)
    assert list(seen.columns) == arrow_schema("cases").names
    assert seen["clock_error_s"].isna().all()
    assert seen["median_s"].equals(commbench.load(finished)["median_s"])
    pq.write_table(rows.drop_columns(["sync"]), file)
    with pytest.raises(
        CommbenchError, match=r"cases\.parquet can't be read: it is not a table of cases: .* but not sync;"
    ):
        commbench.load(folder)


def test_an_empty_run_has_all_columns(killed: Path, tmp_path: Path) -> None:
    shutil.copy(killed / "run.json", tmp_path)
    assert list(commbench.load(tmp_path).columns) == arrow_schema("cases").names
