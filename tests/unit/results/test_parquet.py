"""Results of real runs on real disks that get full, read-only, free again or lost, and of runs that
are killed."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flipped_bits import read_as_other
from sample_cases import case_row
from small_disk import Disk

import commbench
from commbench.cli.main import main
from commbench.core.errors import Unsaved
from commbench.measure.recorder import Recorder
from commbench.results import parquet
from commbench.results.columns import SCHEMA_VERSION
from commbench.results.load import load_run
from commbench.results.parquet import Parquet

COUNT = 24  # cases of a run
MANY = f"sizes=[{','.join(str(8 * step) for step in range(1, COUNT + 1))}]"
FIXED = ("timing=fixed", "timing.repetitions=5", "timing.warmup_repetitions=1", "timing.warmup_s=0")
WORDS = ("backend=simulated", "benchmark=all_reduce", "layout=1x2", MANY, *FIXED)
KILLS = 6
RUN_S = 100


# ---------------------------------------------------------------- the writer alone


def row_of(case_id: str, **more: Any) -> dict[str, Any]:
    known = {"status": "ok", "median_s": 1e-6, "env": {}, "warnings": []}
    return case_row(run_id="r", case_id=case_id, **known) | more


def test_cases_of_a_round_share_a_part_until_all_of_them_are_written_again(tmp_path: Path) -> None:
    writer = Parquet()
    writer.begin({"run_id": "r"}, str(tmp_path))
    ids = ["a", "b", "c"]
    writer.cases([(row_of(case_id), samples_of(case_id), {}) for case_id in ids])
    parts = tmp_path / "parts"
    assert sorted(part.name for part in parts.iterdir()) == [
        "000000.cases.parquet",
        "000000.samples.parquet",
    ]
    writer.cases([(row_of("b", reason="again"), {}, {})])
    assert (parts / "000000.cases.parquet").exists(), "it has the newest rows of a and c"
    writer.cases([(row_of(case_id, reason="again"), {}, {}) for case_id in ("a", "c")])
    assert not (parts / "000000.cases.parquet").exists()
    (parts / "000002.cases.parquet").unlink()  # written again at the end
    writer.end({"run_id": "r", "folder": str(tmp_path), "exit_status": 0})
    cases = pq.read_table(tmp_path / "cases.parquet").to_pylist()
    assert [(row["case_id"], row["reason"]) for row in cases] == [(each, "again") for each in ids]
    samples = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    assert [row["case_id"] for row in samples] == [each for each in ids for _ in range(4)]
    assert not parts.exists()


def samples_of(case_id: str, count: int = 4) -> dict[str, Any]:
    """That zstd can't make small."""
    stamps = np.random.default_rng(0).integers(0, 2**62, count)
    texts = {"run_id": "r", "case_id": case_id, "phase": "measure"}
    columns = {name: np.full(count, text, dtype=object) for name, text in texts.items()}
    numbers = {name: np.arange(count) for name in ("block", "repetition", "rank")}
    return {
        **columns,
        **numbers,
        "start_ns": stamps,
        "end_ns": stamps + 5,
        "elapsed_ns": stamps,
        "visit": stamps,
    }


def begun(folder: Path) -> tuple[Parquet, dict[str, Any]]:
    run = {
        "schema_version": SCHEMA_VERSION,
        "run_id": "r",
        "folder": str(folder),
        "status": "running",
    }
    folder.mkdir(exist_ok=True)
    writer = Parquet()
    writer.begin(run, str(folder))
    return writer, run | {"status": "done", "exit_status": 0}


def refuge_in(text: str) -> Path:
    match = re.search(r"they are in (\S+?)[,:]", text)
    assert match is not None, text
    return Path(match[1])


def test_a_run_goes_on_after_what_an_earlier_start_has_left(tmp_path: Path) -> None:
    writer, _ = begun(tmp_path)
    writer.cases([(row_of("a", label="old"), {}, {})])
    (tmp_path / "parts" / "000001.cases.tmp").write_bytes(b"PAR1 torn")
    writer, run = begun(tmp_path)
    writer.cases([(row_of("a", label="new"), samples_of("a"), {})])
    writer.end(run)
    assert list(commbench.load(tmp_path).label) == ["new"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "run.json",
        "cases.parquet",
        "samples.parquet",
    }


def test_each_visit_replaces_the_row_of_its_case_and_adds_its_samples(tmp_path: Path) -> None:
    writer, run = begun(tmp_path)
    for visits, case_id in ((1, "b"), (1, "a"), (2, "a"), (2, "b")):
        writer.cases([(row_of(case_id, visits=visits), samples_of(case_id), {})])
        assert len(list((tmp_path / "parts").glob("*.cases.parquet"))) <= 2
    assert list(commbench.load(tmp_path).visits) == [2, 2]
    writer.end(run)
    rows = pq.read_table(tmp_path / "cases.parquet", columns=["case_id", "visits"]).to_pylist()
    assert rows == [
        {"case_id": "b", "visits": 2},
        {"case_id": "a", "visits": 2},
    ], "in the order of the first visits"
    assert pq.read_table(tmp_path / "samples.parquet").num_rows == 16


@pytest.mark.parametrize(("merge_s", "left"), [(-1.0, 6), (0.5, 5), (60.0, 0)])
def test_an_interrupted_run_merges_what_it_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge_s: float, left: int
) -> None:
    """Thousands of parts took up to two minutes after a signal."""
    now_s = 0.0

    def slow_read(file: Path, table: str) -> Any:
        nonlocal now_s
        now_s += 1.0
        return read(file, table)

    read = parquet._read_part
    monkeypatch.setattr(parquet, "_read_part", slow_read)
    monkeypatch.setattr(parquet, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(parquet, "MERGE_S", merge_s)
    writer, run = begun(tmp_path)
    for case_id in "abc":
        writer.cases([(row_of(case_id), samples_of(case_id), {})])
    writer.end(run | {"status": "interrupted"})
    assert len([*tmp_path.glob("parts/*")]) == left
    assert sorted(commbench.load(tmp_path).case_id) == ["a", "b", "c"]
    writer, run = begun(tmp_path)
    writer.cases([(row_of("b", visits=7), samples_of("b"), {})])
    writer.end(run)
    assert not (tmp_path / "parts").exists()
    assert commbench.load(tmp_path).set_index("case_id").visits.fillna(0).to_dict() == {
        "a": 0, "b": 7, "c": 0,
    }  # fmt: skip
    assert pq.read_table(tmp_path / "samples.parquet").num_rows == 4 * len(samples_of("b")["rank"])


def test_rows_from_before_a_result_existed_are_merged_with_null(tmp_path: Path) -> None:
    writer, _ = begun(tmp_path)
    writer.cases([(row_of("old"), {}, {})])
    part = tmp_path / "parts" / "000000.cases.parquet"
    pq.write_table(pq.read_table(part).drop_columns(["headline"]), part)
    writer, run = begun(tmp_path)
    writer.cases([(row_of("new", headline="max_over_ranks"), {}, {})])
    writer.end(run)
    cases = pq.read_table(tmp_path / "cases.parquet", columns=["case_id", "headline"]).to_pylist()
    assert cases == [
        {"case_id": "old", "headline": None},
        {"case_id": "new", "headline": "max_over_ranks"},
    ]
    assert not (tmp_path / "parts").exists()


def test_a_part_of_a_later_commbench_stays_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer, run = begun(tmp_path)
    writer.cases([(row_of("a"), {}, {})])
    part = tmp_path / "parts" / "000000.cases.parquet"
    table = pq.read_table(part)
    pq.write_table(table.append_column("from_the_future", table.column("label")), part)
    writer.end(run)
    assert part.exists() and "from_the_future" in capsys.readouterr().err


def test_a_disk_without_room_to_merge_keeps_the_parts(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    writer, run = begun(disk.path / "run")
    for case_id in "abc":
        writer.cases([(row_of(case_id), samples_of(case_id, 6000), {})])
    disk.fill(spare_bytes=64 << 10)
    writer.end(run)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "results stay in its parts, which are read as well (" in lines[0]
    assert sorted(commbench.load(disk.path).case_id) == ["a", "b", "c"]
    assert len(commbench.load(disk.path, table="samples")) == 18_000
    assert load_run(disk.path / "run")["exit_status"] == 0, "nothing is missing"
    assert not list((disk.path / "run").rglob("*.tmp"))


def test_samples_that_can_not_be_saved_are_counted_and_rescued(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nowhere while the refuge is on the full disk, too."""
    writer, run = begun(disk.path / "run")
    run |= {"status": "interrupted"}  # its end is not tried for as long
    writer.cases([(row_of("a"), samples_of("a"), {})])
    disk.fill(spare_bytes=256 << 10)
    writer.cases([(row_of("b"), samples_of("b", 60_000), {})])
    with (
        monkeypatch.context() as patched,
        pytest.raises(Unsaved, match="no folder for temporary files takes them e"),
    ):
        patched.setattr(tempfile, "tempdir", str(disk.path))
        disk.fill()
        writer.end(run)
    disk.fill(spare_bytes=256 << 10)
    with pytest.raises(Unsaved) as seen:
        writer.end(run)
    text = str(seen.value)
    assert "2 of 2 cases are saved" in text and "samples or counters of 1 more are not" in text
    assert "No space left on device" in text and "\n" not in text
    assert load_run(disk.path / "run")["exit_status"] == 3
    both = (disk.path / "run", refuge_in(text))
    assert sorted(commbench.load(*both).case_id) == ["a", "b"]
    assert len(commbench.load(*both, table="samples")) == 60_004


def test_a_damaged_part_is_not_merged_and_the_file_before_is_kept(tmp_path: Path) -> None:
    writer, run = begun(tmp_path)
    writer.cases([(row_of("a"), {}, {})])
    writer.cases([(row_of("b"), {}, {})])
    (tmp_path / "parts" / "000000.cases.parquet").write_bytes(b"PAR1 torn")
    writer.end(run)
    with pytest.warns(UserWarning, match=r"000000\.cases\.parquet can't be read"):
        assert list(commbench.load(tmp_path, skip_damaged=True).case_id) == ["b"]
    (tmp_path / "cases.parquet").write_bytes(b"PAR1 torn too")
    writer, run = begun(tmp_path)
    writer.cases([(row_of("c"), {}, {})])
    writer.end(run)
    assert (tmp_path / "cases.parquet").read_bytes() == b"PAR1 torn too", (
        "somebody may still repair it"
    )
    with pytest.warns(UserWarning):
        assert list(commbench.load(tmp_path, skip_damaged=True).case_id) == ["c"]


def test_a_flipped_bit_in_a_part_is_never_another_number(tmp_path: Path) -> None:
    writer, _ = begun(tmp_path)
    writer.cases([(row_of("a", median_s=1.5), samples_of("a"), {})])
    for table in ("cases", "samples"):
        assert read_as_other(tmp_path / "parts" / f"000000.{table}.parquet", table) == 0


def test_ending_twice_adds_nothing(tmp_path: Path) -> None:
    writer, run = begun(tmp_path)
    writer.cases([(row_of("a"), {}, {})])
    writer.end(run)
    before = (tmp_path / "cases.parquet").read_bytes()
    writer.end(run | {"status": "interrupted"})
    assert (tmp_path / "cases.parquet").read_bytes() == before
    assert load_run(tmp_path)["status"] == "interrupted"


# ---------------------------------------------------------------- real runs


Acts = dict[int, Callable[[], Any]]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path, Acts], tuple[int, list[str]]]:
    """run(OUTPUT, {5: act}): exit status and messages of the command, in this process: it waits for
    what is done once so many cases are recorded. Its folder for temporary files is `refuge`."""
    (tmp_path / "refuge").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "refuge"))

    def measured(output: Path, acts: Acts) -> tuple[int, list[str]]:
        numbers = itertools.count(1)

        def record(self: Recorder, *words: Any) -> None:
            real(self, *words)
            acts.get(next(numbers), lambda: None)()

        real = Recorder.record
        with monkeypatch.context() as patched:
            patched.setattr(Recorder, "record", record)
            status = main([*WORDS, f"output={output}"])
        lines = capsys.readouterr().err.splitlines()
        return status, [line for line in lines if line.startswith("commbench: ")]

    return measured


def test_a_disk_that_gets_full_costs_nothing_that_was_measured(
    disk: Disk, run: Callable[[Path, Acts], tuple[int, list[str]]]
) -> None:
    status, lines = run(disk.path / "results", {5: disk.fill})
    assert status == 3
    assert len(lines) == 2, lines
    assert "can't be written: No space left on device; the run continues" in lines[0]
    (folder,) = (disk.path / "results").iterdir()
    assert len(commbench.load(folder)) == 5
    assert f"5 of {COUNT} cases are saved in {folder}, {COUNT - 5} are not" in lines[1]
    cases = commbench.load(folder, refuge_in(lines[1]))
    assert len(cases) == COUNT and set(cases.status) == {"ok"}
    samples = commbench.load(folder, refuge_in(lines[1]), table="samples")
    assert set(samples.case_id) == set(cases.case_id)


def test_a_disk_that_is_freed_during_the_run_has_everything(
    disk: Disk, tmp_path: Path, run: Callable[[Path, Acts], tuple[int, list[str]]]
) -> None:
    def make_room() -> None:
        disk.free()
        subprocess.run(["mount", "-o", "remount,size=32m", str(disk.path)], check=True)

    status, lines = run(disk.path / "results", {3: disk.fill, 9: make_room})
    assert status == 0, lines
    assert (
        len(lines) == 2
        and "the run continues" in lines[0]
        and "all that waited is saved" in lines[1]
    )
    (folder,) = (disk.path / "results").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "run.json",
        "cases.parquet",
        "samples.parquet",
    }
    assert len(commbench.load(folder)) == COUNT and load_run(folder)["exit_status"] == 0
    assert list((tmp_path / "refuge").iterdir()) == []


@pytest.mark.long
def test_a_disk_that_gets_read_only(
    disk: Disk, run: Callable[[Path, Acts], tuple[int, list[str]]]
) -> None:
    status, lines = run(disk.path / "results", {5: lambda: disk.read_only(True)})
    assert status == 3
    assert (
        len(lines) == 2
        and "Read-only file system" in lines[0]
        and "Read-only file system" in lines[1]
    )
    (folder,) = (disk.path / "results").iterdir()
    assert len(commbench.load(folder)) == 5
    assert len(commbench.load(folder, refuge_in(lines[1]))) == COUNT


@pytest.mark.long
def test_a_folder_that_vanishes_costs_the_samples_in_it_and_no_row(
    tmp_path: Path, run: Callable[[Path, Acts], tuple[int, list[str]]]
) -> None:
    output = tmp_path / "results"

    def vanish() -> None:
        (folder,) = output.iterdir()
        folder.rename(tmp_path / "elsewhere")

    status, lines = run(output, {5: vanish})
    assert status == 3
    assert len(lines) == 2 and "No such file or directory" in lines[0]
    assert f"0 of {COUNT} cases are saved" in lines[1] and f"{COUNT} are not" in lines[1]
    assert re.search(r"samples or counters of \d+ are gone for good", lines[1]), (
        "they were in the folder only"
    )
    assert list(output.iterdir()) == [], "the folder is not made again: another disk may be below"
    assert len(commbench.load(refuge_in(lines[1]))) == COUNT


def started(python: Path, output: Path, refuge: Path, *words: str) -> subprocess.Popen[str]:
    refuge.mkdir(exist_ok=True)
    command = ["timeout", "-k", "5", str(RUN_S), str(python), "-m", "commbench", *WORDS, *words]
    environment = {"TMPDIR": str(refuge), "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(
        [*command, f"output={output}"], env=environment, stderr=-1, stdout=-3, text=True
    )


def ended(
    run: subprocess.Popen[str], seen: Callable[[str], None] = lambda _: None
) -> tuple[int, list[str]]:
    """The exit status and the lines that begin with commbench:, each shown to `seen` as soon as it
    is there."""
    lines = []
    assert run.stderr is not None
    with run:
        for line in run.stderr:
            seen(line)
            lines += [line.rstrip("\n")] if line.startswith("commbench: ") else []
    return run.returncode, lines


def case_seen(number: int, act: Callable[[], Any]) -> Callable[[str], None]:
    """Act when the run tells that this many cases are done."""

    def seen(line: str) -> None:
        if line.startswith(f"[{number}/"):
            act()

    return seen


@pytest.mark.long
def test_a_run_that_is_killed_at_any_moment_leaves_what_it_has_measured(
    tmp_path: Path, warm_executable: Path
) -> None:
    chance = random.Random(7)
    # the last one while parts are merged
    moments = [chance.randint(1, COUNT - 1) for _ in range(KILLS - 1)] + [COUNT]
    killed = []
    for number in range(0, KILLS, 2):  # two at a time
        outputs = [tmp_path / f"{number}{letter}" for letter in "ab"]
        runs = [started(warm_executable, output, tmp_path / "refuge") for output in outputs]
        for output, run, moment in zip(outputs, runs, moments[number:], strict=False):
            killed.append(check_killed(run, output, moment, chance.uniform(0, 0.02)))
    assert sum(killed) >= KILLS // 3, "too many were at their end before they could be killed"


def check_killed(run: subprocess.Popen[str], output: Path, moment: int, after_s: float) -> bool:
    """Kill the run shortly after it has told this many cases, then read its folder; whether it was
    still running."""

    def kill() -> None:
        pids = subprocess.run(
            ["pgrep", "-P", str(run.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        time.sleep(after_s)
        for pid in pids:  # none where it was at its end
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    reported = 0

    def seen(line: str) -> None:
        nonlocal reported
        reported += line.startswith("[")
        case_seen(moment, kill)(line)

    status, _ = ended(run, seen)
    assert status in (0, 128 + signal.SIGKILL, -signal.SIGKILL)
    (folder,) = output.iterdir()
    cases = commbench.load(folder)
    assert len(cases) >= reported >= moment, "a case that was told is on disk"
    assert set(cases.status) == {"ok"} and load_run(folder)["schema_version"] == SCHEMA_VERSION
    assert set(commbench.load(folder, table="samples").case_id) >= set(cases.case_id)
    return status != 0
