"""A suite against the healthy launches of a store: which cases are judged, and what is said beside
the answers."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from commbench.cluster.baseline.healthy_launches import GROUP_OF, Grouping, level_spread
from commbench.cluster.baseline.store import (
    BaselineCase,
    StoreKey,
    check_store,
    day_of,
    healthy_launches,
    launches_of,
    store_key,
    store_keys,
    stored_runs,
)
from commbench.cluster.baseline.suite_key import changes_beside_times
from commbench.cluster.gate.answers import CaseAnswer, GateResult
from commbench.cluster.gate.checks import checks_of
from commbench.cluster.gate.decision import GateCase, GateRules, suite_answers
from commbench.core.errors import ConfigError
from commbench.core.units import plural
from commbench.report.summary import Results, Summary
from commbench.results.columns import grouped, row_order
from commbench.stats.thresholds import SUSPECT_SPREADS, USUAL_LEVELS

MOST_KEYS = 4  # that a message lists
NOT_STORED = BaselineCase((), ())
SINGULAR: dict[Grouping, str] = {"days": "one day", "sets of hosts": "one set of hosts"}


def judge_with_baseline(summary: Summary, store: Path, rules: GateRules) -> GateResult:
    """Each case of the results, and each that the store has beside them, against the store. Raises
    ConfigError for a store of other machines."""
    check_store(store)
    results = summary.results
    keys = _known_keys(results, store)
    cases = [case for key in keys for case in _cases_of_key(results, store, key, keys[key])]
    judged = [case for case in cases if not case.is_left_out(rules)]
    judged.sort(key=lambda case: row_order(case.row))
    answers = suite_answers(judged, rules)
    return GateResult(
        tuple(answers),
        (_basis(store, keys, judged), *_rule_sentences(answers, rules)),
        tuple(_findings(answers, judged, summary)),
        (*summary.unfinished, *_notes(cases, judged, _runs_in_store(store, keys))),
    )


def _known_keys(results: Results, store: Path) -> dict[StoreKey, set[str]]:
    """The runs of the results by key. Raises ConfigError where the store has none of these."""
    runs: dict[StoreKey, set[str]] = {}
    for record in results.records:
        runs.setdefault(store_key(record), set()).add(str(record.get("run_id")))
    stored = store_keys(store)
    if not set(stored) & runs.keys():
        measured = "; ".join(map(str, sorted(runs)[:MOST_KEYS]))
        known = "; ".join(map(str, stored[:MOST_KEYS]))
        raise ConfigError(
            f"{store} has no baseline for RESULTS: they are of {measured}, the store has {known};"
            " add healthy runs of the same hardware and library, or name another store"
        )
    return runs


def _runs_in_store(store: Path, keys: Mapping[StoreKey, set[str]]) -> int:
    """How many of the runs of each key the store has."""
    return sum(run.name in runs for key, runs in keys.items() for run in stored_runs(store, key))


def _cases_of_key(
    results: Results, store: Path, key: StoreKey, runs: Collection[str]
) -> Iterator[GateCase]:
    """The cases that these runs of the results or the store have."""
    stored = healthy_launches(store, key)
    rows = [row for row in results.rows if row.run_id in runs]
    by_case = grouped(rows, lambda row: row.case_id)
    days = {
        str(record.get("run_id")): day_of(record.get("started_at")) for record in results.records
    }
    for case_id in {**by_case, **stored}:
        own = by_case.get(case_id, [])
        baseline = stored.get(case_id, NOT_STORED)
        yield GateCase(
            row=(own or baseline.rows)[-1],
            rows=own,
            healthy=[launch for launch in baseline.launches if launch.run_id not in runs],
            new=[launch for row in own for launch in launches_of(row, days[row.run_id])],
            is_new_only=not baseline.rows,
            was_measured=bool(baseline.launches),
            healthy_rows=[row for row in baseline.rows if row.run_id not in runs],
        )


# ---------------------------------------------------------------- what is said beside the answers


def _basis(store: Path, keys: Container[StoreKey], cases: Sequence[GateCase]) -> str:
    launches = sorted({len(case.healthy) for case in cases}) or [0]
    counts = " to ".join(dict.fromkeys((str(launches[0]), str(launches[-1]))))
    listed = "; ".join(str(key) for key in store_keys(store) if key in keys)
    return f"Baseline: {store}, {counts} healthy launches a case, of {listed}."


def _rule_sentences(answers: Sequence[CaseAnswer], rules: GateRules) -> Iterator[str]:
    if all(each.comparison is None for each in answers):
        return
    margin = f"{100 * rules.margin:g} %"
    yield (
        f"A case that is slower for certain, by more than {margin}, is FAIL; at most"
        f" {100 * rules.false_alarms:g} % of healthy suites have one. A case is SUSPECT that is"
        f" slower by more than {margin} and {SUSPECT_SPREADS:g} spreads of the healthy launches,"
        " but not for certain."
    )


def _findings(
    answers: Sequence[CaseAnswer], judged: Sequence[GateCase], summary: Summary
) -> Iterator[str]:
    """What is too fast or has changed beside its times, then the guidelines and known values, which
    fail nothing beside a baseline."""
    for each in answers:
        if each.finding:
            yield f"{each.name}: {each.finding}."
    healthy = (row for case in judged for row in case.healthy_rows)
    new = (row for case in judged for row in case.rows)
    for text in changes_beside_times(healthy, new).values():
        yield f"{text}."
    yield from filter(None, (check.finding for check in checks_of(summary).checks))


def _notes(cases: Sequence[GateCase], judged: Sequence[GateCase], own_runs: int) -> Iterator[str]:
    """What weakens the answers, or was not judged."""
    if own_runs:
        yield (
            f"{plural(own_runs, 'run of RESULTS is', 'runs of RESULTS are')} in the store as well,"
            " and no healthy launches here."
        )
    yield from _level_notes(judged)
    skipped = sum(bool(case.rows) for case in cases) - sum(bool(case.rows) for case in judged)
    if skipped:
        yield f"{plural(skipped, 'case', 'cases')} skipped, as in all healthy runs: not judged."
    missing = len(cases) - len(judged) - skipped
    if missing:
        yield f"{plural(missing, 'case', 'cases')} of the store not in RESULTS: not judged."


def _level_notes(judged: Sequence[GateCase]) -> Iterator[str]:
    """How much days and hosts differ; of several, in the middle case."""
    for grouping, group_of in GROUP_OF.items():
        groups = sorted({group_of(launch) for case in judged for launch in case.healthy})
        if len(groups) == 1:
            yield (
                f"All healthy launches are of {SINGULAR[grouping]}, {groups[0]}: {grouping} are"
                f" taken to differ by {100 * USUAL_LEVELS:g} %."
            )
        elif groups:
            spreads = [level_spread(case.healthy, group_of) for case in judged if case.healthy]
            percent = 100 * float(np.median(spreads))
            yield f"{grouping.capitalize()} differ by {percent:.2g} %, in {len(groups)} {grouping}."
