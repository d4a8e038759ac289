"""Runs are added to a store once, whole or not at all, by one process at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flipped_bits import read_as_other
from healthy_runs import healthy_run
from small_disk import small_disk

import commbench
from commbench.cluster.baseline.store import stored_runs
from commbench.cluster.baseline.writer import ADDING, add_runs
from commbench.core.errors import ConfigError
from commbench.results.load import load_run
from commbench.runtime.folder_lock import locked

HOLD = (
    "import sys, time; from commbench.runtime.folder_lock import lock_folder;"
    " from commbench.cluster.baseline.writer import ADDING;"
    " lock_folder(sys.argv[1], ADDING); print('locked', flush=True); time.sleep(100)"
)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_run_that_is_added_twice_changes_nothing(tmp_path: Path) -> None:
    runs = [healthy_run(tmp_path / "runs", number) for number in (1, 2)]
    store = tmp_path / "store"
    first = add_runs(store, [runs[0]])
    before = contents(store)
    again = add_runs(store, [tmp_path / "runs", runs[0]])
    assert first.added == (runs[0],) and first.present == () and first.refused == ()
    assert again.added == (runs[1],) and again.present == (runs[0], runs[0])
    assert before.items() <= contents(store).items()
    assert [run.name for run in stored_runs(store)] == [run.name for run in runs]


def test_a_stored_run_is_an_ordinary_run_with_the_whole_record(tmp_path: Path) -> None:
    run = healthy_run(tmp_path, 1, gpus=[{"driver": "580.1"}])
    add_runs(tmp_path / "store", [run])
    (stored,) = stored_runs(tmp_path / "store")
    assert load_run(stored) == load_run(run)
    assert commbench.load(tmp_path / "store").equals(commbench.load(run))


def test_a_flipped_bit_in_a_store_is_never_another_number(tmp_path: Path) -> None:
    add_runs(tmp_path / "store", [healthy_run(tmp_path, 1)])
    (stored,) = stored_runs(tmp_path / "store")
    assert read_as_other(stored / "cases.parquet", "cases") == 0


def invalid(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"status": "invalid"} if values["message_bytes"] == 8 else values


def skipped(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"status": "skipped", "median_s": None}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"status": "running"}, "has not ended (status running); finish it with: commbench resume"),
        ({"status": "broken"}, "has not ended (status broken)"),
        ({"schema_version": 2}, "has schema version 2, this commbench reads 4"),
        ({"run_id": "../elsewhere"}, "has no usable run_id: '../elsewhere'"),
        ({"change": invalid}, "is no baseline: 3 invalid of 12 cases"),
        ({"change": skipped}, "is no baseline: no case of it was measured"),
    ],
)
def test_a_run_that_is_no_baseline_is_refused_and_the_others_are_added(
    tmp_path: Path, more: dict[str, Any], reason: str
) -> None:
    bad = healthy_run(tmp_path, 1, **more)
    good = healthy_run(tmp_path, 2)
    result = add_runs(tmp_path / "store", [bad, good])
    assert result.added == (good,)
    (line,) = result.refused
    assert reason in line and str(bad) in line and "\n" not in line


def test_what_is_no_run_or_damaged_is_refused_in_a_line_each(tmp_path: Path) -> None:
    half = healthy_run(tmp_path, 1)
    (half / "cases.parquet").write_bytes((half / "cases.parquet").read_bytes()[:100])
    torn = healthy_run(tmp_path, 2)
    (torn / "run.json").write_text('{"schema_version": 4, ')
    (tmp_path / "empty").mkdir()
    store = tmp_path / "store"
    result = add_runs(store, [half, torn, tmp_path / "empty", tmp_path / "absent"])
    seen = sorted(result.refused)
    assert len(seen) == 4 and result.added == ()
    for line, words in zip(
        seen,
        ["cases.parquet can't be read", "run.json can't be read", "does not exist", "no run.json"],
        strict=True,
    ):
        assert words in line
    assert not store.exists()


def test_a_run_that_is_measured_into_is_refused(tmp_path: Path) -> None:
    run = healthy_run(tmp_path, 1)
    with locked(run):
        (line,) = add_runs(tmp_path / "store", [run]).refused
    assert line == f"{run} is being measured into; add it when it has ended"


def test_a_folder_of_results_or_a_file_does_not_become_a_store(tmp_path: Path) -> None:
    run = healthy_run(tmp_path / "results", 1)
    (tmp_path / "file").touch()
    for store in (tmp_path / "results", run, tmp_path / "file"):
        before = contents(tmp_path)
        with pytest.raises(ConfigError, match=f"--baseline {store} is"):
            add_runs(store, [run])
        assert contents(tmp_path) == before


def test_a_second_writer_is_refused_with_the_process_that_adds(tmp_path: Path) -> None:
    run = healthy_run(tmp_path, 1)
    store = tmp_path / "store"
    store.mkdir()
    command = [sys.executable, "-c", HOLD, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "locked\n"
            with pytest.raises(ConfigError, match=f"process {process.pid} on .* is {ADDING.doing}"):
                add_runs(store, [run])
        finally:
            process.kill()
    assert add_runs(store, [run]).added == (run,)


def test_what_a_killed_writer_has_left_is_no_run_and_is_completed_by_the_next(
    tmp_path: Path,
) -> None:
    run = healthy_run(tmp_path, 1)
    store = tmp_path / "store"
    add_runs(store, [run])
    (stored,) = stored_runs(store)
    (stored / "cases.parquet").rename(stored / "cases.tmp")
    assert stored_runs(store) == []
    assert add_runs(store, [run]).added == (run,)
    assert stored_runs(store) == [stored]


def test_a_full_disk_leaves_the_runs_that_fit_and_no_half_of_one(tmp_path: Path) -> None:
    runs = [healthy_run(tmp_path, number) for number in (1, 2)]
    with small_disk(tmp_path / "disk") as disk:
        store = disk.path / "store"
        add_runs(store, runs[:1])
        disk.fill(spare_bytes=8192)
        before = [file for file in contents(store) if not file.endswith("lock")]
        with pytest.raises(ConfigError) as seen:
            add_runs(store, runs)
        assert "No space left on device" in str(seen.value) and "make room" in str(seen.value)
        assert [file for file in contents(store) if not file.endswith("lock")] == before
        assert [run.name for run in stored_runs(store)] == [runs[0].name]
        disk.free()
        assert add_runs(store, runs).added == (runs[1],)


def test_the_record_is_kept_beside_the_cases_for_those_that_read_parquet_alone(
    tmp_path: Path,
) -> None:
    import pyarrow.parquet as pq

    run = healthy_run(tmp_path, 1)
    add_runs(tmp_path / "store", [run])
    (stored,) = stored_runs(tmp_path / "store")
    metadata = pq.read_schema(stored / "cases.parquet").metadata
    assert json.loads(metadata[b"commbench_run"]) == load_run(run)
