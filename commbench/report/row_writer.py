"""What the writers have in common that need all rows of a run at once: tables, junit.xml."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commbench.core.states import status_of_run
from commbench.results.recorded import recorded_rows
from commbench.results.row import Row
from commbench.results.writer import Entry


class RowWriter(ABC):
    """A Writer that keeps the newest row of each case until the run has ended."""

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        """Begin with the rows of earlier starts of the run."""
        self._rows: dict[str, Row] = recorded_rows(Path(folder)) if run.get("starts") else {}

    def cases(self, entries: Sequence[Entry]) -> None:
        self._rows |= {row.case_id: row for row, _, _ in entries}

    def end(self, run: Mapping[str, Any]) -> None:
        if status_of_run(run) != "running":  # else further launches follow
            self.finish(run, list(self._rows.values()))

    @abstractmethod
    def finish(self, run: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Write all rows. Raises Unsaved."""
