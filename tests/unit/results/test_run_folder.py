"""A folder that no other run has, with the user's rights, and files in it that are whole or
absent."""

from __future__ import annotations

import json
import os
import random
import shlex
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from small_disk import small_disk

from commbench.core.errors import ConfigError
from commbench.results import run_folder as folders
from commbench.results.run_folder import (
    check_output,
    clock_text,
    how_to_finish,
    new_folder,
    read_record,
    write_json,
)

STARTS = 20


def test_runs_of_the_same_moment_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with names of which every other one is taken: 20 runs at once choose among 40."""
    monkeypatch.setattr(
        folders.secrets, "token_hex", lambda _: f"{random.randrange(2 * STARTS):02d}"
    )
    monkeypatch.setattr(folders, "TIMESTAMP", "one moment")
    together = threading.Barrier(STARTS)

    def start(_: int) -> str:
        together.wait(30)
        return new_folder(str(tmp_path / "results"))

    with ThreadPoolExecutor(STARTS) as pool:
        made = list(pool.map(start, range(STARTS)))
    assert len(set(made)) == STARTS
    assert sorted(str(path) for path in (tmp_path / "results").iterdir()) == sorted(made)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """set_clock(-1): the clock of folders is an hour back."""

    def set_to(hours: int) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: timezone | None = None) -> Clock:  # type: ignore[override]
                return cls.fromtimestamp(datetime.now(tz).timestamp() + 3600 * hours, tz)

        monkeypatch.setattr(folders, "datetime", Clock)

    return set_to


def test_names_are_the_order_of_runs_whatever_the_clock_says(
    tmp_path: Path, set_clock: Callable[[int], None]
) -> None:
    """Also after a run dated in the future, and after the later runs of a command with several."""
    made = [Path(new_folder(str(tmp_path)))]
    for hours in (2, 0, -1, 0):
        set_clock(hours)
        made.append(Path(new_folder(str(tmp_path))))
    set_clock(3)
    made.append(Path(new_folder(f"{made[-1]}/base")))
    set_clock(0)
    made.append(Path(new_folder(str(tmp_path))))
    set_clock(-1)
    made.append(Path(new_folder(str(made[-1]))))
    made.append(Path(new_folder(str(tmp_path / "elsewhere"), made[-1].name)))
    names = [path.name for path in made]
    assert names == sorted(names)


@pytest.mark.parametrize("behind_s", [0.5, 3600])
def test_a_clock_that_has_gone_back_is_told(behind_s: float) -> None:
    """Not one second between the clocks of two hosts."""
    named = datetime(2026, 11, 25, 14, tzinfo=timezone.utc)
    run = {
        "run_id": "20261125T140000.000000-585e",
        "started_at": (named - timedelta(seconds=behind_s)).isoformat(),
    }
    text = clock_text([{"run_id": "mine", "started_at": None}, run])
    assert (text is not None) == (behind_s > 60)
    assert text is None or "up to 60 min behind the run before" in text


@pytest.mark.parametrize("mask", [0o077, 0o002, 0o022])
def test_rights_are_what_the_user_wants(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        folder = Path(new_folder(str(tmp_path / "results")))
        write_json(folder / "run.json", {"a": 1})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o777 & ~mask}
    assert (folder / "run.json").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_a_disk_that_takes_nothing_is_refused_at_the_door(tmp_path: Path, state: str) -> None:
    with small_disk(tmp_path / "disk") as disk:
        if state == "full":
            disk.fill()
        else:
            disk.read_only(True)
        before = sorted(disk.path.rglob("*"))
        reason = "No space left on device" if state == "full" else "Read-only file system"
        for ask in (new_folder, check_output):
            with pytest.raises(
                ConfigError,
                match=f"can't be written: {reason}; choose another with output=FOLDER",
            ):
                ask(str(disk.path / "deep" / "results"))
        if state == "full":
            check_left(disk.path, before)


def check_left(disk: Path, before: list[Path]) -> None:
    assert [path for path in disk.rglob("*") if path.name not in ("deep", "results")] == before, (
        "no folder of a run"
    )


def test_json_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        write_json(disk.path / "run.json", {"status": "running"})
        disk.fill()
        with pytest.raises(OSError, match="No space left on device"):
            write_json(disk.path / "run.json", {"status": "done", "more": "x" * 9000})
        assert json.loads((disk.path / "run.json").read_text()) == {"status": "running"}
        assert sorted(path.name for path in disk.path.iterdir()) == ["ballast", "run.json"]


def test_the_command_that_finishes_a_run_is_one_for_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "it's my $HOME; run"
    folder.mkdir()
    write_json(folder / "run.json", {"status": "interrupted"})
    text = how_to_finish(folder)
    assert text is not None
    words = shlex.split(text.removeprefix("finish it with: "))
    assert words == ["commbench", "resume", str(folder)]


def test_a_run_that_can_not_be_finished_says_what_its_folder_lacks(tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    assert how_to_finish(tmp_path) is None, "nothing was begun"
    (tmp_path / "parts").mkdir()
    assert how_to_finish(tmp_path) == f"{record} is gone: it was removed or renamed"
    record.write_text("{")
    assert how_to_finish(tmp_path) == f"{record} is damaged"
    gone = tmp_path / "gone"
    assert how_to_finish(gone) == f"{gone} is gone: it was removed or renamed"


def test_a_record_that_can_not_be_read_is_none_at_once(tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    os.mkfifo(record)
    assert read_record(tmp_path) == {}
    assert how_to_finish(tmp_path) == f"{record} can't be read: it is not a plain file"
    record.unlink()
    record.symlink_to("/proc/self/mem")  # a read of address 0 fails
    assert read_record(tmp_path) == {}
    assert how_to_finish(tmp_path) == f"{record} can't be read: Input/output error"
