"""A run that ends early: a signal interrupts it, an error breaks it, or a rank is lost.

What has been measured is saved, by the main thread or by another one while the main thread is in a
library's call (RunEnder lets only one of them). Who prints the reason: runtime/exit_protocol.py.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from commbench.core.case import World
from commbench.core.errors import Missing, StoreLost, WorldBroken, process_limit
from commbench.core.protocols import Communicator
from commbench.core.terminal import print_error
from commbench.results.run_folder import how_to_finish
from commbench.runtime.exit_protocol import RankEnd, Tell, leave_end, process_text, whom_to_tell
from commbench.runtime.heartbeat import VERDICT_S, Heartbeat
from commbench.runtime.processes import mapped_shared_memory, remove_shared_memory
from commbench.runtime.signals import SAVE_S, RunEnder

from .case import CaseVisit
from .conditions import Conditions
from .recorder import Recorder

LOCK_S = 5.0  # for a write of the main thread to end


@dataclass(frozen=True)
class VisitInFlight:
    """The visit that this rank makes now. It is recorded as broken off if the run ends in it."""

    visit: CaseVisit
    started: datetime
    conditions: Conditions


class EarlyEnd:
    """Saves the results of a run that ends early, and says why. The session sets what there is to
    end: `heartbeat`, `communicator`, `in_flight`, and `closing_status` once the run itself is over
    and only the library has to be closed."""

    def __init__(
        self, world: World, recorder: Recorder, run: dict[str, Any], has_parent: bool
    ) -> None:
        self._world = world
        self._recorder = recorder
        self._run = run
        self._has_parent = has_parent
        self._signalled = False
        self._lost_ranks = ""  # a text about the ranks that had ended when the first signal came
        self.heartbeat: Heartbeat | None = None
        self.communicator: Communicator | None = None
        self.in_flight: VisitInFlight | None = None
        self.closing_status: int | None = None

    # ------------------------------------------------------------ after a signal

    def find_lost_ranks(self, number: int) -> bool:
        """Called immediately on a signal, before the launcher ends more ranks; returns whether all
        ranks are alive."""
        first = not self._signalled
        self._signalled = True
        if first and number == signal.SIGTERM and self.heartbeat is not None:
            dead = self.heartbeat.dead_here()
            neighbours = self._world.neighbours
            # rank 0, or the first live rank where it is dead
            if self._world.rank == min({0, *neighbours} - {*dead}):
                self._lost_ranks = self.heartbeat.describe_lost(dead)
            if self._world.rank == 0:  # before its main thread unwinds
                self._run["stacks"] = self.heartbeat.stacks()
        return not self._lost_ranks

    def save_after_signal(self, status: int) -> None:
        """Save the results so far after a signal from a user, or from a launcher that has lost
        another rank."""
        if self.closing_status is not None:
            return
        if self.communicator is not None:
            self.communicator.close(abort=True)
        if self.heartbeat is not None:
            self.heartbeat.wait_for_first_rank(SAVE_S)
        if self._lost_ranks:
            self._record_case_in_flight(self._lost_ranks)
        # the main thread is in a call that waits for an interrupted rank
        elif self.in_flight is not None:
            with suppress(Exception):  # the run must end properly even if a writer fails
                self.in_flight.visit.save_interrupted()
        if self._lost_ranks and self._has_parent:
            self._tell_parent(self._lost_ranks)
        self._close("interrupted", status, self._lost_ranks or None)
        if self._lost_ranks and not self._has_parent:
            self._print_end(self._lost_ranks)

    # ------------------------------------------------------------ after an error

    def save_after_error(self, error: Exception) -> WorldBroken:
        """Save the results so far; returns the error as one that ends the world."""
        broken = self._located(error)
        reason = str(broken)
        with suppress(Exception):  # the error may come from the writer of this row
            self._record_case_in_flight(reason)
        if self.communicator is not None:
            self.communicator.close(abort=True)
        self._run["stacks"] = {f"rank {self._world.rank}": traceback.format_exc().splitlines()}
        with suppress(OSError):
            self._close("broken", WorldBroken.exit_status, reason)
        has_record = bool(self._recorder.published.writers.begun)
        if not self._has_parent and has_record:
            self._print_end()
        self._clean_up_host()
        broken.recorded = self._has_parent and has_record  # the parent will report the reason
        return broken

    def _located(self, error: Exception) -> WorldBroken:
        """On rank 0 it says which process raised it, or where missing ranks were last seen."""
        if isinstance(error, StoreLost):
            return error
        if isinstance(error, Missing) and self._world.rank == 0 and self.heartbeat is not None:
            return Missing(
                error.ranks, error.meeting, error.deadline_s, self.heartbeat.describe(error.ranks)
            )
        if isinstance(error, WorldBroken):
            return error
        # of other ranks the command line adds it
        name = f"{process_text(0)}: " if self._world.rank == 0 else ""
        text = process_limit(error) or f"{type(error).__name__}: {error}"
        return WorldBroken(f"{name}{text}")

    # ------------------------------------------------------------ a rank is lost

    def end_from_heartbeat(self, ender: RunEnder, reason: str, found_by_rank_0: bool) -> None:
        """End the run from the heartbeat's thread: the main thread may be in a call that never
        returns."""
        if self.closing_status is None:
            ender.finish(
                WorldBroken.exit_status, partial(self._save_from_heartbeat, reason, found_by_rank_0)
            )
        # it reports the rank that did not end; the results and the status are written
        elif self._has_parent:
            ender.finish(0, lambda: None)
        else:
            text = f"the run is complete, but its ranks did not end: {reason}"
            ender.finish(self.closing_status, partial(print_error, text))

    def _save_from_heartbeat(self, reason: str, found_by_rank_0: bool) -> None:
        self._clean_up_host()
        rank = self._world.rank
        is_recorded = rank == 0 and bool(self._recorder.published.writers.begun)
        is_first = rank == min({*self._world.neighbours} - {0}, default=0)
        told = whom_to_tell(
            "verdict" if found_by_rank_0 else "recorded" if is_recorded else "lost",
            rank,
            self._has_parent,
            is_first,
        )
        if told is Tell.PARENT:
            self._tell_parent(reason)
        if told is Tell.USER:
            self._print_end(reason)
        if rank == 0 and self._recorder.lock.acquire(timeout=LOCK_S):
            self._record_case_in_flight(reason)
            if self.heartbeat is not None:
                self._run["stacks"] = self.heartbeat.stacks()
            self._close("broken", WorldBroken.exit_status, reason)
        if rank == 0 and not self._has_parent and len(self._world.nodes) > 1:
            time.sleep(VERDICT_S)  # other nodes would report that rank 0 is lost

    # ------------------------------------------------------------ in all of these

    def _record_case_in_flight(self, reason: str) -> None:
        """Record on rank 0 that the world broke in the case in flight, if there is one."""
        if self._world.rank == 0 and self.in_flight is not None:
            self._recorder.break_off(
                self.in_flight.visit.setup.planned,
                reason,
                self.in_flight.conditions,
                self.in_flight.started,
            )

    def _tell_parent(self, reason: str) -> None:
        process = process_text(self._world.rank)
        leave_end(RankEnd("world", process, WorldBroken.exit_status, reason))

    def _close(self, status: str, exit_status: int, reason: str | None) -> None:
        if self._world.rank == 0:
            self._recorder.close(status, exit_status, reason)

    def _clean_up_host(self) -> None:
        """Without a parent: end the stopped ranks of this host, and remove the library's shared
        memory."""
        if not self._has_parent and self.heartbeat is not None:
            self.heartbeat.continue_stopped()
            remove_shared_memory(mapped_shared_memory([os.getpid()]))

    def _print_end(self, reason: str | None = None) -> None:
        self._recorder.published.reporter.end()
        if reason is not None:
            print_error(reason)
        if self._recorder.published.writers.begun and (text := how_to_finish(self._run["folder"])):
            print_error(text)
