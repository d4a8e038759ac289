"""What the page draws from raw tables: distributions of repetitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commbench.core.errors import CommbenchError
from commbench.results.columns import grouped
from commbench.results.recorded import recorded_samples, repetition_seconds
from commbench.results.row import Row
from commbench.stats.series import Series

from .summary import Results

MOST_DISTRIBUTIONS = 120
MOST_DRAWN_LAUNCHES = 6
# bytes of samples.parquet; a larger one is a soak's
LARGEST_FILE = 64 * 2**20


Launches = list[tuple[str, Series]]  # run_id and the seconds of its repetitions
RowId = tuple[str, str]  # run_id and case_id


@dataclass(frozen=True)
class RawData:
    """What was read: nothing for a terminal, which has no figures.

    `distributions`: case_id and label -> its launches; `notes`: what was left out.
    """

    distributions: Mapping[tuple[str, str], Launches] = field(default_factory=dict)
    notes: Sequence[str] = ()


def read_raw_data(results: Results) -> RawData:
    """Raw tables of the newest runs that cover the cases; every limit that was met is in the
    notes."""
    chosen, left = chosen_runs(results)
    drawn = f"distributions are drawn for {MOST_DISTRIBUTIONS} of {MOST_DISTRIBUTIONS + left} cases"
    notes = [f"{drawn}, those of the newest runs"] if left else []
    distributions = dict[tuple[str, str], Launches]()
    for run_id, rows in chosen.items():
        folder = results.folders[run_id]
        label = rows[0].label or ""
        try:
            for case_id, times in times_by_case(folder, rows).items():
                distributions.setdefault((case_id, label), []).append((run_id, times))
        except CommbenchError as error:
            notes.append(f"{folder}: samples left out: {error}")
    return RawData(distributions, notes)


def times_by_case(folder: Path, rows: Sequence[Row]) -> dict[str, Series]:
    """case_id -> seconds per operation of each measured repetition, for the cases of one run that
    have samples.

    Raises CommbenchError for files that can't be read.
    """
    samples = recorded_samples(folder, [row.case_id for row in rows])
    return {
        row.case_id: repetition_seconds(row, samples[row.case_id])
        for row in rows
        if row.case_id in samples
    }


def chosen_runs(results: Results) -> tuple[dict[str, list[Row]], int]:
    """The runs to read with their cases, of each case the newest MOST_DRAWN_LAUNCHES; how many
    cases are left out."""
    files = {run_id: folder / "samples.parquet" for run_id, folder in results.folders.items()}
    readable = {
        run_id
        for run_id, file in files.items()
        if file.is_file() and file.stat().st_size <= LARGEST_FILE
    }
    newest_first = [
        row
        for row in results.rows[::-1]
        if row.status == "ok" and row.run_id in readable and not row.is_soak
    ]
    launches = grouped(newest_first, lambda row: row.case_id)
    kept = {id(row) for own in launches.values() for row in own[:MOST_DRAWN_LAUNCHES]}
    wanted = [row for row in newest_first if id(row) in kept]
    last = {row.case_id: at for at, row in enumerate(wanted)}
    drawn = set(sorted(last, key=last.__getitem__)[-MOST_DISTRIBUTIONS:])
    runs = grouped((row for row in wanted if row.case_id in drawn), lambda row: row.run_id)
    return runs, len(last) - len(drawn)
