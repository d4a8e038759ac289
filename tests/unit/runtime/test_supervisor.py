"""Which rank failed first, and how; what a launcher leaves behind is ended, and what killed ranks
leave in /dev/shm."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from processes import until

from commbench.core.errors import WorldBroken
from commbench.hardware import resource_limits
from commbench.runtime import running_world, supervisor
from commbench.runtime.exit_protocol import ENDS, RankEnd, leave_end
from commbench.runtime.output import LOG, Output
from commbench.runtime.processes import (
    exit_code,
    mapped_shared_memory,
    remove_shared_memory,
    stat_fields,
)
from commbench.runtime.running_world import LaunchedWorld, RunningWorld
from commbench.runtime.signals import SAVE_S
from commbench.runtime.supervisor import (
    BROKEN_TERMINATE_S,
    TERMINATE_S,
    _Supervisor,
    supervise,
)
from commbench.runtime.world_end import WorldEnd, run_status

# a launcher with three ranks, which exit with 0 on SIGUSR1; it acts once its parent has found them
HEAD = '''
import json, os, pathlib, signal, subprocess, sys, time
code = """import os, pathlib, signal, sys, time
signal.signal(10, lambda *_: sys.exit(0))
pathlib.Path(os.environ["FAKE_FOLDER"], "ready-" + os.environ["FAKE_RANK"]).touch()
time.sleep(60)"""
words, folder = [sys.executable, "-c", code], pathlib.Path(sys.argv[1])
names = [os.environ | {"FAKE_RANK": str(number), "FAKE_FOLDER": sys.argv[1]} for number in range(3)]
ranks = [subprocess.Popen(words, env=one) for one in names]
run = {"processes": {str(one.pid): "" for one in ranks}, "status": "running"}
run |= json.loads(sys.argv[2])
(folder / "run.json").write_text(json.dumps(run))
def end(rank, number):
    rank.send_signal(number)
    while not (folder / f"seen-{rank.pid}").exists():
        time.sleep(0.01)
    rank.wait()
def end_all():
    for one in ranks:
        one.kill()
    for one in ranks:
        one.wait()
while len(list(folder.glob("found-*")) + list(folder.glob("ready-*"))) < 6:
    time.sleep(0.02)
time.sleep(0.2)
'''


def rank_of(environ: Mapping[str, str]) -> int | None:
    if "FAKE_RANK" not in environ:
        return None
    Path(environ["FAKE_FOLDER"], f"found-{environ['FAKE_RANK']}").touch()
    return int(environ["FAKE_RANK"])


def launched(
    folder: Path, output: Output, script: str, ranks: int = 3, **run: object
) -> LaunchedWorld:
    words = [sys.executable, "-c", HEAD + script, str(folder), json.dumps(run)]
    return LaunchedWorld("fake", words, os.environ, output.write_end, rank_of, ranks)


def supervised(
    folder: Path,
    script: str,
    ranks: int = 3,
    stopped_s: float = 8.0,
    closing_s: float = 60.0,
    **run: object,
) -> WorldEnd:
    """The world's end; none of its processes is left. end(RANK, SIGNAL) of the launcher waits for
    the parent to see that end, which kernels before 6.15 tell only until the launcher has asked."""
    worlds = list[LaunchedWorld]()
    output = Output("starting", folder / LOG)

    def start() -> LaunchedWorld:
        worlds.append(launched(folder, output, script, ranks, **run))
        return worlds[0]

    def seen_exit_code(descriptor: int, pid: int) -> int | None:
        code = exit_code(descriptor, pid)
        (folder / f"seen-{pid}").touch()
        return code

    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_world, "exit_code", seen_exit_code)
        end = supervise(start, output, folder, folder / "ends", stopped_s, closing_s)
    assert time.monotonic() - begun < 20
    for pid in worlds[0].ranks:
        until(lambda pid=pid: has_ended(pid), 5)
    return end


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("act", "kills", "how"),
    [
        ("end(ranks[1], 9)", (0, 1), "was killed by SIGKILL, because memory was short,"),
        ("end(ranks[1], 9)", (5, 5), "was killed by SIGKILL"),
        ("end(ranks[1], 11)", (0, 1), "was killed by SIGSEGV"),
    ],
)
def test_a_rank_that_the_kernel_has_killed_was_short_of_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: str,
    kills: tuple[int, int],
    how: str,
) -> None:
    counts = iter(kills)
    monkeypatch.setattr(resource_limits, "oom_kills", lambda: next(counts))
    end = supervised(tmp_path, f"{act}; time.sleep(0.3); end_all(); print('log'); sys.exit(7)")
    assert [(failure.rank, failure.how) for failure in end.failures] == [(1, how)]


@pytest.mark.parametrize(
    "error", [RuntimeError("line 'btime' not found in /proc/stat"), FileNotFoundError("/proc/stat")]
)
def test_where_proc_is_masked_a_launcher_ends_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def masked(process: psutil.Process, recursive: bool) -> list[psutil.Process]:
        raise error

    monkeypatch.setattr(psutil.Process, "children", masked)
    output = Output("starting", tmp_path / LOG)

    def start() -> LaunchedWorld:
        words = ["sleep", "0.3"]
        return LaunchedWorld("fake", words, os.environ, output.write_end, rank_of, 2)

    end = supervise(start, output, tmp_path, tmp_path / "ends", 8.0, 60.0)
    assert (end.status, end.failures, end.cause) == (0, (), None)


def test_the_state_of_a_process_is_unknown_where_its_file_is_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path, errors: "")
    with pytest.raises(OSError, match="masked"):
        stat_fields(1)


def test_a_launcher_that_starts_no_rank_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "NO_RANK_S", 0.1)
    monkeypatch.setattr(supervisor, "UNRECORDED_POLL_S", 0.1)
    output = Output("starting", tmp_path / LOG)

    def start() -> LaunchedWorld:
        words = ["sleep", "0.5"]
        return LaunchedWorld("fake", words, os.environ, output.write_end, rank_of, 2)

    supervise(start, output, tmp_path, tmp_path / "ends", 8.0, 60.0)
    (line,) = capsys.readouterr().err.splitlines()
    assert ": no rank has reported for 0.1 s; it may wait for a host (ssh)" in line
    assert str(tmp_path / LOG) in line


@pytest.mark.parametrize(
    ("act", "how"),
    [
        ("end(ranks[1], 9)", "was killed by SIGKILL"),
        ("end(ranks[1], 11)", "was killed by SIGSEGV"),
        ("end(ranks[1], 15)", "was ended by SIGTERM"),
    ],
)
def test_the_rank_that_a_launcher_lost_is_named_with_its_signal(
    tmp_path: Path, act: str, how: str
) -> None:
    end = supervised(tmp_path, f"{act}; time.sleep(0.3); end_all(); print('log'); sys.exit(7)")
    assert end.status == 7 and end.cause is None and end.launcher.startswith("fake (pid ")
    (failure,) = end.failures
    assert (failure.rank, failure.how) == (1, how)
    assert (tmp_path / LOG).read_text() == "log\n", (
        "a launcher's own messages do not reach the terminal"
    )


def test_a_rank_that_crashed_is_blamed_also_where_another_was_seen_to_be_killed_before(
    tmp_path: Path,
) -> None:
    """No launcher sends SIGSEGV: it has killed the other one because of this one."""
    act = "end(ranks[0], 9); end(ranks[1], 11); time.sleep(0.3); end_all(); sys.exit(9)"
    (failure,) = supervised(tmp_path, act).failures
    assert (failure.rank, failure.how) == (1, "was killed by SIGSEGV")


@pytest.mark.parametrize("status", [1, 9])
def test_ranks_that_are_killed_at_once_are_all_named_in_the_order_of_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Their launcher may have killed them all, or all but one: nobody is blamed, also where it
    writes a process id."""
    monkeypatch.setattr(supervisor, "AT_ONCE_S", 20.0)
    act = "for one in ranks[::-1]: end(one, 9); print('pid:', one.pid)"
    end = supervised(tmp_path, f"{act}\nsys.exit({status})")
    assert (end.failures, end.cause) == ((), None)
    assert [rank.rank for rank in end.ended] == [2, 1, 0]
    *ranks, launcher = str(end).split("; ")
    assert [text.split()[1] for text in ranks] == ["2", "1", "0"]
    assert all(text.endswith(") was killed by SIGKILL") for text in ranks)
    assert launcher.startswith("fake (pid ") and launcher.endswith(f"exited with status {status}")


def test_of_ranks_that_are_killed_at_once_the_first_is_blamed_where_the_launcher_reports_it(
    tmp_path: Path,
) -> None:
    end = supervised(tmp_path, "for one in ranks: end(one, 9)\nsys.exit(137)")
    assert (end.failures[0].rank, end.failures[0].how) == (0, "was killed by SIGKILL")


@pytest.mark.long
def test_a_rank_that_ends_early_ends_the_world_even_with_status_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commbench.runtime.supervisor.EARLY_S", 0.5)
    end = supervised(tmp_path, "end(ranks[0], 10); time.sleep(60)")
    assert [(failure.rank, failure.how) for failure in end.failures] == [
        (0, "exited with status 0")
    ]


def test_a_stopped_rank_and_a_stopped_launcher_are_named(tmp_path: Path) -> None:
    end = supervised(tmp_path, "ranks[2].send_signal(19); time.sleep(60)", stopped_s=1.0)
    assert [(failure.rank, failure.how) for failure in end.failures] == [
        (2, "is stopped by a signal")
    ]
    end = supervised(tmp_path, "os.kill(os.getpid(), 19)", stopped_s=1.0)
    assert (
        end.cause is not None
        and end.cause.startswith("fake (pid ")
        and end.cause.endswith("is stopped by a signal")
    )
    assert end.status == -signal.SIGTERM, "it is continued, so that it can end by itself"


def test_a_launcher_that_is_killed_is_the_cause(tmp_path: Path) -> None:
    end = supervised(tmp_path, "os.kill(os.getpid(), 9)")
    assert end.cause is not None and end.cause.endswith("was killed by SIGKILL")


@pytest.fixture
def wakes_at_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent reads run.json once a process has ended, and not before."""
    for name in ("POLL_S", "UNRECORDED_POLL_S"):
        monkeypatch.setattr(supervisor, name, 15.0)


@pytest.mark.usefixtures("wakes_at_an_end")
def test_a_launcher_with_the_status_of_ranks_that_it_ended_is_not_the_cause(tmp_path: Path) -> None:
    """srun ends the tasks of a world that rank 0 has found broken, and exits with their 143."""
    broken = (
        "(folder / 'run.json').write_text(json.dumps(run | {'status': 'broken', 'exit_status': 3,"
        " 'reason': 'silent'}))"
    )
    end = supervised(tmp_path, f"time.sleep(0.5); {broken}; os._exit(143)")
    assert end.cause is None
    with pytest.raises(WorldBroken, match=r"^silent; finished cases are in"):
        run_status(tmp_path, tmp_path / "ends", end)


@pytest.mark.usefixtures("wakes_at_an_end")
def test_a_launcher_that_is_killed_is_the_cause_also_where_a_rank_notices_it_first(
    tmp_path: Path,
) -> None:
    """torchrun hosts the store: rank 0 may lose its connection, and report that, before the parent
    sees the end."""
    broken = (
        "(folder / 'run.json').write_text(json.dumps(run | {'status': 'broken', 'exit_status': 3}))"
    )
    end = supervised(tmp_path, f"time.sleep(0.5); {broken}; os.kill(os.getpid(), signal.SIGKILL)")
    assert end.cause is not None and end.cause.endswith("was killed by SIGKILL")


@pytest.mark.parametrize(
    "tell",
    [
        (
            "(folder / 'run.json').write_text(json.dumps(run | {'status': 'broken', 'exit_status':"
            " 3}))"
        ),
        "(folder / 'ends').write_text(json.dumps({'ended': 'world', 'process': '', 'status': 3}))",
    ],
    ids=["run.json", "ends"],
)
def test_a_broken_world_whose_launcher_goes_on_is_ended_with_all_its_processes(
    tmp_path: Path, tell: str
) -> None:
    end = supervised(tmp_path, f"signal.signal(15, signal.SIG_IGN); {tell}; time.sleep(60)")
    assert end.status == -signal.SIGKILL


def test_ranks_that_outlive_their_run_are_named_and_ended(tmp_path: Path) -> None:
    end = supervised(tmp_path, "time.sleep(60)", closing_s=1.0, status="done", exit_status=0)
    assert end.unclosed is not None and end.unclosed.startswith("rank 0 on ")
    assert end.unclosed.endswith("did not end within 1 s of the end of the run, and was killed")
    assert run_status(tmp_path, tmp_path / "ends", end) == 0


@pytest.mark.parametrize(("status", "limit_s"), [(3, 1), (0, 2)])
def test_ranks_that_outlive_a_refusal_are_not_given_the_time_to_close_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, limit_s: int
) -> None:
    monkeypatch.setattr(supervisor, "REFUSED_S", 1.0)
    end_of_run = json.dumps({"ended": "run", "process": "", "status": status})
    leave = f"(folder / 'run.json').unlink(); (folder / 'ends').write_text('{end_of_run}')"
    end = supervised(tmp_path, f"{leave}; time.sleep(60)", closing_s=2.0)
    assert end.unclosed is not None and f"did not end within {limit_s} s" in end.unclosed
    assert run_status(tmp_path, tmp_path / "ends", end) == status


class AtOnce(RunningWorld):
    """Forked ranks whose ends are read together, or a few at a time."""

    pid = 5
    name = "the rank server"
    kills_ranks = False
    seen_together = 9

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.ranks = {100 + rank: rank for rank in range(len(codes))}
        self._ends = dict(zip(self.ranks, codes, strict=True))

    def wait(self, timeout_s: float) -> list[int]:
        ended = [pid for pid in self.ranks if pid not in self.codes][: self.seen_together]
        self.codes |= {pid: self._ends[pid] for pid in ended}
        self.status = 1 if len(self.codes) == len(self.ranks) else None
        return ended

    def end(self, patience_s: float) -> None:
        raise AssertionError("it has ended")


def test_ranks_that_end_at_once_are_named_and_not_their_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failures(*codes: int) -> list[tuple[int, str]]:
        output = Output("starting", tmp_path / LOG)
        end = supervise(lambda: AtOnce(*codes), output, tmp_path, tmp_path / "ends", 8.0, 60.0)
        return [(failure.rank, failure.how) for failure in end.failures]

    assert failures(1, 1) == [(0, "exited with status 1"), (1, "exited with status 1")]
    assert failures(3, -signal.SIGKILL) == [(1, "was killed by SIGKILL")], (
        "rank 0 ended because rank 1 was gone"
    )
    assert failures(0, -signal.SIGSEGV) == [(1, "was killed by SIGSEGV")]
    assert failures(130, 3) == [(0, "exited with status 130")], "it was interrupted alone"
    assert failures(143, 3) == [(1, "exited with status 3")], "it was ended by its server"
    monkeypatch.setattr(AtOnce, "seen_together", 1)
    assert failures(-signal.SIGKILL, -signal.SIGKILL) == [(0, "was killed by SIGKILL")], (
        "their server kills nobody"
    )


class Seen(RunningWorld):
    """Two ranks of which nothing is real: those in `ends` end at the first look, and the launcher
    after `looks` of them."""

    pid = 5
    name = "the launcher"

    def __init__(self, ends: Mapping[int, int], looks: int = 10**6, status: int = 0) -> None:
        super().__init__()
        self.ranks = {100: 0, 101: 1}
        self._ends = dict(ends)
        self._looks = looks
        self._last_status = status
        self.patience_s = list[float]()  # of each call that ends it
        self.signals = list[int]()
        self.waited_s = list[float]()

    def wait(self, timeout_s: float) -> list[int]:
        time.sleep(0.01)
        ended = [pid for pid in self._ends if pid not in self.codes]
        self.codes |= self._ends
        self._looks -= 1
        self.status = self._last_status if self._looks <= 0 else self.status
        return ended

    def end(self, patience_s: float) -> None:
        self.patience_s.append(patience_s)
        self.status = -signal.SIGTERM

    def signal_ranks(self, number: int) -> bool:
        self.signals.append(number)
        return True

    def wait_for_end(self, timeout_s: float) -> None:
        self.waited_s.append(timeout_s)


def supervisor_of(world: RunningWorld, folder: Path, closing_s: float = 60.0) -> _Supervisor:
    return _Supervisor(world, folder, folder / "ends", 8.0, closing_s)


def say_world_is_broken(ends_file: Path) -> None:
    leave_end(RankEnd("world", "rank 0", 3, "rank 1 is silent"), {ENDS: str(ends_file)})


def test_a_world_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    """Its run has not ended, so nothing is overdue."""
    world = Seen({}, looks=10)
    supervisor_of(world, tmp_path, closing_s=0.0).wait()
    assert (world.patience_s, world.status) == ([], 0)


@pytest.mark.parametrize(
    ("status", "broken", "is_cause"),
    [
        (143, False, True),
        (143, True, False),
        (-15, True, True),
        (-9, False, True),
        (1, False, False),
    ],
)
def test_a_launcher_that_a_signal_ended_is_the_cause_unless_it_tells_of_its_ranks(
    tmp_path: Path, status: int, broken: bool, is_cause: bool
) -> None:
    if broken:
        say_world_is_broken(tmp_path / "ends")
    world = Seen({}, looks=1, status=status)
    supervising = supervisor_of(world, tmp_path)
    supervising.wait()
    assert (supervising.end().cause is not None) is is_cause
    assert world.patience_s == ([] if status == 1 else [BROKEN_TERMINATE_S])


@pytest.mark.parametrize(("code", "broken"), [(0, False), (0, True), (3, False)])
def test_a_world_of_which_a_rank_has_ended_is_ended_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, broken: bool
) -> None:
    """At once where a rank has found it broken."""
    early_s = 30.0 if broken else 0.3
    monkeypatch.setattr(supervisor, "EARLY_S", early_s)
    if broken:
        say_world_is_broken(tmp_path / "ends")
    world = Seen({100: code})
    begun = time.monotonic()
    supervising = supervisor_of(world, tmp_path)
    supervising.wait()
    assert world.patience_s == [BROKEN_TERMINATE_S if broken else TERMINATE_S]
    assert (time.monotonic() - begun < early_s) is broken
    assert [failure.rank for failure in supervising.end().failures] == [0]


def test_a_rank_that_lives_after_the_end_of_its_run_is_given_the_time_to_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "EARLY_S", 0.0)
    (tmp_path / "run.json").write_text(json.dumps({"status": "done", "exit_status": 0}))
    world = Seen({100: 0})
    begun = time.monotonic()
    supervising = supervisor_of(world, tmp_path, closing_s=0.3)
    supervising.wait()
    assert time.monotonic() - begun >= 0.3 and world.patience_s == [BROKEN_TERMINATE_S]
    unclosed = supervising.end().unclosed or ""
    assert unclosed.startswith("rank 1 on ") and "rank 0" not in unclosed


@pytest.mark.parametrize(
    ("stop", "number"), [(KeyboardInterrupt(), signal.SIGINT), (SystemExit(143), signal.SIGTERM)]
)
def test_ranks_hear_of_a_signal_and_may_save_where_there_is_a_run(
    tmp_path: Path, stop: KeyboardInterrupt | SystemExit, number: int
) -> None:
    world = Seen({})
    supervisor_of(world, tmp_path).interrupt(stop)
    assert (world.signals, world.patience_s) == ([], []), "nothing to save"
    (tmp_path / "run.json").write_text("{}")
    supervisor_of(world, tmp_path).interrupt(stop)
    assert (world.signals, world.waited_s) == ([number], [SAVE_S])
    assert world.patience_s == [TERMINATE_S], "what is left after that"


@pytest.mark.parametrize("status", [None, 0])
def test_nothing_is_left_of_a_world_that_is_closed(tmp_path: Path, status: int | None) -> None:
    world = Seen({})
    world.status = status
    supervising = supervisor_of(world, tmp_path)
    file = tmp_path / "mpich_shm_1"
    file.touch()
    supervising._shared_memory = {file}
    supervising.close()
    assert world.patience_s == ([0.0] if status is None else [])
    assert not file.exists()


def test_rank_0_hears_of_a_signal_first_and_ranks_that_have_ended_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda *words: killed.append(words))
    world = Stuck()
    world.ranks = {101: 2, 102: 0, 103: 1}
    world.codes = {103: 0}
    assert world.signal_ranks(signal.SIGTERM)
    assert killed == [(102, signal.SIGTERM), (101, signal.SIGTERM)] and not world.killed_here
    world.codes |= {101: 0, 102: 0}
    assert not world.signal_ranks(signal.SIGKILL)


def test_a_process_is_stopped_after_its_time_and_while_its_parent_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = dict[int, str]()
    now = [100.0]
    monkeypatch.setattr(supervisor, "how_stopped", stopped.get)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    world = Seen({})
    supervising = supervisor_of(world, tmp_path)

    def found_after(*steps_s: float) -> bool:
        for step_s in steps_s[:-1]:
            now[0] += step_s
            assert not supervising._find_stopped()
        now[0] += steps_s[-1]
        return supervising._find_stopped()

    stopped[101] = "is stopped by a signal"
    assert not found_after(*[1.5] * 6), "8 s count from the first look, 7.5 s ago"
    stopped.clear()
    assert not found_after(1.5, 1.5), "it runs again"
    stopped[101] = "is stopped by a signal"
    assert not found_after(*[1.5] * 5, 100.0, *[1.5] * 5), "the parent was stopped as well"
    world.codes[101] = 0
    assert not found_after(1.5), "it has ended"
    del world.codes[101]
    assert not found_after(0.9) and not found_after(0.9), "it looks once a second"
    assert found_after(*[1.5] * 6)
    world.status = 0
    assert [failure.rank for failure in supervising.end().failures] == [1]


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
    made = tuple(
        Path("/dev/shm") / f"{name}{token}"
        for name in ("mpich_shm_", "commbench_test_", "mpich_shm_x")
    )
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


class Stuck(RunningWorld):
    """Rank 0 has raised an error, rank 1 does not end."""

    kills_ranks = False

    def wait(self, timeout_s: float) -> list[int]:
        return []

    def end(self, patience_s: float) -> None:
        self.signal_ranks(signal.SIGKILL)


def test_a_rank_that_the_parent_had_to_kill_is_not_the_one_that_failed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        world = Stuck()
        world.ranks = {1: 0, process.pid: 1}
        world.codes = {1: WorldBroken.exit_status}
        world.end(0.0)
        world.codes[process.pid] = process.wait()
    assert world.codes[process.pid] == -signal.SIGKILL
    assert _Supervisor(world, tmp_path, tmp_path / "ends", 8.0, 60.0)._first_to_fail() == [1]


MISNAMED = r"""
import mmap, os, sys, time
open("/proc/self/comm", "wb").write(b"fourteen_lette\xc3\xa9")
file = open(os.path.join(os.fsencode(sys.argv[1]), b"\xff"), "w+b")
file.truncate(4096)
held = mmap.mmap(file.fileno(), 0)
print(flush=True)
time.sleep(60)
"""


def test_a_process_and_its_files_may_have_any_name(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MISNAMED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"\n"
            assert stat_fields(process.pid)[0] in "RSD"
            assert mapped_shared_memory([process.pid]) == set()
        finally:
            process.kill()
