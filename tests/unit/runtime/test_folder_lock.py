"""One process at a time measures into a folder, also where its holder is killed or has forked."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from commbench.core.errors import ConfigError
from commbench.runtime.folder_lock import (
    LOCK_FILE,
    is_measured_into,
    lock_folder,
    locked,
    unlock_folder,
)

HOLD = (
    "import sys, time; from commbench.runtime.folder_lock import lock_folder;"
    " lock_folder(sys.argv[1]); print('locked', flush=True); time.sleep(100)"
)
# a child of the holder, such as a rank server, that outlives it
FORK = HOLD.replace("print(", "import os; os.fork() or time.sleep(100); print(")


@contextmanager
def holder(folder: Path, code: str = HOLD) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock, with the session that its children belong to."""
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def test_a_second_process_is_refused_with_host_and_pid_until_the_first_is_killed(
    tmp_path: Path,
) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(ConfigError) as seen:
            lock_folder(tmp_path)
        assert str(seen.value) == (
            f"process {process.pid} on {socket.gethostname()} is measuring into {tmp_path}; wait"
            " for its end, or end it, then resume the run"
        )
        process.kill()
        process.wait()
        with locked(tmp_path):
            assert (tmp_path / LOCK_FILE).read_text().split()[1] == str(os.getpid())


def test_a_child_of_the_holder_does_not_keep_the_lock(tmp_path: Path) -> None:
    with holder(tmp_path, FORK) as process:
        os.kill(process.pid, 9)
        process.wait()
        with locked(tmp_path):
            pass


def test_the_same_process_is_refused_as_well(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "again").symlink_to(tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(ConfigError, match=f"process {os.getpid()} on"):
        lock_folder(tmp_path / "again")


def test_no_file_stays_and_no_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "begun").mkdir()
    with locked(tmp_path / "run"), locked(tmp_path / "begun"):
        (tmp_path / "begun" / "run.json").touch()
    assert [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*"))] == [
        Path("begun"),
        Path("begun/run.json"),
    ]


def test_a_file_that_its_holder_removes_meanwhile_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "lockf", _removing_first(tmp_path / LOCK_FILE, fcntl.lockf))
    with locked(tmp_path):
        command = [sys.executable, "-c", HOLD, str(tmp_path)]
        other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"process {os.getpid()} on" in other.stderr


def _removing_first(file: Path, call: Callable[..., None]) -> Callable[..., None]:
    """The call, before whose first time the file is removed."""
    calls: list[int] = []

    def lock(descriptor: int, operation: int) -> None:
        if not calls:
            file.unlink()
        calls.append(operation)
        call(descriptor, operation)

    return lock


def test_a_file_system_without_locks_is_named_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with locked(tmp_path):
        assert (tmp_path / LOCK_FILE).exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path} is on a file system without locks (No locks available)" in line


def test_a_folder_that_is_gone_is_refused_and_one_that_vanishes_is_released(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="can't be written: No such file or directory"):
        lock_folder(tmp_path / "nowhere")
    (tmp_path / "run").mkdir()
    lock_folder(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    unlock_folder(tmp_path / "run")
    (tmp_path / "elsewhere").rename(tmp_path / "run")
    with locked(tmp_path / "run"):
        pass


def test_whether_somebody_measures_is_seen_without_taking_the_lock(tmp_path: Path) -> None:
    assert not is_measured_into(tmp_path)
    with holder(tmp_path) as process:
        assert is_measured_into(tmp_path)
        process.kill()
        process.wait()
        assert not is_measured_into(tmp_path)  # the file remains
    with locked(tmp_path):
        assert is_measured_into(tmp_path)
        lost = subprocess.run(
            [sys.executable, "-c", HOLD.replace("time.sleep(100)", ""), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "is measuring into" in lost.stderr  # asking has not released it
