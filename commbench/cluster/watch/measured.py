"""What a turn begins with, and what it measures: the suite, what is in doubt again, and a search
for slow nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from commbench.cluster.baseline.fresh_launches import FreshLaunch, launched
from commbench.cluster.baseline.store import StoredRun, read_stored_runs, store_key
from commbench.cluster.watch.first_look import CaseTurn, case_turn
from commbench.cluster.watch.history import case_histories
from commbench.cluster.watch.rule import WatchRule
from commbench.cluster.watch.state import WatchState, check_cases, check_suite, read_state
from commbench.cluster.watch.suite import (
    TOTAL_S,
    WatchedSuite,
    WatchOptions,
    narrowed_jobs,
    watched_suite,
)
from commbench.config.settings import Job
from commbench.core.errors import ConfigError
from commbench.core.secrets import masked_override
from commbench.results.load import find_runs, read_case_rows
from commbench.results.row import Row

MOST_ASIDE = 50  # runs beside the store that are read


# ---------------------------------------------------------------- before a turn


@dataclass(frozen=True)
class TurnStart:
    """What a turn begins with. `stored`: the runs of the store; `rows_aside`: the rows of the last
    runs that were kept out of it; `planted`: the words of a rehearsal that hold in this turn."""

    options: WatchOptions
    suite: WatchedSuite
    state: WatchState
    stored: Sequence[StoredRun]
    rows_aside: Sequence[Row]
    planted: Sequence[str]

    @property
    def rule(self) -> WatchRule:
        return WatchRule(len(self.suite.cases), self.options.delta)

    @property
    def last_run(self) -> str:
        """The last name of all runs that this turn is judged by. Turns are named in their order,
        whatever the clock says."""
        stored = (run.path.name for run in self.stored)
        aside = (row.run_id for row in self.rows_aside)
        return max([*stored, *aside, *self.state.turns], default="")


def turn_start(options: WatchOptions) -> TurnStart:
    """Raises CommbenchError where the store, or its state, is not of this suite or can't be
    read."""
    suite = watched_suite(options)
    keys = tuple(sorted(suite.cases))
    words = tuple(map(masked_override, options.words))
    state = read_state(options.store) or WatchState(words, keys)
    check_suite(options.store, state, words)
    check_cases(options.store, state, keys)
    return TurnStart(
        options,
        suite,
        state,
        read_stored_runs(options.store),
        _rows_aside(options),
        options.planted_in(state.taken + 1),
    )


def _rows_aside(options: WatchOptions) -> list[Row]:
    """The rows of the last runs that were kept out of the store; damaged runs are left out."""
    folders = [folder for folder in (options.changed, options.quarantine) if folder.is_dir()]
    runs = sorted((run for each in folders for run in find_runs(each)), key=lambda run: run.name)
    return read_case_rows(runs[-MOST_ASIDE:], skip_damaged=True) if runs else []


# ---------------------------------------------------------------- the launches of a turn


@dataclass(frozen=True)
class MeasuredTurn:
    """`stored`: the runs of the store on this hardware; `first`: the launch of the whole suite;
    `cases`: what it shows of each case, by its key; `fresh`: the launches of the cases in doubt;
    `launches`: how many were started since the first turn."""

    stored: Sequence[StoredRun]
    first: FreshLaunch
    cases: Mapping[str, CaseTurn]
    fresh: Sequence[FreshLaunch]
    launches: int

    @property
    def status(self) -> int:
        """The worst exit status of the launches."""
        return max(each.status for each in (self.first, *self.fresh))


def first_launch(start: TurnStart) -> FreshLaunch:
    jobs = [watched.job for watched in start.suite.jobs]
    return _launched(start, jobs, start.state.launches)


def measured_turn(start: TurnStart, first: FreshLaunch) -> MeasuredTurn:
    """Look at the first launch, and measure again what is in doubt. Raises ConfigError where the
    store is of other hardware."""
    stored = _on_this_hardware(start, first)
    histories = case_histories(start.state, stored, start.rows_aside)
    cases = {
        key: case_turn(key, case, histories[key], first, start.rule)
        for key, case in start.suite.cases.items()
    }
    doubtful = [key for key, case in cases.items() if case.look.doubt]
    fresh = _fresh_launches(start, doubtful) if doubtful else []
    return MeasuredTurn(stored, first, cases, fresh, start.state.launches + 1 + len(fresh))


def _fresh_launches(start: TurnStart, doubtful: Sequence[str]) -> list[FreshLaunch]:
    jobs = narrowed_jobs(start.suite, doubtful, start.options)
    number = start.state.launches + 1
    return [_launched(start, jobs, each) for each in range(number, number + start.options.fresh)]


def search_launch(start: TurnStart, number: int, search: Job) -> FreshLaunch:
    """A search for slow nodes takes as long as all fresh launches may."""
    options = start.options
    words = [f"trial={number}"]
    if options.budget_s is not None:
        words.append(f"{TOTAL_S}={options.fresh * options.budget_s}")
    return launched([search], options.runs, words, options.config_dir, start.last_run)


def _launched(start: TurnStart, jobs: Sequence[Job], number: int) -> FreshLaunch:
    options = start.options
    words = [*start.planted, f"trial={number}"]
    if options.budget_s is not None:
        words.append(f"{TOTAL_S}={options.budget_s / len(jobs):g}")
    return launched(jobs, options.runs, words, options.config_dir, start.last_run)


def _on_this_hardware(start: TurnStart, first: FreshLaunch) -> Sequence[StoredRun]:
    """The runs of the store on the hardware of this launch, with whatever library: a new one is a
    change to see. Raises ConfigError where the store is of other hardware."""
    here = {store_key(record).hardware for record in first.runs.values()}
    own = [run for run in start.stored if run.hardware in here]
    if start.stored and not own:
        raise ConfigError(
            f"{start.options.store} is of another cluster: it has runs on"
            f" {start.stored[-1].hardware}, this one is on {min(here)}; use another --baseline, or"
            f" look what has happened to the hardware; this run stays in {first.folder}"
        )
    return own
