"""One turn of `commbench watch`: measure the suite, judge it by the healthy runs of the store, tell
the answer, and store what follows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.baseline.suite_key import changes_beside_times
from commbench.cluster.watch.changes import JudgedCase, judged_case
from commbench.cluster.watch.located import Location, located, with_nodes
from commbench.cluster.watch.measured import (
    MeasuredTurn,
    TurnStart,
    first_launch,
    measured_turn,
    search_launch,
    turn_start,
)
from commbench.cluster.watch.prometheus import write_metrics
from commbench.cluster.watch.quiet import HeldText, has_news, held_text
from commbench.cluster.watch.rehearsal import check_rehearsal
from commbench.cluster.watch.runs import TurnRuns, file_runs
from commbench.cluster.watch.state import WatchState, write_state
from commbench.cluster.watch.suite import WatchOptions
from commbench.cluster.watch.text import turn_lines
from commbench.core.errors import ConfigError
from commbench.core.secrets import masked_override
from commbench.core.terminal import Terminal, paragraphs
from commbench.runtime.rank_server import stop_rank_server

UNDECIDED_STATUS = 4


def watch_turn(options: WatchOptions) -> int:
    """Measure the suite, judge it, and store what follows; returns the exit status."""
    with held_text(options.is_quiet) as held:
        return _turn(options, held)


def _turn(options: WatchOptions, held: HeldText) -> int:
    start = turn_start(options)
    if start.planted:
        check_rehearsal(options)
    try:
        first = first_launch(start)
        if not first.runs:
            return first.status
        measured = measured_turn(start, first)
        answer = _judged(start, measured)
    finally:
        stop_rank_server()  # for hours nobody needs it, and an update is seen by the next one
    _tell(start, measured, answer)
    if not start.planted:
        _store(start, measured, answer)
    if options.prometheus is not None:
        write_metrics(options.prometheus, start.suite.name, answer.cases.values())
    held.is_told = bool(answer.beside) or has_news(answer.cases.values(), measured.status)
    return _exit_status(measured, answer)


# ---------------------------------------------------------------- judge


@dataclass(frozen=True)
class TurnAnswer:
    """`cases`: the judged cases by their keys; `location`: which nodes are slow, None where nothing
    was searched; `beside`: what else than times has changed, by the keys of cases."""

    cases: Mapping[str, JudgedCase]
    location: Location | None
    beside: Mapping[str, str]


def _judged(start: TurnStart, measured: MeasuredTurn) -> TurnAnswer:
    """Cases that were never measured here are left out. A change to slower is located."""
    cases = {
        key: judged_case(turn, measured.fresh, start.rule)
        for key, turn in measured.cases.items()
        if key not in start.suite.skipped or turn.history.healthy
    }
    search = partial(search_launch, start, measured.launches)
    config_dir = start.options.config_dir
    location = located(cases, start.suite.jobs, start.planted, config_dir, search)
    healthy = [row for run in measured.stored for row in run.rows]
    beside = changes_beside_times(healthy, measured.first.rows.values())
    return TurnAnswer(with_nodes(cases, location), location, beside)


def _exit_status(measured: MeasuredTurn, answer: TurnAnswer) -> int:
    if measured.status >= ConfigError.exit_status:
        return measured.status
    if answer.beside or any(case.change for case in answer.cases.values()):
        return 1
    verdicts = {case.verdict for case in answer.cases.values()}
    return UNDECIDED_STATUS if "UNDECIDED" in verdicts else 0


# ---------------------------------------------------------------- tell


def _tell(start: TurnStart, measured: MeasuredTurn, answer: TurnAnswer) -> None:
    records = [run.record for run in measured.stored]
    cases = list(answer.cases.values())
    lines = [
        *turn_lines(cases, answer.location, records, measured.first),
        *answer.beside.values(),
        *_where_runs_are(start, measured.first, bool(answer.beside)),
    ]
    print(paragraphs(lines, Terminal.of(sys.stdout)), flush=True)


def _where_runs_are(start: TurnStart, first: FreshLaunch, is_beside: bool) -> Iterator[str]:
    """Of a rehearsal, or of a turn with other changes than of times, `is_beside`."""
    options = start.options
    if start.planted:
        words = " ".join(map(masked_override, start.planted))
        yield (
            f"rehearsal with {words}: this turn does not count, and its runs are not added to the"
            f" store; they are in {first.folder.parent}"
        )
    elif is_beside:
        yield (
            f"their runs are in {options.changed}; if this is how it should be, `commbench baseline"
            f" add RUN --baseline {options.store}` adds them, else the next turn says it again"
        )


# ---------------------------------------------------------------- store


def _store(start: TurnStart, measured: MeasuredTurn, answer: TurnAnswer) -> None:
    """The state last: a turn that is interrupted before is judged again."""
    state = _state_after(start.state, measured, answer.cases)
    file_runs(start.options, state, _turn_runs(start.options, measured, answer))
    write_state(start.options.store, state)


def _state_after(
    state: WatchState, measured: MeasuredTurn, cases: Mapping[str, JudgedCase]
) -> WatchState:
    first_run = min(run.name for run in measured.first.runs)
    changes = {key: case.change for key, case in cases.items() if case.change is not None}
    ended = {key: first_run for key in state.changes if key not in changes}
    return replace(
        state.after_turn(first_run),
        launches=measured.launches,
        changes=changes,
        ended={**state.ended, **ended},
    )


def _turn_runs(options: WatchOptions, measured: MeasuredTurn, answer: TurnAnswer) -> TurnRuns:
    cases = answer.cases
    new = {key: case for key, case in cases.items() if case.is_new}
    since = {run_id for case in new.values() for run_id in _runs_since_change(case)}
    in_quarantine = [options.quarantine / run_id for run_id in sorted(since)]
    return TurnRuns(
        measured.first,
        measured.fresh,
        changed=[*(key for key, case in cases.items() if case.change), *answer.beside],
        new=list(new),
        suspect=[key for key, case in cases.items() if case.is_suspect],
        shown_before=[
            *(run.path for run in measured.stored if run.path.name in since),
            *(run for run in in_quarantine if run.is_dir()),
        ],
    )


def _runs_since_change(case: JudgedCase) -> set[str]:
    """The runs that were taken for healthy, or not for changed, and show the case's change
    already."""
    if case.change is None:
        return set()
    since = case.change.since_run
    return {launch.run_id for launch in case.history.series if launch.run_id >= since}
