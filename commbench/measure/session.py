"""A run inside its world, as each rank executes it: preflight, plan, open the library, measure,
record, end."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from commbench.buffers.memory import largest_bytes, resident_bytes
from commbench.config.settings import Settings
from commbench.core.case import CaseGroup, Planned, RankIdentity, World
from commbench.core.errors import ConfigError, Missing, StoreLost, WorldBroken, process_limit
from commbench.core.layout import Layout
from commbench.core.protocols import Communicator, Control
from commbench.hardware import machine_facts, resource_limits
from commbench.hardware.network import network_advice
from commbench.launchers.registry import join_world
from commbench.results.run_folder import how_to_finish, read_record
from commbench.world.exit_protocol import Notify, process_text, report_reason, whom_to_notify
from commbench.world.heartbeat import VERDICT_S, Heartbeat, Progress
from commbench.world.output import print_error
from commbench.world.recovery import EarlierStarts, clear_in_flight, mark_in_flight
from commbench.world.rendezvous import bind_rank, check_layouts
from commbench.world.signals import SAVE_S, SIGNAL_STATUS, RunEnder
from commbench.world.start_limit import meetings_end
from commbench.world.supervisor import mapped_shared_memory, remove_shared_memory

from .case import CaseVisit
from .conditions import Conditions, ConditionsReader, ReferenceCase, disturbed_passes
from .plan import PlanFacts, duration_s, pass_order, plan
from .preflight import MEETING_S, Request, preflight
from .recorder import BAD, Recorder
from .rows import missed_expectations, row_ids
from .samples import Outcome, Refused
from .time_limits import case_deadline_s, spacing_s
from .transports import library_record
from .visit_setup import VisitSetup
from .window import GlobalClocks

SINGLE = CaseGroup((0,))  # of rank 0 alone
LOCK_S = 5.0  # for a write of the main thread to end


def run_in_world(request: Request, identity: RankIdentity | None) -> int:
    """Measure all cases as one rank of a world; returns the exit status.

    `identity` is None where this process hosts all ranks.
    """
    settings = request.job.settings
    world, control = join_world(settings, identity)
    cores = sorted(os.sched_getaffinity(0))
    quota = resource_limits.cpu_limit_cores()
    binding = bind_rank(settings.bind, world, settings.backend.threads_per_rank)
    if not request.has_parent:  # nobody is there to start another world
        settings = replace(settings, timing=replace(settings.timing, launches=1))
    if not settings.layouts:
        layout = Layout.of_all(world)
        idle = layout.idle_text(world)
        if idle is not None and world.rank == 0:
            print_error(f"layout=auto: {idle}")
        settings = replace(settings, layouts=(layout,))
    check_layouts(settings.layouts, world)
    mine = machine_facts.collect() | {"run.digest": request.job.digest, "run.bind": binding}
    with meetings_end(MEETING_S, "preflight", identity):
        facts, run = preflight(settings, request, world, control, mine, cores[: max(1, int(quota))])
    if settings.plan:
        control.farewell(MEETING_S)
        return 0
    session = _Session(settings, world, control, PlanFacts(*facts), run, request)
    with RunEnder(session.save_after_signal, session.find_lost_ranks) as ender:
        try:
            session.open(ender, identity)
            status = session.run()
        # finished cases, and a soak's part, are kept
        except (KeyboardInterrupt, SystemExit) as stop:
            session.save_after_signal(
                SIGNAL_STATUS + (2 if isinstance(stop, KeyboardInterrupt) else 15)
            )
            raise
        except ConfigError:  # raised on all ranks: the library can't be opened like that
            ender.claim()
            raise
        # a full disk on rank 0 must not leave the others waiting for a run that is over
        except Exception as error:
            ender.claim()
            broken = session.located(error)
            broken.recorded = session.save_after_error(str(broken))
            raise broken from error
        session.end(status)
    return status


class _Session:
    """The cases of one run. Rank 0 records; the ranks that a case does not need wait for the next
    meeting."""

    def __init__(
        self,
        settings: Settings,
        world: World,
        control: Control,
        facts: PlanFacts,
        run: dict[str, Any],
        request: Request,
    ) -> None:
        self._settings = settings
        self._world = world
        self._control = control
        self._facts = facts
        self._run = run
        self._cases = plan(settings, world, facts)
        self._clocks = GlobalClocks(world, settings.interface)
        self._recorder = Recorder(
            settings, run, sum(len(row_ids(planned)) for planned in self._cases)
        )
        several = settings.timing.visits > 1 and settings.backend.launchers != "none"
        self._reference = ReferenceCase(settings, world, facts) if several else None
        self._begun_s = time.monotonic() - run.get("launches", {}).get("spent_s", 0.0)
        self._deadline_s = MEETING_S  # of the next meeting of all ranks
        self._progress = Progress()
        self._heartbeat: Heartbeat | None = None
        self._communicator: Communicator  # once the library is open, and with it
        self._reader: ConditionsReader
        self._conditions: Conditions
        self._opened = False
        # the current visit, and when it started
        self._current: tuple[CaseVisit, datetime] | None = None
        # set when the run has ended and only the library has to be closed
        self._closing_status: int | None = None
        self._graph_was_refused = False
        self._signalled = False
        self._lost_ranks = ""  # a text about the ranks that had ended when the first signal came
        self._request = request
        self._earlier = request.earlier or EarlierStarts()

    def open(self, ender: RunEnder, identity: RankIdentity | None) -> None:
        """Start the heartbeat, open the library, and create the communicators of all cases."""
        settings = self._settings
        control = self._control
        # first: a rank may also be lost while the library opens
        if len(self._world.hosted) < self._world.size:
            with meetings_end(MEETING_S, "the first heartbeat", identity):
                self._heartbeat = Heartbeat(
                    control,
                    self._progress,
                    settings.budget.silence_s,
                    partial(self._end_from_heartbeat, ender),
                    MEETING_S,
                )
        several_nodes = len(self._world.nodes) > 1
        advice = network_advice("the hosts may not reach each other") if several_nodes else ""
        self._progress.enter("the opening of the library", limit_s=MEETING_S, advice=advice)
        self._communicator = settings.backend.open(self._world, control, settings.device)
        self._opened = True
        library = self._communicator.facts().get("library")
        self._cases = tuple(
            replace(planned, case=replace(planned.case, library=library)) for planned in self._cases
        )
        if self._request.earlier is not None:
            self._recorder.continue_visits(self._cases, self._earlier.visits)
            unfinished = [
                planned.order
                for planned in self._cases
                if self._earlier.unfinished(planned.case.case_id, row_ids(planned))
                and not self._recorder.is_settled(planned)
            ]
            chosen = set(control.decide(unfinished, MEETING_S, "the unfinished cases"))
            self._cases = tuple(planned for planned in self._cases if planned.order in chosen)
        reference = set() if self._reference is None else self._reference.groups
        groups = sorted(
            {planned.group for planned in self._cases if not planned.skip} | {SINGLE} | reference
        )
        self._reader = ConditionsReader(
            settings, self._world, control, self._run, self._communicator
        )
        self._communicators = {group: self._reader.open_group(group) for group in groups}
        self._progress.enter("the time before the first case")

    def run(self) -> int:
        """Measure and record case after case; returns the exit status."""
        gc.collect()
        # imported modules stay alive: collections between cases then take microseconds, not 50 ms
        gc.freeze()
        self._conditions = self._reader.read(self._communicators[SINGLE], self._cases, self._facts)
        if self._world.rank == 0:
            self._begin_writing()
        number = 1
        remaining = self._cases
        while remaining:
            begun_s = time.monotonic()
            for planned in pass_order(remaining, self._settings, number):
                # a copy: the programs of all ranks are released with it
                self._visit(replace(planned), number)
            self._measure_reference(number)
            remaining = self._next_pass(remaining, begun_s)
            number = number + 1
        self._recorder.flag_disturbed(self._cases, self._conditions)
        status = 0
        if self._world.rank == 0:
            kinds = sorted(self._conditions.evidence.kinds.items())
            self._run["transports"] = {
                f"{first}-{second}": texts for (first, second), texts in kinds
            }
            status = self._finish()
        return int(self._control.decide(status, self._deadline_s, "end of run"))

    def _begin_writing(self) -> None:
        """Add the opened library's facts to the record of the run, and start the writers."""
        self._run["backend"] = {
            "name": self._settings.backend.name,
            **library_record(self._communicator.facts()),
        }
        self._run["cuda_ipc"] = {
            **self._run.get("cuda_ipc", {}),
            **self._conditions.evidence.cuda_ipc,
        }
        if self._conditions.evidence.ignored:
            print_error(self._conditions.evidence.ignored)
        # empty where it hosts several ranks
        own = {os.getpid(): process_text(0)} if self._world.size == 1 else {}
        self._run["processes"] = self._heartbeat.names() if self._heartbeat is not None else own
        self._run["cases"] = sum(len(row_ids(planned)) for planned in self._cases)
        durations_s = (duration_s(self._settings, planned) for planned in self._cases)
        self._run["at_most_s"] = sum(durations_s) / self._settings.timing.launches
        memory = self._run["memory"] = {
            "buffers_bytes": largest_bytes(self._cases, self._world.rank)
        }
        calibrated = ("empty_sample_s", "overhead_s", "host_copies_gb_per_s")
        self._run["calibration"] = {name: getattr(self._conditions, name) for name in calibrated}
        self._recorder.begin()
        # by now what a case needs is loaded: the engine, pyarrow
        memory |= {"imports_bytes": resident_bytes()}

    def _measure_reference(self, number: int) -> None:
        """Measure the reference case at the end of a pass, so that the cases' own first calls
        connect, if there is time."""
        if self._reference is None:
            return
        reason = self._recorder.stopped or self._budget_spent()
        if self._control.decide(reason, self._deadline_s, "the reference case") is not None:
            return
        self._reference.measure(number, self._communicators, self._control, self._progress)
        self._conditions = replace(
            self._conditions, disturbed=disturbed_passes(self._reference.passes)
        )
        if self._world.rank == 0:
            self._run["reference"] = self._reference.record()

    def _next_pass(self, cases: tuple[Planned, ...], begun_s: float) -> tuple[Planned, ...]:
        """The cases that need another visit, as rank 0 decides after each pass. All ranks wait
        until it may begin."""
        wait_s = (
            0.0
            if self._reference is None
            else max(0.0, begun_s + spacing_s(self._settings) - time.monotonic())
        )
        if self._budget_spent(wait_s):
            wait_s = 0.0  # do not spend the rest of the run's time waiting
        value = [self._recorder.next_pass(cases, wait_s), wait_s] if self._world.rank == 0 else None
        chosen, wait_s = self._control.decide(value, self._deadline_s, "the cases of the next pass")
        if chosen and wait_s > 0:
            self._progress.enter("the time between two passes")
            time.sleep(wait_s)
        return tuple(planned for planned in cases if planned.order in chosen)

    def _visit(self, planned: Planned, number: int) -> None:
        """Agree on whether to measure a case, measure it on its ranks, and record it; `number` is
        the pass."""
        given_up = self._earlier.given_up(planned.case.case_id)
        reason = given_up or planned.skip or self._recorder.stopped or self._budget_spent()
        self._progress.enter(f"the start of {planned.case}")
        skip = self._control.decide(reason, self._deadline_s, f"start of {planned.case}")
        # the ranks that take no part wait for the next case
        self._deadline_s = case_deadline_s(planned, self._settings)
        started = datetime.now(timezone.utc)
        if skip is not None:
            if given_up and self._world.rank == 0:
                self._recorder.break_off(planned, skip, self._conditions, started)
            elif planned.skip or not self._recorder.end_visits(planned, self._conditions, started):
                self._record(planned, Refused(skip), started)
            return
        if self._world.rank == 0:
            mark_in_flight(self._run["folder"], planned.case.case_id, str(planned.case))
            self._recorder.begin_visit(planned)
        communicator = self._communicators[planned.group]
        if communicator is None:
            return
        control = self._control.subset(planned.members)
        setup = VisitSetup(
            planned,
            communicator,
            control,
            self._settings,
            self._conditions.empty_sample_s,
            sink=partial(self._record, planned, started=started),
            progress=self._progress,
            clocks=self._clocks,
            number=number,
            first_block_k=self._recorder.block_k(planned),
            slow_start=self._conditions.evidence.starts_slowly(planned),
        )
        visit = CaseVisit(setup)
        self._current = visit, started
        try:
            outcome = visit.measure()
            self._conditions = self._reader.after(
                self._conditions, planned, control, self._deadline_s
            )
        except (KeyboardInterrupt, SystemExit):  # the finished part of a soak has been recorded
            self._current = None
            raise
        self._current = None
        self._print_refused_graph(planned, outcome)
        self._record(planned, outcome, started)

    def _print_refused_graph(self, planned: Planned, outcome: Outcome) -> None:
        """Say the first time on rank 0 that a capture failed: no later one may be possible."""
        if planned.case.timing_mode != "graph" or not isinstance(outcome, Refused):
            return
        first = outcome.unsupported and not self._graph_was_refused
        if first and self._world.rank == 0:
            print_error(f"{planned.case} with timing_mode=graph: {outcome.reason}")
        self._graph_was_refused |= outcome.unsupported

    def _budget_spent(self, later_s: float = 0.0) -> str | None:
        total_s = self._settings.budget.total_s
        spent_s = time.monotonic() - self._begun_s + later_s
        return (
            f"budget.total_s={total_s:g} is spent"
            if total_s is not None and spent_s > total_s
            else None
        )

    def _record(self, planned: Planned, outcome: Outcome, started: datetime) -> None:
        if self._world.rank == 0:
            self._recorder.record(planned, outcome, self._conditions, started)

    def _finish(self) -> int:
        """Compare the rows with the user's expectations, and end the writers; returns the exit
        status."""
        if self._recorder.stopped or self._budget_spent():
            for planned in self._cases:
                self._recorder.end_visits(planned, self._conditions, datetime.now(timezone.utc))
        clear_in_flight(self._run["folder"])
        if self._recorder.more_launches and read_record(self._run["folder"]):
            self._run["launches"]["spent_s"] = time.monotonic() - self._begun_s
            self._close("running", 0)
            return int(self._run["exit_status"])
        rows = self._recorder.rows
        missed = [
            line
            for expected in self._settings.expect
            for line in missed_expectations(expected, list(rows.values()))
        ]
        missed += self._request.judged(self._run["folder"]) if self._settings.expect_normal else []
        statuses = {
            **self._earlier.recorded,
            **{case_id: values["status"] for case_id, values in rows.items()},
        }
        bad = set(BAD).intersection(statuses.values())
        status = 1 if missed or bad or self._recorder.has_left_out else 0
        self._close("done", status, "; ".join(missed) or None)
        for line in missed:
            print(line, file=sys.stderr)
        return int(self._run["exit_status"])  # 3 if results could not be saved

    def end(self, status: int) -> None:
        """Close the library and leave the world after the run has ended on all ranks."""
        self._closing_status = status
        self._progress.enter("the closing of the library", limit_s=MEETING_S)
        gc.collect()  # a captured graph would keep its communicator alive
        self._communicator.close()
        # the store may be gone after the farewell: that must not count as a lost rank
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._control.farewell(MEETING_S)

    # ------------------------------------------------------------ a run that ends early

    def located(self, error: Exception) -> WorldBroken:
        """The error as one that ends the world; on rank 0 it says which process raised it, or where
        missing ranks were last seen."""
        if isinstance(error, StoreLost):
            return error
        if isinstance(error, Missing) and self._world.rank == 0 and self._heartbeat is not None:
            return Missing(
                error.ranks, error.meeting, error.deadline_s, self._heartbeat.describe(error.ranks)
            )
        if isinstance(error, WorldBroken):
            return error
        # of other ranks the command line adds it
        name = f"{process_text(0)}: " if self._world.rank == 0 else ""
        text = process_limit(error) or f"{type(error).__name__}: {error}"
        return WorldBroken(f"{name}{text}")

    def save_after_signal(self, status: int) -> None:
        """Save the results so far after a signal from a user, or from a launcher that has lost
        another rank."""
        if self._closing_status is not None:
            return
        if self._opened:
            self._communicator.close(abort=True)
        if self._heartbeat is not None:
            self._heartbeat.wait_for_first_rank(SAVE_S)
        if self._lost_ranks:
            self._record_case_in_flight(self._lost_ranks)
        # the main thread is in a call that waits for an interrupted rank
        elif self._current is not None:
            with suppress(Exception):  # the run must end properly even if a writer fails
                self._current[0].save_interrupted()
        if self._lost_ranks and self._request.has_parent:
            report_reason(self._lost_ranks)
        self._close("interrupted", status, self._lost_ranks or None)
        if self._lost_ranks and not self._request.has_parent:
            self._print_end(self._lost_ranks)

    def save_after_error(self, reason: str) -> bool:
        """Save the results so far; returns whether the parent will report the reason."""
        with suppress(Exception):  # the error may come from the writer of this row
            self._record_case_in_flight(reason)
        if self._opened:
            self._communicator.close(abort=True)
        self._run["stacks"] = {f"rank {self._world.rank}": traceback.format_exc().splitlines()}
        with suppress(OSError):
            self._close("broken", WorldBroken.exit_status, reason)
        if not self._request.has_parent and self._recorder.writers.begun:
            self._print_end()
        self._clean_up_host()
        return self._request.has_parent and bool(self._recorder.writers.begun)

    def find_lost_ranks(self, number: int) -> bool:
        """Called immediately on a signal, before the launcher ends more ranks; returns whether all
        ranks are alive."""
        first = not self._signalled
        self._signalled = True
        if first and number == signal.SIGTERM and self._heartbeat is not None:
            dead = self._heartbeat.dead_here()
            neighbours = self._world.neighbours
            # rank 0, or the first live rank where it is dead
            if self._world.rank == min({0, *neighbours} - {*dead}):
                self._lost_ranks = self._heartbeat.describe_lost(dead)
            if self._world.rank == 0:  # before its main thread unwinds
                self._run["stacks"] = self._heartbeat.stacks()
        return not self._lost_ranks

    def _end_from_heartbeat(self, ender: RunEnder, reason: str, found_by_rank_0: bool) -> None:
        """End the run from the heartbeat's thread: the main thread may be in a call that never
        returns."""
        if self._closing_status is None:
            ender.finish(
                WorldBroken.exit_status, partial(self._save_from_heartbeat, reason, found_by_rank_0)
            )
        # it reports the rank that did not end; the results and the status are written
        elif self._request.has_parent:
            ender.finish(0, lambda: None)
        else:
            text = f"the run is complete, but its world did not close: {reason}"
            ender.finish(self._closing_status, partial(print_error, text))

    def _save_from_heartbeat(self, reason: str, found_by_rank_0: bool) -> None:
        self._clean_up_host()
        rank = self._world.rank
        node = self._world.neighbours
        has_parent = self._request.has_parent
        begun = bool(self._recorder.writers.begun)
        notified = whom_to_notify(rank, node, has_parent, begun, found_by_rank_0)
        if notified is Notify.PARENT:
            report_reason(reason)
        if notified is Notify.USER:
            self._print_end(reason)
        if rank == 0 and self._recorder.lock.acquire(timeout=LOCK_S):
            self._record_case_in_flight(reason)
            if self._heartbeat is not None:
                self._run["stacks"] = self._heartbeat.stacks()
            self._close("broken", WorldBroken.exit_status, reason)
        if rank == 0 and not has_parent and len(self._world.nodes) > 1:
            time.sleep(VERDICT_S)  # other nodes would report that rank 0 is lost

    def _close(self, status: str, exit_status: int, reason: str | None = None) -> None:
        if self._world.rank == 0:
            self._recorder.close(status, exit_status, reason)

    def _record_case_in_flight(self, reason: str) -> None:
        """Record on rank 0 that the world broke in the case in flight, if there is one."""
        if self._world.rank == 0 and self._current is not None:
            visit, started = self._current
            self._recorder.break_off(visit.setup.planned, reason, self._conditions, started)

    def _clean_up_host(self) -> None:
        """Without a parent: end the stopped ranks of this host, and remove the library's shared
        memory."""
        if not self._request.has_parent and self._heartbeat is not None:
            self._heartbeat.continue_stopped()
            remove_shared_memory(mapped_shared_memory([os.getpid()]))

    def _print_end(self, reason: str | None = None) -> None:
        self._recorder.reporter.end()
        if reason is not None:
            print_error(reason)
        if self._recorder.writers.begun and (text := how_to_finish(self._run["folder"])):
            print_error(text)
