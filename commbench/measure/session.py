"""A run inside its world, as each of its ranks executes it: preflight, plan, open the library, measure, record, end.

`run_in_world` leads through it. `_Session.run` measures case after case: `_case` agrees on whether to measure one and
measures it (case.py), `_record` makes rows of the samples (rows.py) and hands them to the writers, on rank 0.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from commbench.buffers.host import high_water_bytes, largest_bytes
from commbench.config.settings import Settings
from commbench.core import clock as clocks
from commbench.core.case import Planned, RankIdentity, World
from commbench.core.columns import CASES
from commbench.core.errors import ConfigError, Missing, WorldBroken
from commbench.core.layout import Layout
from commbench.core.protocols import Communicator, Control
from commbench.hardware import machine_facts, resource_limits
from commbench.launchers.registry import join_world
from commbench.world.core_binding import bind_rank
from commbench.world.exit_protocol import LostAction, lost_action, report_lost
from commbench.world.heartbeat import Heartbeat, Host, Progress
from commbench.world.identity import check_layouts
from commbench.world.recovery import EarlierStarts, clear_in_flight, mark_in_flight
from commbench.world.signals import INTERRUPTED, RunEnder, handled_signals
from commbench.world.supervisor import mapped_shared_memory, remove_shared_memory
from commbench.writers.fan_out import FanOut

from .case import measure
from .clock_sync import GlobalClocks
from .conditions import Conditions, ConditionsReader
from .plan import Facts, duration_s, plan
from .preflight import MEETING_S, Request, preflight
from .rows import Outcome, count_table, missed_expectations, row, sample_table, split_rounds
from .samples import Failure, Refused, Samples
from .time_limits import case_deadline_s
from .transports import library_record

BAD = ("failed", "invalid")
LOCK_S = 5.0  # for a write of the main thread to end


def run_in_world(settings: Settings, request: Request, identity: RankIdentity | None) -> int:
    """Measure all cases as one rank of a world; returns the exit status.

    `identity` is None where this process hosts all ranks.
    """
    world, control = join_world(settings, identity)
    cores, quota = sorted(os.sched_getaffinity(0)), resource_limits.cpu_limit_cores()
    binding = bind_rank(settings.bind, world, settings.backend.threads_per_rank)
    layouts = settings.layouts or (Layout(len(world.nodes), min(len(node) for node in world.nodes)),)
    settings = replace(settings, layouts=layouts)
    check_layouts(settings.layouts, world)
    mine = machine_facts.collect() | {"run.digest": request.digest, "run.bind": binding}
    facts, run = preflight(settings, request, world, control, mine, cores[: max(1, int(quota))])
    if settings.plan:
        control.farewell(MEETING_S)
        return 0
    session = _Session(settings, world, control, Facts(*facts), run, request)
    with handled_signals(session.interrupted, session.find_lost_ranks) as ender:
        try:
            session.open(ender)
            status = session.run()
        except (KeyboardInterrupt, SystemExit) as stop:  # finished cases, and a soak's part, are kept
            session.interrupted(INTERRUPTED + (2 if isinstance(stop, KeyboardInterrupt) else 15))
            raise
        except ConfigError:  # raised on all ranks: the library can't be opened like that
            ender.claim()
            raise
        except Exception as error:  # a full disk on rank 0 must not leave the others waiting for a run that is over
            ender.claim()
            broken = error if isinstance(error, WorldBroken) else WorldBroken(_unexpected_text(error, world.rank))
            broken.recorded = session.broken(str(broken))
            raise broken from error
        session.end()
    return status


def _unexpected_text(error: Exception, rank: int) -> str:
    """The command line adds the name to errors of other ranks."""
    text = f"{type(error).__name__}: {error}"
    return f"rank 0 on {socket.gethostname()}: {text}" if rank == 0 else text


class _Session:
    """The cases of one run. Rank 0 records; the ranks that a case does not need wait for the next meeting."""

    def __init__(
        self,
        settings: Settings,
        world: World,
        control: Control,
        facts: Facts,
        run: dict[str, Any],
        request: Request,
    ) -> None:
        self._settings, self._world, self._control = settings, world, control
        self._facts, self._run = facts, run
        self._jobs = plan(settings, world, facts)
        self._clock = clocks.calibrate()
        self._global_clocks = GlobalClocks(world, settings.interface)
        self._rows: dict[str, dict[str, Any]] = {}  # by case: a soak's newest counts
        self._writers = FanOut(settings.writers)
        self._begun_s = time.monotonic()
        self._deadline_s = MEETING_S  # of the next meeting of all ranks
        self._progress = Progress()
        self._heartbeat: Heartbeat | None = None
        self._communicator: Communicator  # once the library is open, and with it
        self._reader: ConditionsReader
        self._conditions: Conditions
        self._opened = False
        self._current: tuple[Planned, datetime] | None = None  # the case being measured, and since when
        self._lost_ranks = ""  # those that had ended when a signal came, in words
        self._writing = threading.RLock()  # the heartbeat's thread may have to end the run at any moment
        self._stopped: str | None = None  # why no further case is measured, on rank 0
        self._alone = not request.parent  # no parent reports the end of this world
        self._request = request
        self._earlier = request.earlier or EarlierStarts()

    def open(self, ender: RunEnder) -> None:
        """Start the heartbeat first: a rank may be lost while the library opens, too."""
        settings, control = self._settings, self._control
        if len(self._world.hosted) < self._world.size:
            self._heartbeat = Heartbeat(
                control, self._progress, settings.budget.silence_s, partial(self._end_lost, ender), MEETING_S
            )
        self._progress.enter("opening the library", limit_s=MEETING_S)
        self._communicator = settings.backend.open(self._world, control, settings.device)
        self._opened = True
        if self._request.earlier is not None:
            self._jobs = self._unfinished()
        groups = sorted({job.members for job in self._jobs if not job.skip} | {(0,)})
        self._reader = ConditionsReader(settings, self._world, control, self._run, self._communicator)
        self._communicators = {members: self._reader.subset(members) for members in groups}
        self._progress.enter("opened the library")

    def _unfinished(self) -> tuple[Planned, ...]:
        """The cases that earlier starts of this run have not finished, as rank 0 has read."""
        orders = [job.order for job in self._jobs if self._earlier.unfinished(job.case.case_id, _case_ids(job))]
        chosen = set(self._control.decide(orders, MEETING_S, "what is left"))
        return tuple(job for job in self._jobs if job.order in chosen)

    def run(self) -> int:
        """Measure and record case after case; returns the exit status."""
        gc.collect()
        gc.freeze()  # what was imported stays: collections between cases then cost microseconds, not 50 ms
        self._conditions = self._reader.read(self._communicators[0,], self._jobs, self._clock, self._facts)
        if self._world.rank == 0:
            self._begin_writing()
        for job in self._jobs:
            self._run_case(replace(job))  # a copy: the programs of all ranks are released with it
        self._run |= self._reader.transports(self._conditions)
        status = self._control.decide(self._finish() if self._world.rank == 0 else 0, self._deadline_s, "end of run")
        return int(status)

    def _begin_writing(self) -> None:
        """Complete the record of the run with what the opened library reports, and start the writers."""
        self._run["backend"] = {"name": self._settings.backend.name, **library_record(self._communicator.facts())}
        self._run["cuda_ipc"] = {**self._run.get("cuda_ipc", {}), **self._conditions.evidence.cuda_ipc}
        if self._conditions.evidence.ignored:
            print(f"commbench: {self._conditions.evidence.ignored}", file=sys.stderr)
        self._run["processes"] = self._heartbeat.names() if self._heartbeat is not None else self._own_process()
        self._run["cases"] = sum(len(_case_ids(job)) for job in self._jobs)
        self._run["at_most_s"] = sum(duration_s(self._settings, job) for job in self._jobs)
        self._run["memory"] = {
            "imports_bytes": high_water_bytes(),
            "buffers_bytes": largest_bytes(self._jobs, self._world.rank),
        }
        self._run["calibration"] = {"clock_ns": vars(self._clock), "overhead_s": self._conditions.overhead_s}
        self._writers.begin(self._run)

    def _own_process(self) -> dict[int, str]:
        """By process id: the only rank of a world, which has no heartbeat; empty where one process hosts several."""
        return {os.getpid(): Host.here().describe(0)} if self._world.size == 1 else {}

    def _run_case(self, job: Planned) -> None:
        """Agree on whether to measure a case, measure it on its ranks, and record it."""
        given_up = self._earlier.given_up(job.case.case_id)
        reason = given_up or job.skip or self._stopped or self._budget_spent()
        self._progress.enter(f"the start of {job.case}")
        skip = self._control.decide(reason, self._deadline_s, f"start of {job.case}")
        self._deadline_s = case_deadline_s(job, self._settings)  # the ranks that take no part wait for the next case
        started = datetime.now(timezone.utc)
        if skip is not None:
            self._record(job, Failure(skip) if given_up else Refused(skip), started)
            return
        if self._world.rank == 0:
            mark_in_flight(self._run["folder"], job.case.case_id, str(job.case))
        communicator = self._communicators[job.members]
        if communicator is None:
            return
        control = self._control.subset(job.members)
        try:
            sink = partial(self._record, job, started=started)
            self._current = job, started
            outcome = measure(
                job, communicator, control, self._settings, self._clock, sink, self._progress, self._global_clocks
            )
            self._conditions = self._reader.after(self._conditions, job, control, self._deadline_s)
        except WorldBroken as error:
            broken = self._with_places(error) if isinstance(error, Missing) else error
            self._record(job, Failure(str(broken)), started)
            raise broken from error
        finally:
            self._current = None
        self._record(job, outcome, started)

    def _budget_spent(self) -> str | None:
        total_s = self._settings.budget.total_s
        spent_s = time.monotonic() - self._begun_s
        return f"budget.total_s={total_s:g} is spent" if total_s is not None and spent_s > total_s else None

    def _with_places(self, missing: Missing) -> Missing:
        """With the hosts and the last known places of the ranks that did not come."""
        places = (
            self._heartbeat.describe(missing.ranks) if self._heartbeat is not None and self._world.rank == 0 else ""
        )
        return Missing(missing.ranks, missing.meeting, missing.deadline_s, places)

    def _record(self, job: Planned, outcome: Outcome, started: datetime) -> None:
        """On rank 0: a row for the case, or for each pair of a round."""
        if self._world.rank != 0:
            return
        with self._writing:
            for single, part in split_rounds(job, outcome):
                self._write_row(single, part, started)

    def _write_row(self, job: Planned, outcome: Outcome, started: datetime) -> None:
        run_id = self._run["run_id"]
        identity = {
            "run_id": run_id,
            "sweep_id": self._run["sweep_id"],
            "launch": self._settings.launch,
            "label": self._settings.label,
            "segment": len(self._run.get("segments", [])),
        }
        values = row(job, outcome, self._conditions, started) | identity
        values = {column.name: values[column.name] for column in CASES}
        samples = sample_table(job, outcome, run_id) if isinstance(outcome, Samples) else {}
        counters = count_table(job, outcome, run_id) if isinstance(outcome, Samples) else {}
        self._rows[values["case_id"]] = values
        if values["status"] in BAD and self._settings.on_error == "stop":
            self._stopped = self._stopped or f"on_error=stop, after {job.case}"
        self._writers.case(values, samples, counters)

    def _finish(self) -> int:
        """Compare the rows with what the user expects, and end the writers; returns the exit status."""
        rows = list(self._rows.values())
        missed = [line for expected in self._settings.expect for line in missed_expectations(expected, rows)]
        missed += self._request.judged(self._run["folder"]) if self._settings.expect_normal else []
        now = {case_id: values["status"] for case_id, values in self._rows.items()}
        bad = [status for status in {**self._earlier.recorded, **now}.values() if status in BAD]
        status = 1 if bad or missed else 0
        clear_in_flight(self._run["folder"])
        self.close("done", status, "; ".join(missed) or None)
        for line in missed:
            print(line, file=sys.stderr)
        return int(self._run["exit_status"])  # of results that could not be saved, too

    def close(self, status: str, exit_status: int, reason: str | None = None) -> None:
        """End the writers, on rank 0: merge the parts, write run.json, print the table."""
        if self._world.rank != 0:
            return
        with self._writing:
            finished = datetime.now(timezone.utc).isoformat()
            self._run.setdefault("memory", {})["peak_bytes"] = high_water_bytes()
            self._run |= {"status": status, "exit_status": exit_status, "reason": reason, "finished_at": finished}
            self._writers.end(self._run)

    def end(self) -> None:
        """Close the library and leave the world, after a run that has ended on all ranks."""
        gc.collect()  # a captured graph would keep its communicator alive
        self._communicator.close()
        if self._heartbeat is not None:  # after the farewell the store may be gone, which must not look like a loss
            self._heartbeat.stop()
        self._control.farewell(MEETING_S)

    # ------------------------------------------------------------ a run that ends early

    def interrupted(self, status: int) -> None:
        """Save what there is after a signal from a user, or from a launcher that has lost another rank."""
        self._abandon()
        if self._current is not None and self._lost_ranks:
            self._record(self._current[0], Failure(self._lost_ranks), self._current[1])
        self.close("interrupted", status, self._lost_ranks or None)
        if self._lost_ranks and self._alone:
            self._print_end(self._lost_ranks)

    def broken(self, reason: str) -> bool:
        """Save what there is; returns whether the parent will read and report why."""
        self._abandon()
        with suppress(OSError):
            self.close("broken", WorldBroken.exit_status, reason)
        if self._alone and self._writers.begun:
            self._print_end()
        self._clean_up_host()
        return not self._alone and bool(self._writers.begun)

    def find_lost_ranks(self, number: int) -> bool:
        """Called at once on a signal, before the launcher ends more ranks; returns whether all ranks are alive."""
        if number == signal.SIGTERM and self._heartbeat is not None:
            dead = self._heartbeat.dead_here()
            neighbours = self._world.neighbours
            if self._world.rank == min({0, *neighbours} - {*dead}):  # rank 0, or the first that lives where it does not
                self._lost_ranks = self._heartbeat.describe(dead)
        return not self._lost_ranks

    def _end_lost(self, ender: RunEnder, reason: str, announced: bool) -> None:
        """In the heartbeat's thread, while the main thread may be in a call that never ends."""
        ender.finish(WorldBroken.exit_status, partial(self._save_lost, reason, announced))

    def _save_lost(self, reason: str, announced: bool) -> None:
        self._clean_up_host()
        rank, node = self._world.rank, self._world.nodes[self._world.node_of(self._world.rank)]
        action = lost_action(rank, node, self._alone, bool(self._writers.begun), announced)
        if action is LostAction.TELL_PARENT and self._request.folder is not None:
            report_lost(self._request.folder, reason)
        if action in (LostAction.PRINT, LostAction.PRINT_AND_SAVE):
            self._print_end(reason)
        if rank == 0 and self._writing.acquire(timeout=LOCK_S):
            if self._current is not None:
                self._record(self._current[0], Failure(reason), self._current[1])
            self.close("broken", WorldBroken.exit_status, reason)

    def _abandon(self) -> None:
        if self._opened:
            self._communicator.close(abort=True)

    def _clean_up_host(self) -> None:
        """What a parent would do: end the stopped ranks of this host, and remove the library's shared memory."""
        if self._alone and self._heartbeat is not None:
            self._heartbeat.continue_stopped()
            remove_shared_memory(mapped_shared_memory([os.getpid()]))

    def _print_end(self, reason: str | None = None) -> None:
        if reason is not None:
            print(f"commbench: {reason}", file=sys.stderr)
        if self._writers.begun:
            print(f"commbench: finish it with: commbench resume {self._run['folder']}", file=sys.stderr, flush=True)


def _case_ids(job: Planned) -> list[str]:
    return [single.case.case_id for single, _ in split_rounds(job, Refused(""))]
