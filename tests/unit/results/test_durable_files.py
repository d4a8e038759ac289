"""Files that appear whole, wait while a real disk is full, read-only or gone, and arrive when it is
back."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_disk import Disk

from commbench.core.errors import WorldBroken
from commbench.results import durable_files
from commbench.results.durable_files import DurableFiles, clear_torn, opening, retry_s
from commbench.results.run_folder import replace_file

BIG = bytes(200_000)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def shelf_on(disk: Disk) -> DurableFiles:
    (disk.path / "run" / "parts").mkdir(parents=True)
    return DurableFiles(disk.path / "run")


def test_files_appear_whole_and_the_newer_replaces(tmp_path: Path) -> None:
    shelf = DurableFiles(tmp_path)
    shelf.put("run.json", b"old")
    shelf.put("parts/000000.cases.parquet", b"row")
    shelf.put("run.json", b"new")
    shelf.append("cases.jsonl", b"a\n")
    shelf.append("cases.jsonl", b"b\n")
    assert files(tmp_path) == {
        "cases.jsonl": b"a\nb\n", "parts/000000.cases.parquet": b"row", "run.json": b"new",
    }  # fmt: skip
    assert not shelf.waiting and not shelf.gone() and not shelf.error


def test_a_full_disk_is_told_once_and_nothing_is_lost_when_it_is_freed(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = shelf_on(disk)
    disk.fill()
    shelf.put("parts/000000.samples.parquet", BIG, keep=False)
    shelf.put("parts/000000.cases.parquet", b"row")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert (
        str(disk.path / "run/parts/000000.samples.parquet") in lines[0]
        and "No space left on device" in lines[0]
    )
    assert not shelf.retry(0) and set(shelf.waiting) == {
        "parts/000000.samples.parquet",
        "parts/000000.cases.parquet",
    }
    assert not [name for name in files(disk.path) if name.endswith(".tmp")], (
        "what was begun is taken back"
    )
    disk.free()
    shelf.put("parts/000001.cases.parquet", b"next")
    assert not shelf.waiting
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "can be written again; all that waited is saved" in lines[0]
    assert files(disk.path / "run") == {
        "parts/000000.cases.parquet": b"row", "parts/000000.samples.parquet": BIG,
        "parts/000001.cases.parquet": b"next",
    }  # fmt: skip


def test_rows_are_saved_where_samples_do_not_fit(disk: Disk) -> None:
    shelf = shelf_on(disk)
    disk.fill(spare_bytes=16 << 10)
    shelf.put("parts/000000.samples.parquet", BIG, keep=False)
    shelf.put("parts/000000.cases.parquet", b"row")
    assert list(shelf.waiting) == ["parts/000000.samples.parquet"]
    assert (disk.path / "run/parts/000000.cases.parquet").read_bytes() == b"row"


def test_lines_are_added_whole_or_not_at_all(disk: Disk) -> None:
    shelf = shelf_on(disk)
    shelf.append("cases.jsonl", b"first\n")
    disk.fill(spare_bytes=8 << 10)
    shelf.append("cases.jsonl", b"x" * 20_000 + b"\n")
    shelf.append("cases.jsonl", b"third\n")
    assert (disk.path / "run/cases.jsonl").read_bytes() == b"first\n", (
        "the half of a line is cut off again"
    )
    disk.free()
    assert shelf.retry(0)
    assert (disk.path / "run/cases.jsonl").read_bytes() == b"first\n" + b"x" * 20_000 + b"\nthird\n"


def test_a_disk_that_is_read_only_for_a_time(
    disk: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = shelf_on(disk)
    disk.read_only(True)
    for index in range(3):
        shelf.put(f"parts/{index:06d}.cases.parquet", b"row")
    assert len(shelf.waiting) == 3 and shelf.error == "Read-only file system"
    disk.read_only(False)
    assert shelf.retry(0) and len(list((disk.path / "run/parts").iterdir())) == 3
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_folder_that_vanishes_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shelf = DurableFiles(folder)
    shelf.put("run.json", b"{}")
    folder.rename(tmp_path / "elsewhere")
    shelf.put("parts/000000.cases.parquet", b"row")
    assert not folder.exists() and list(shelf.waiting) == ["parts/000000.cases.parquet"]
    assert shelf.gone() == {"run.json"}
    (tmp_path / "elsewhere").rename(folder)
    assert shelf.retry(0) and not shelf.gone()


def test_trying_again_ends_in_time(tmp_path: Path) -> None:
    shelf = DurableFiles(tmp_path / "nowhere")
    shelf.put("run.json", b"{}")
    begin = time.monotonic()
    assert not shelf.retry(0.7)
    assert 0.7 <= time.monotonic() - begin < 5
    assert retry_s("interrupted") < retry_s("done") <= 5


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=30))
def test_waiting_files_stay_below_the_bound_and_samples_are_dropped_before_rows(
    items: list[tuple[int, bool]],
) -> None:
    shelf = DurableFiles(Path("/proc/nowhere"), bound_bytes=1024)
    for index, (size, keep) in enumerate(items):
        before = len(shelf.dropped)
        shelf.put(str(index), bytes(size), keep)
        assert sum(item.content.nbytes for item in shelf.waiting.values()) <= 1024
        if any(items[int(name)][1] for name in shelf.dropped[before:]):
            assert all(item.keep for item in shelf.waiting.values()), (
                "a row goes only where no samples are left"
            )
    assert {*shelf.waiting, *shelf.dropped} == {str(index) for index in range(len(items))}


def test_dropped_samples_are_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf = DurableFiles(tmp_path / "nowhere", bound_bytes=1024)
    for index in range(4):
        shelf.put(f"{index}.samples", bytes(600), keep=False)
        shelf.put(f"{index}.cases", bytes(100))
    assert shelf.dropped == ["0.samples", "1.samples", "2.samples"]
    assert set(shelf.waiting) == {"0.cases", "1.cases", "2.cases", "3.cases", "3.samples"}
    lines = capsys.readouterr().err.splitlines()
    assert (
        len(lines) == 2
        and "more than 1 KiB wait for" in lines[1]
        and "samples before rows" in lines[1]
    )


def test_the_rest_is_rescued_rows_first(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(disk.path))
    shelf = DurableFiles(tmp_path / "nowhere")
    shelf.put("parts/0.samples.parquet", bytes(2 << 20), keep=False)
    shelf.put("parts/0.cases.parquet", b"row")
    refuge = shelf.rescue({"run.json": b"{}"})
    assert refuge is not None and refuge.parent == disk.path
    assert files(refuge) == {"parts/0.cases.parquet": b"row", "run.json": b"{}"}
    assert list(shelf.waiting) == ["parts/0.samples.parquet"]
    disk.fill()
    shelf.put("parts/1.cases.parquet", b"row")
    assert shelf.rescue({"run.json": b"{}"}) is None
    assert list(shelf.waiting) == ["parts/0.samples.parquet", "parts/1.cases.parquet"]
    assert [path.name for path in disk.path.iterdir() if path.is_dir()] == [refuge.name], (
        "no empty folder is left"
    )


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)])
def test_files_have_the_rights_that_the_user_wants(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        shelf = DurableFiles(tmp_path)
        shelf.put("parts/0.cases.parquet", b"row")
        shelf.append("cases.jsonl", b"row\n")
    finally:
        os.umask(before)
    assert {
        (tmp_path / name).stat().st_mode & 0o777
        for name in ("parts/0.cases.parquet", "cases.jsonl")
    } == {mode}
    assert (tmp_path / "parts").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_run_that_cannot_begin_on_a_full_disk_is_refused_in_one_line(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(WorldBroken) as seen, opening(disk.path):
        replace_file(disk.path / "run.json", BIG)
    assert "No space left on device; make room, or choose another folder with output=FOLDER" in str(
        seen.value
    )
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize(("sync_s", "most"), [(0.001, 180), (1.5, 12)])
def test_a_slow_folder_is_synced_rarely_and_named_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sync_s: float,
    most: int,
) -> None:
    """60 visits of 0.1 s, each with a new file (two syncs) and a line of another one (one)."""
    now_s = 0.0
    syncs = 0

    def fsync(_: int) -> None:
        nonlocal now_s, syncs
        now_s += sync_s
        syncs += 1

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(durable_files, "time", SimpleNamespace(monotonic=lambda: now_s))
    (tmp_path / "run").mkdir()
    shelf = DurableFiles(tmp_path / "run")
    lines = DurableFiles(tmp_path / "run")  # of another writer
    for visit in range(60):
        now_s += 0.1
        shelf.put(f"parts/{visit:06d}.cases.parquet", b"row")
        lines.append("cases.jsonl", b"row\n")
    assert len(files(tmp_path / "run")) == 61
    assert 2 <= syncs <= most
    assert sync_s > 1 or syncs == most
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == (1 if sync_s > 1 else 0)
    assert all(f"{tmp_path / 'run'} is slow: a file took 3.00 s" in text for text in messages)


def test_torn_files_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"{}")
    (tmp_path / "run.tmp").write_bytes(b"{")
    clear_torn(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
