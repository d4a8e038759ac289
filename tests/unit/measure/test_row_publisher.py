"""Writers and the reporter of progress get the rows of a visit together, each its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from sample_cases import case_row

from commbench.measure import row_publisher
from commbench.measure.row_publisher import HELD_S, RowPublisher
from commbench.results.row import Row
from commbench.results.writer import Entry


class Readers:
    """What the writers and the reporter of a publisher got, a list for each time."""

    def __init__(self, publisher: RowPublisher) -> None:
        self.stored: list[list[str | None]] = []
        self.reported: list[list[str | None]] = []

        def store(entries: Sequence[Entry]) -> None:
            self.stored.append([entry.row.stop_reason for entry in entries])

        def report(rows: Sequence[Row]) -> None:
            self.reported.append([row.stop_reason for row in rows])

        publisher.writers = SimpleNamespace(cases=store)  # type: ignore[assignment]
        publisher.reporter = SimpleNamespace(finished=report)  # type: ignore[assignment]


def row(**values: Any) -> Row:
    return case_row(status="ok", order=0, median_s=1e-3, **values)


def test_before_a_further_launch_a_row_is_stored_as_interrupted_and_reported_as_ended() -> None:
    publisher = RowPublisher({}, ())
    readers = Readers(publisher)
    stored = publisher.keep(Entry(row(stop_reason="ci")), is_last_launch=False)
    publisher.pass_on()
    publisher.keep(Entry(row(stop_reason="ci")), is_last_launch=True)
    publisher.pass_on()
    assert readers.stored == [["interrupted"], ["ci"]]
    assert readers.reported == [["ci"], ["ci"]]
    assert stored.stop_reason == "interrupted"
    assert publisher.rows[stored.case_id].stop_reason == "ci", "the newest"


def test_rows_of_brief_rounds_wait_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [100.0]
    monkeypatch.setattr(row_publisher, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    publisher = RowPublisher({}, ())
    readers = Readers(publisher)
    for later_s in (0.0, HELD_S / 2, HELD_S / 2, HELD_S):
        clock_s[0] += later_s
        publisher.keep(Entry(row(stop_reason="ci")), is_last_launch=True)
        publisher.pass_on(may_wait=True)
    assert readers.stored == [["ci"], ["ci"] * 3]
    publisher.keep(Entry(row(stop_reason="ci")), is_last_launch=True)
    publisher.pass_on()
    assert readers.stored[2:] == readers.reported[2:] == [["ci"]]
