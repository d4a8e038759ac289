"""One turn of `commbench watch`: measure the suite, judge it by the healthy runs of the store, and
keep what follows."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commbench.cli.ab import run_launch
from commbench.cluster.baseline_store import (
    HealthyLaunch,
    day_of,
    launches_of,
    read_stored_run,
    store_key,
    stored_runs,
)
from commbench.cluster.prometheus import WatchedCase, case_labels, metrics_text
from commbench.cluster.watch_changes import (
    LEAST_HEALTHY,
    FirstLook,
    HealthyRange,
    WatchRule,
    changed_facts,
    changed_since,
    first_look,
    healthy_range,
    verdict_after_fresh,
)
from commbench.cluster.watch_state import (
    MOST_TURNS,
    KnownChange,
    WatchState,
    WatchVerdict,
    check_cases,
    check_suite,
    read_state,
    watch_key,
    write_state,
)
from commbench.config.compose import quoted_path
from commbench.config.settings import Job
from commbench.core.errors import ConfigError
from commbench.core.states import Row
from commbench.core.terminal import Terminal, paragraphs
from commbench.core.units import format_factor, format_seconds, plural
from commbench.core.variables import Case
from commbench.results.columns import case_text
from commbench.results.load import find_runs, load_run, read_rows, row_dicts
from commbench.results.run_folder import new_folder, replace_file
from commbench.runtime.rank_server import stop_rank_server

from .watch_runs import WatchedLaunch, file_runs
from .watch_suite import TOTAL_S, WatchedSuite, WatchOptions, narrowed_jobs, watched_suite

UNDECIDED_STATUS = 4
RUN_ID_TIME = "%Y%m%dT%H%M%S"


@dataclass(frozen=True)
class StoredRun:
    """A run of the store: its hardware, its record (run.json) and its rows."""

    path: Path
    hardware: str
    record: Mapping[str, Any]
    rows: Sequence[Row]


@dataclass(frozen=True)
class JudgedCase:
    """A case after a turn. `expected`: where a healthy launch is; `verdict`: what is shown;
    `change`: what is known then, None if it is as the healthy ones; `is_new`: since this turn;
    `note`: what fresh launches have shown otherwise."""

    case: Case
    row: Row | None
    healthy: tuple[HealthyLaunch, ...]
    expected: HealthyRange | None
    verdict: WatchVerdict
    change: KnownChange | None
    is_new: bool = False
    note: str = ""


def watch_turn(options: WatchOptions) -> int:
    """Measure the suite, judge it, and store what follows; returns the exit status."""
    suite = watched_suite(options)
    keys = tuple(sorted(suite.cases))
    state = read_state(options.store) or WatchState(options.words, keys)
    check_suite(options.store, state, options.words)
    check_cases(options.store, state, keys)
    baseline = _read_baseline(options.store)
    try:
        jobs = [watched.job for watched in suite.jobs]
        launch = _launched(options, jobs, state.launches)
        if not launch.runs:
            return launch.status
        number = state.launches + 1
        own = _own_baseline(options.store, baseline, launch)
        healthy = _healthy_by_key(own)
        rule = WatchRule(len(keys), options.delta)
        looks = {
            key: first_look(
                state.changes.get(key),
                launch.rows.get(key),
                healthy.get(key, ()),
                launch.launches(key),
                rule,
            )
            for key in suite.cases
        }
        suspected = [key for key, look in looks.items() if look.needs_fresh]
        fresh: list[WatchedLaunch] = []
        for _ in range(options.fresh if suspected else 0):
            fresh.append(_launched(options, narrowed_jobs(suite, suspected, options), number))
            number += 1
    finally:
        stop_rank_server()  # for hours nobody needs it, and an update is seen by the next one
    judged = {
        key: _judged(key, case, state, looks[key], launch, fresh, healthy, rule)
        for key, case in suite.cases.items()
        if key not in suite.skipped or key in healthy
    }
    changes = {key: each.change for key, each in judged.items() if each.change is not None}
    turns = (*state.turns, min(run.name for run in launch.runs))[-MOST_TURNS:]
    state = WatchState(options.words, keys, number, changes, turns)
    write_state(options.store, state)
    new = {key: each for key, each in judged.items() if each.is_new and each.change is not None}
    since = {run_id for each in new.values() for run_id in _runs_since_change(each)}
    shown_before = [run.path for run in own if run.path.name in since]
    file_runs(options, state, launch, fresh, new, shown_before)
    _print_turn(judged, own, launch)
    if options.prometheus is not None:
        _write_prometheus(options.prometheus, suite, judged)
    return _turn_status(launch, judged)


def _read_baseline(store: Path) -> list[StoredRun]:
    """All runs of the store, oldest first. Raises Unreadable."""
    runs = []
    for path in stored_runs(store):
        record, rows = read_stored_run(path)
        runs.append(StoredRun(path, store_key(record).hardware, record, rows))
    return runs


def _own_baseline(
    store: Path, baseline: Sequence[StoredRun], launch: WatchedLaunch
) -> list[StoredRun]:
    """The runs on the hardware of this launch, with whatever library: a new one is a change to see.

    Raises ConfigError where the store is of other hardware.
    """
    here = {store_key(record).hardware for record in launch.runs.values()}
    own = [run for run in baseline if run.hardware in here]
    if baseline and here and not own:
        raise ConfigError(
            f"{store} is of another cluster: it has runs on {baseline[-1].hardware}, this one is on"
            f" {min(here)}; use another --store, or look what has happened to the hardware; this"
            f" run stays in {next(iter(launch.runs)).parent}"
        )
    return own


def _healthy_by_key(runs: Sequence[StoredRun]) -> dict[str, list[HealthyLaunch]]:
    """The healthy launches of each case, oldest first."""
    launches: dict[str, list[HealthyLaunch]] = {}
    for run in runs:
        for row in run.rows:
            launches.setdefault(watch_key(row), []).extend(launches_of(row, day_of(run.record)))
    return launches


def _launched(options: WatchOptions, jobs: Sequence[Job], number: int) -> WatchedLaunch:
    """Run jobs one after the other, each in a fresh world; a broken one loses only its own."""
    folder = Path(new_folder(str(options.runs)))
    own = [f"trial={number}", f"output={quoted_path(folder)}"]
    if options.budget_s is not None:
        own.append(f"{TOTAL_S}={options.budget_s / len(jobs):g}")
    status = 0
    for job in jobs:
        status = max(status, run_launch([*job.overrides, *own], options.config_dir))
    runs = {run: load_run(run) for run in find_runs(folder)}
    rows = row_dicts(read_rows(list(runs))) if runs else []
    return WatchedLaunch({watch_key(row): row for row in rows}, runs, status)


def _judged(
    key: str,
    case: Case,
    state: WatchState,
    look: FirstLook,
    launch: WatchedLaunch,
    fresh: Sequence[WatchedLaunch],
    by_key: Mapping[str, Sequence[HealthyLaunch]],
    rule: WatchRule,
) -> JudgedCase:
    row = launch.rows.get(key)
    healthy = tuple(by_key.get(key, ()))
    own = launch.launches(key)
    change = state.changes.get(key)
    if change is not None and change.recent_s:
        change = change.with_launches([each.median_s for each in own])
    known: WatchVerdict = "unchanged" if change is None else change.verdict
    expected = healthy_range(healthy, rule.suspected_risk, rule.delta)
    shown = look.launch if change is None else known
    judged = JudgedCase(case, row, healthy, expected, shown, change)
    if not look.needs_fresh:
        return judged
    again = [each.rows.get(key) for each in fresh]
    verdict = verdict_after_fresh(change, look, again, healthy, rule)
    if verdict == known:
        fresh_ones = plural(len(again), "fresh one does", "fresh ones do")
        note = f"{_seen_text(look, known)}: {fresh_ones} not confirm it"
        return replace(judged, verdict=verdict, note=note)
    if verdict == "unchanged":
        return replace(judged, verdict=verdict, change=None, note=f"no longer {known}")
    assert row is not None
    new = [*own, *(each for other in fresh for each in other.launches(key))]
    point = changed_since(verdict, healthy, new, str(row["run_id"]))
    new_change = KnownChange(verdict, point.run_id, point.ratio)
    if change is None and look.lasting is not None and verdict != "failed":
        series = [*healthy, *own]
        recent_s = tuple(each.median_s for each in series[-look.lasting.launches :])
        new_change = replace(new_change, middle_s=look.lasting.middle_s, recent_s=recent_s)
    return replace(judged, verdict=verdict, change=new_change, is_new=True)


def _seen_text(look: FirstLook, known: WatchVerdict) -> str:
    """What fresh launches were asked about."""
    if look.lasting is None or look.launch == "failed":
        return f"this launch alone was {look.launch}"
    if known == "unchanged":
        word = "slower" if look.lasting.slower else "faster"
        return f"the last {look.lasting.launches} launches together are {word}"
    return f"the last {look.lasting.launches} launches together are no longer {known}"


def _runs_since_change(judged: JudgedCase) -> set[str]:
    """The runs of the store that were taken for healthy, and show the case's change already."""
    if judged.change is None:
        return set()
    return {launch.run_id for launch in judged.healthy if launch.run_id >= judged.change.since_run}


def _turn_status(launch: WatchedLaunch, judged: Mapping[str, JudgedCase]) -> int:
    if launch.status >= ConfigError.exit_status:
        return launch.status
    verdicts = {each.verdict for each in judged.values()}
    if any(each.change for each in judged.values()):
        return 1
    return UNDECIDED_STATUS if "undecided" in verdicts else 0


# ---------------------------------------------------------------- what a turn leaves


def _print_turn(
    judged: Mapping[str, JudgedCase], own: Sequence[StoredRun], launch: WatchedLaunch
) -> None:
    counts = Counter(each.verdict for each in judged.values())
    parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    now = datetime.now(timezone.utc)
    lines = [f"watch: {now:%Y-%m-%d %H:%M} UTC: {plural(len(judged), 'case', 'cases')}: {parts}"]
    lines += [line for each in judged.values() if (line := _case_line(each))]
    new = [each.change.since_run for each in judged.values() if each.change and each.is_new]
    for since_run in dict.fromkeys(new):
        lines += _fact_lines(since_run, own, launch)
    lines += _undecided_lines(judged)
    print(paragraphs(lines, Terminal.of(sys.stdout)), flush=True)


def _case_line(judged: JudgedCase) -> str:
    """By how much a case has changed, since when and where; empty for one that has not."""
    name = case_text(vars(judged.case))
    change = judged.change
    if change is None:
        return f"{name}: {judged.note}" if judged.note else ""
    ratio = "" if change.ratio is None else f" {format_factor(change.ratio)}"
    parts = [f"{name}: {change.verdict}{ratio} since {_since_text(change.since_run)}"]
    row = judged.row
    if row is not None:
        parts[0] += f", on {row['hosts']}"
        parts += [str(row["reason"])] if change.verdict == "failed" else []
        parts += _times(row["median_s"], judged.expected)
    return "; ".join([*parts, *([judged.note] if judged.note else [])])


def _times(median_s: float | None, expected: HealthyRange | None) -> list[str]:
    if median_s is None or expected is None:
        return []
    least = format_seconds(expected.least_s)
    most = format_seconds(expected.most_s)
    return [f"now {format_seconds(median_s)}, healthy launches take {least} to {most}"]


def _fact_lines(since_run: str, own: Sequence[StoredRun], launch: WatchedLaunch) -> list[str]:
    """What else differs between the runs before a change and those since."""
    before = [run.record for run in own if run.path.name < since_run]
    later = [run.record for run in own if run.path.name >= since_run]
    if not before:
        return []
    facts = changed_facts(before, [*later, *launch.runs.values()])
    if not facts:
        return [f"nothing that commbench records has changed with {since_run}"]
    return [f"changed with {since_run}:", *(f"    {fact}" for fact in facts)]


def _since_text(run_id: str) -> str:
    """The time in the name of a run, and the name."""
    with suppress(ValueError):
        started = datetime.strptime(run_id.partition(".")[0], RUN_ID_TIME)
        return f"{started:%Y-%m-%d %H:%M} UTC ({run_id})"
    return run_id


def _undecided_lines(judged: Mapping[str, JudgedCase]) -> list[str]:
    undecided = [each for each in judged.values() if each.verdict == "undecided"]
    few = [each for each in undecided if len(each.healthy) < LEAST_HEALTHY]
    lines = []
    if few:
        least = min(len(each.healthy) for each in few)
        lines.append(
            f"undecided: {plural(len(few), 'case has', 'cases have')} fewer than {LEAST_HEALTHY}"
            f" healthy launches in the store (fewest: {least})"
        )
    unmeasured = [each for each in undecided if len(each.healthy) >= LEAST_HEALTHY]
    if unmeasured:
        reasons = {str(each.row["reason"]) for each in unmeasured if each.row is not None}
        why = f": {'; '.join(sorted(reasons))}" if reasons else ""
        lines.append(
            f"undecided: {plural(len(unmeasured), 'case was', 'cases were')} not measured{why}"
        )
    return lines


def _write_prometheus(path: Path, suite: WatchedSuite, judged: Mapping[str, JudgedCase]) -> None:
    """Raises ConfigError where the file can't be written."""
    labels = case_labels([vars(each.case) for each in judged.values()])
    cases = []
    for each, texts in zip(judged.values(), labels, strict=True):
        row: Row = each.row or {}
        cases.append(
            WatchedCase(
                texts,
                each.verdict,
                row.get("median_s"),
                row.get("ci_low_s"),
                row.get("ci_high_s"),
                None if each.expected is None else each.expected.least_s,
                None if each.expected is None else each.expected.most_s,
                len(each.healthy),
            )
        )
    try:
        replace_file(path, metrics_text(suite.name, time.time(), cases).encode())
    except OSError as error:
        raise ConfigError(
            f"--prometheus {path} can't be written: {error.strerror}; the turn is stored"
        ) from error
