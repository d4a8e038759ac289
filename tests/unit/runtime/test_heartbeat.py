"""A rank that sends no heartbeat is named with host, state and place, within seconds; whoever beats
is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import until
from rank_threads import together
from torch.distributed import PrefixStore, TCPStore

from commbench.runtime import heartbeat
from commbench.runtime.control import StoreControl
from commbench.runtime.heartbeat import (
    PERIOD_S,
    Heartbeat,
    Host,
    Progress,
    SilenceDetector,
    main_stack,
)

SILENCE_S = 1.2


# ---------------------------------------------------------------- where a rank is


class Runner:
    engine = "native"

    def __init__(self, repetition: int, step: int, *calls: str) -> None:
        self.progress = np.array([repetition, step], dtype=np.int64)
        self.calls = calls

    def __call__(self, n: int) -> np.ndarray:  # type: ignore[type-arg]
        raise AssertionError


def test_the_text_of_a_phase_has_the_repetition_and_the_call() -> None:
    progress = Progress()
    assert progress.text() == "starting"
    progress.enter("measure of a case", Runner(16, 1, "MPI_Send", "MPI_Recv"))
    assert progress.text() == "repetition 17, call 2 of 2 (MPI_Recv) of measure of a case"
    progress.enter("measure of a case", Runner(16, 0, "MPI_Send", "MPI_Recv"))
    assert progress.text() == "repetition 17, call 1 of 2 (MPI_Send) of measure of a case"
    progress.enter("measure of a case", Runner(16, -1))
    assert progress.text() == "repetition 17 of measure of a case"
    progress.enter("the check")
    assert progress.text() == "the check"


def test_a_phase_is_late_after_its_limit_only() -> None:
    progress = Progress()
    assert progress.late_s() is None
    progress.enter("quick", limit_s=0.01)
    time.sleep(0.02)
    late_s = progress.late_s()
    assert late_s is not None and late_s > 0.01
    progress.enter("slow", limit_s=60)
    assert progress.late_s() is None


def test_another_thread_sees_where_the_main_thread_is() -> None:
    seen: list[list[str]] = []
    other = threading.Thread(target=lambda: seen.append(main_stack()))

    def waits_here() -> None:
        other.start()
        other.join()

    waits_here()
    assert any(line.endswith(" waits_here") and "test_heartbeat.py:" in line for line in seen[0]), (
        seen
    )


LOOKING = """
import gc, threading, time
from commbench.runtime.heartbeat import main_stack

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        time.sleep(0)  # another thread runs

def come_and_go():
    while time.monotonic() < until_s:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

def look():
    while time.monotonic() < until_s:
        Garbage()
        main_stack()

gc.set_threshold(1)
until_s = time.monotonic() + 1.0
threads = [threading.Thread(target=work) for work in (come_and_go, come_and_go, look, look)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_looking_at_the_stack_waits_for_no_other_thread() -> None:
    """Garbage is collected often, and lets other threads begin and end meanwhile."""
    subprocess.run([sys.executable, "-c", LOOKING], timeout=30, check=True)


# ---------------------------------------------------------------- who is silent


def test_silence_is_counted_from_the_last_new_beat() -> None:
    silence = SilenceDetector(8.0)
    assert silence.check([(1, 5), (2, 5)], 0.0) == []
    assert silence.check([(1, 6), (2, 5)], 4.0) == []
    assert silence.check([(1, 7), (2, 5)], 8.0) == [2]
    assert silence.check([(1, 7), (2, 6)], 10.0) == []


def test_a_process_that_was_stopped_itself_declares_no_rank_silent() -> None:
    silence = SilenceDetector(8.0)
    silence.check([(1, 5)], 0.0)
    assert silence.check([(1, 5)], 100.0) == [], "this process was stopped, or the machine was"
    assert silence.check([(1, 5)], 102.0) == []
    assert silence.check([(1, 5)], 100.0 + 8.0) == [1]


@given(st.lists(st.floats(0.1, 2 * PERIOD_S), min_size=1, max_size=60), st.integers(1, 59))
def test_a_beating_rank_is_never_silent_and_a_stopped_one_always_is(
    steps: list[float], stops: int
) -> None:
    silence = SilenceDetector(8.0)
    now = 0.0
    last = 0.0
    for number, step in enumerate(steps):
        now += step
        dead = number >= stops
        last = last if dead else now
        silent = silence.check([(1, number), (2, min(number, stops - 1))], now)
        assert silent == ([2] if now - last >= 8.0 else [])


def test_the_state_of_a_process_in_words() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        host = Host("here", process.pid, Host.here().kernel)
        assert host.state() is None
        process.send_signal(signal.SIGSTOP)
        until(lambda: host.state() == "is stopped by a signal", 5)
        process.kill()
        until(lambda: host.state() == "has ended", 5)  # a zombie has, too
    assert host.state() == "has ended"


# ---------------------------------------------------------------- worlds of threads


@contextmanager
def beating(
    size: int, monkeypatch: pytest.MonkeyPatch, port: int | None = None
) -> Iterator[tuple[list[Heartbeat], list[Progress], list[Any]]]:
    """Ranks of one process, quick ones; what each was told."""
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.2)
    server = TCPStore("127.0.0.1", port or 0, is_master=port is None, wait_for_workers=False)
    reports: list[Any] = [[] for _ in range(size)]
    progress = [Progress() for _ in range(size)]

    def start(rank: int) -> Heartbeat:
        store = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        control = StoreControl(PrefixStore("test", store), rank, size)
        return Heartbeat(
            control, progress[rank], SILENCE_S, lambda *words: reports[rank].append(words), 20.0
        )

    heartbeats = together(start, range(size))
    try:
        yield heartbeats, progress, reports
    finally:
        for each in heartbeats:
            each.stop()


def test_ranks_that_beat_are_never_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with beating(3, monkeypatch) as (_, progress, reports):
        progress[1].enter("a call", limit_s=0.1)  # only rank 0 waits for all and may be late
        time.sleep(2 * SILENCE_S)
        assert reports == [[], [], []]


def test_a_silent_rank_is_named_to_all_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "MAX_NAMED_RANKS", 1)
    with beating(3, monkeypatch) as (heartbeats, progress, reports):
        progress[2].enter("measure of a case")
        until(lambda: "measure of a case" in heartbeats[0].describe([2]))
        heartbeats[2].stop()
        until(lambda: reports[0] and reports[1])
        ((reason, from_rank_0),) = reports[0]
        assert (
            f"no heartbeat for {SILENCE_S:g} s (budget.silence_s): rank 2 on"
            f" {heartbeats[0].hosts[2].name}" in reason
        )
        assert f"(pid {os.getpid()})" in reason
        assert "last seen in measure of a case; rank 0 is in starting" in reason
        assert from_rank_0 is False
        assert reports[1] == [(reason, True)], "the others hear it of rank 0"
        assert list(heartbeats[0].stacks()) == [
            "rank 0",
            "rank 2",
        ], "the silent ranks come before others"


def test_a_silent_rank_0_is_noticed_by_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with beating(3, monkeypatch) as (heartbeats, _, reports):
        heartbeats[0].stop()
        for rank in (1, 2):
            until(lambda rank=rank: reports[rank])
            ((reason, from_rank_0),) = reports[rank]
            assert "no heartbeat for" in reason and "rank 0 on " in reason and from_rank_0 is False


def test_a_call_that_takes_too_long_ends_the_world_with_every_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with beating(2, monkeypatch) as (heartbeats, progress, reports):
        progress[1].enter("a hang")
        until(lambda: "a hang" in heartbeats[0].describe([1]))
        progress[0].enter("the library's call", limit_s=0.5, advice="choose another interface")
        until(lambda: reports[0])
        ((reason, _),) = reports[0]
        assert reason.startswith("no end after ") and reason.endswith("; choose another interface")
        assert "last seen in the library's call" in reason and "last seen in a hang" in reason


def test_only_processes_of_the_same_kernel_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same number means another process on another host; where the kernel is unknown, none is
    known."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    kernels = iter(["one", "two", ""])
    monkeypatch.setattr(Host, "here", lambda: Host("vm", gone.pid, next(kernels)))
    with beating(3, monkeypatch) as (heartbeats, progress, _):
        for each in heartbeats:
            kernel = each.hosts[each.rank].kernel
            assert each.dead_here() == ([each.rank] if kernel else [])
            for rank in range(3):
                text = f"rank {rank} on vm (pid {gone.pid})"
                has_ended = " has ended" if kernel and rank == each.rank else ""
                assert each.describe([rank]) == f"{text}{has_ended}, last seen in starting"
        progress[0].enter("the end of a case, RuntimeError: Connection closed")
        lost = heartbeats[0].describe_lost([1])
        assert lost == f"rank 1 on vm (pid {gone.pid}) while rank 0 was in the end of a case"


class Ticks:
    """An event that is never set, and that ends the loop of a thread after some pauses."""

    def __init__(self, *pauses_s: float) -> None:
        self.now = 0.0
        self._pauses_s = list(pauses_s)

    def wait(self, timeout_s: float) -> bool:
        self.now += self._pauses_s.pop(0) if self._pauses_s else 0.0
        return not self._pauses_s

    def is_set(self) -> bool:
        return False

    def set(self) -> None:
        self._pauses_s.clear()

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("pauses_s", "told"),
    [([1.0] * 8, 0), ([1.0] * 11, 1), ([1.0, 100.0, 1.0, 1.0], 0), ([1.0, 100.0, *[1.0] * 9], 1)],
)
def test_a_store_is_silent_only_while_this_process_runs(
    monkeypatch: pytest.MonkeyPatch, pauses_s: list[float], told: int
) -> None:
    """The watch looks every second; a pause of 100 s is one of this process."""
    with beating(1, monkeypatch) as (heartbeats, _, reports):
        (watch,) = heartbeats
    ticks: Any = Ticks(*pauses_s)
    monkeypatch.setattr(heartbeat, "PERIOD_S", 2.0)
    monkeypatch.setattr(heartbeat, "time", ticks)
    watch._ended = ticks
    watch._silence_s = 8.0
    watch._answered_at = 0.0
    watch._watch_store()
    assert len(reports[0]) == told


def test_a_rank_waits_for_the_lowest_rank_of_its_host_that_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 2 has the processes of ranks 0 and 1 on its host, and continues those that are
    stopped."""
    words = ["sleep", "60"]

    def waits(timeout_s: float) -> bool:
        begun = time.monotonic()
        last.wait_for_first_rank(timeout_s)
        return time.monotonic() - begun >= timeout_s

    with (
        beating(3, monkeypatch) as (heartbeats, _, _),
        subprocess.Popen(words) as first,
        subprocess.Popen(words) as second,
    ):
        last = heartbeats[2]
        kernel = Host.here().kernel
        pids = {0: first.pid, 1: second.pid, 2: os.getpid()}
        last._here = {rank: Host("here", pid, kernel) for rank, pid in pids.items()}
        assert last.dead_here() == [] and waits(0.1)
        second.send_signal(signal.SIGSTOP)
        until(lambda: last._here[1].state() == "is stopped by a signal", 5)
        last.continue_stopped()
        until(lambda: last._here[1].state() is None, 5)
        first.kill()
        until(lambda: last.dead_here() == [0], 5)
        assert waits(0.1), "for rank 1"
        second.kill()
        until(lambda: last.dead_here() == [0, 1], 5)
        assert not waits(5.0), "it is the lowest that lives"


OWNER = """
import os, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (signal.SIGSTOP, f"got no answer for {SILENCE_S:g} s"),
        (signal.SIGKILL, "lost its connection"),
    ],
)
def test_a_lost_store_is_reported(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    warm_executable: Path,
    number: signal.Signals,
    expected: str,
) -> None:
    (tmp_path / "owner.py").write_text(OWNER)
    command = [str(warm_executable), str(tmp_path / "owner.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            port, pid = map(int, owner.stdout.readline().split())
            with beating(2, monkeypatch, port) as (heartbeats, _, reports):
                time.sleep(0.5)
                assert reports == [[], []]
                os.kill(pid, number)
                for rank in range(2):
                    until(lambda rank=rank: reports[rank])
                    ((reason, from_rank_0),) = reports[rank]
                    assert (
                        reason.startswith(f"rank {rank} on {heartbeats[0].hosts[0].name}")
                        and expected in reason
                    )
                    assert ("; rank 0 on " in reason) is (rank != 0), "with what has happened to it"
                    assert from_rank_0 is False
                owner.kill()
        finally:
            owner.kill()
