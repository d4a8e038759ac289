"""What a turn of `commbench watch` leaves on the disk: healthy runs in the store, those that show a
change beside it, and of the others those of the last turns."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.baseline.store import stored_runs
from commbench.cluster.baseline.writer import add_runs, is_healthy, set_aside
from commbench.cluster.watch.state import WatchState
from commbench.cluster.watch.suite import WatchOptions
from commbench.core.terminal import print_error
from commbench.results.load import find_runs

QUARANTINE_TURNS = 5  # that follow


@dataclass(frozen=True)
class TurnRuns:
    """The runs of a turn: of its first launch and of the fresh ones. `changed`: keys of the cases
    that have a change now; `new`: those that have it since this turn; `suspect`: those that looked
    changed, which fresh launches did not confirm; `shown_before`: the runs of the store that show a
    new change already."""

    first: FreshLaunch
    fresh: Sequence[FreshLaunch]
    changed: Collection[str]
    new: Collection[str]
    suspect: Collection[str]
    shown_before: Sequence[Path]


def file_runs(options: WatchOptions, state: WatchState, turn: TurnRuns) -> None:
    """Move the runs that show a change, and those with a suspect case, to their folders, and add
    the others of a turn to the store, which keeps no samples. What was suspect some turns ago is
    added, too."""
    shown = _runs_with(turn.first, turn.changed)
    confirming = [run for each in turn.fresh for run in _runs_with(each, turn.new)]
    suspect = [
        run for run in _runs_with(turn.first, turn.suspect) if run not in shown and is_healthy(run)
    ]
    set_aside(options.store, [*turn.shown_before, *shown, *confirming], options.changed)
    set_aside(options.store, suspect, options.quarantine)
    healthy = [run for run in turn.first.runs if run not in (*shown, *suspect)]
    added = add_runs(options.store, [*healthy, *_released(options, state)])
    for line in added.refused:
        print_error(f"not added to the store: {line}")
    for run in (*added.added, *added.present):
        shutil.rmtree(run, ignore_errors=True)
    _remove_old(options, state)
    for folder in (*options.runs.glob("*"), options.quarantine):
        with suppress(OSError):  # it has runs
            folder.rmdir()


def _released(options: WatchOptions, state: WatchState) -> list[Path]:
    """The runs that have been in quarantine for so many turns; those that show a change of a case
    were moved when it was told."""
    oldest_kept = state.oldest_of_last(QUARANTINE_TURNS)
    if oldest_kept is None or not options.quarantine.is_dir():
        return []
    return [run for run in find_runs(options.quarantine) if run.name < oldest_kept]


def _runs_with(launch: FreshLaunch, keys: Collection[str]) -> list[Path]:
    """The runs that have a row of these cases."""
    names = {str(row.run_id) for key, row in launch.rows.items() if key in keys}
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
