"""The table of a run on stdout, at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from commbench.core.states import INTERRUPTED, status_of_run
from commbench.core.terminal import Terminal, printable
from commbench.results.row import Row
from commbench.results.run_folder import PARTS, RECORD, exists, record_problem
from commbench.results.writer import Entry
from commbench.runtime.output import print_draft

from .row_writer import RowWriter
from .run_text import run_text
from .showing import new_texts

LONG_REST_S = 5.0  # expected after the first pass; a shorter rest needs no table in between
MOST_ROWS_AFTER_SIGNAL = 1000  # of a table that keeps nobody waiting


@dataclass
class Console(RowWriter):
    """A Writer that prints the table of the run at its end. On a terminal a first pass that took
    long is shown until then. `tables`: none where a table of several runs follows."""

    tables: bool = True

    is_console = True

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        super().begin(run, folder)
        self._run = run
        self._begun_s = time.monotonic()
        self._texts = new_texts()

    def cases(self, entries: Sequence[Entry]) -> None:
        first_pass = len(self._rows) < self._run.get("cases", 0)
        super().cases(entries)
        for row, _, counters in entries:
            for each in self._texts:
                each.add(row, partial(iter, (counters,)))
        if first_pass and len(self._rows) == self._run["cases"]:
            self._show_first_pass()

    def _show_first_pass(self) -> None:
        """Show the table as it is now, where the user would wait long for the rest."""
        terminal = Terminal.of(sys.stdout)
        waiting = sum(row.stop_reason == INTERRUPTED for row in self._rows.values())
        passes = self._run.get("config", {}).get("timing", {}).get("visits", 1)
        # each pass like the first
        pass_s = (time.monotonic() - self._begun_s) * waiting / len(self._rows)
        if terminal.width is None or (passes - 1) * pass_s < LONG_REST_S:
            return
        rows = [replace(row, stop_reason=None) for row in self._rows.values()]
        text = run_text(self._run, rows, terminal, foot=False)
        print_draft(f"{text}pass 1 of {passes}; further passes over {waiting} cases follow")

    def finish(self, run: Mapping[str, Any], rows: Sequence[Row]) -> None:
        terminal = Terminal.of(sys.stdout)
        if status_of_run(run) == "interrupted" and len(rows) > MOST_ROWS_AFTER_SIGNAL:
            print(f"{len(rows)} of {run['cases']} cases have results: commbench show prints them")
        else:
            print(run_text(run, rows, terminal, self._texts, tables=self.tables), end="")
        problem = record_problem(run["folder"])
        # parquet, which ends after this writer, writes a run.json that was removed again
        if exists(Path(run["folder"]) / RECORD) or exists(Path(run["folder"]) / PARTS):
            print(f"results: {printable(str(run['folder']))}", flush=True)
        elif problem is not None:
            print(problem, flush=True)
        else:
            print("not stored; writer=[parquet,console] stores the results", flush=True)
