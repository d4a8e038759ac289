"""Which rank ended first; what a launcher leaves behind is ended, and what killed ranks leave in /dev/shm removed."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from commbench.world import exit_protocol, supervisor
from commbench.world.supervisor import ExitWatcher, mapped_shared_memory, remove_shared_memory

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
# a launcher that notices a death at once and ends everybody else, as mpirun does
LAUNCHER = """
import json, os, pathlib, signal, subprocess, sys, time
ranks = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(3)]
names = {str(one.pid): f"rank {number}" for number, one in enumerate(ranks)}
run = {"processes": names, "status": "running", **json.loads(sys.argv[2])}
pathlib.Path(sys.argv[1], "run.json").write_text(json.dumps(run))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.wait()
time.sleep(0.5)
for one in ranks:
    one.kill()
sys.exit(7)
"""


def test_the_first_to_end_is_named() -> None:
    with subprocess.Popen(SLEEP) as launcher, subprocess.Popen(SLEEP) as one, subprocess.Popen(SLEEP) as other:
        deaths = ExitWatcher(launcher)
        try:
            deaths.watch({one.pid: "rank 0", other.pid: "rank 1", 2**22 + 1: "a rank that is gone"})
            assert not deaths.wait(0.05)
            assert deaths.first == []
            other.kill()
            assert not deaths.wait(10)
            assert deaths.first == ["rank 1"]
            one.kill()
            assert not deaths.wait(10)
            launcher.kill()
            while not deaths.wait(10):
                pass
            assert deaths.first == ["rank 1"], "who ended later changes nothing"
        finally:
            deaths.close()


def test_where_all_end_in_one_moment_nobody_is_blamed() -> None:
    with subprocess.Popen(SLEEP) as launcher, subprocess.Popen(SLEEP) as one, subprocess.Popen(SLEEP) as other:
        deaths = ExitWatcher(launcher)
        try:
            deaths.watch({one.pid: "rank 0", other.pid: "rank 1"})
            for process in (one, other):
                process.kill()
                process.wait()
            assert not deaths.wait(10)
            assert deaths.first == []
        finally:
            deaths.close()
            launcher.kill()


def started(folder: Path, **run: object) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, str(folder), json.dumps(run)]


def test_the_rank_that_a_launcher_lost_is_told(tmp_path: Path) -> None:
    killer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import json, os, pathlib, sys, time\n"
            "path = pathlib.Path(sys.argv[1], 'run.json')\n"
            "while not path.exists(): time.sleep(0.05)\n"
            "time.sleep(2.5)\n"
            "pids = {name: int(pid) for pid, name in json.loads(path.read_text())['processes'].items()}\n"
            "os.kill(pids['rank 1'], 9)",
            str(tmp_path),
        ]
    )
    status, first = supervisor.supervise(started(tmp_path), os.environ, tmp_path)
    killer.wait(10)
    assert (status, first) == (7, ["rank 1"])
    assert exit_protocol.lost_reason(tmp_path, first) == "rank 1 ended first"
    assert exit_protocol.lost_reason(tmp_path, []) == "rank 0 left no message"


@pytest.mark.parametrize("how", ["run.json", "lost"])
def test_a_broken_world_whose_launcher_goes_on_is_ended_with_all_its_processes(tmp_path: Path, how: str) -> None:
    if how == "lost":
        threading.Timer(1.5, exit_protocol.report_lost, [str(tmp_path), "rank 0 is silent"]).start()
    broken = {"status": "broken", "exit_status": 3} if how == "run.json" else {}
    begin = time.monotonic()
    status, _ = supervisor.supervise(started(tmp_path, **broken), os.environ, tmp_path)
    assert time.monotonic() - begin < 15
    assert status == -signal.SIGKILL
    for pid in json.loads((tmp_path / "run.json").read_text())["processes"]:
        until = time.monotonic() + 5
        while psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            time.sleep(0.05)
    if how == "lost":
        assert exit_protocol.lost_reason(tmp_path, ["rank 1"]) == "rank 0 is silent"
        assert not (tmp_path / exit_protocol.LOST).exists()


def test_the_last_word_of_an_earlier_world_does_not_end_the_next_one(tmp_path: Path) -> None:
    exit_protocol.report_lost(str(tmp_path), "rank 1 lost rank 0")
    status, _ = supervisor.supervise([sys.executable, "-c", "import time; time.sleep(2.5)"], os.environ, tmp_path)
    assert status == 0 and exit_protocol.lost_reason(tmp_path, []) == "rank 0 left no message"


# ---------------------------------------------------------------- shared memory

HOLD = """
import mmap, sys, time
maps = []
for path in sys.argv[1:]:
    with open(path, "r+b") as file:
        maps.append(mmap.mmap(file.fileno(), 4096))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def names() -> Iterator[tuple[Path, Path, Path]]:
    """A library's segment, one of somebody else's, and a library's that nobody of us maps."""
    token = secrets.token_hex(4)
    made = tuple(Path("/dev/shm") / f"{name}{token}" for name in ("mpich_shm_", "commbench_test_", "mpich_shm_x"))
    for path in made:
        path.write_bytes(bytes(4096))
    yield made[0], made[1], made[2]
    for path in made:
        path.unlink(missing_ok=True)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm to write to")
def test_only_what_the_ranks_of_a_library_map_is_removed(names: tuple[Path, Path, Path]) -> None:
    ours, foreign, unmapped = names
    words = [sys.executable, "-c", HOLD, str(ours), str(foreign)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert mapped_shared_memory([process.pid, 2**22 + 1]) == {ours}
        remove_shared_memory(mapped_shared_memory([process.pid]))
        assert mapped_shared_memory([process.pid]) == set(), "it has no name any more"
        process.kill()
    assert [path.exists() for path in (ours, foreign, unmapped)] == [False, True, True]
    remove_shared_memory([ours])  # already gone
