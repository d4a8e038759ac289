"""Real commands whose output ends, blocks, is closed or can't be written: what they measure and
store does not depend on it."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import until

import commbench
from commbench.core.errors import Unsaved
from commbench.results.load import load_run

QUICK = (
    "benchmark=[all_reduce]",
    "layout=1x2",
    "sizes=[8,64]",
    "timing=fixed",
    "timing.repetitions=4",
    "timing.warmup_s=0",
)
GLOO = ("commbench", "backend=gloo", *QUICK)
TORCHRUN = ("torchrun", "--nproc-per-node", "2", "-m", "commbench", "backend=gloo", *QUICK)
SIMULATED = ("commbench", "backend=simulated", *QUICK)
SWEEP = (*SIMULATED, "-m", "trial=0,1")
STATUS = "exit ${PIPESTATUS[0]}"


def redirected(words: tuple[str, ...], redirection: str) -> tuple[str, ...]:
    """The command as a shell runs it with this redirection, after which words may be added."""
    return ("bash", "-c", f'"$@" {redirection}', "bash", *words)


def commands(run: Path) -> dict[str, tuple[str, ...]]:
    """Every command that prints, on a run that is finished."""
    folder = str(run)
    return {
        "report": ("report", folder),
        "show": ("show", folder),
        "export": ("export", folder, "--csv", "-"),
        "compare": ("compare", folder, folder),
        "resume": ("resume", folder),
        "doctor": ("doctor",),
        "keys": ("--keys",),
        "help": ("--help",),
        "version": ("--version",),
        "plan": ("plan=true", "sizes=[8]"),
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finished")
    return commbench.run("backend=simulated", *QUICK, "writer=parquet", output=output)


NAMES = list(commands(Path()))
FIRST = ("compare", "keys")  # the others: long


@pytest.mark.parametrize(
    "name",
    [name if name in FIRST else pytest.param(name, marks=pytest.mark.long) for name in NAMES],
)
def test_every_command_bears_output_that_ends_is_closed_or_full(
    finished: Path, warm_executable: Path, name: str
) -> None:
    words = (str(warm_executable), "-m", "commbench", *commands(finished)[name])
    for redirection, status in ((f"| head -c 1; {STATUS}", 0), (">/dev/full", Unsaved.exit_status)):
        done = subprocess.run(
            redirected(words, redirection), capture_output=True, text=True, timeout=60, check=False
        )
        full = "commbench: stdout is incomplete: No space left on device; "
        lines = [line for line in done.stderr.splitlines() if not line.startswith(full)]
        assert (done.returncode, lines) == (status, []), redirection
        assert (full in done.stderr) == (status == Unsaved.exit_status)
    # the warm python has no closed stream
    words = (sys.executable, "-m", "commbench", *commands(finished)[name])
    done = subprocess.run(
        redirected(words, ">&- 2>&-"), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("words", "redirection", "status"),
    [
        (GLOO, ">/dev/full", Unsaved.exit_status),
        (SIMULATED, f"2>&1 | head -c 1; {STATUS}", 0),
        ((sys.executable, "-m", *SIMULATED), ">&- 2>&-", 0),
        (TORCHRUN, f"2>&1 | head -1; {STATUS}", 0),
        pytest.param(TORCHRUN, ">/dev/full 2>&1", 1, marks=LONG),
        pytest.param(TORCHRUN, ">&-", 0, marks=LONG),
        pytest.param(GLOO, f"2>&1 | head -1; {STATUS}", 0, marks=LONG),
        pytest.param((sys.executable, "-m", *GLOO), ">&- 2>&-", 0, marks=LONG),
    ],
)
def test_a_run_measures_and_stores_all_whatever_happens_to_its_output(
    world: Callable[..., Any], words: tuple[str, ...], redirection: str, status: int
) -> None:
    run = world(*redirected(words, redirection), status=status)
    assert sorted(run.cases.message_bytes) == [8, 64] and set(run.cases.status) == {"ok"}
    assert (run.record["status"], run.record["exit_status"]) == ("done", 0)
    full = run.stderr.count("No space left on device")
    assert full == (redirection == ">/dev/full") and "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("redirection", "status"), [(f"| head -1; {STATUS}", 0), (">/dev/full", Unsaved.exit_status)]
)
def test_a_sweep_measures_all_jobs_whatever_happens_to_its_output(
    world: Callable[..., Any], redirection: str, status: int
) -> None:
    run = world(*redirected(SWEEP, redirection), status=status)
    assert [load_run(folder)["status"] for folder in run.output.iterdir()] == ["done", "done"]
    assert "refused or lost" not in run.stderr


@contextmanager
def stopped_terminal() -> Iterator[int]:
    ours, theirs = pty.openpty()
    termios.tcflow(theirs, termios.TCOOFF)  # as Ctrl-S does
    yield theirs
    for end in (ours, theirs):
        os.close(end)


@contextmanager
def full_pipe() -> Iterator[int]:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    while True:
        try:
            os.write(theirs, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(theirs, True)
    yield theirs
    for end in (ours, theirs):
        os.close(end)


@pytest.mark.parametrize(
    ("blocked", "number"),
    [(stopped_terminal, signal.SIGTERM), pytest.param(full_pipe, signal.SIGINT, marks=LONG)],
)
def test_a_signal_ends_a_run_whose_output_is_blocked(
    warm_executable: Path, tmp_path: Path, blocked: Callable[[], Any], number: signal.Signals
) -> None:
    """And before the signal it measures as if all were read."""
    soak = ("timing=soak", "timing.duration_s=60", "sizes=[8]", "benchmark=[all_reduce]")
    command = [str(warm_executable), "-m", "commbench", "layout=1x2", *soak]
    with blocked() as output:
        process = subprocess.Popen(
            [*command, f"output={tmp_path}"],
            stdin=output,
            stdout=output,
            stderr=output,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
        )
        try:
            until(lambda: [*tmp_path.glob("*/parts/*.samples.parquet")])
            process.send_signal(number)
            assert process.wait(20) == 128 + number
        finally:
            process.kill()
    (folder,) = tmp_path.iterdir()
    assert load_run(folder)["status"] == "interrupted"
    assert set(commbench.load(folder).status) == {"ok"}


def test_a_run_whose_text_is_not_read_ends_by_a_signal_after_all_is_stored(
    warm_executable: Path, tmp_path: Path
) -> None:
    command = [str(warm_executable), "-m", *SIMULATED, f"output={tmp_path}"]
    with full_pipe() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            until(lambda: [*tmp_path.glob("*/cases.parquet")], seconds=120)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        finally:
            process.kill()
    (folder,) = tmp_path.iterdir()
    assert load_run(folder)["cases"] == len(commbench.load(folder)) == 2


def test_the_wait_for_a_reader_ends_with_ctrl_c(warm_executable: Path) -> None:
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)  # less than the text
    with subprocess.Popen(
        [str(warm_executable), "-m", "commbench", "--keys"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(theirs)
        os.read(ours, 1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        os.close(ours)
    assert (process.returncode, stderr) == (130, "")
