"""What a turn of `commbench watch` leaves on the disk: healthy runs in the store, those that show a
change beside it, and of the others those of the last turns."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.cluster.baseline_store import HealthyLaunch, day_of, launches_of, stored_runs
from commbench.cluster.baseline_writer import add_runs, is_healthy, set_aside
from commbench.cluster.watch_state import WatchState
from commbench.core.states import Row
from commbench.core.terminal import print_error
from commbench.results.load import find_runs

from .watch_suite import WatchOptions


@dataclass(frozen=True)
class WatchedLaunch:
    """What a launch of jobs has left: rows by key, its runs with their records, and the worst exit
    status."""

    rows: Mapping[str, Row]
    runs: Mapping[Path, Mapping[str, Any]]
    status: int

    def launches(self, key: str) -> list[HealthyLaunch]:
        """Those of a case; none where it was not measured."""
        row = self.rows.get(key)
        if row is None:
            return []
        days = {run.name: day_of(record) for run, record in self.runs.items()}
        return launches_of(row, days.get(str(row["run_id"]), ""))


def file_runs(
    options: WatchOptions,
    state: WatchState,
    launch: WatchedLaunch,
    fresh: Sequence[WatchedLaunch],
    new_changes: Collection[str],
    shown_before: Sequence[Path],
) -> None:
    """Move the runs that show a change to their folder, and add the others of a turn to the store,
    which keeps no samples. `new_changes` are the cases that have changed since this turn, and
    `shown_before` the runs of the store that show that already."""
    shown = _runs_with(launch, state.changes)
    confirming = [run for each in fresh for run in _runs_with(each, new_changes)]
    set_aside(options.store, [*shown_before, *shown, *confirming], options.changed)
    added = add_runs(options.store, [run for run in launch.runs if run not in shown])
    for line in added.refused:
        print_error(f"not added to the store: {line}")
    for run in (*added.added, *added.present):
        shutil.rmtree(run, ignore_errors=True)
    _remove_old(options, state)
    for folder in options.runs.glob("*"):
        with suppress(OSError):  # it has runs
            folder.rmdir()


def _runs_with(launch: WatchedLaunch, keys: Collection[str]) -> list[Path]:
    """The runs that have a row of these cases."""
    names = {str(row["run_id"]) for key, row in launch.rows.items() if key in keys}
    return [run for run in launch.runs if run.name in names]


def _remove_old(options: WatchOptions, state: WatchState) -> None:
    """Remove runs of earlier turns than the last `keep_turns` that are in the store, or could be: a
    fresh launch that confirmed nothing. A run that failed or was interrupted, and one that a change
    names, stays."""
    oldest_kept = state.oldest_of_last(options.keep_turns)
    if oldest_kept is None:
        return
    named = {change.since_run for change in state.changes.values()}
    in_store = {run.name for run in stored_runs(options.store)}
    for run in find_runs(options.runs):
        is_old = run.name < oldest_kept and run.name not in named
        if is_old and (run.name in in_store or is_healthy(run)):
            shutil.rmtree(run, ignore_errors=True)
