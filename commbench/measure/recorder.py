"""Rank 0 records the visits of cases: the row of a case with its samples after each visit, and the
run itself at its end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from commbench.backends.buffers.memory import resident_bytes
from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.states import INTERRUPTED
from commbench.core.variables import Case
from commbench.results.writer import Entry
from commbench.runtime.recovery import EarlierVisits

from .conditions import Conditions
from .pass_planner import PassPlanner
from .row_publisher import RowPublisher
from .row_samples import RowSamples, count_table, row_samples, single_cases
from .rows import RowFacts, row
from .samples import RUNNING, Failure, Outcome, Refused, Samples, Wrong
from .time_limits import VisitRule, visit_rule
from .visits import (
    KEPT_TIMES,
    LEAST_KEPT_TIMES,
    CaseRecord,
    Numbering,
    Visit,
    earlier_visits,
)

BAD = ("failed", "invalid")


class Recorder:
    """The rows of a run, and the visits that they are made from. `run` is the record of the run,
    `cases` the number of rows. Ranks other than 0 have a recorder that stays empty.
    """

    def __init__(self, settings: Settings, run: dict[str, Any], cases: int) -> None:
        self._settings = settings
        self._run = run
        self._records: dict[str, CaseRecord] = {}  # by case_id
        # by the case_id of a case, which may have several rows
        self._numbering: dict[str, Numbering] = {}
        self._begun_s: dict[str, float] = {}  # when its first visit of this start began
        self._kept_times = max(LEAST_KEPT_TIMES, KEPT_TIMES // max(cases, 1))  # per case
        self._ended = False  # whether there is no time for further visits
        self.passes = PassPlanner(settings, run, self._records)
        self.published = RowPublisher(run, settings.writers)
        self.stopped: str | None = None  # why no further case is measured
        self.lock = threading.RLock()  # the heartbeat's thread may have to end the run at any time

    def begin_visit(self, planned: Planned) -> None:
        """A visit of the case begins."""
        self._begun_s.setdefault(planned.case.case_id, time.monotonic())
        self.published.reporter.starts(planned.case)

    def record(
        self, planned: Planned, outcome: Outcome, conditions: Conditions, started: datetime
    ) -> None:
        """A row for the case, or for each of its rows. One that is refused in a later visit keeps
        its visits."""
        with self.lock:
            if isinstance(outcome, Samples):
                self._add_visits(planned, outcome, conditions, started)
            else:
                self._end_rows(planned, outcome, conditions, started, isinstance(outcome, Refused))
            is_brief = planned.case.is_round and planned.case.has_model_clock
            self.published.pass_on(may_wait=is_brief)

    def break_off(
        self, planned: Planned, reason: str, conditions: Conditions, started: datetime
    ) -> None:
        """Record that the world broke in a visit: the row has the results of earlier visits, as
        after an interruption. Without any, and in a soak, the case has failed."""
        with self.lock:
            self._end_rows(planned, Failure(reason), conditions, started, keeps_visits=True)
            self.published.pass_on()

    def continue_visits(
        self, cases: Iterable[Planned], visits: Mapping[str, EarlierVisits]
    ) -> None:
        """Continue these cases with the visits of earlier starts of the run."""
        for planned in cases:
            known = {
                case_id: visits[case_id] for case_id in planned.case.row_ids if case_id in visits
            }
            self._numbering[planned.case.case_id] = Numbering.of(known.values())
            rule = visit_rule(planned, self._settings)
            for case_id, earlier in known.items():
                own = earlier_visits(earlier, self._settings.timing.z, self._kept_times)
                record = self._records[case_id] = CaseRecord(own)
                record.stop_reason = rule.stop_reason(record, self.passes.since, "ci")

    def next_pass(self, cases: Iterable[Planned], wait_s: float = 0.0) -> list[int]:
        """As PassPlanner says; nothing where no further case is measured."""
        return [] if self._ended or self.stopped else self.passes.next_pass(cases, wait_s)

    def end_visits(self, planned: Planned, conditions: Conditions) -> bool:
        """Make the rows of the case say that there was no time for further visits; False if it has
        not been visited."""
        self._ended = True
        for each in single_cases(planned):
            record = self._records.get(each.case.case_id)
            known = self.published.rows.get(each.case.case_id)
            if each.case.case_id in self.passes.left_out:
                continue
            is_open = known is None or known.stop_reason == INTERRUPTED
            if record and record.visits and is_open:
                record.stop_reason = "budget" if self.stopped is None else "stopped"
                self._write_row(each, record, conditions)
        self.published.pass_on()
        return bool(self.passes.visited(planned))

    @property
    def has_measured_limits(self) -> bool:
        """Whether a row is held against a measured rate, which can be measured again."""
        return any(row.limit_kind == "memory" for row in self.published.rows.values())

    def renew_limits(self, cases: Iterable[Planned], conditions: Conditions) -> None:
        """Hold each row against the best that was measured up to the end of the run."""
        if not self.has_measured_limits:
            return
        for planned in cases:
            for each in single_cases(planned):
                record = self._records.get(each.case.case_id)
                known = self.published.rows.get(each.case.case_id)
                if record and known is not None and known.limit_kind == "memory":
                    self._write_row(each, record, conditions)
        self.published.pass_on()

    def block_k(self, planned: Planned) -> int | None:
        """The block_k of the first visit of the case, which all visits have; None before it."""
        return next((record.visits[0].block_k for record in self.passes.visited(planned)), None)

    def next_visit(self, planned: Planned) -> str:
        """The case, the launch, and the number of its next visit, which goes on where earlier
        starts of the run ended."""
        number = 1 + self._numbering.get(planned.case.case_id, Numbering()).visit
        return f"{planned.case.case_id}/{self._settings.trial}/{number}"

    @property
    def more_launches(self) -> bool:
        """Whether another launch is to visit the cases again."""
        return self._launches_left > 0 and any(record.visits for record in self._records.values())

    def close(self, status: str, exit_status: int, reason: str | None) -> None:
        """End the writers, which merge their parts, write run.json and print the table."""
        with self.lock:
            self.published.pass_on()
            finished = datetime.now(timezone.utc).isoformat()
            self._run.setdefault("memory", {})["peak_bytes"] = resident_bytes(peak=True)
            self._run |= {
                "status": status,
                "exit_status": exit_status,
                "reason": reason,
                "finished_at": finished,
            }
            self.published.end()

    def _add_visits(
        self, planned: Planned, samples: Samples, conditions: Conditions, started: datetime
    ) -> None:
        """Add a visit to each row of the case."""
        case_id = planned.case.case_id
        run_id = self._run["run_id"]
        now_s = time.monotonic()  # the wall clock may be set during the run
        elapsed_s = now_s - self._begun_s.setdefault(case_id, now_s)
        numbering = self._numbering.get(case_id, Numbering())
        numbered = numbering.numbered(samples)
        if samples.stop_reason != RUNNING:
            self._numbering[case_id] = numbering.after(numbered)
        rule = visit_rule(planned, self._settings)
        facts = dict[Hashable, RowFacts]()
        parts = row_samples(planned, numbered, run_id, numbering.visit + 1)
        for part in parts:
            outcome: CaseRecord | Wrong = Wrong(samples.wrong_elements)
            if samples.wrong_elements:
                self._records.pop(part.case_id, None)
            else:
                outcome = self._visited_record(part, samples, rule, started, elapsed_s)
            alike = RowFacts.alike(part.planned, conditions)
            shared = facts.setdefault(alike, RowFacts(part.planned, conditions))
            case = part.planned.case
            measured = row(shared, case, outcome, started)
            counters = count_table(part.case_id, part.counts, run_id)
            self._keep_row(case, Entry(measured, part.table, counters))
        if len(parts) > 1:  # they stay until the end: else each collection looks at all of them
            gc.collect(1)
            gc.freeze()

    def _visited_record(
        self,
        part: RowSamples,
        samples: Samples,
        rule: VisitRule,
        started: datetime,
        elapsed_s: float,
    ) -> CaseRecord:
        """The record of a row with a visit that ended so many seconds after the first one of this
        start began."""
        record = self._records.setdefault(part.case_id, CaseRecord())
        before_s = [each.end_s or 0.0 for each in record.visits if each.launch < self._launch]
        z = self._settings.timing.z
        visit = Visit.of(part.times, self._launch, z, self._kept_times)
        record.add(visit.measured(part, samples, started, sum(before_s[-1:]) + elapsed_s, z))
        record.stop_reason = rule.stop_reason(record, self.passes.since, samples.stop_reason)
        return record

    def _write_row(
        self,
        planned: Planned,
        outcome: CaseRecord | Refused | Failure,
        conditions: Conditions,
        started: datetime | None = None,
    ) -> None:
        made = row(RowFacts(planned, conditions), planned.case, outcome, started)
        self._keep_row(planned.case, Entry(made))

    def _end_rows(
        self,
        planned: Planned,
        outcome: Refused | Failure,
        conditions: Conditions,
        started: datetime,
        keeps_visits: bool,
    ) -> None:
        """Write rows without numbers, where there are no visits that are to be kept."""
        for each in single_cases(planned):
            if not (keeps_visits and self._keep_visits(each, outcome.reason, conditions)):
                self._records.pop(each.case.case_id, None)
                self._write_row(each, outcome, conditions, started)

    def _keep_row(self, case: Case, entry: Entry) -> None:
        """Keep a row until it is passed on with the others of its case."""
        ended = replace(
            entry.row,
            run_id=self._run["run_id"],
            sweep_id=self._run["sweep_id"],
            trial=self._settings.trial,
            label=self._settings.label,
            launch=self._launch,
        )
        stored = self.published.keep(entry._replace(row=ended), not self._launches_left)
        if stored.status in BAD and self._settings.on_error == "stop":
            self.stopped = self.stopped or f"on_error=stop, after {case}"

    def _keep_visits(self, planned: Planned, reason: str, conditions: Conditions) -> bool:
        """Whether the row has results of earlier visits. Then it keeps them, as after an
        interruption, with the reason why this world makes no more."""
        record = self._records.get(planned.case.case_id)
        if record is None or not record.visits or self._settings.timing.is_soak:
            return False
        record.stop_reason = INTERRUPTED
        record.broken = reason
        self.passes.left_out.add(planned.case.case_id)
        self._write_row(planned, record, conditions)
        return True

    @property
    def _launches_left(self) -> int:
        launches = self._run["launches"]
        return 0 if self._ended else max(0, launches["planned"] - len(launches["began"]))

    @property
    def _launch(self) -> int:
        return len(self._run.get("starts", []))
