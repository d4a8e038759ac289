"""A run inside its world, as each of its ranks executes it.

1. Join the world, bind to cores, compare the machines of all ranks (`run_in_world`).
2. Make the plan. Open the library, and the communicators of all cases (`_open`).
3. Measure: a run makes passes over its cases, and visits each several times (`_measure`). All ranks
   make the same calls: rank 0 decides, records, and makes the rows. Ranks that a case does not need
   wait at the next meeting.
4. Close the library and leave the world (`_close`).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from commbench.backends.buffers.memory import largest_bytes, resident_bytes
from commbench.config.settings import SEARCH, Settings, on_nodes
from commbench.core.case import CaseGroup, Planned, RankIdentity, World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.program import Group
from commbench.core.protocols import Communicator, Control
from commbench.core.terminal import Terminal, print_error
from commbench.hardware import machine_facts, resource_limits
from commbench.hardware.network import network_advice
from commbench.results.recorded import recorded_rows
from commbench.results.row import Row
from commbench.results.run_folder import read_record
from commbench.runtime.core_binding import bind_rank
from commbench.runtime.exit_protocol import process_text
from commbench.runtime.heartbeat import Heartbeat, Progress
from commbench.runtime.launchers.join import join_world
from commbench.runtime.launchers.registry import library_settings
from commbench.runtime.recovery import EarlierStarts, clear_in_flight, mark_in_flight
from commbench.runtime.rendezvous import check_layouts
from commbench.runtime.signals import SIGNAL_STATUS, RunEnder
from commbench.runtime.start_limit import meetings_end

from .case import CaseVisit
from .conditions import Conditions, ConditionsReader
from .early_end import EarlyEnd, VisitInFlight
from .expectations import verdict_on
from .further_rounds import FurtherRounds, SearchResult, pair_search
from .measuring import Decision, deciding_on
from .nccl_evidence import library_record
from .plan import duration_s, pass_order, plan
from .plan_facts import PlanFacts
from .preflight import preflight
from .recorder import BAD, Recorder
from .reference_case import ReferenceCase
from .request import Request
from .samples import Outcome, Refused
from .time_limits import MEETING_S, TotalBudget, case_deadline_s, spacing_s
from .visit_setup import VisitSetup

ONE_LAUNCH = "commbench can start only its own ranks again, so this run has one launch"
SINGLE = CaseGroup((0,))  # of rank 0 alone


def _loaded_ahead(settings: Settings, identity: RankIdentity | None) -> list[str]:
    """What this rank loads before its first repetition, and takes long."""
    native = ["commbench.engines.native"] if "native" in settings.backend.engines else []
    writers = ["pandas", "pyarrow.parquet"] if identity is not None and identity.rank == 0 else []
    return [*native, *writers]


def run_in_world(request: Request, identity: RankIdentity | None) -> int:
    """Measure all cases as one rank of a world; returns the exit status.

    `identity` is None where this process hosts all ranks.
    """
    settings = request.job.settings
    world, control = join_world(settings, identity, _loaded_ahead(settings, identity))
    quota = max(1, int(resource_limits.cpu_limit_cores()))
    cores = sorted(os.sched_getaffinity(0))[:quota]
    binding = bind_rank(settings.bind, world, settings.threads_per_rank)
    settings = _completed(settings, world, request.has_parent)
    mine = machine_facts.collect() | {"run.digest": request.job.digest, "run.bind": binding}
    with meetings_end(MEETING_S, "preflight", identity):
        facts, run = preflight(settings, request, world, control, mine, cores)
    if settings.plan:
        control.farewell(MEETING_S)
        return 0
    return _Session(settings, world, control, facts, run, request).run(identity)


def _completed(settings: Settings, world: World, has_parent: bool) -> Settings:
    """The settings with what the world decides. Raises ConfigError for layouts that do not fit."""
    launches = settings.timing.launches
    # nobody is there to start another world
    if launches > 1 and not has_parent and not world.is_hosted:
        if world.rank == 0:
            print_error(f"timing.launches={launches}: {ONE_LAUNCH}")
        settings = replace(settings, timing=replace(settings.timing, launches=1))
    if not settings.layouts:
        layout = Layout.of_all(world)
        idle = layout.idle_text(world)
        if idle is not None and world.rank == 0:
            print_error(f"layout=auto: {idle}")
        settings = replace(settings, layouts=on_nodes((layout,), settings.nodes))
    if settings.pairs == SEARCH:
        pair_search().check_search(settings.layouts[0])
    check_layouts(settings.layouts, world)
    return settings


@dataclass(frozen=True)
class _Library:
    """The opened library. A group's communicator is None on ranks outside it."""

    communicator: Communicator
    reader: ConditionsReader
    groups: Mapping[CaseGroup, Communicator | None]

    def inner_groups(self, planned: Planned) -> dict[Group, Communicator]:
        """The communicators of the groups that the case names, of those with a rank here."""
        opened = {ranks: self.groups[group] for ranks, group in planned.inner_groups.items()}
        return {ranks: group for ranks, group in opened.items() if group is not None}


class _Session:
    """The cases of one run. `run` is the record of the run, which rank 0 writes."""

    _library: _Library  # set by `_open`
    _conditions: Conditions  # set by `_measure`

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
        self._is_rank_0 = world.rank == 0
        self._control = control
        self._facts = facts
        self._run = run
        self._request = request
        self._earlier = request.earlier or EarlierStarts()
        self._cases = plan(settings, world, facts)
        self._recorder = Recorder(
            settings, run, sum(len(each.case.row_ids) for each in self._cases)
        )
        self._early_end = EarlyEnd(world, self._recorder, run, request.has_parent)
        self._search: FurtherRounds | None = None
        if settings.pairs == SEARCH:
            self._search = pair_search().node_search(settings, world, facts, len(self._cases))
        self._reference: ReferenceCase | None = None
        if settings.timing.visits > 1 and not settings.backend.hosts_ranks:
            self._reference = ReferenceCase(settings, world, facts)
        earlier_s = run.get("launches", {}).get("spent_s", 0.0)
        self._budget = TotalBudget(settings.budget.total_s, time.monotonic() - earlier_s)
        self._deadline_s = MEETING_S  # of the next meeting of all ranks
        self._progress = Progress()
        self._visits = Counter[str]()  # of each case in this start, where this rank takes part
        self._graph_was_refused = False

    def run(self, identity: RankIdentity | None) -> int:
        """Open, measure and close; returns the exit status. However it ends, finished cases are
        kept, and the part of a soak."""
        early_end = self._early_end
        with RunEnder(early_end.save_after_signal, early_end.find_lost_ranks) as ender:
            try:
                self._open(ender, identity)
                status = self._measure()
            except (KeyboardInterrupt, SystemExit) as stop:
                number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
                early_end.save_after_signal(SIGNAL_STATUS + number)
                raise
            except ConfigError:  # raised on all ranks: the library can't be opened like that
                ender.claim()
                raise
            # a full disk on rank 0 must not leave the others waiting for a run that is over
            except Exception as error:
                ender.claim()
                raise early_end.save_after_error(error) from error
            self._close(status)
        return status

    # ------------------------------------------------------------ open

    def _open(self, ender: RunEnder, identity: RankIdentity | None) -> None:
        """Start the heartbeat, open the library, and create the communicators of all cases."""
        if len(self._world.hosted) < self._world.size:
            # first: a rank may also be lost while the library opens
            with meetings_end(MEETING_S, "the first heartbeat", identity):
                self._early_end.heartbeat = Heartbeat(
                    self._control,
                    self._progress,
                    self._settings.budget.silence_s,
                    partial(self._early_end.end_from_heartbeat, ender),
                    MEETING_S,
                )
        several_nodes = len(self._world.nodes) > 1
        advice = network_advice("the hosts may not reach each other") if several_nodes else ""
        self._progress.enter("the opening of the library", limit_s=MEETING_S, advice=advice)
        communicator = self._settings.backend.open(
            self._world, self._control, self._settings.device
        )
        self._early_end.communicator = communicator
        library = communicator.facts().get("library")
        planned = tuple(
            replace(planned, case=replace(planned.case, library=library)) for planned in self._cases
        )
        self._cases = planned
        if self._request.earlier is not None:
            if self._search is not None:
                planned += self._rounds_of_earlier_starts(self._search, library)
            self._cases = self._unfinished_cases(planned)
        # a search may visit finished cases again
        to_visit = self._cases if self._search is None else planned
        self._library = self._opened_groups(communicator, to_visit)
        self._progress.enter("the time before the first case")

    def _opened_groups(self, communicator: Communicator, cases: Sequence[Planned]) -> _Library:
        """The library with the communicators of all groups of these cases."""
        reader = ConditionsReader(
            self._settings, self._world, self._control, self._run, communicator
        )
        needed = {SINGLE}
        if self._reference is not None:
            needed |= self._reference.groups
        for planned in cases:
            if not planned.skip:
                needed |= {planned.group, *planned.inner_groups.values()}
        groups = {group: reader.open_group(group) for group in sorted(needed)}
        return _Library(communicator, reader, groups)

    def _rounds_of_earlier_starts(
        self, search: FurtherRounds, library: str | None
    ) -> tuple[Planned, ...]:
        """The cases of the further rounds of a search that goes on, as rank 0 reads them in the
        folder."""
        rounds = search.begun(self._earlier_rows.values())
        decided = self._control.decide(rounds, MEETING_S, "the rounds of earlier starts")
        return search.go_on_after(decided, library)

    def _unfinished_cases(self, cases: tuple[Planned, ...]) -> tuple[Planned, ...]:
        """Those that earlier starts of the run have left; their visits so far are continued."""
        self._recorder.continue_visits(cases, self._earlier.visits)
        unfinished = [
            planned.order
            for planned in cases
            if self._earlier.unfinished(planned.case.case_id, planned.case.row_ids)
            and not self._recorder.passes.is_settled(planned)
        ]
        chosen = self._control.decide(unfinished, MEETING_S, "the unfinished cases")
        return tuple(planned for planned in cases if planned.order in chosen)

    # ------------------------------------------------------------ measure

    def _measure(self) -> int:
        """Measure and record pass after pass; returns the exit status."""
        gc.collect()
        # imported modules stay alive: collections between cases then take microseconds, not 50 ms
        gc.freeze()
        single = self._library.groups[SINGLE]
        self._conditions = self._library.reader.read(single, self._cases, self._facts)
        if self._is_rank_0:
            self._begin_writing()
        number = 1
        remaining = self._cases or self._next_round()
        while remaining:
            begun_s = time.monotonic()
            for planned in pass_order(remaining, self._settings, number):
                self._visit(planned)
            self._measure_reference(number)
            if single is not None and self._recorder.has_measured_limits:
                self._conditions = self._library.reader.measure_limits_again(
                    self._conditions, single, self._cases
                )
            remaining = self._next_pass(remaining, begun_s) or self._next_round()
            number = number + 1
        status = self._finish() if self._is_rank_0 else 0
        return int(self._control.decide(status, self._deadline_s, "end of run"))

    def _visit(self, planned: Planned) -> None:
        """Agree on whether to measure a case, measure it on its ranks, and record it."""
        case = planned.case
        self._progress.enter(f"the start of {case}")
        given_up = self._earlier.given_up(case.case_id)
        reason = given_up or planned.skip or self._end_reason()
        deciding = deciding_on(case)
        decision = Decision()
        if self._is_rank_0 and reason is None and deciding is not None:
            of_features = self._conditions.of_features
            decision = deciding.decision(planned, self._all_rows(), of_features)
        decided = [reason or decision.reason, decision.value]
        skip, value = self._control.decide(decided, self._deadline_s, f"start of {case}")
        benchmark = planned.benchmark
        if deciding is not None:
            benchmark = deciding.decided(benchmark, value)
        # a copy: the programs of all ranks are released with it
        planned = replace(planned, benchmark=benchmark)
        # the ranks that take no part wait for the next case
        self._deadline_s = case_deadline_s(planned, self._settings)
        started = datetime.now(timezone.utc)
        if skip is not None:
            if given_up and self._is_rank_0:
                self._recorder.break_off(planned, skip, self._conditions, started)
            elif planned.skip or not self._recorder.end_visits(planned, self._conditions):
                self._record(planned, Refused(skip), started)
            return
        if self._is_rank_0:
            mark_in_flight(self._run["folder"], case.case_id, str(case))
            self._recorder.begin_visit(planned)
        communicator = self._library.groups[planned.group]
        if communicator is not None:
            outcome = self._measured(planned, communicator, started)
            self._print_refused_graph(planned, outcome)
            self._record(planned, outcome, started)

    def _measured(self, planned: Planned, communicator: Communicator, started: datetime) -> Outcome:
        """The outcome of a visit, on the ranks of the case; adds to the conditions what the library
        logged in it."""
        self._visits[planned.case.case_id] += 1
        setup = VisitSetup(
            planned,
            communicator,
            groups=self._library.inner_groups(planned),
            control=self._control.subset(planned.members),
            settings=self._settings,
            empty_sample_s=self._conditions.empty_sample_s,
            sink=partial(self._record, planned, started=started),
            progress=self._progress,
            number=self._visits[planned.case.case_id],
            first_block_k=self._recorder.block_k(planned),
            slow_start=self._conditions.evidence.starts_slowly(planned),
            visit=self._recorder.next_visit(planned),
        )
        visit = CaseVisit(setup)
        self._early_end.in_flight = VisitInFlight(visit, started, self._conditions)
        try:
            outcome = visit.measure()
            self._conditions = self._library.reader.after(
                self._conditions, planned, setup.control, self._deadline_s
            )
        except (KeyboardInterrupt, SystemExit):  # the finished part of a soak has been recorded
            self._early_end.in_flight = None
            raise
        self._early_end.in_flight = None
        return outcome

    def _print_refused_graph(self, planned: Planned, outcome: Outcome) -> None:
        """Say the first time on rank 0 that a capture failed: no later one may be possible."""
        if planned.case.timer != "graph" or not isinstance(outcome, Refused):
            return
        if outcome.unsupported and not self._graph_was_refused:
            self._graph_was_refused = True
            if self._is_rank_0:
                print_error(f"{planned.case} with timer=graph: {outcome.reason}")

    def _record(self, planned: Planned, outcome: Outcome, started: datetime) -> None:
        if self._is_rank_0:
            self._recorder.record(planned, outcome, self._conditions, started)

    def _measure_reference(self, number: int) -> None:
        """Measure the reference case at the end of a pass, so that the cases' own first calls
        connect, if there is time."""
        if self._reference is None:
            return
        reason = self._end_reason()
        if self._control.decide(reason, self._deadline_s, "the reference case") is not None:
            return
        self._reference.measure(number, self._library.groups, self._control, self._progress)
        if self._is_rank_0:
            self._run["reference"] = self._reference.record()

    def _next_pass(self, cases: tuple[Planned, ...], begun_s: float) -> tuple[Planned, ...]:
        """The cases that need another visit, as rank 0 decides after each pass. All ranks wait
        until it may begin."""
        wait_s = 0.0
        if self._reference is not None:
            wait_s = max(0.0, begun_s + spacing_s(self._settings) - time.monotonic())
        if self._budget.end_reason(wait_s):
            wait_s = 0.0  # do not spend the rest of the run's time waiting
        value = [self._recorder.next_pass(cases, wait_s), wait_s] if self._is_rank_0 else None
        meeting = "the cases of the next pass"
        chosen, wait_s = self._control.decide(value, self._deadline_s, meeting)
        if chosen and wait_s > 0:
            self._progress.enter("the time between two passes")
            time.sleep(wait_s)
        return tuple(planned for planned in cases if planned.order in chosen)

    def _next_round(self) -> tuple[Planned, ...]:
        """The further cases of a search, as rank 0 decides."""
        if self._search is None:
            return ()
        value = None
        if self._is_rank_0:
            value = self._search.choose(
                None if self._end_reason() else self._search_so_far(self._search)
            )
        decided = self._control.decide(value, self._deadline_s, "the next round")
        library = self._library.communicator.facts().get("library")
        cases = self._search.following(decided, library)
        known = {planned.order for planned in self._cases}
        # also those that an earlier start has finished
        added = tuple(planned for planned in cases if planned.order not in known)
        self._cases += added
        if self._is_rank_0 and added:
            self._recorder.published.reporter.plan_more(self._count_rows())
        return cases

    def _end_reason(self) -> str | None:
        """Why no further case is measured, as rank 0 knows; None while there is time."""
        return self._recorder.stopped or self._budget.end_reason()

    # ------------------------------------------------------------ the record of the run, on rank 0

    def _begin_writing(self) -> None:
        """Add the opened library's facts to the record of the run, and start the writers."""
        run = self._run
        settings = self._settings
        evidence = self._conditions.evidence
        if evidence.ignored:
            print_error(evidence.ignored)
        facts = self._library.communicator.facts()
        run["backend"] = {"name": settings.backend.name, **library_record(facts)}
        run["cuda_ipc"] = {**run.get("cuda_ipc", {}), **evidence.cuda_ipc}
        heartbeat = self._early_end.heartbeat
        if heartbeat is not None:
            run["processes"] = heartbeat.names()
        else:  # empty where it hosts several ranks
            run["processes"] = {os.getpid(): process_text(0)} if self._world.size == 1 else {}
        rows = self._count_rows()
        durations_s = (duration_s(settings, planned) for planned in self._cases)
        run["at_most_s"] = sum(durations_s) / settings.timing.launches
        run["memory"] = {"buffers_bytes": largest_bytes(self._cases, self._world.rank)}
        calibrated = ("empty_sample_s", "overhead_s", "core_copy_gb_per_s")
        run["calibration"] = {name: getattr(self._conditions, name) for name in calibrated}
        run["calibration"] |= self._conditions.of_features
        self._recorder.published.begin(rows)
        # by now what a case needs is loaded: the engine, pyarrow
        run["memory"]["imports_bytes"] = resident_bytes()

    def _finish(self) -> int:
        """Compare the rows with the user's expectations, and end the writers; returns the exit
        status."""
        run = self._run
        settings = self._settings
        kinds = sorted(self._conditions.evidence.nccl.kinds.items())
        run["transports"] = {f"{first}-{second}": texts for (first, second), texts in kinds}
        own = settings.backend.environment(settings.cuda_ipc, settings.interface)
        exported = {*library_settings(self._world.launcher), *own}
        run["settings"] = self._library.communicator.settings(self._world.nodes, exported)
        if self._end_reason():
            for planned in self._cases:
                self._recorder.end_visits(planned, self._conditions)
        self._recorder.renew_limits(self._cases, self._conditions)
        clear_in_flight(run["folder"])
        if self._recorder.more_launches and read_record(run["folder"]):
            run["launches"]["spent_s"] = self._budget.spent_s
            self._recorder.close("running", 0, None)
            return int(run["exit_status"])
        rows = self._all_rows().values()
        verdicts = (verdict_on(each, rows, settings.expect_by) for each in settings.expect)
        verdict = sum(verdicts, self._request.judged(settings, run["folder"], rows))
        missed = (*verdict.missed, *verdict.not_measured)
        search = None if self._search is None else self._search_so_far(self._search)
        unclean = [] if search is None or search.is_clean else [search.counts_text]
        is_good = not (
            unclean
            or any(row.status in BAD for row in rows)
            or self._recorder.passes.left_out
            or not verdict.passes(settings.expect_missing)
        )
        if search is not None:
            run["search"] = search.record()
        self._recorder.close("done", 0 if is_good else 1, "; ".join([*missed, *unclean]) or None)
        if search is not None:
            print(f"{search.text(Terminal.of(sys.stdout))}\nresults: {run['folder']}")
        if settings.expect or settings.expect_normal:
            print("\n".join([*missed, verdict.summary()]), file=sys.stderr)
        return int(run["exit_status"])  # 3 if results could not be saved

    def _search_so_far(self, rounds: FurtherRounds) -> SearchResult | None:
        """What all rows of the run say about the ranks, on rank 0."""
        rows = self._all_rows().values()
        return rounds.result(rows, self._conditions.hosts, self._budget.spent_s)

    def _all_rows(self) -> dict[str, Row]:
        """The rows of the run, also those of earlier starts, by case_id."""
        return {**self._earlier_rows, **self._recorder.published.rows}

    def _count_rows(self) -> int:
        """The rows of this start. The record of the run has those of all starts."""
        row_ids = {row_id for planned in self._cases for row_id in planned.case.row_ids}
        self._run["cases"] = len(row_ids | self._earlier_rows.keys())
        return len(row_ids)

    @cached_property
    def _earlier_rows(self) -> Mapping[str, Row]:
        """The rows of earlier starts, as they were when this one began."""
        return recorded_rows(Path(self._run["folder"])) if self._earlier.recorded else {}

    # ------------------------------------------------------------ close

    def _close(self, status: int) -> None:
        """Close the library and leave the world after the run has ended on all ranks."""
        self._early_end.closing_status = status
        self._progress.enter("the closing of the library", limit_s=MEETING_S)
        gc.collect()  # a captured graph would keep its communicator alive
        self._library.communicator.close()
        # the store may be gone after the farewell: that must not count as a lost rank
        if self._early_end.heartbeat is not None:
            self._early_end.heartbeat.stop()
        self._control.farewell(MEETING_S)
