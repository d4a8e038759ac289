"""Who gets a row: the writers, the reporter of progress, and what asks for the rows so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commbench.core.states import INTERRUPTED
from commbench.results.fan_out import FanOut
from commbench.results.row import Row
from commbench.results.writer import Entry, Writer
from commbench.runtime.output import Reporter

# that rounds of a simulated world, which last milliseconds, wait to be written; a killed run loses
# them
HELD_S = 0.2


class RowPublisher:
    """Keeps the newest row of each case, and passes the rows of a visit on together."""

    def __init__(self, run: dict[str, Any], writers: Sequence[Writer]) -> None:
        self._run = run
        self._waiting: list[tuple[Entry, Row]] = []  # for the writers, and for the reporter
        self._passed_s = 0.0  # when rows were last passed on, by time.monotonic()
        self.rows: dict[str, Row] = {}  # by case_id
        self.writers = FanOut.storing(writers)
        self.reporter = Reporter()

    def begin(self, cases: int) -> None:
        """So many rows follow in this start. Raises WorldBroken or OSError if results can't be
        written, so that nothing is measured in vain."""
        self.writers.begin(self._run)
        self.reporter.begin({**self._run, "cases": cases})

    def keep(self, entry: Entry, is_last_launch: bool) -> Row:
        """Returns the row as it is stored: interrupted where another launch visits its case again.
        The reporter, which counts the visits of this launch, sees it ended."""
        stored = ended = entry.row
        if ended.stop_reason is not None and not is_last_launch:
            stored = replace(ended, stop_reason=INTERRUPTED)
        self.rows[stored.case_id] = stored
        self._waiting.append((entry._replace(row=stored), ended))
        return stored

    def pass_on(self, may_wait: bool = False) -> None:
        """To the writers and the reporter. Brief rounds may wait for others."""
        now_s = time.monotonic()
        if may_wait and now_s <= self._passed_s + HELD_S:
            return
        waiting, self._waiting = self._waiting, []
        self._passed_s = now_s
        self.writers.cases([entry for entry, _ in waiting])
        if waiting:
            self.reporter.finished([row for _, row in waiting])

    def end(self) -> None:
        """The writers merge their parts, write run.json and print the table."""
        self.reporter.end()
        self.writers.end(self._run)
