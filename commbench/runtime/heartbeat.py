"""Heartbeats: every rank sends one every 2 s; if a rank sends none for `budget.silence_s` (8 s),
the world is broken.

A thread of its own sends them, over a connection of its own to the control plane's store, also
while the main thread is inside a library's call. Rank 0 checks all ranks, all ranks check rank 0.
Each heartbeat says where its rank is (Progress).
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from traceback import extract_stack

from commbench.core.errors import MAX_NAMED_RANKS
from commbench.core.garbage_collection import collection_paused
from commbench.core.protocols import Control, Runner
from commbench.hardware.sources import read_line, read_link

from .exit_protocol import process_text
from .processes import ENDED, STOPPED, process_state

PERIOD_S = 2.0
VERDICT_S = 2.5  # until every rank has read why rank 0 ends the world; each reads every PERIOD_S
JOIN_S = 5.0  # for a thread to end
MAX_FRAMES = 4
PATH_PREFIX = re.compile(r"^.*/(site-packages|commbench|lib/python[0-9.]+)/")
LIBRARY_ERROR = re.compile(r", \w*(Error|Exception): .*", re.DOTALL)
OnBroken = Callable[[str, bool], None]  # the reason, and whether it was read from rank 0


@dataclass
class Progress:
    """The position of a rank: written by its main thread, and read by its heartbeat at any time."""

    phase: str = "starting"
    runner: Runner | None = None
    begun: float = 0.0
    limit_s: float | None = None  # of this phase; None where a meeting has a deadline of its own
    advice: str = ""  # what to do if it takes longer

    def enter(
        self,
        phase: str,
        runner: Runner | None = None,
        limit_s: float | None = None,
        advice: str = "",
    ) -> None:
        self.runner = None
        self.limit_s = None  # a reader between these lines must not join old and new
        self.phase = phase
        self.advice = advice
        self.begun = time.monotonic()
        self.runner = runner
        self.limit_s = limit_s

    def late_s(self) -> float | None:
        """Seconds since this phase began, if it has taken longer than it may; else None."""
        limit_s = self.limit_s
        spent_s = time.monotonic() - self.begun
        return spent_s if limit_s is not None and spent_s > limit_s else None

    def text(self) -> str:
        """The phase; inside a runner also the repetition and, where the engine records it, the
        call."""
        runner = self.runner
        phase = self.phase
        if runner is None:
            return phase
        repetition, step = map(int, runner.progress[:2])
        call = (
            f", call {step + 1} of {len(runner.calls)} ({runner.calls[step]})"
            if 0 <= step < len(runner.calls)
            else ""
        )
        return f"repetition {repetition + 1}{call} of {phase}"


def main_stack() -> list[str]:
    """The stack of this process's main thread, innermost call last: "file:line function"."""
    main = threading.main_thread().ident
    # in Python 3.10 to 3.12 a collection inside this call may wait forever: for a thread that
    # waits for the lock of the call (python/cpython#106883)
    with collection_paused():
        frame = sys._current_frames().get(-1 if main is None else main)
    if frame is None:
        return []
    calls = extract_stack(frame)[-MAX_FRAMES:]
    return [f"{PATH_PREFIX.sub('', call.filename)}:{call.lineno} {call.name}" for call in calls]


@dataclass(frozen=True)
class Host:
    """The process of a rank. `kernel` is equal where the same process ids mean the same
    processes."""

    name: str
    pid: int
    kernel: str

    @classmethod
    def here(cls) -> Host:
        boot_id = read_line(Path("/proc/sys/kernel/random/boot_id"))
        namespace = read_link(Path("/proc/self/ns/pid"))
        kernel = f"{boot_id} {namespace}" if boot_id and namespace else ""
        return cls(socket.gethostname(), os.getpid(), kernel)

    def state(self) -> str | None:
        """What has happened to the process, which must be of this `kernel`; None while it runs."""
        return process_state(self.pid)


@dataclass
class SilenceDetector:
    """Finds ranks whose heartbeat has not changed for `silence_s`. Time in which this process
    itself was stopped does not count."""

    silence_s: float
    beats: dict[int, int] = field(default_factory=dict)
    changed_at: dict[int, float] = field(default_factory=dict)
    checked_at: float | None = None

    def check(self, beats: Iterable[tuple[int, int]], now: float) -> list[int]:
        """The silent ranks; `beats` are (rank, number of its newest heartbeat)."""
        stopped_s = (
            0.0 if self.checked_at is None else max(0.0, now - self.checked_at - 2 * PERIOD_S)
        )
        self.checked_at = now
        for rank, beat in beats:
            self.changed_at[rank] = (
                now if beat != self.beats.get(rank) else self.changed_at[rank] + stopped_s
            )
            self.beats[rank] = beat
        return [rank for rank, at in self.changed_at.items() if now - at >= self.silence_s]


class Heartbeat:
    """The heartbeat of one rank, in a world with one process per rank; all ranks create theirs
    together.

    `on_broken` is called in a thread other than the main one, perhaps in two; it must end the
    process.
    """

    def __init__(
        self,
        control: Control,
        progress: Progress,
        silence_s: float,
        on_broken: OnBroken,
        deadline_s: float,
    ) -> None:
        self.rank = control.rank
        self.size = control.size
        self._store = control.store.clone()
        self._progress = progress
        self._on_broken = on_broken
        # phase and stack by rank, as JSON: on rank 0 of all ranks, on the others of rank 0
        self._last_seen = dict.fromkeys(
            range(self.size), json.dumps([progress.text(), []]).encode()
        )
        self._beats_sent = 0
        self._found_by_rank_0 = False
        self._verdict: str | None = None  # of rank 0: why the world is broken
        self._silence = SilenceDetector(silence_s)
        self._silence_s = silence_s
        self._silent: list[int] = []
        self._answered_at = time.monotonic()
        self._ended = threading.Event()
        self._store.set_timeout(timedelta(seconds=silence_s))
        self._send()
        host = Host.here()
        exchanged = control.exchange(
            [host.name, host.pid, host.kernel], deadline_s, "the first heartbeat"
        )
        self.hosts = [Host(*fields) for fields in exchanged]
        # the ranks whose processes can be seen from here
        self._here = {
            rank: each
            for rank, each in enumerate(self.hosts)
            if host.kernel and each.kernel == host.kernel
        }
        self._threads = [
            threading.Thread(target=self._run, name="commbench-heartbeat", daemon=True),
            threading.Thread(target=self._watch_store, name="commbench-store-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Called before the farewell: afterwards the store may be gone, which must not look like a
        failure."""
        self._ended.set()
        for thread in self._threads:
            thread.join(JOIN_S)

    def names(self) -> dict[int, str]:
        """The ranks that share this one's kernel, by process id."""
        return {
            host.pid: process_text(rank, host.name, host.pid) for rank, host in self._here.items()
        }

    def describe(self, ranks: Sequence[int]) -> str:
        """Ranks with host, what has happened to their processes, and where they were last seen."""
        named = ranks[:MAX_NAMED_RANKS]
        texts = [
            f"{self._with_state(rank)}, last seen in {json.loads(self._last_seen[rank])[0]}"
            for rank in named
        ]
        texts += (
            [f"and {len(ranks) - MAX_NAMED_RANKS} more"] if len(ranks) > MAX_NAMED_RANKS else []
        )
        return "; ".join(texts)

    def describe_lost(self, ranks: Sequence[int]) -> str:
        """Ranks that have ended, and where this rank was at that time: all go through a case
        together."""
        if not ranks:
            return ""
        lost = "; ".join(map(self._with_state, ranks[:MAX_NAMED_RANKS]))
        # the library reports that the other rank is gone
        here = LIBRARY_ERROR.sub("", self._progress.text())
        return f"{lost} while rank {self.rank} was in {here}"

    def stacks(self) -> dict[str, list[str]]:
        """The current stack of this rank and the last known ones of some others, first of silent
        ones, as lines "file:line function"."""
        self._last_seen[self.rank] = self._position()
        ranks = list(dict.fromkeys([self.rank, *self._silent, *range(self.size)]))[
            : MAX_NAMED_RANKS + 1
        ]
        return {
            f"rank {rank}": stack
            for rank in ranks
            if (stack := json.loads(self._last_seen[rank])[1])
        }

    def wait_for_first_rank(self, timeout_s: float) -> None:
        """Wait until the lowest rank that lives on this host has ended.

        It looks for ranks that were lost before the signal, and must not find this one; and a
        launcher that sees a rank end might kill rank 0 while it saves.
        """
        until = time.monotonic() + timeout_s
        first = min({*self._here, self.rank} - {*self.dead_here()})
        while (
            first != self.rank and self._here[first].state() != ENDED and time.monotonic() < until
        ):
            time.sleep(0.02)

    def dead_here(self) -> list[int]:
        """The ranks on this host whose process has ended."""
        return [rank for rank, host in self._here.items() if host.state() == ENDED]

    def continue_stopped(self) -> None:
        """Send SIGCONT to the stopped ranks on this host: only then do they notice that the world
        ends."""
        for host in self._here.values():
            if host.state() == STOPPED["T"]:
                with suppress(OSError):  # it has ended meanwhile
                    os.kill(host.pid, signal.SIGCONT)

    def _with_state(self, rank: int) -> str:
        host = self.hosts[rank]
        state = host.state() if rank in self._here else None
        process = process_text(rank, host.name, host.pid)
        return f"{process} {state}" if state else process

    def _without_rank_0(self, what: str) -> str:
        """What this rank has seen of the store, and what has happened to rank 0, which hosts it."""
        here = f"{self._with_state(self.rank)} {what}"
        return f"{here}; {self._with_state(0)}" if self.rank else here

    # ------------------------------------------------------------ threads

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            try:
                reason = self._beat()
            except RuntimeError as error:
                cause = str(error).splitlines()[0]
                reason = self._without_rank_0(
                    f"lost its connection to {'rank 0' if self.rank else 'the store'} ({cause})"
                )
            if reason is not None:
                self._end(reason, self._found_by_rank_0)

    def _watch_store(self) -> None:
        """End the rank while the network is down: calls of the store may wait far longer than
        silence_s."""
        tick_s = PERIOD_S / 2
        before = time.monotonic()
        while not self._ended.wait(tick_s):
            now = time.monotonic()
            # this process itself was stopped meanwhile
            self._answered_at += max(0.0, now - before - 2 * tick_s)
            before = now
            if now - self._answered_at > self._silence_s:
                self._end(self._without_rank_0(f"got no answer for {self._silence_s:g} s"))

    def _end(self, reason: str, found_by_rank_0: bool = False) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._on_broken(reason, found_by_rank_0)

    def _beat(self) -> str | None:
        """Send a heartbeat and check the others; returns why the world is broken, if it is."""
        self._send()
        watched = range(1, self.size) if self.rank == 0 else [0]
        values = self._store.multi_get([f"heartbeat/{rank}" for rank in watched])
        beats = list[tuple[int, int]]()
        for rank, value in zip(watched, values, strict=True):
            # thousands of stacks would take long to parse
            head, _, self._last_seen[rank] = value.partition(b"\n")
            verdict, beat = json.loads(head)
            if verdict is not None:  # only rank 0 gives one
                self._found_by_rank_0 = True
                return str(verdict)
            beats.append((rank, beat))
        silent = self._silent = self._silence.check(beats, time.monotonic())
        reason = None
        late_s = self._progress.late_s() if self.rank == 0 else None
        if silent:
            reason = (
                f"no heartbeat for {self._silence_s:g} s (budget.silence_s):"
                f" {self.describe(silent)}"
            )
            reason += (
                f"; rank 0 is in {LIBRARY_ERROR.sub('', self._progress.text())}"
                if self.rank == 0
                else ""
            )
        elif late_s is not None:  # inside a call of the library
            reason = f"no end after {late_s:.0f} s: {self.describe(range(self.size))}"
            reason += f"; {self._progress.advice}" if self._progress.advice else ""
        if reason is not None and self.rank == 0:
            self._verdict = reason
            self._send()
        return reason

    def _position(self) -> bytes:
        """Phase and stack of this rank, as JSON."""
        return json.dumps([self._progress.text(), main_stack()]).encode()

    def _send(self) -> None:
        self._beats_sent += 1
        position = self._last_seen[self.rank] = self._position()
        head = json.dumps([self._verdict, self._beats_sent]).encode()
        self._store.set(f"heartbeat/{self.rank}", head + b"\n" + position)
        self._answered_at = time.monotonic()
