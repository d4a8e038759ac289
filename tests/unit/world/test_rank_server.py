"""The rank server alone: what ranks get, and worlds that end with a fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import commbench
from commbench.world.rank_server import rank_environment

SOAK = (
    "backend=gloo", "benchmark=all_reduce", "sizes=[8]", "timing=soak", "timing.duration_s=60", "timing.warmup_s=0",
    "budget.restarts=0",
)  # fmt: skip
START_S, END_S = 60.0, 25.0


def test_ranks_get_what_torchrun_would_export() -> None:
    assert rank_environment(1, 4, 29400) == {
        "COMMBENCH_LAUNCHER": "local", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400",
    }  # fmt: skip


# ---------------------------------------------------------------- real worlds that end with a fault


@contextmanager
def running(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, list[psutil.Process]]]:
    """The command, its rank server and its two ranks, as soon as they have been forked."""
    command = [sys.executable, "-m", "commbench", *SOAK, f"output={folder}", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            server = wait_for(lambda: psutil.Process(process.pid).children())[0]
            yield process, server, wait_for(lambda: ranks if len(ranks := server.children()) == 2 else [])
        finally:
            process.kill()


def wait_for(look: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    for _ in range(int(START_S / 0.02)):
        seen = look()
        if seen:
            return seen
        time.sleep(0.02)
    raise AssertionError("the world did not start")


def measuring(folder: Path) -> None:
    """Until the first case is under way."""
    wait_for(lambda: [psutil.Process()] if any(folder.glob("*/in_flight")) else [])


def lines(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Exit status and the lines of stderr after the progress, without the terminal's control sequences."""
    _, stderr = process.communicate(timeout=END_S)
    return process.returncode, [line for line in stderr.splitlines() if line.startswith("commbench:")] or [stderr]


def assert_all_gone(processes: list[psutil.Process]) -> None:
    gone, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive, f"{[one.cmdline() for one in alive]} after {len(gone)}"


@pytest.mark.parametrize(
    ("rank", "phase"),
    [
        (0, "measuring"),
        (1, "starting"),
        pytest.param(0, "starting", marks=pytest.mark.long),
        pytest.param(1, "measuring", marks=pytest.mark.long),
    ],
)
def test_a_killed_rank_is_one_line_with_rank_and_signal(tmp_path: Path, rank: int, phase: str) -> None:
    with running(tmp_path) as (process, server, ranks):
        if phase == "measuring":
            measuring(tmp_path)
        ranks[rank].kill()
        status, said = lines(process)
        assert status == 3
        assert len(said) == 1, said
        assert f"rank {rank} on {os.uname().nodename} (pid {ranks[rank].pid}) was killed by SIGKILL" in said[0]
        assert "Traceback" not in said[0]
        assert (str(tmp_path) in said[0]) == (phase == "measuring"), "results are named where there are some"
        assert_all_gone([server, *ranks])


@pytest.mark.long
def test_a_rank_that_is_stopped_before_its_first_heartbeat_is_named(tmp_path: Path) -> None:
    with running(tmp_path) as (process, server, ranks):
        ranks[1].suspend()
        begun = time.monotonic()
        status, said = lines(process)
        assert status == 3 and time.monotonic() - begun < 15
        assert f"rank 1 on {os.uname().nodename} (pid {ranks[1].pid}) is stopped by a signal" in said[0]
        assert_all_gone([server, *ranks])


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as (process, server, ranks):
        measuring(tmp_path)
        process.kill()
        assert_all_gone([server, *ranks])


def test_a_killed_server_is_named(tmp_path: Path) -> None:
    with running(tmp_path) as (process, server, ranks):
        measuring(tmp_path)
        server.kill()
        status, said = lines(process)
        assert (
            status == 3
            and f"the rank server (pid {server.pid}) was killed by SIGKILL while measuring all_reduce" in said[0]
        )
        assert_all_gone(ranks)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_a_signal_to_the_command_keeps_what_was_measured(tmp_path: Path, number: int, status: int) -> None:
    with running(tmp_path) as (process, server, ranks):
        measuring(tmp_path)
        time.sleep(1.0)
        process.send_signal(number)
        process.communicate(timeout=END_S)
        assert process.returncode == status
        assert_all_gone([server, *ranks])
    assert list(commbench.load(tmp_path).stop_reason) == ["interrupted"]


def test_the_environment_of_a_job_reaches_its_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "commbench", *SOAK, f"output={tmp_path}", "env.GLOO_SOCKET_IFNAME=nowhere0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, cwd=tmp_path, check=False)
    assert done.returncode in (2, 3) and "nowhere0" in done.stderr
