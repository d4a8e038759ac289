"""Folders of runs that were killed, or damaged later: whole cases are read, or one line names the
file.

What commbench.load returns works in pandas, and in commbench's own functions, as what is stored
does.
"""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from flipped_bits import flipped
from sample_cases import case_row

import commbench
from commbench.analysis.families import families
from commbench.cli.main import main
from commbench.cli.run import resume
from commbench.core.errors import CommbenchError
from commbench.report.summary import read_results
from commbench.results.columns import arrow_schema
from commbench.results.load import (
    counting_mask,
    find_runs,
    load_run,
    read_case_rows,
    read_rows,
    rows_of_frame,
)
from commbench_replay.prediction import predict

CASES = 3


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def read(folder: Path, **more: Any) -> tuple[int, int, int]:
    """Cases, cases with samples, and keys of run.json."""
    samples = commbench.load(folder, table="samples", **more).case_id.nunique()
    return len(commbench.load(folder, **more)), samples, len(load_run(folder))


def test_finished_and_killed_runs_are_read_alike(finished: Path, killed: Path) -> None:
    assert read(finished) == read(killed)
    assert read(killed)[:2] == (CASES, CASES)


@pytest.mark.parametrize("end", ["finished", "killed"])
def test_torn_files_aside_change_nothing(
    end: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(request.getfixturevalue(end), folder)
    for file in files(folder):
        content = file.read_bytes()
        file.with_suffix(".tmp").write_bytes(content[: len(content) // 2])
    assert read(folder)[:2] == (CASES, CASES)


@pytest.mark.parametrize("end", ["finished", "killed"])
def test_a_file_that_is_cut_is_named_and_the_others_used(
    end: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(end)
    for target in files(source):
        if target.name.startswith(("000000", "000002")):
            continue  # one part of each table stands for all
        content = target.read_bytes()
        for cut in (0, 1, 4, len(content) // 2, len(content) - 2):
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
            assert left.case_id.nunique() == (
                CASES if whole else 0 if end == "finished" else CASES - 1
            )
            shutil.rmtree(folder)


def test_a_run_that_died_between_merging_and_removing_its_parts(
    finished: Path, killed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    for table in ("cases", "samples"):
        shutil.copy(finished / f"{table}.parquet", folder)
        (folder / "parts" / f"000000.{table}.parquet").unlink()
        assert len(commbench.load(folder, table=table)) == len(
            commbench.load(finished, table=table)
        )


def test_each_file_tells_its_schema_version(killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    part = folder / "parts" / "000001.cases.parquet"
    for version, seen in (("99", "99"), ("x", "x")):
        table = pq.read_table(part).replace_schema_metadata({"schema_version": version})
        pq.write_table(table, part)
        with pytest.raises(
            CommbenchError,
            match=f"000001.cases.parquet has schema version {seen}, this commbench reads",
        ):
            commbench.load(folder, skip_damaged=True)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"schema_version": 99}))
    for path in (folder, tmp_path):
        with pytest.raises(CommbenchError, match=r"run\.json has schema version 99"):
            commbench.load(path, skip_damaged=True)


def test_an_empty_run_has_all_columns(killed: Path, tmp_path: Path) -> None:
    shutil.copy(killed / "run.json", tmp_path)
    assert list(commbench.load(tmp_path).columns) == arrow_schema("cases").names


def test_a_run_of_an_earlier_version_is_neither_read_nor_resumed(
    finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    record = json.loads((finished / "run.json").read_text()) | {"schema_version": 2}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    for reader in (commbench.load, lambda run: resume([str(run)])):
        with pytest.raises(CommbenchError, match="schema version 2, this commbench reads 4;"):
            reader(tmp_path / "run")


# ---------------------------------------------------------------- data frames


FIVE = {
    "timing": "fixed",
    "timing.repetitions": 5,
    "timing.warmup_repetitions": 1,
    "timing.warmup_s": 0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run started with a dict and keywords: point to point and collective, so that many columns
    have nulls."""
    output = tmp_path_factory.mktemp("results")
    return commbench.run(
        FIVE,
        "benchmark=[p2p_latency,all_reduce]",
        backend="simulated",
        layout="1x2",
        sizes=[8, "1KiB", 4096],
        env={"B": "2 3", "A": "=1"},
        label="a, b",
        output=output,
        writer=["parquet"],
    )


def test_what_is_given_as_keywords_and_in_a_dict_is_used(folder: Path) -> None:
    cases = commbench.load(folder)
    assert set(cases["message_bytes"]) == {8, 1024, 4096} and set(cases["repetitions"]) == {5}
    assert set(cases["label"]) == {"a, b"} and set(cases["layout"]) == {"1x2"}
    assert {json.dumps(json.loads(text)) for text in cases["env"]} == {'{"A": "=1", "B": "2 3"}'}


def test_every_row_can_be_hashed_grouped_and_queried(folder: Path) -> None:
    cases = commbench.load(folder)
    assert len(pd.concat([cases, cases]).drop_duplicates()) == len(cases) == 6
    assert cases.groupby(["env", "backend_options", "warnings"], dropna=False).size().sum() == 6
    assert len(cases.query("warnings == '' or warnings.str.contains('[a-z]')")) == 6
    assert len(cases.query("root.isna() and reduction == 'sum'")) == 3
    nullable = {
        name: str(cases[name].dtype) for name in ("window", "in_place", "message_bytes", "steady")
    }
    assert "float64" not in nullable.values() and "object" not in nullable.values(), nullable


def test_operation_s_of_a_repetition_is_what_the_median_is_made_of(folder: Path) -> None:
    cases = commbench.load(folder).set_index("case_id")
    samples = commbench.load(folder, table="samples").query("phase == 'measure'")
    latency = cases[cases["benchmark"] == "p2p_latency"]
    medians = (
        samples[samples["rank"] == 0].groupby("case_id")["operation_s"].median()[latency.index]
    )
    assert medians.to_numpy() == pytest.approx(latency["median_s"].to_numpy())
    assert set(latency["operations_per_sample"]) != {1}, "elapsed_ns alone would do"
    alone = commbench.load(folder / "samples.parquet", table="samples").query("phase == 'measure'")
    assert alone["operation_s"].equals(samples["operation_s"])


def test_load_and_report_take_folders_files_and_lists_of_them(folder: Path) -> None:
    whole = commbench.load(folder)
    for paths in (
        [str(folder)],
        [folder / "cases.parquet"],
        [[folder], [folder / "cases.parquet"]],
        [folder.parent],
    ):
        assert commbench.load(*paths).equals(whole)
        assert len(read_results(paths).rows) == len(whole)
    with pytest.raises(CommbenchError, match=r"no run\.json below .*nowhere"):
        commbench.load([folder / "nowhere"])
    with pytest.raises(CommbenchError, match="allowed: cases, samples, counters"):
        commbench.load(folder, table="rows")


def test_the_own_functions_take_both_forms(folder: Path) -> None:
    loaded = commbench.load(folder)
    stored = read_rows([folder])
    seen, *others = [
        [family.variables for family in families(rows)]
        for rows in (rows_of_frame(loaded), rows_of_frame(stored), read_case_rows([folder]))
    ]
    assert {row.benchmark for row in seen} == {"p2p_latency", "all_reduce"}
    assert all(seen == other for other in others)
    job = "ddp params=1000 dtype=float32"
    columns = ["step_s", "low_s", "high_s"]
    assert predict(loaded, job)[columns].equals(predict(stored, job)[columns])
    pairs = stored.assign(env=[[*map(list, env.items())] for env in stored["env"]])
    frames = [loaded, stored, pairs]
    first, *rest = [commbench.compare(frame, folder) for frame in frames]
    assert set(first["sides"]) == {"both"} and all(first.equals(other) for other in rest)


def test_what_a_user_saves_with_pandas_is_read_again(folder: Path, tmp_path: Path) -> None:
    loaded = commbench.load(folder)
    loaded.to_parquet(tmp_path / "mine.parquet")
    assert commbench.load(tmp_path / "mine.parquet").equals(loaded)


def test_the_package_tells_what_it_has_and_imports_nothing_for_it() -> None:
    heavy = "[m for m in ('pandas', 'torch', 'hydra', 'numpy') if m in sys.modules]"
    code = (
        f"import sys, commbench; listed = dir(commbench); print({heavy}, 'load' in listed,"
        " commbench.__version__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("[] True ")
    assert {
        "run",
        "load",
        "compare",
        "slow_pairs",
        "CommbenchError",
        "__version__",
    } <= set(dir(commbench))
    for name in commbench.__all__:
        public = getattr(commbench, name)
        text = public.__doc__ or ""
        assert text and (isinstance(public, type) or f"commbench.{name}(" in text), (
            f"{name} has no example"
        )


def test_a_flipped_bit_is_told_in_one_line(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    content = (run / "cases.parquet").read_bytes()
    first_page = content[:200]
    for damaged in flipped(first_page, 20):
        (run / "cases.parquet").write_bytes(damaged + content[200:])
        for words in (["show"], ["report"], ["export", "--csv", "-"]):
            status = main([words[0], str(run), *words[1:]])
            err = capsys.readouterr().err
            assert status == 0 or (
                len(err.splitlines()) == 1 and f"{run}/cases.parquet can't be read: " in err
            )


def test_links_to_folders_are_followed_and_each_run_is_found_once(
    finished: Path, tmp_path: Path
) -> None:
    """As of a folder that gathers runs: they are in their order, whatever the links are called. A
    circle ends."""
    later = Path(shutil.copytree(finished, tmp_path / "20990101T000000.000000-0000"))
    gathered = tmp_path / "gathered"
    (gathered / "a").mkdir(parents=True)
    (gathered / "z").symlink_to(finished)
    (gathered / "a" / "first").symlink_to(later)
    (gathered / "a" / "again").symlink_to(finished)
    (gathered / "a" / "circle").symlink_to(gathered)
    assert [run.resolve() for run in find_runs(gathered)] == [finished.resolve(), later.resolve()]
    assert find_runs(gathered / "z") == [gathered / "z"]


@pytest.mark.parametrize(
    "call",
    [lambda: commbench.run(backend="simulated", bogus=3), lambda: commbench.load("nowhere")],
)
def test_an_error_in_python_has_the_users_line_and_the_message_alone(
    call: Callable[[], object],
) -> None:
    with pytest.raises(CommbenchError) as seen:
        call()
    shown = traceback.format_exception(seen.value)
    assert len(shown) == 5, "a heading, this test, the line above, the wrapper, the message"
    assert pickle.dumps(commbench.load), "a process pool can call it"


@pytest.mark.parametrize(
    ("headline", "pair", "counting"),
    [
        ("max_over_ranks", None, [0, 1, 2]),
        ("initiator", "0-1", [0]),
        ("receiver", "0-1", [1]),
        ("max_over_senders", "0-2 1-2", [0, 1]),
        (None, None, [0, 1, 2]),
        ("initiator", "7-8", [0, 1, 2]),
    ],
)
def test_the_clocks_that_count_are_those_of_the_headline_else_all(
    headline: str | None, pair: str | None, counting: list[int]
) -> None:
    case = case_row(headline=headline, pair=pair)
    assert np.flatnonzero(counting_mask(case, np.arange(3))).tolist() == counting
