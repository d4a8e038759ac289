"""The parent of a world: waits for its launcher, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from .deaths import Deaths
from .segments import mapped, sweep

LOST = "lost"  # file in the folder: what a rank has to say of a rank 0 that says nothing
START_LOOK_S = 0.5
LOOK_S = 1.0  # between two looks how the run is
END_S = 10.0  # between asking a world to end and making it
BROKEN_END_S = 2.0  # where rank 0 has ended already, and a launcher waits for a rank that is stopped


def keep(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[int, list[str]]:
    """Run the launcher to its end; its status, and the ranks that ended before all others.

    A signal to us is passed on, so that no rank outlives its parent.
    """
    with suppress(OSError):  # the last word of a rank of an earlier world, which came when that was over
        (folder / LOST).unlink()
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    deaths, left = Deaths(process), set[Path]()
    with _terminable():
        try:
            _watch(process, deaths, folder, left)
        except BaseException:
            _end(process)
            raise
        finally:
            deaths.close()
            sweep(left)
    return process.returncode, deaths.first


def _watch(process: subprocess.Popen[bytes], deaths: Deaths, folder: Path, left: set[Path]) -> None:
    """`left` gets the shared memory of the ranks."""
    broken = watched = False
    while not deaths.wait(LOOK_S if watched else START_LOOK_S):
        if broken:  # launchers wait for half a minute for a rank that is stopped, or for ever
            _end(process, BROKEN_END_S)
            return
        run = _run(folder)
        if not watched:
            names = _processes(run)
            deaths.watch(names)
            # ranks that have not told who they are may die, too
            left |= mapped(names or [one.pid for one in _descendants(process.pid)])
            watched = bool(names)
        broken = (folder / LOST).exists() or (run.get("status") == "broken" and run.get("exit_status") is not None)


def _processes(run: Mapping[str, Any]) -> dict[int, str]:
    """By process id, what to call it; empty before the ranks have told, and after the run."""
    told = run.get("processes") if run.get("exit_status") is None else None
    return {int(pid): name for pid, name in (told or {}).items()}


def _run(folder: Path) -> dict[str, Any]:
    """run.json as it is now; empty while there is none."""
    try:
        run: dict[str, Any] = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError):
        return {}
    return run


@contextmanager
def _terminable() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)  # the world is ended by whoever waits for it

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end(process: subprocess.Popen[bytes], patience_s: float = END_S) -> None:
    """The launcher and all that it has started, also what no longer listens."""
    started = _descendants(process.pid)
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for one in started:  # psutil knows a process by its start, too: never a stranger with the same number
        with suppress(psutil.Error):
            one.kill()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def report_lost(folder: str, reason: str) -> None:
    """Inside a world that was started for a folder, in place of a rank 0 that is silent."""
    with suppress(OSError):
        (Path(folder) / LOST).write_text(reason)


def lost(folder: Path, first: Sequence[str]) -> str:
    """Why rank 0 did not end the run itself."""
    ended = f"{', '.join(first)} ended first" if first else "rank 0 left no word"
    try:
        return (folder / LOST).read_text()
    except OSError:
        return ended
    finally:
        (folder / LOST).unlink(missing_ok=True)
