"""The pulse: every rank gives a sign of life every two seconds; one that gives none ends the world within ten.

A thread of its own, with a connection of its own to the control plane's store: it beats while the main thread is inside
a library's call. Rank 0 looks at everybody, everybody looks at rank 0. With its beat a rank leaves word of where it is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from commbench.core.protocols import Control

from .progress import Progress, main_stack

PERIOD_S = 2.0
READ_S = 5.0  # for a place that is asked for
MOST_NAMED = 8
STATES = {"Z": "has ended", "X": "has ended", "T": "is stopped by a signal", "t": "is stopped by a debugger"}

Broken = Callable[[str, bool], None]  # what happened, and whether rank 0 said so


@dataclass(frozen=True)
class Host:
    """Where a rank lives. `kernel` tells whose process ids mean something here."""

    name: str
    pid: int
    kernel: str

    @classmethod
    def here(cls) -> Host:
        boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
        parts = [boot.read_text().strip(), str(namespace.readlink())] if boot.exists() and namespace.exists() else []
        return cls(socket.gethostname(), os.getpid(), " ".join(parts))

    def called(self, rank: int) -> str:
        return f"rank {rank} on {self.name} (pid {self.pid})"

    def state(self) -> str | None:
        """What became of the process, for one who shares its kernel; None where it runs."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return "has ended"
        except OSError:
            return None
        return STATES.get(text.rpartition(")")[2].split()[0])


@dataclass
class Silence:
    """Who has not changed his beat for `longest_s`. A look that comes late itself counts as no time."""

    longest_s: float
    beats: dict[int, int] = field(default_factory=dict)
    heard: dict[int, float] = field(default_factory=dict)
    looked: float | None = None

    def look(self, beats: Iterable[tuple[int, int]], now: float) -> list[int]:
        slept = 0.0 if self.looked is None else max(0.0, now - self.looked - 2 * PERIOD_S)
        self.looked = now
        for rank, beat in beats:
            self.heard[rank] = now if beat != self.beats.get(rank) else self.heard[rank] + slept
            self.beats[rank] = beat
        return [rank for rank, at in self.heard.items() if now - at >= self.longest_s]


class Heartbeat:
    """Of one rank of a world with one process a rank; all ranks make one, together.

    `broken` is called once, in another thread than the main one, with what happened; it must end the process.
    """

    def __init__(
        self, control: Control, progress: Progress, silence_s: float, broken: Broken, deadline_s: float
    ) -> None:
        self.rank, self.size = control.rank, control.size
        store = cast(Any, control).store
        self._store, self._places = store.clone(), store.clone()
        self._progress, self._broken = progress, broken
        self._number, self._heard = 0, False
        self._verdict: str | None = None
        self._silence, self._silence_s = Silence(silence_s), silence_s
        self._answered = time.monotonic()
        self._ended = threading.Event()
        self._store.set_timeout(timedelta(seconds=silence_s))
        self._places.set_timeout(timedelta(seconds=READ_S))
        self._tell()
        self._here = here = Host.here()
        told = control.gather([here.name, here.pid, here.kernel], deadline_s, "the first beat")
        self.hosts = [Host(*one) for one in control.decide(told, deadline_s, "the first beat")]
        self._threads = [
            threading.Thread(target=one, name="commbench-pulse", daemon=True) for one in (self._run, self._guard)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Before the farewell: afterwards the store may be gone, and nobody is to wonder."""
        self._ended.set()
        for thread in self._threads:
            thread.join(READ_S)

    def names(self) -> dict[int, str]:
        """By process id, of the ranks that share this one's kernel."""
        near = (rank for rank, host in enumerate(self.hosts) if host.kernel == self._here.kernel)
        return {self.hosts[rank].pid: self.hosts[rank].called(rank) for rank in near}

    def named(self, ranks: Sequence[int]) -> str:
        """Ranks with host, what became of them, and where they were when they last said so."""
        words = [self._named(rank) for rank in ranks[:MOST_NAMED]]
        return "; ".join(words) + (f"; and {len(ranks) - MOST_NAMED} more" if len(ranks) > MOST_NAMED else "")

    def dead_here(self) -> list[int]:
        """The ranks on this host whose process has ended."""
        return [rank for rank, host in enumerate(self.hosts) if self._state(host) == "has ended"]

    def wake(self) -> None:
        """The ranks on this host that are stopped: who ends the world is heard by them only then."""
        for host in self.hosts:
            if self._state(host) == STATES["T"]:
                with suppress(OSError):  # it has ended meanwhile
                    os.kill(host.pid, signal.SIGCONT)

    def _state(self, host: Host) -> str | None:
        return host.state() if host.kernel and host.kernel == self._here.kernel else None

    def _named(self, rank: int) -> str:
        place = ""
        with suppress(RuntimeError, ValueError):
            key = f"pulse/{rank}/place"
            where, stack = json.loads(self._places.get(key)) if self._places.check([key]) else ("", [])
            place = f", last seen in {where}" + (f" at {' > '.join(stack)}" if stack else "")
        return self._called(rank) + place

    def _called(self, rank: int) -> str:
        host = self.hosts[rank]
        state = self._state(host)
        return f"{host.called(rank)} {state}" if state else host.called(rank)

    # ------------------------------------------------------------ threads

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            try:
                reason = self._beat()
            except RuntimeError as error:
                reason = (
                    f"{self._called(self.rank)} lost its connection to {self._called(0)}: {str(error).splitlines()[0]}"
                )
            if reason is not None:
                self._end(reason, heard=self._heard)

    def _guard(self) -> None:
        """The store answers nobody while the network is down, and its calls then wait for ever."""
        longest_s, tick_s = self._silence_s, PERIOD_S / 2
        before = time.monotonic()
        while not self._ended.wait(tick_s):
            now = time.monotonic()
            self._answered += max(0.0, now - before - 2 * tick_s)  # this process itself was stopped meanwhile
            before = now
            if now - self._answered > longest_s:
                self._end(f"{self._called(self.rank)} got no answer for {longest_s:g} s; {self._called(0)}")

    def _end(self, reason: str, heard: bool = False) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._broken(reason, heard)

    def _beat(self) -> str | None:
        """Tell, and look; why the world is broken, if it is."""
        self._tell()
        if self.rank == 0:
            self._verdict = self._judgement()
            if self._verdict is not None:
                self._tell()
            return self._verdict
        verdict, beat = json.loads(self._store.get("pulse/0"))
        if verdict is not None:
            self._heard = True
            return str(verdict)
        if self._silence.look([(0, beat)], time.monotonic()):
            return f"no sign of life for {self._silence_s:g} s: {self.named([0])}"
        return None

    def _judgement(self) -> str | None:
        """On rank 0: whether somebody is silent, or this rank has been in a call of the library for too long."""
        silent = self._silence.look(self._beats(range(1, self.size)), time.monotonic())
        if silent:
            return f"no sign of life for {self._silence_s:g} s: {self.named(silent)}"
        late_s = self._progress.late_s()
        if late_s is not None:
            return f"no end after {late_s:.0f} s: {self.named(range(self.size))}"
        return None

    def _tell(self) -> None:
        self._number += 1
        place = [self._progress.text(), main_stack()]
        keys = [f"pulse/{self.rank}/place", f"pulse/{self.rank}"]
        self._store.multi_set(keys, [json.dumps(place), json.dumps([self._verdict, self._number])])
        self._answered = time.monotonic()

    def _beats(self, ranks: Sequence[int]) -> list[tuple[int, int]]:
        if not ranks:
            return []
        values: list[Any] = self._store.multi_get([f"pulse/{rank}" for rank in ranks])
        return [(rank, json.loads(value)[1]) for rank, value in zip(ranks, values, strict=True)]
