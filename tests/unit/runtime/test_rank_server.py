"""The rank server alone: what ranks get, and worlds that end with a fault."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from processes import until

import commbench
from commbench.results.run_folder import read_record
from commbench.runtime.rank_server import rank_environment

SOAK = (
    "backend=gloo",
    "benchmark=all_reduce",
    "sizes=[8]",
    "timing=soak",
    "timing.duration_s=60",
    "timing.warmup_s=0",
    "budget.restarts=0",
)
START_S = 60.0
END_S = 25.0
PROGRESS = re.compile(r"\d+ cases?, about |\[\d+/\d+\] ")


def test_ranks_get_what_torchrun_would_export() -> None:
    assert rank_environment(1, 4, 29400) == {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
    }


# ---------------------------------------------------------------- real worlds that end with a fault


@contextmanager
def running(
    folder: Path, python: Path, *words: str, forked: bool = True
) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, list[psutil.Process]]]:
    """The command, its rank server and its two ranks, as soon as they have been forked; or its
    launcher alone.

    The warm python forks both the command and its server, which ends with the command's child.
    """
    command = [str(python), "-m", "commbench", *SOAK, f"output={folder}", *words]
    warm = psutil.Process(int((python.parent / "pid").read_text()))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        try:
            if not forked:
                (own,) = until(lambda: children_in(folder, warm)[:1])
                yield process, until(own.children)[0], []
                return
            server = until(lambda: children_in(folder, warm)[1:])[0]
            yield process, server, until(lambda: two if len(two := server.children()) == 2 else [])
        finally:
            process.kill()


def children_in(folder: Path, parent: psutil.Process) -> list[psutil.Process]:
    """The children that work in this folder, the oldest first."""
    children = []
    for child in parent.children():
        with suppress(psutil.Error):
            children += [child] if child.cwd() == str(folder) else []
    return sorted(children, key=lambda child: child.create_time())


def measuring(folder: Path) -> None:
    """Until the first case is under way."""
    until(lambda: any(folder.glob("*/in_flight")))


def begun(folder: Path) -> list[psutil.Process]:
    """The ranks, as soon as they have measured: the first file of a soak takes 5 s on two cores."""
    measuring(folder)
    (run,) = folder.iterdir()
    ranks = [psutil.Process(int(pid)) for pid in until(lambda: read_record(run).get("processes"))]
    first_s = cpu_s(ranks[0])
    until(lambda: cpu_s(ranks[0]) > first_s + 0.5)
    return ranks


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Exit status, stdout, and all lines of stderr but those that tell how far the run is."""
    stdout, stderr = process.communicate(timeout=END_S)
    return (
        process.returncode,
        stdout,
        [line for line in stderr.splitlines() if not PROGRESS.match(line)],
    )


def assert_all_gone(processes: list[psutil.Process]) -> None:
    gone, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive, f"{[process.cmdline() for process in alive]} after {len(gone)}"


@pytest.mark.parametrize(
    ("rank", "phase"),
    [
        (0, "measuring"),
        (1, "starting"),
        pytest.param(0, "starting", marks=pytest.mark.long),
        pytest.param(1, "measuring", marks=pytest.mark.long),
    ],
)
def test_a_killed_rank_is_one_line_with_rank_and_signal(
    tmp_path: Path, warm_executable: Path, rank: int, phase: str
) -> None:
    with running(tmp_path, warm_executable) as (process, server, ranks):
        if phase == "measuring":
            measuring(tmp_path)
        ranks[rank].kill()
        status, _, lines = ended(process)
        assert status == 3
        assert len(lines) == 1, lines
        name = f"rank {rank} on {os.uname().nodename} (pid {ranks[rank].pid})"
        assert lines[0].startswith(f"commbench: {name} was killed by SIGKILL")
        assert (str(tmp_path) in lines[0]) == (phase == "measuring"), (
            "results are named where there are some"
        )
        assert_all_gone([server, *ranks])


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_interrupted_alone_breaks_the_world_and_is_named(
    tmp_path: Path, warm_executable: Path, rank: int
) -> None:
    """As by `kill -INT`: the run is not interrupted, though that rank saves and ends as if it
    were."""
    with running(tmp_path, warm_executable) as (process, server, ranks):
        measuring(tmp_path)
        ranks[rank].send_signal(signal.SIGINT)
        status, _, (line,) = ended(process)
        name = f"rank {rank} on {os.uname().nodename} (pid {ranks[rank].pid})"
        assert status == 3
        assert line.startswith(f"commbench: {name} exited with status 130 while ")
        assert "finish it with: commbench resume" in line
        assert_all_gone([server, *ranks])


@pytest.mark.long
def test_a_rank_that_is_stopped_before_its_first_heartbeat_is_named(
    tmp_path: Path, warm_executable: Path
) -> None:
    with running(tmp_path, warm_executable, "budget.silence_s=5") as (process, server, ranks):
        ranks[1].suspend()
        begun = time.monotonic()
        status, _, lines = ended(process)
        assert status == 3 and time.monotonic() - begun < 7
        (line,) = lines
        assert (
            f"rank 1 on {os.uname().nodename} (pid {ranks[1].pid}) is stopped by a signal" in line
        )
        assert_all_gone([server, *ranks])


def test_a_killed_server_is_named(tmp_path: Path, warm_executable: Path) -> None:
    with running(tmp_path, warm_executable) as (process, server, ranks):
        measuring(tmp_path)
        server.kill()
        status, _, (line,) = ended(process)
        killed = (
            r"commbench: the rank server \(pid \d+\) was killed by SIGKILL while measuring"
            r" all_reduce"
        )
        assert status == 3 and re.match(killed, line), line
        assert_all_gone(ranks)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)],
)
def test_a_signal_to_the_command_keeps_and_shows_what_was_measured(
    tmp_path: Path, warm_executable: Path, number: int, status: int
) -> None:
    with running(tmp_path, warm_executable) as (process, server, ranks):
        check_interrupted(tmp_path, process, number, status)
        assert_all_gone([server, *ranks])


@pytest.mark.parametrize(
    "words", [(), pytest.param(("backend=mpi",), marks=pytest.mark.long)], ids=["gloo", "mpi"]
)
def test_each_rank_has_a_session_of_its_own_and_ends_with_the_terminal(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The terminal reaches the command only, which suspends, continues, interrupts its ranks."""
    ours, theirs = os.openpty()
    with in_terminal(theirs, tmp_path, *words) as process:
        ranks = begun(tmp_path)
        assert len(ranks) == 2 and all(os.getsid(rank.pid) == rank.pid for rank in ranks)
        world = [psutil.Process(process.pid), *ranks]
        os.write(ours, b"\x1a")  # Ctrl-Z
        until(lambda: {each.status() for each in world} == {psutil.STATUS_STOPPED})
        os.killpg(process.pid, signal.SIGCONT)  # fg
        until(lambda: psutil.STATUS_STOPPED not in {each.status() for each in world})
        os.write(ours, b"\x03")  # Ctrl-C
        assert process.wait(END_S) == 130
        assert_all_gone(ranks)
    assert list(commbench.load(tmp_path).stop_reason) == ["interrupted"]


def test_ranks_end_when_their_terminal_is_closed(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with in_terminal(theirs, tmp_path) as process:
        begun(tmp_path)
        ranks = psutil.Process(process.pid).children(recursive=True)
        os.close(ours)
        assert process.wait(END_S) == 129
        assert_all_gone(ranks)
    assert list(commbench.load(tmp_path).stop_reason) == ["interrupted"]


@contextmanager
def in_terminal(terminal: int, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command as the foreground of a terminal, whose signals it gets. A real start: the warm
    python has no terminal."""

    def take_terminal() -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    command = [sys.executable, "-m", "commbench", *SOAK, f"output={folder}", *words]
    with subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=take_terminal,
    ) as process:
        os.close(terminal)
        try:
            yield process
        finally:
            process.kill()


def test_a_signal_that_rank_0_sees_late_is_no_loss_of_the_others(
    tmp_path: Path, warm_executable: Path
) -> None:
    with running(tmp_path, warm_executable) as (process, _, ranks):
        measuring(tmp_path)
        time.sleep(1.0)
        ranks[0].suspend()
        process.terminate()
        time.sleep(2.0)
        assert ranks[1].is_running(), "rank 0 would see it as one that was lost before the signal"
        ranks[0].resume()
        assert ended(process)[0] == 143
        assert list(commbench.load(tmp_path).stop_reason) == ["interrupted"]


@pytest.mark.long
def test_a_signal_to_a_command_with_a_launcher_does_the_same(
    tmp_path: Path, warm_executable: Path
) -> None:
    with running(tmp_path, warm_executable, "backend=mpi", forked=False) as (process, launcher, _):
        check_interrupted(tmp_path, process, signal.SIGINT, 130)
        assert_all_gone([launcher])


def check_interrupted(
    folder: Path, process: subprocess.Popen[str], number: int, status: int
) -> None:
    """The soak is interrupted: its table and the place of its results are shown, and how to finish
    it."""
    begun(folder)
    process.send_signal(number)
    code, stdout, lines = ended(process)
    (run,) = folder.iterdir()
    assert code == status
    assert lines == [f"commbench: finish it with: commbench resume {run}"]
    assert "all_reduce" in stdout and f"results: {run}" in stdout
    assert list(commbench.load(folder).stop_reason) == ["interrupted"]


def test_an_interrupted_sweep_has_its_table(tmp_path: Path, warm_executable: Path) -> None:
    with running(tmp_path, warm_executable, "-m", "seed=0,1") as (process, server, ranks):
        measuring(tmp_path)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        status, stdout, lines = ended(process)
        assert status == 130 and len(lines) == 1 and "commbench resume" in lines[0]
        assert "2 jobs, 1 not ok, 1 not begun" in stdout
        assert "job 1/2 (seed=0) ended with 130: interrupted" in stdout
        assert_all_gone([server, *ranks])


def test_the_stacks_of_a_lost_rank_stand_below_its_line(
    tmp_path: Path, warm_executable: Path
) -> None:
    with running(tmp_path, warm_executable, "verbose=true") as (process, _, ranks):
        measuring(tmp_path)
        time.sleep(2.5)  # until the heartbeats have told where the ranks are in the case
        ranks[1].kill()
        status, _, lines = ended(process)
        assert status == 3
        (run,) = tmp_path.iterdir()
        stacks = json.loads((run / "run.json").read_text())["stacks"]
        assert set(stacks) == {"rank 0", "rank 1"}
        assert lines[1:] == [
            f"  {rank}: {call}" for rank, calls in stacks.items() for call in calls
        ]
        assert lines[0].startswith("commbench: rank 1 ") and lines[0].endswith(str(run))


def test_the_environment_of_a_job_reaches_its_ranks(tmp_path: Path, warm_executable: Path) -> None:
    command = [
        str(warm_executable),
        "-m",
        "commbench",
        *SOAK,
        f"output={tmp_path}",
        "env.GLOO_SOCKET_IFNAME=nowhere0",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_S, cwd=tmp_path, check=False
    )
    assert done.returncode in (2, 3) and "nowhere0" in done.stderr
