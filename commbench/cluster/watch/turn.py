"""One turn of `commbench watch`: measure the suite, judge it by the healthy runs of the store, and
keep what follows."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from commbench.cluster.baseline.fresh_launches import FreshLaunch, launched
from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.cluster.baseline.store import (
    StoredRun,
    day_of,
    launches_of,
    read_stored_runs,
    store_key,
)
from commbench.cluster.baseline.suite_key import changes_beside_times, suite_key
from commbench.cluster.watch.changes import (
    CaseHistory,
    JudgedCase,
    WatchRule,
    first_look,
    judged_case,
)
from commbench.cluster.watch.located import located, with_nodes
from commbench.cluster.watch.prometheus import WatchedCase, case_labels, metrics_text
from commbench.cluster.watch.quiet import HeldText, has_news, held_text
from commbench.cluster.watch.runs import TurnRuns, file_runs
from commbench.cluster.watch.state import (
    WatchState,
    check_cases,
    check_suite,
    read_state,
    write_state,
)
from commbench.cluster.watch.suite import (
    TOTAL_S,
    WatchedSuite,
    WatchOptions,
    narrowed_jobs,
    watched_suite,
)
from commbench.cluster.watch.text import turn_lines
from commbench.config.settings import Job
from commbench.core.errors import ConfigError
from commbench.core.secrets import recorded_override
from commbench.core.terminal import Terminal, paragraphs
from commbench.core.units import plural
from commbench.results.load import find_runs, read_case_rows
from commbench.results.row import Row
from commbench.results.run_folder import replace_file
from commbench.runtime.rank_server import stop_rank_server
from commbench.stats.thresholds import DECIDING_LAUNCHES

UNDECIDED_STATUS = 4
MOST_ASIDE = 50  # runs beside the store that are read


def watch_turn(options: WatchOptions) -> int:
    """Measure the suite, judge it, and store what follows; returns the exit status."""
    with held_text(options.is_quiet) as held:
        return _turn(options, held)


def _turn(options: WatchOptions, held: HeldText) -> int:
    suite = watched_suite(options)
    keys = tuple(sorted(suite.cases))
    words = tuple(map(recorded_override, options.words))
    state = read_state(options.store) or WatchState(words, keys)
    check_suite(options.store, state, words)
    check_cases(options.store, state, keys)
    baseline = read_stored_runs(options.store)
    aside = _rows_aside(options)
    try:
        jobs = [watched.job for watched in suite.jobs]
        last = _last_name(baseline, aside, state)
        planted = options.planted_in(state.taken + 1)
        if planted:
            check_rehearsal(options)
        launch = _launched(options, jobs, state.launches, last, planted)
        if not launch.runs:
            return launch.status
        number = state.launches + 1
        own = _own_baseline(options.store, baseline, launch)
        histories = _histories(own, aside, state, keys)
        rule = WatchRule(len(keys), options.delta)
        looks = {
            key: first_look(histories[key], launch.rows.get(key), launch.launches(key), rule)
            for key in suite.cases
        }
        again = [key for key, look in looks.items() if look.needs_fresh]
        fresh: list[FreshLaunch] = []
        for _ in range(options.fresh if again else 0):
            suspected = narrowed_jobs(suite, again, options)
            fresh.append(_launched(options, suspected, number, last, planted))
            number += 1
        judged = {
            key: judged_case(key, case, histories[key], looks[key], launch, fresh, rule)
            for key, case in suite.cases.items()
            if key not in suite.skipped or histories[key].healthy
        }
        search = partial(_searched, options, number, last)
        location = located(judged, suite.jobs, planted, options.config_dir, search)
        judged = with_nodes(judged, location)
    finally:
        stop_rank_server()  # for hours nobody needs it, and an update is seen by the next one
    healthy = [row for run in own for row in run.rows]
    beside = changes_beside_times(healthy, launch.rows.values())
    lines = turn_lines(list(judged.values()), location, [run.record for run in own], launch)
    lines += [*beside.values(), *_last_lines(options, launch, planted, bool(beside))]
    print(paragraphs(lines, Terminal.of(sys.stdout)), flush=True)
    if not planted:
        state = _state_after(state, judged, number, min(run.name for run in launch.runs))
        # the state last: a turn that is interrupted before is judged again
        file_runs(options, state, _turn_runs(options, own, launch, fresh, judged, beside))
        write_state(options.store, state)
    if options.prometheus is not None:
        _write_prometheus(options.prometheus, suite, judged)
    status = max(each.status for each in (launch, *fresh))
    held.is_told = bool(beside) or has_news(judged.values(), status)
    return _turn_status(status, judged, beside)


class YoungStore(ConfigError):
    """Raised for a rehearsal in a store that tells no change yet."""


def check_rehearsal(options: WatchOptions) -> None:
    """Raises YoungStore where no case will have enough healthy launches when a plant begins."""
    if not options.planted:
        return
    state = read_state(options.store)
    taken = 0 if state is None else state.taken
    rows = [row for run in read_stored_runs(options.store) for row in run.rows]
    counts = Counter(suite_key(row) for row in rows for _ in launches_of(row, ""))
    first = max(taken + 1, min(turn for turn, _ in options.planted))
    most = max(counts.values(), default=0) + first - taken - 1  # if all turns before are healthy
    if most < DECIDING_LAUNCHES:
        launches = plural(most, "healthy launch", "healthy launches")
        raise YoungStore(
            f"--plant begins with turn {first}, when the store has at most {launches} of a case; a"
            f" change is told from {DECIDING_LAUNCHES} on: begin with turn"
            f" {first + DECIDING_LAUNCHES - most}"
        )


def _last_lines(
    options: WatchOptions, launch: FreshLaunch, planted: Sequence[str], is_beside: bool
) -> Iterator[str]:
    """Where the runs of a rehearsal are, or those with other changes than of times, `is_beside`."""
    if planted:
        words = " ".join(map(recorded_override, planted))
        yield (
            f"rehearsal with {words}: this turn does not count, and its runs are not added to the"
            f" store; they are in {launch.folder.parent}"
        )
    elif is_beside:
        yield (
            f"their runs are in {options.changed}; if this is how it should be, `commbench baseline"
            f" add RUN --baseline {options.store}` adds them, else the next turn says it again"
        )


def _own_baseline(
    store: Path, baseline: Sequence[StoredRun], launch: FreshLaunch
) -> list[StoredRun]:
    """The runs on the hardware of this launch, with whatever library: a new one is a change to see.

    Raises ConfigError where the store is of other hardware.
    """
    here = {store_key(record).hardware for record in launch.runs.values()}
    own = [run for run in baseline if run.hardware in here]
    if baseline and here and not own:
        raise ConfigError(
            f"{store} is of another cluster: it has runs on {baseline[-1].hardware}, this one is on"
            f" {min(here)}; use another --baseline, or look what has happened to the hardware; this"
            f" run stays in {next(iter(launch.runs)).parent}"
        )
    return own


def _histories(
    own: Sequence[StoredRun], rows_aside: Sequence[Row], state: WatchState, keys: Sequence[str]
) -> dict[str, CaseHistory]:
    """What is known of each case. Runs that were set aside do not count for a case that has a
    change, nor for one of which a change has ended since; nor those that the user has added."""
    in_store = {run.path.name for run in own}
    healthy: dict[str, list[HealthyLaunch]] = {}
    for run in own:
        day = day_of(run.record.get("started_at"))
        for row in run.rows:
            healthy.setdefault(suite_key(row), []).extend(launches_of(row, day))
    aside: dict[str, list[HealthyLaunch]] = {}
    for row in rows_aside:
        key = suite_key(row)
        run_id = row.run_id
        is_later = key not in state.changes and run_id > state.ended.get(key, "")
        if is_later and run_id not in in_store:
            aside.setdefault(key, []).extend(launches_of(row, day_of(row.started_at)))
    return {
        key: CaseHistory(
            tuple(healthy.get(key, ())), tuple(aside.get(key, ())), state.changes.get(key)
        )
        for key in keys
    }


def _rows_aside(options: WatchOptions) -> list[Row]:
    """The rows of the last runs that were kept out of the store; damaged runs are left out."""
    folders = [folder for folder in (options.changed, options.quarantine) if folder.is_dir()]
    runs = sorted((run for each in folders for run in find_runs(each)), key=lambda run: run.name)
    return read_case_rows(runs[-MOST_ASIDE:], skip_damaged=True) if runs else []


def _last_name(baseline: Sequence[StoredRun], rows_aside: Sequence[Row], state: WatchState) -> str:
    """Of all runs that this turn is judged by. Turns are named in their order, whatever the clock
    says."""
    aside = (row.run_id for row in rows_aside)
    return max([*(run.path.name for run in baseline), *aside, *state.turns], default="")


def _launched(
    options: WatchOptions, jobs: Sequence[Job], number: int, after: str, planted: Sequence[str]
) -> FreshLaunch:
    words = [*planted, f"trial={number}"]
    if options.budget_s is not None:
        words.append(f"{TOTAL_S}={options.budget_s / len(jobs):g}")
    return launched(jobs, options.runs, words, options.config_dir, after)


def _searched(options: WatchOptions, number: int, after: str, search: Job) -> FreshLaunch:
    """A search takes as long as all fresh launches may."""
    words = [f"trial={number}"]
    if options.budget_s is not None:
        words.append(f"{TOTAL_S}={options.fresh * options.budget_s}")
    return launched([search], options.runs, words, options.config_dir, after)


def _state_after(
    state: WatchState, judged: Mapping[str, JudgedCase], launches: int, first_run: str
) -> WatchState:
    changes = {key: each.change for key, each in judged.items() if each.change is not None}
    ended = {key: first_run for key in state.changes if key not in changes}
    return replace(
        state.after_turn(first_run),
        launches=launches,
        changes=changes,
        ended={**state.ended, **ended},
    )


def _turn_runs(
    options: WatchOptions,
    own: Sequence[StoredRun],
    launch: FreshLaunch,
    fresh: Sequence[FreshLaunch],
    judged: Mapping[str, JudgedCase],
    beside: Collection[str],
) -> TurnRuns:
    """`beside`: keys of the cases in which something else than a time has changed."""
    new = {key: each for key, each in judged.items() if each.is_new}
    since = {run_id for each in new.values() for run_id in _runs_since_change(each)}
    in_quarantine = [options.quarantine / run_id for run_id in sorted(since)]
    return TurnRuns(
        launch,
        fresh,
        changed=[
            *(key for key, each in judged.items() if each.change is not None),
            *beside,
        ],
        new=list(new),
        suspect=[key for key, each in judged.items() if each.is_suspect],
        shown_before=[
            *(run.path for run in own if run.path.name in since),
            *(run for run in in_quarantine if run.is_dir()),
        ],
    )


def _runs_since_change(judged: JudgedCase) -> set[str]:
    """The runs that were taken for healthy, or not for changed, and show the case's change
    already."""
    if judged.change is None:
        return set()
    since = judged.change.since_run
    return {launch.run_id for launch in judged.history.series if launch.run_id >= since}


def _turn_status(status: int, judged: Mapping[str, JudgedCase], beside: Collection[str]) -> int:
    """`status`: the worst of the launches."""
    if status >= ConfigError.exit_status:
        return status
    verdicts = {each.verdict for each in judged.values()}
    if beside or any(each.change for each in judged.values()):
        return 1
    return UNDECIDED_STATUS if "UNDECIDED" in verdicts else 0


# ---------------------------------------------------------------- what a turn leaves


def _write_prometheus(path: Path, suite: WatchedSuite, judged: Mapping[str, JudgedCase]) -> None:
    """Raises ConfigError where the file can't be written."""
    labels = case_labels([each.case for each in judged.values()])
    cases = []
    for each, texts in zip(judged.values(), labels, strict=True):
        row = each.row
        cases.append(
            WatchedCase(
                texts,
                each.verdict,
                None if row is None else row.median_s,
                None if row is None else row.ci_low_s,
                None if row is None else row.ci_high_s,
                None if each.expected is None else each.expected.low,
                None if each.expected is None else each.expected.high,
                len(each.history.healthy),
            )
        )
    try:
        replace_file(path, metrics_text(suite.name, time.time(), cases).encode())
    except OSError as error:
        raise ConfigError(
            f"--prometheus {path} can't be written: {error.strerror}; the turn is stored"
        ) from error
