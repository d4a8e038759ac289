"""Which cases of a pass need another visit, and who gets the time that others have not used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.states import INTERRUPTED

from .time_limits import visit_rule
from .visits import CaseRecord

Visited = list[tuple[Planned, list[CaseRecord]]]


class PassPlanner:
    """Decides on rank 0, between the passes of a launch. `records` are those of all rows that have
    been visited, by case_id."""

    def __init__(
        self, settings: Settings, run: Mapping[str, Any], records: Mapping[str, CaseRecord]
    ) -> None:
        self._settings = settings
        self._run = run
        self._records = records
        self._left_s = 0.0  # that ended cases have not used of their time in this launch
        # rows with fewer visits than they need, because their case broke the world or memory was
        # short: this world does not visit it again
        self.left_out = set[str]()

    @property
    def since(self) -> int:
        """The first launch whose visits count as those of the present one of timing.launches."""
        return int(self._run["launches"]["began"][-1])

    def visited(self, planned: Planned) -> list[CaseRecord]:
        """The records of those rows of the case that have been visited."""
        records = map(self._records.get, planned.case.row_ids)
        return [record for record in records if record and record.visits]

    def is_settled(self, planned: Planned) -> bool:
        """Whether earlier starts have made all visits that this launch needs of the case."""
        records = [self._records.get(case_id) for case_id in planned.case.row_ids]
        return all(record and record.stop_reason != INTERRUPTED for record in records)

    def next_pass(self, cases: Iterable[Planned], wait_s: float = 0.0) -> list[int]:
        """The orders of those cases of the last pass that need another visit in this launch.

        Time that finished cases have not used goes to the others in equal parts; the wait before
        the next pass is a part of it.
        """
        visited = [
            (planned, records)
            for planned in cases
            if (records := self.visited(planned)) and self.left_out.isdisjoint(planned.case.row_ids)
        ]
        wanted = self._share_time(visited)
        for _, records in wanted:
            for record in records:
                record.waited_s += wait_s / len(wanted)
        return [planned.order for planned, _ in wanted]

    def _share_time(self, visited: Visited) -> Visited:
        """The cases that need another visit and have time for it. The time that an ended case has
        left goes to the others; where one of them ends by that, they share again."""
        own_s = self._settings.case_s / self._settings.timing.launches
        wanted, ended = _split(visited, (INTERRUPTED, "budget", "noise_stable"))
        while True:
            self._left_s += sum(own_s - records[0].spent_s(self.since) for _, records in ended)
            for planned, records in wanted:
                rule = visit_rule(planned, self._settings, max(0.0, self._left_s) / len(wanted))
                for record in records:
                    record.stop_reason = rule.stop_reason(record, self.since, record.stop_reason)
            wanted, ended = _split(wanted, (INTERRUPTED,))
            if not ended:
                return wanted


def _split(cases: Visited, reasons: Collection[str]) -> tuple[Visited, Visited]:
    """The cases with a row of one of these stop reasons, and the other cases."""
    having: Visited = []
    others: Visited = []
    for planned, records in cases:
        has_one = any(record.stop_reason in reasons for record in records)
        (having if has_one else others).append((planned, records))
    return having, others
