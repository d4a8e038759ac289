"""A run inside its world, as each rank executes it: preflight, plan, open the library, measure,
record, end."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from commbench.backends.buffers.memory import largest_bytes, resident_bytes
from commbench.config.settings import SEARCH, Settings, on_nodes
from commbench.core.case import CaseGroup, Planned, RankIdentity, World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.program import Group
from commbench.core.protocols import Communicator, Control
from commbench.core.states import Row
from commbench.core.terminal import Terminal, print_error
from commbench.hardware import machine_facts, resource_limits
from commbench.hardware.network import network_advice
from commbench.results.recorded import recorded_rows
from commbench.results.run_folder import read_record
from commbench.runtime.exit_protocol import process_text
from commbench.runtime.heartbeat import Heartbeat, Progress
from commbench.runtime.launchers.join import join_world
from commbench.runtime.launchers.registry import library_settings
from commbench.runtime.recovery import EarlierStarts, clear_in_flight, mark_in_flight
from commbench.runtime.rendezvous import bind_rank, check_layouts
from commbench.runtime.signals import SIGNAL_STATUS, RunEnder
from commbench.runtime.start_limit import meetings_end

from .case import CaseVisit
from .compute_amounts import ComputeAmount, compute_amount
from .conditions import Conditions, ConditionsReader
from .early_end import EarlyEnd, VisitInFlight
from .expectations import Verdict, verdict_on
from .further_rounds import FurtherRounds, SearchResult, pair_search
from .global_clock import GlobalClocks
from .plan import duration_s, pass_order, plan
from .plan_facts import PlanFacts
from .preflight import MEETING_S, Request, preflight
from .recorder import BAD, Recorder
from .reference_case import ReferenceCase
from .samples import Outcome, Refused
from .time_limits import TotalBudget, case_deadline_s, spacing_s
from .transports import library_record
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
    cores = sorted(os.sched_getaffinity(0))
    quota = resource_limits.cpu_limit_cores()
    binding = bind_rank(settings.bind, world, settings.threads_per_rank)
    launches = settings.timing.launches
    if not request.has_parent and launches > 1:  # nobody is there to start another world
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
    mine = machine_facts.collect() | {"run.digest": request.job.digest, "run.bind": binding}
    with meetings_end(MEETING_S, "preflight", identity):
        facts, run = preflight(settings, request, world, control, mine, cores[: max(1, int(quota))])
    if settings.plan:
        control.farewell(MEETING_S)
        return 0
    session = _Session(RunSetup(settings, world, control, PlanFacts(*facts), run, request))
    early_end = session.early_end
    with RunEnder(early_end.save_after_signal, early_end.find_lost_ranks) as ender:
        try:
            session.open(ender, identity)
            status = session.measure()
        # finished cases, and a soak's part, are kept
        except (KeyboardInterrupt, SystemExit) as stop:
            early_end.save_after_signal(
                SIGNAL_STATUS + (2 if isinstance(stop, KeyboardInterrupt) else 15)
            )
            raise
        except ConfigError:  # raised on all ranks: the library can't be opened like that
            ender.claim()
            raise
        # a full disk on rank 0 must not leave the others waiting for a run that is over
        except Exception as error:
            ender.claim()
            raise early_end.save_after_error(error) from error
        session.close(status)
    return status


@dataclass(frozen=True)
class RunSetup:
    """What a session is given. `run` is the record of the run, which rank 0 writes."""

    settings: Settings
    world: World
    control: Control
    facts: PlanFacts
    run: dict[str, Any]
    request: Request

    @property
    def earlier(self) -> EarlierStarts:
        return self.request.earlier or EarlierStarts()


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
    """The cases of one run. Rank 0 records; the ranks that a case does not need wait for the next
    meeting."""

    _library: _Library  # set by `open`
    _conditions: Conditions  # set by `measure`

    def __init__(self, setup: RunSetup) -> None:
        settings = setup.settings
        run = setup.run
        self._setup = setup
        self._cases = plan(settings, setup.world, setup.facts)
        self._clocks = GlobalClocks(setup.world, settings.interface)
        self._recorder = Recorder(
            settings, run, sum(len(planned.case.row_ids) for planned in self._cases)
        )
        self.early_end = EarlyEnd(setup.world, self._recorder, run, setup.request.has_parent)
        self._search: FurtherRounds | None = None
        if settings.pairs == SEARCH:
            search = pair_search()
            self._search = search.node_search(settings, setup.world, setup.facts, len(self._cases))
        self._reference: ReferenceCase | None = None
        if settings.timing.visits > 1 and not settings.backend.hosts_ranks:
            self._reference = ReferenceCase(settings, setup.world, setup.facts)
        earlier_s = run.get("launches", {}).get("spent_s", 0.0)
        self._budget = TotalBudget(settings.budget.total_s, time.monotonic() - earlier_s)
        self._deadline_s = MEETING_S  # of the next meeting of all ranks
        self._progress = Progress()
        self._graph_was_refused = False

    # ------------------------------------------------------------ open

    def open(self, ender: RunEnder, identity: RankIdentity | None) -> None:
        """Start the heartbeat, open the library, and create the communicators of all cases."""
        settings = self._setup.settings
        control = self._setup.control
        world = self._setup.world
        # first: a rank may also be lost while the library opens
        if len(world.hosted) < world.size:
            with meetings_end(MEETING_S, "the first heartbeat", identity):
                self.early_end.heartbeat = Heartbeat(
                    control,
                    self._progress,
                    settings.budget.silence_s,
                    partial(self.early_end.end_from_heartbeat, ender),
                    MEETING_S,
                )
        several_nodes = len(world.nodes) > 1
        advice = network_advice("the hosts may not reach each other") if several_nodes else ""
        self._progress.enter("the opening of the library", limit_s=MEETING_S, advice=advice)
        communicator = settings.backend.open(world, control, settings.device)
        self.early_end.communicator = communicator
        library = communicator.facts().get("library")
        self._cases = tuple(
            replace(planned, case=replace(planned.case, library=library)) for planned in self._cases
        )
        to_visit = self._cases
        if self._setup.request.earlier is not None:
            if self._search is not None:
                self._cases += self._rounds_of_earlier_starts(self._search, library)
            to_visit = self._cases
            self._cases = self._unfinished_cases()
            if self._search is None:  # which may visit finished ones again
                to_visit = self._cases
        reference = set() if self._reference is None else self._reference.groups
        planned_groups = (
            (planned.group, *planned.inner_groups.values())
            for planned in to_visit
            if not planned.skip
        )
        own = set(chain.from_iterable(planned_groups))
        reader = ConditionsReader(settings, world, control, self._setup.run, communicator)
        groups = {group: reader.open_group(group) for group in sorted(own | {SINGLE} | reference)}
        self._library = _Library(communicator, reader, groups)
        self._progress.enter("the time before the first case")

    def _rounds_of_earlier_starts(
        self, search: FurtherRounds, library: str | None
    ) -> tuple[Planned, ...]:
        """The cases of the further rounds of a search that goes on, as rank 0 reads them in the
        folder."""
        rounds = search.begun(self._earlier_rows.values())
        decided = self._setup.control.decide(rounds, MEETING_S, "the rounds of earlier starts")
        return search.go_on_after(decided, library)

    def _unfinished_cases(self) -> tuple[Planned, ...]:
        """Those that earlier starts of the run have left; their visits so far are continued."""
        earlier = self._setup.earlier
        self._recorder.continue_visits(self._cases, earlier.visits)
        unfinished = [
            planned.order
            for planned in self._cases
            if earlier.unfinished(planned.case.case_id, planned.case.row_ids)
            and not self._recorder.is_settled(planned)
        ]
        chosen = self._setup.control.decide(unfinished, MEETING_S, "the unfinished cases")
        return tuple(planned for planned in self._cases if planned.order in chosen)

    # ------------------------------------------------------------ measure

    def measure(self) -> int:
        """Measure and record case after case; returns the exit status."""
        setup = self._setup
        gc.collect()
        # imported modules stay alive: collections between cases then take microseconds, not 50 ms
        gc.freeze()
        self._conditions = self._library.reader.read(
            self._library.groups[SINGLE], self._cases, setup.facts
        )
        if setup.world.rank == 0:
            self._begin_writing()
        number = 1
        remaining = self._cases or self._next_round()
        while remaining:
            begun_s = time.monotonic()
            for planned in pass_order(remaining, setup.settings, number):
                # a copy: the programs of all ranks are released with it
                self._visit(replace(planned), number)
            self._measure_reference(number)
            remaining = self._next_pass(remaining, begun_s) or self._next_round()
            number = number + 1
        status = self._finish() if setup.world.rank == 0 else 0
        return int(setup.control.decide(status, self._deadline_s, "end of run"))

    def _visit(self, planned: Planned, number: int) -> None:
        """Agree on whether to measure a case, measure it on its ranks, and record it; `number` is
        the pass."""
        setup = self._setup
        is_rank_0 = setup.world.rank == 0
        given_up = setup.earlier.given_up(planned.case.case_id)
        reason = given_up or planned.skip or self._recorder.stopped or self._budget.end_reason()
        self._progress.enter(f"the start of {planned.case}")
        computed = ComputeAmount()
        if is_rank_0 and reason is None:
            computed = self._compute_amount(planned)
        decided = [reason or computed.reason, computed.amount]
        skip, amount = setup.control.decide(decided, self._deadline_s, f"start of {planned.case}")
        if amount is not None:
            planned = replace(planned, compute_amount=amount)
        # the ranks that take no part wait for the next case
        self._deadline_s = case_deadline_s(planned, setup.settings)
        started = datetime.now(timezone.utc)
        if skip is not None:
            if given_up and is_rank_0:
                self._recorder.break_off(planned, skip, self._conditions, started)
            elif planned.skip or not self._recorder.end_visits(planned, self._conditions):
                self._record(planned, Refused(skip), started)
            return
        if is_rank_0:
            mark_in_flight(setup.run["folder"], planned.case.case_id, str(planned.case))
            self._recorder.begin_visit(planned)
        communicator = self._library.groups[planned.group]
        if communicator is not None:
            outcome = self._measured(planned, communicator, number, started)
            self._print_refused_graph(planned, outcome)
            self._record(planned, outcome, started)

    def _compute_amount(self, planned: Planned) -> ComputeAmount:
        """How much the ranks compute in each sample of the case, on rank 0."""
        if planned.case.overlap is None:
            return ComputeAmount()
        return compute_amount(planned, self._all_rows(), self._conditions.compute_units_s)

    def _measured(
        self, planned: Planned, communicator: Communicator, number: int, started: datetime
    ) -> Outcome:
        """The outcome of a visit, on the ranks of the case; adds to the conditions what the library
        logged in it."""
        visit_setup = VisitSetup(
            planned,
            communicator,
            groups=self._library.inner_groups(planned),
            control=self._setup.control.subset(planned.members),
            settings=self._setup.settings,
            empty_sample_s=self._conditions.empty_sample_s,
            sink=partial(self._record, planned, started=started),
            progress=self._progress,
            clocks=self._clocks,
            number=number,
            first_block_k=self._recorder.block_k(planned),
            slow_start=self._conditions.evidence.starts_slowly(planned),
            visit=self._recorder.next_visit(planned),
        )
        visit = CaseVisit(visit_setup)
        self.early_end.in_flight = VisitInFlight(visit, started, self._conditions)
        try:
            outcome = visit.measure()
            self._conditions = self._library.reader.after(
                self._conditions, planned, visit_setup.control, self._deadline_s
            )
        except (KeyboardInterrupt, SystemExit):  # the finished part of a soak has been recorded
            self.early_end.in_flight = None
            raise
        self.early_end.in_flight = None
        return outcome

    def _print_refused_graph(self, planned: Planned, outcome: Outcome) -> None:
        """Say the first time on rank 0 that a capture failed: no later one may be possible."""
        if planned.case.timer != "graph" or not isinstance(outcome, Refused):
            return
        first = outcome.unsupported and not self._graph_was_refused
        if first and self._setup.world.rank == 0:
            print_error(f"{planned.case} with timer=graph: {outcome.reason}")
        self._graph_was_refused |= outcome.unsupported

    def _record(self, planned: Planned, outcome: Outcome, started: datetime) -> None:
        if self._setup.world.rank == 0:
            self._recorder.record(planned, outcome, self._conditions, started)

    def _measure_reference(self, number: int) -> None:
        """Measure the reference case at the end of a pass, so that the cases' own first calls
        connect, if there is time."""
        if self._reference is None:
            return
        control = self._setup.control
        reason = self._recorder.stopped or self._budget.end_reason()
        if control.decide(reason, self._deadline_s, "the reference case") is not None:
            return
        self._reference.measure(number, self._library.groups, control, self._progress)
        if self._setup.world.rank == 0:
            self._setup.run["reference"] = self._reference.record()

    def _next_pass(self, cases: tuple[Planned, ...], begun_s: float) -> tuple[Planned, ...]:
        """The cases that need another visit, as rank 0 decides after each pass. All ranks wait
        until it may begin."""
        wait_s = 0.0
        if self._reference is not None:
            wait_s = max(0.0, begun_s + spacing_s(self._setup.settings) - time.monotonic())
        if self._budget.end_reason(wait_s):
            wait_s = 0.0  # do not spend the rest of the run's time waiting
        value = None
        if self._setup.world.rank == 0:
            value = [self._recorder.next_pass(cases, wait_s), wait_s]
        chosen, wait_s = self._setup.control.decide(
            value, self._deadline_s, "the cases of the next pass"
        )
        if chosen and wait_s > 0:
            self._progress.enter("the time between two passes")
            time.sleep(wait_s)
        return tuple(planned for planned in cases if planned.order in chosen)

    def _next_round(self) -> tuple[Planned, ...]:
        """The further cases of a search, as rank 0 decides."""
        if self._search is None:
            return ()
        value = None
        if self._setup.world.rank == 0:
            ended = self._recorder.stopped or self._budget.end_reason()
            value = self._search.choose(None if ended else self._search_so_far(self._search))
        decided = self._setup.control.decide(value, self._deadline_s, "the next round")
        library = self._library.communicator.facts().get("library")
        further = self._search.further(decided, library)
        self._cases += further
        if self._setup.world.rank == 0 and further:
            self._recorder.add_cases(further)
        return further or self._search.repeated(decided, library)

    # ------------------------------------------------------------ the record of the run, on rank 0

    def _begin_writing(self) -> None:
        """Add the opened library's facts to the record of the run, and start the writers."""
        setup = self._setup
        run = setup.run
        settings = setup.settings
        evidence = self._conditions.evidence
        run["backend"] = {
            "name": settings.backend.name,
            **library_record(self._library.communicator.facts()),
        }
        run["cuda_ipc"] = {**run.get("cuda_ipc", {}), **evidence.cuda_ipc}
        if evidence.ignored:
            print_error(evidence.ignored)
        heartbeat = self.early_end.heartbeat
        # empty where it hosts several ranks
        own = {os.getpid(): process_text(0)} if setup.world.size == 1 else {}
        run["processes"] = heartbeat.names() if heartbeat is not None else own
        run["cases"] = sum(len(planned.case.row_ids) for planned in self._cases)
        durations_s = (duration_s(settings, planned) for planned in self._cases)
        run["at_most_s"] = sum(durations_s) / settings.timing.launches
        memory = run["memory"] = {"buffers_bytes": largest_bytes(self._cases, setup.world.rank)}
        calibrated = ("empty_sample_s", "overhead_s", "host_copies_gb_per_s", "compute_units_s")
        run["calibration"] = {name: getattr(self._conditions, name) for name in calibrated}
        self._recorder.begin()
        # by now what a case needs is loaded: the engine, pyarrow
        memory |= {"imports_bytes": resident_bytes()}

    def _finish(self) -> int:
        """Compare the rows with the user's expectations, and end the writers; returns the exit
        status."""
        setup = self._setup
        run = setup.run
        kinds = sorted(self._conditions.evidence.kinds.items())
        run["transports"] = {f"{first}-{second}": texts for (first, second), texts in kinds}
        own = setup.settings.backend.environment(setup.settings.cuda_ipc, setup.settings.interface)
        exported = {*library_settings(setup.world.launcher), *own}
        run["settings"] = self._library.communicator.settings(setup.world.nodes, exported)
        if self._recorder.stopped or self._budget.end_reason():
            for planned in self._cases:
                self._recorder.end_visits(planned, self._conditions)
        clear_in_flight(run["folder"])
        if self._recorder.more_launches and read_record(run["folder"]):
            run["launches"]["spent_s"] = self._budget.spent_s
            self._recorder.close("running", 0, None)
            return int(run["exit_status"])
        rows = self._recorder.rows
        verdict = self._verdict()
        statuses = {
            **setup.earlier.recorded,
            **{case_id: values["status"] for case_id, values in rows.items()},
        }
        bad = set(BAD).intersection(statuses.values())
        met = verdict is None or verdict.passes(setup.settings.expect_missing)
        search = self._search_so_far(self._search) if self._search is not None else None
        unclean = [] if search is None or search.is_clean else [search.counts_text]
        status = 1 if bad or not met or unclean or self._recorder.has_left_out else 0
        if search is not None:
            run["search"] = search.record()
        missed = () if verdict is None else (*verdict.missed, *verdict.not_measured)
        self._recorder.close("done", status, "; ".join([*missed, *unclean]) or None)
        if search is not None:
            print(f"{search.text(Terminal.of(sys.stdout))}\nresults: {run['folder']}")
        if verdict is not None:
            print("\n".join([*missed, verdict.summary()]), file=sys.stderr)
        return int(run["exit_status"])  # 3 if results could not be saved

    def _search_so_far(self, rounds: FurtherRounds) -> SearchResult | None:
        """What all rows of the run say about the ranks, on rank 0."""
        rows = self._all_rows().values()
        return rounds.result(rows, self._conditions.hosts, self._budget.spent_s)

    def _all_rows(self) -> dict[str, Row]:
        """The rows of the run, also those of earlier starts, by case_id."""
        return {**self._earlier_rows, **self._recorder.rows}

    @cached_property
    def _earlier_rows(self) -> Mapping[str, Row]:
        """The rows of earlier starts, as they were when this one began."""
        setup = self._setup
        return recorded_rows(Path(setup.run["folder"])) if setup.earlier.recorded else {}

    def _verdict(self) -> Verdict | None:
        """Compare all cases of the run with the user's expectations, also those of earlier starts;
        None without expectations."""
        setup = self._setup
        folder = setup.run["folder"]
        verdicts = []
        if setup.settings.expect:
            judged = self._all_rows().values()
            decided_by = setup.settings.expect_by
            verdicts = [verdict_on(each, judged, decided_by) for each in setup.settings.expect]
        if setup.settings.expect_normal:
            verdicts.append(setup.request.judged(folder))
        return sum(verdicts, Verdict()) if verdicts else None

    # ------------------------------------------------------------ close

    def close(self, status: int) -> None:
        """Close the library and leave the world after the run has ended on all ranks."""
        self.early_end.closing_status = status
        self._progress.enter("the closing of the library", limit_s=MEETING_S)
        gc.collect()  # a captured graph would keep its communicator alive
        self._library.communicator.close()
        # the store may be gone after the farewell: that must not count as a lost rank
        if self.early_end.heartbeat is not None:
            self.early_end.heartbeat.stop()
        self._setup.control.farewell(MEETING_S)
