"""Rank 0 records with all writers: samples and the row of a case after each visit, the run itself
at its end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from numpy.typing import NDArray

from commbench.backends.buffers.memory import resident_bytes
from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.protocols import Entry
from commbench.core.states import case_status
from commbench.results.columns import INTERRUPTED
from commbench.results.fan_out import FanOut
from commbench.runtime.output import Reporter
from commbench.runtime.recovery import EarlierVisits

from .conditions import Conditions
from .rounds import MeasuredRound, is_recorded_together
from .rows import count_table, row, row_ids, sample_table, single_cases, split_rounds
from .samples import Failure, Outcome, Refused, Samples
from .time_limits import visit_rule
from .visits import KEPT_TIMES, LEAST_KEPT_TIMES, CaseRecord

BAD = ("failed", "invalid")
# that rounds of a simulated world, which last milliseconds, wait to be written; a killed run loses
# them
HELD_S = 0.2
EMPTY_TABLE: Mapping[str, NDArray[Any]] = {}
Visited = list[tuple[Planned, list[CaseRecord]]]


class Recorder:
    """The rows of a run, and the visits that they are made from. `run` is the record of the run,
    `cases` the number of rows. Ranks other than 0 have a recorder that stays empty.
    """

    def __init__(self, settings: Settings, run: dict[str, Any], cases: int) -> None:
        self._settings = settings
        self._run = run
        self._records: dict[str, CaseRecord] = {}  # by case_id
        self._started: dict[str, datetime] = {}
        self._begun_s: dict[str, float] = {}  # by case_id: when its first visit of this start began
        self._kept_times = max(LEAST_KEPT_TIMES, KEPT_TIMES // max(cases, 1))  # per case
        self._left_out = set[str]()  # rows of cases that this world does not visit again
        self._ended = False  # whether there is no time for further visits
        self._left_s = 0.0  # that finished cases have not used of their time in this launch
        self.rows: dict[str, dict[str, Any]] = {}  # by case_id, the newest
        self._unwritten: list[Entry] = []  # of the pairs of a round, which are written together
        self._flushed_s = 0.0  # when rows were last written, by time.monotonic()
        self._ended_rows: list[dict[str, Any]] = []  # that the reporter has not seen
        self.writers = FanOut.storing(settings.writers)
        self.reporter = Reporter()
        self.stopped: str | None = None  # why no further case is measured
        self.lock = threading.RLock()  # the heartbeat's thread may have to end the run at any time

    def begin(self) -> None:
        """Raises WorldBroken or OSError if results can't be written, so that nothing is measured in
        vain."""
        self.writers.begin(self._run)
        self.reporter.begin(self._run)

    def add_cases(self, cases: Iterable[Planned]) -> None:
        """Cases that were not planned at the start follow."""
        self._run["cases"] += sum(len(row_ids(planned)) for planned in cases)
        self.reporter.plan_more(self._run["cases"])

    def begin_visit(self, planned: Planned) -> None:
        """A visit of the case begins."""
        for case_id in row_ids(planned):
            self._begun_s.setdefault(case_id, time.monotonic())
        self.reporter.starts(planned.case)

    def record(
        self, planned: Planned, outcome: Outcome, conditions: Conditions, started: datetime
    ) -> None:
        """A row for the case, or for each pair of a round. One that is refused in a later visit
        keeps its visits."""
        with self.lock:
            if isinstance(outcome, Samples) and self._can_add_round(planned, outcome):
                self._add_round(MeasuredRound(planned, conditions), outcome, started)
                self._flush_round(is_simulated=planned.case.has_model_clock)
                return
            for single, part in split_rounds(planned, outcome):
                if isinstance(part, Samples):
                    self._add_visit(single, part, conditions, started)
                elif not isinstance(part, Refused) or not self._keep_visits(
                    single, part.reason, conditions, started
                ):
                    self._records.pop(single.case.case_id, None)
                    self._write_row(single, part, conditions, started)
            self._flush()

    def break_off(
        self, planned: Planned, reason: str, conditions: Conditions, started: datetime
    ) -> None:
        """Record that the world broke in a visit: the row has the results of earlier visits, as
        after an interruption. Without any, and in a soak, the case has failed."""
        with self.lock:
            for single, _ in self._rows_of(planned):
                if not self._keep_visits(single, reason, conditions, started):
                    self._records.pop(single.case.case_id, None)
                    self._write_row(single, Failure(reason), conditions, started)
            self._flush()

    def continue_visits(
        self, cases: Iterable[Planned], visits: Mapping[str, EarlierVisits]
    ) -> None:
        """Continue these cases with the visits of earlier starts of the run."""
        for planned in cases:
            for case_id in visits.keys() & row_ids(planned):
                record = self._records[case_id] = CaseRecord(
                    self._kept_times, self._settings.timing.z
                )
                record.continue_after(visits[case_id], self._launch)
                if record.visits:
                    self._started[case_id] = visits[case_id].row["started_at"]
                rule = visit_rule(planned, self._settings)
                record.stop_reason = rule.stop_reason(record, self._launch, "ci")

    def next_pass(self, cases: Iterable[Planned], wait_s: float = 0.0) -> list[int]:
        """The orders of those cases of the last pass that need another visit in this launch.

        Time that finished cases have not used goes to the others in equal parts; the wait before
        the next pass is a part of it.
        """
        if self._ended or self.stopped:
            return []
        visited: Visited = []
        for planned in cases:
            records = self._visited(planned)
            if records and self._left_out.isdisjoint(row_ids(planned)):
                visited.append((planned, records))
        wanted = self._share_time(visited)
        for _, records in wanted:
            for record in records:
                record.spent_s += wait_s / len(wanted)
        return [planned.order for planned, _ in wanted]

    def _share_time(self, visited: Visited) -> Visited:
        """The cases that need another visit and have time for it. The time that an ended case has
        left goes to the others; where one of them ends by that, they share again."""
        own_s = self._settings.case_s / self._settings.timing.launches
        wanted, ended = _split(visited, (INTERRUPTED, "budget", "noise_stable"))
        while True:
            self._left_s += sum(own_s - records[0].spent_s for _, records in ended)
            for planned, records in wanted:
                rule = visit_rule(planned, self._settings, max(0.0, self._left_s) / len(wanted))
                for record in records:
                    record.stop_reason = rule.stop_reason(record, self._launch, record.stop_reason)
            wanted, ended = _split(wanted, (INTERRUPTED,))
            if not ended:
                return wanted

    def is_settled(self, planned: Planned) -> bool:
        """Whether earlier starts have made all visits that this launch needs of the case."""
        records = [self._records.get(case_id) for case_id in row_ids(planned)]
        return all(record and record.stop_reason != INTERRUPTED for record in records)

    def end_visits(self, planned: Planned, conditions: Conditions, started: datetime) -> bool:
        """Make the rows of the case say that there was no time for further visits; False if it has
        not been visited."""
        self._ended = True
        for single, record in self._rows_of(planned):
            values = self.rows.get(single.case.case_id, {})
            if single.case.case_id in self._left_out:
                continue
            if record and record.visits and values.get("stop_reason", INTERRUPTED) == INTERRUPTED:
                record.stop_reason = "budget" if self.stopped is None else "stopped"
                self._write_row(single, record, conditions, started)
        self._flush()
        return bool(self._visited(planned))

    def block_k(self, planned: Planned) -> int | None:
        """The block_k of the first visit of the case, which all visits have; None before it."""
        return next((record.block_k for record in self._visited(planned)), None)

    def next_visit(self, planned: Planned) -> str:
        """The case, the launch, and the number of its next visit, which goes on where earlier
        starts of the run ended."""
        known = (self._records.get(case_id) for case_id in row_ids(planned))
        number = 1 + max((record.last_visit for record in known if record), default=0)
        return f"{planned.case.case_id}/{self._settings.launch}/{number}"

    @property
    def more_launches(self) -> bool:
        """Whether another launch is to visit the cases again."""
        return self._launches_left > 0 and any(record.visits for record in self._records.values())

    @property
    def has_left_out(self) -> bool:
        """Whether a case has fewer visits than it needs, because it broke the world or memory was
        short."""
        return bool(self._left_out)

    def flag_disturbed(self, cases: Iterable[Planned], conditions: Conditions) -> None:
        """Write those rows again whose flag `disturbed` changes now that all passes are known."""
        for planned in cases:
            changed = {
                case_id for case_id in row_ids(planned) if self._is_stale(case_id, conditions)
            }
            if not changed:
                continue
            # a copy: its programs are released with it
            for single in single_cases(replace(planned)):
                case_id = single.case.case_id
                if case_id in changed:
                    started = self.rows[case_id]["started_at"]
                    self._write_row(single, self._records[case_id], conditions, started)
            self._flush()

    def _is_stale(self, case_id: str, conditions: Conditions) -> bool:
        """Whether the flag `disturbed` of a row with numbers is not what it must be now."""
        record = self._records.get(case_id)
        values = self.rows.get(case_id)
        if record is None or values is None or case_status(values) != "ok":
            return False
        return ("disturbed" in values["warnings"]) != record.disturbed(conditions.disturbed)

    def close(self, status: str, exit_status: int, reason: str | None) -> None:
        """End the writers, which merge their parts, write run.json and print the table."""
        with self.lock:
            self._flush()
            finished = datetime.now(timezone.utc).isoformat()
            self._run.setdefault("memory", {})["peak_bytes"] = resident_bytes(peak=True)
            self._run |= {
                "status": status,
                "exit_status": exit_status,
                "reason": reason,
                "finished_at": finished,
            }
            self.reporter.end()
            self.writers.end(self._run)

    def _add_visit(
        self, planned: Planned, samples: Samples, conditions: Conditions, started: datetime
    ) -> None:
        case_id = planned.case.case_id
        run_id = self._run["run_id"]
        record = self._record_of(case_id)
        if record.visits and self._settings.timing.is_soak:
            record = record.restarted()
        self._records[case_id] = record
        samples = record.add(planned, samples, self._segment)
        self._note_time(case_id, record)
        if samples.wrong_elements:
            record.stop_reason = samples.stop_reason
        else:
            rule = visit_rule(planned, self._settings)
            record.stop_reason = rule.stop_reason(record, self._launch, samples.stop_reason)
        tables = (
            sample_table(planned, samples, run_id, record.last_visit),
            count_table(case_id, samples, run_id),
        )
        self._write_row(planned, record, conditions, started, *tables)

    def _can_add_round(self, planned: Planned, samples: Samples) -> bool:
        """Whether these are the samples of a round whose pairs have been visited alike."""
        if self._settings.timing.is_soak or not is_recorded_together(planned, samples):
            return False
        known = [self._records.get(case_id) for case_id in row_ids(planned)]
        numberings = [None if record is None else record.numbering for record in known]
        return all(numbering == numberings[0] for numbering in numberings)

    def _add_round(self, measured: MeasuredRound, samples: Samples, started: datetime) -> None:
        """A visit of each pair of a round."""
        planned = measured.planned
        case_ids = row_ids(planned)
        records = [self._record_of(case_id) for case_id in case_ids]
        self._records |= zip(case_ids, records, strict=True)
        first = records[0]
        run_id = self._run["run_id"]
        numbered = first.numbered(samples)
        tables = measured.tables(numbered, run_id, first.last_visit + 1)
        counts = measured.counts(samples)
        rule = visit_rule(planned, self._settings)
        for index, times in enumerate(measured.times(samples)):
            record = records[index]
            own = replace(numbered, counts=counts[index]) if samples.counts else numbered
            record.number_like(first)
            record.count_visit(planned, own, times, self._segment)
            self._note_time(case_ids[index], record)
            record.stop_reason = rule.stop_reason(record, self._launch, samples.stop_reason)
            first_started = self._started.setdefault(case_ids[index], started)
            values = measured.row(index, record, first_started)
            counters = count_table(case_ids[index], own, run_id)
            self._keep_row(planned, values, tables[index], counters)
        # rows stay until the end: else each collection looks at those of all rounds
        gc.collect(1)
        gc.freeze()

    def _flush_round(self, is_simulated: bool) -> None:
        """Pass the rows of a round to the writers, those of a simulated world with the rows of
        rounds before it."""
        now_s = time.monotonic()
        if not is_simulated or now_s > self._flushed_s + HELD_S:
            self._flushed_s = now_s
            self._flush()

    def _record_of(self, case_id: str) -> CaseRecord:
        """The visits of a row; empty before the first."""
        known = self._records.get(case_id)
        return known or CaseRecord(self._kept_times, self._settings.timing.z)

    def _note_time(self, case_id: str, record: CaseRecord) -> None:
        """How long the visits of a row have taken."""
        now_s = time.monotonic()  # the wall clock may be set during the run
        record.visits_s = record.earlier_visits_s + now_s - self._begun_s.setdefault(case_id, now_s)

    def _write_row(
        self,
        planned: Planned,
        outcome: CaseRecord | Refused | Failure,
        conditions: Conditions,
        started: datetime,
        samples: Mapping[str, NDArray[Any]] = EMPTY_TABLE,
        counters: Mapping[str, NDArray[Any]] = EMPTY_TABLE,
    ) -> None:
        started = self._started.setdefault(planned.case.case_id, started)  # of the first visit
        self._keep_row(planned, row(planned, outcome, conditions, started), samples, counters)

    def _keep_row(
        self,
        planned: Planned,
        values: dict[str, Any],
        samples: Mapping[str, NDArray[Any]] = EMPTY_TABLE,
        counters: Mapping[str, NDArray[Any]] = EMPTY_TABLE,
    ) -> None:
        """Keep a row until it is passed to the writers with the others of its case."""
        values |= {
            "run_id": self._run["run_id"],
            "sweep_id": self._run["sweep_id"],
            "launch": self._settings.launch,
            "label": self._settings.label,
            "segment": self._segment,
        }
        reason = values["stop_reason"]
        if reason is not None and self._launches_left:
            values["stop_reason"] = INTERRUPTED
        self.rows[values["case_id"]] = values
        if values["status"] in BAD and self._settings.on_error == "stop":
            self.stopped = self.stopped or f"on_error=stop, after {planned.case}"
        self._unwritten.append((values, samples, counters))
        # done, as far as this launch goes
        self._ended_rows.append({**values, "stop_reason": reason})

    def _flush(self) -> None:
        """Pass the rows that wait to the writers, and say that they have ended."""
        entries = self._unwritten
        finished = self._ended_rows
        self._unwritten = []
        self._ended_rows = []
        self.writers.cases(entries)
        if finished:
            self.reporter.finished(finished)

    def _keep_visits(
        self, planned: Planned, reason: str, conditions: Conditions, started: datetime
    ) -> bool:
        """Whether the row has results of earlier visits. Then it keeps them, as after an
        interruption, with the reason why this world makes no more."""
        record = self._records.get(planned.case.case_id)
        if record is None or not record.visits or record.wrong_elements:
            return False
        if self._settings.timing.is_soak:
            return False
        record.stop_reason = INTERRUPTED
        record.broken = reason
        self._left_out.add(planned.case.case_id)
        self._write_row(planned, record, conditions, started)
        return True

    def _rows_of(self, planned: Planned) -> list[tuple[Planned, CaseRecord | None]]:
        """A planned case for each row of the case, with the record of its visits."""
        return [
            (single, self._records.get(single.case.case_id)) for single in single_cases(planned)
        ]

    def _visited(self, planned: Planned) -> list[CaseRecord]:
        """The records of those rows of the case that have been visited."""
        records = (self._records.get(case_id) for case_id in row_ids(planned))
        return [record for record in records if record and record.visits]

    @property
    def _launch(self) -> int:
        """The segment with which the present launch began."""
        return int(self._run["launches"]["began"][-1])

    @property
    def _launches_left(self) -> int:
        launches = self._run["launches"]
        return 0 if self._ended else max(0, launches["planned"] - len(launches["began"]))

    @property
    def _segment(self) -> int:
        return len(self._run.get("segments", []))


def _split(cases: Visited, reasons: Collection[str]) -> tuple[Visited, Visited]:
    """The cases with a row of one of these stop reasons, and the other cases."""
    having: Visited = []
    others: Visited = []
    for planned, records in cases:
        has_one = any(record.stop_reason in reasons for record in records)
        (having if has_one else others).append((planned, records))
    return having, others
