"""The rows that a writer has at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from generated_results import run_of

from commbench.report.row_writer import RowWriter
from commbench.results.recorded import recorded_rows
from commbench.results.row import Row
from commbench.results.writer import Entry


@dataclass
class Kept(RowWriter):
    rows: Sequence[Row] = ()

    def finish(self, run: Mapping[str, Any], rows: Sequence[Row]) -> None:
        self.rows = rows


def test_rows_of_earlier_starts_are_there_and_the_newest_of_a_case_counts(tmp_path: Path) -> None:
    folder = run_of(tmp_path, 0)
    first, *others = recorded_rows(folder).values()
    writer = Kept()
    writer.begin({"starts": ["the first one"]}, str(folder))
    writer.cases([Entry(replace(first, median_s=1.0))])
    writer.end({"status": "running"})
    assert writer.rows == (), "further launches follow"
    writer.end({"status": "done"})
    medians_s = [row.median_s for row in writer.rows]
    assert medians_s == [1.0, *(row.median_s for row in others)]
