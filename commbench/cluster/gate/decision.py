"""Whether a cluster is accepted: an answer for each case, from the launches of healthy machines.

    FAIL       slower for certain, by more than the margin: the verdict SLOWER (stats/verdict.py);
               or missing, skipped, failed, invalid
    SUSPECT    the verdict SUSPECT: slower, but not for certain
    UNDECIDED  the healthy launches are too few, or vary so much that a large loss could not be seen
    PASS       none of these

Of healthy suites at most the rate of false alarms has a case that fails. Launches of one day, or on
the same hosts, may be more alike than others. With several days or sets of hosts in the store, a
case fails or is suspect only if it also is with each of them taken for one launch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from commbench.analysis.case_names import case_names
from commbench.analysis.normal import NORMAL, Judged
from commbench.cluster.baseline.healthy_launches import (
    GROUP_OF,
    Grouping,
    HealthyLaunch,
    group_ratio,
    medians_s,
)
from commbench.cluster.baseline.store import (
    StoreKey,
    check_store,
    day_of,
    healthy_launches,
    launches_of,
    store_key,
    store_keys,
    stored_runs,
)
from commbench.core.errors import ConfigError
from commbench.core.states import Row, case_status
from commbench.core.units import format_factor, format_number, format_seconds, plural
from commbench.report.summary import Results, Summary
from commbench.results.columns import grouped, row_order
from commbench.results.flags import warnings_of
from commbench.results.load import row_dicts
from commbench.stats.launches import FEW_LAUNCHES
from commbench.stats.thresholds import FALSE_ALARMS, LARGEST_UNSEEN, SUSPECT_SPREADS, TOLERATED_LOSS
from commbench.stats.verdict import (
    Comparison,
    Verdict,
    compare_launches,
    verdict,
    verdicts,
)

Answer = Literal["PASS", "FAIL", "SUSPECT", "UNDECIDED"]
ORDER: tuple[Answer, ...] = ("FAIL", "SUSPECT", "UNDECIDED", "PASS")
COUNTED: dict[Answer, tuple[str, str]] = {  # of one case, of several
    "FAIL": ("fails", "fail"),
    "SUSPECT": ("is suspect", "are suspect"),
    "UNDECIDED": ("is undecided", "are undecided"),
    "PASS": ("passes", "pass"),
}
MOST_KEYS = 4  # that a message lists
MOST_PERCENT = 1000  # from here on a loss is a factor
SINGULAR: dict[Grouping, str] = {"days": "one day", "sets of hosts": "one set of hosts"}


@dataclass(frozen=True)
class GateRules:
    """`margin`: the relative loss that is tolerated. `false_alarms`: the share of healthy suites of
    which a case may fail. `allow_missing`: a case that only the store has does not fail. `only`:
    the ids of the cases that are judged; None for all. `suite_cases`: how many cases p is corrected
    for, where those judged are chosen from more."""

    margin: float = TOLERATED_LOSS
    false_alarms: float = FALSE_ALARMS
    allow_missing: bool = False
    only: frozenset[str] | None = None
    suite_cases: int = 0

    def verdicts(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Of the cases of a suite; each test is two-sided, and only losses fail."""
        alpha = 2 * self.false_alarms
        if not self.suite_cases:
            return verdicts(comparisons, self.margin, alpha)
        corrected = (min(1.0, each.p_value * self.suite_cases) for each in comparisons)
        return [
            verdict(each, p_value, self.margin, alpha)
            for each, p_value in zip(comparisons, corrected, strict=True)
        ]


@dataclass(frozen=True)
class CaseAnswer:
    """`kind`: what `name` is of: a benchmark, or a check that needs no baseline. `reason` is empty
    for PASS; `finding` is what must be said of a case whatever the answer. `case_id` and
    `comparison`: of a case that was compared with healthy launches."""

    kind: str
    name: str
    answer: Answer
    reason: str = ""
    finding: str = ""
    case_id: str = ""
    comparison: Comparison | None = None


@dataclass(frozen=True)
class GateResult:
    """The answers in the order of tables. `basis`: what they rest on; `findings`: what must be said
    beside them; `notes`: what weakens them."""

    answers: tuple[CaseAnswer, ...]
    basis: tuple[str, ...]
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def answer(self) -> Answer:
        """The worst of all cases; UNDECIDED where there is none."""
        given = {each.answer for each in self.answers} or {"UNDECIDED"}
        return next(answer for answer in ORDER if answer in given)

    def of(self, answer: Answer) -> list[CaseAnswer]:
        return [each for each in self.answers if each.answer == answer]

    def sentence(self) -> str:
        """`FAIL: all_reduce 1x2 1 MiB takes 30 % longer than 8 healthy launches; of 40 cases 1
        fails, 39 pass`."""
        if not self.answers:
            return "UNDECIDED: no case was judged"
        counts = [
            f"{len(given)} {COUNTED[answer][len(given) > 1]}"
            for answer in ORDER
            if (given := self.of(answer))
        ]
        text = f"of {plural(len(self.answers), 'case', 'cases')} {', '.join(counts)}"
        if self.answer == "PASS":
            return f"PASS: {text}{self._seen_text()}"
        worst = max(self.of(self.answer), key=_ratio)
        return f"{self.answer}: {worst.name}: {worst.reason}; {text}"

    def _seen_text(self) -> str:
        """The loss that would have been suspect in each case."""
        compared = [each.comparison for each in self.answers if each.comparison is not None]
        if not compared:
            return ""
        least = max(each.suspect_ratio for each in compared)
        return f"; a measured loss above {loss_text(least)} would have been suspect in each"


def _ratio(answer: CaseAnswer) -> float:
    """The times of a case over the healthy ones; above all where it was not measured."""
    return math.inf if answer.comparison is None else answer.comparison.ratio.value


# ---------------------------------------------------------------- with a baseline


@dataclass(frozen=True)
class GateCase:
    """A case of the results, the store, or both. `rows`: of the results, one a run; `row`: any one.

    `healthy` and `new`: the launches of the store and of the results. `is_new_only`: the store has
    no row of it; `was_measured`: some run of the store could measure it.
    """

    row: Row
    rows: Sequence[Row]
    healthy: Sequence[HealthyLaunch]
    new: Sequence[HealthyLaunch]
    is_new_only: bool
    was_measured: bool

    @property
    def unmeasured_rows(self) -> list[Row]:
        return [row for row in self.rows if case_status(row) != "ok"]

    def comparison(self, margin: float) -> Comparison | None:
        """None where a run has not measured it, or the store too seldom."""
        if not self.new or self.unmeasured_rows or len(self.healthy) < FEW_LAUNCHES:
            return None
        return compare_launches(medians_s(self.healthy), medians_s(self.new), margin)

    def is_left_out(self, rules: GateRules) -> bool:
        """Whether nothing was to be expected: skipped here as in all healthy runs, or only in the
        store and allowed to be missing; or another case is asked for."""
        if rules.only is not None and self.row["case_id"] not in rules.only:
            return True
        if not self.rows:
            return rules.allow_missing or not self.was_measured
        skipped = all(case_status(row) == "skipped" for row in self.rows)
        return skipped and not self.is_new_only and not self.was_measured


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
        tuple(_findings(answers, summary)),
        (*summary.unfinished, *_notes(cases, judged, _runs_in_store(store, keys))),
    )


def suite_answers(cases: Sequence[GateCase], rules: GateRules) -> list[CaseAnswer]:
    """The answer on each of the cases of a suite, which are decided together."""
    names = case_names([case.row for case in cases])
    comparisons = [case.comparison(rules.margin) for case in cases]
    decided = iter(rules.verdicts([each for each in comparisons if each is not None]))
    return [
        _not_compared(case, name)
        if comparison is None
        else _compared(case, name, comparison, next(decided), rules)
        for case, name, comparison in zip(cases, names, comparisons, strict=True)
    ]


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
    rows = row_dicts(results.cases[results.cases["run_id"].isin(runs)])
    by_case = grouped(rows, lambda row: str(row["case_id"]))
    days = {str(record.get("run_id")): day_of(record) for record in results.records}
    for case_id in {**by_case, **stored}:
        own = by_case.get(case_id, [])
        baseline = stored.get(case_id)
        launches = baseline.launches if baseline else ()
        yield GateCase(
            row=own[0] if own else stored[case_id].row,
            rows=own,
            healthy=[launch for launch in launches if launch.run_id not in runs],
            new=[launch for row in own for launch in launches_of(row, days[row["run_id"]])],
            is_new_only=baseline is None,
            was_measured=bool(launches),
        )


def _not_compared(case: GateCase, name: str) -> CaseAnswer:
    """The answer on a case without a comparison."""
    kind = str(case.row["benchmark"])
    healthy = plural(len(case.healthy), "healthy launch", "healthy launches")
    unmeasured = case.unmeasured_rows
    if not case.rows:
        return CaseAnswer(kind, name, "FAIL", f"missing: the store has {healthy} of it")
    if unmeasured:
        return CaseAnswer(kind, name, "FAIL", unmeasured_text(unmeasured[0]), _impossible(case))
    if not case.new:
        return CaseAnswer(kind, name, "UNDECIDED", "no launch of it has a time", _impossible(case))
    few = f"{healthy} in the store, at least {FEW_LAUNCHES} are needed"
    return CaseAnswer(kind, name, "UNDECIDED", few, _impossible(case))


def _compared(
    case: GateCase, name: str, launches: Comparison, verdict: Verdict, rules: GateRules
) -> CaseAnswer:
    of_groups = group_ratio(case.healthy, case.new, rules.margin)
    comparison = replace(launches, suspect_ratio=max(launches.suspect_ratio, of_groups))
    if comparison.ratio.value > of_groups and verdict in ("SLOWER", "SUSPECT"):
        answer, reason = _slower(case, comparison, is_certain=verdict == "SLOWER")
    else:
        answer, reason = _not_slower(case, comparison, rules)
    findings = filter(None, (_impossible(case), _too_fast(case, comparison)))
    return CaseAnswer(
        str(case.row["benchmark"]),
        name,
        answer,
        reason,
        "; ".join(findings),
        str(case.row["case_id"]),
        comparison,
    )


def _slower(case: GateCase, comparison: Comparison, is_certain: bool) -> tuple[Answer, str]:
    """The answer on a slower case, and its reason."""
    reason = _loss_sentence(case, comparison)
    if is_certain:
        return "FAIL", reason
    new = plural(len(case.new), "launch", "launches")
    return "SUSPECT", f"{reason}; not certain with {new}"


def _not_slower(case: GateCase, comparison: Comparison, rules: GateRules) -> tuple[Answer, str]:
    """PASS where a large loss would have been seen; else undecided, with the reason."""
    if comparison.suspect_ratio > 1 + LARGEST_UNSEEN:
        unseen = loss_text(comparison.suspect_ratio)
        return "UNDECIDED", f"healthy launches vary too much: a loss below {unseen} is not seen"
    slowest_s = max(launch.median_s for launch in case.healthy)
    if comparison.new_s > slowest_s * (1 + rules.margin):
        reason = _loss_sentence(case, comparison)
        return "UNDECIDED", f"{reason}, and longer than the slowest of them"
    return "PASS", ""


def _loss_sentence(case: GateCase, comparison: Comparison) -> str:
    healthy = plural(len(case.healthy), "healthy launch", "healthy launches")
    return f"takes {loss_text(comparison.ratio.value)} longer than {healthy}"


def unmeasured_text(row: Row) -> str:
    return f"{row['status']}: {row['reason'] or 'no reason given'}"


def loss_text(ratio: float) -> str:
    """`3.2 %`, and from MOST_PERCENT on a factor."""
    loss = 100 * (ratio - 1)
    return f"{loss:.1f} %" if loss < MOST_PERCENT else f"{format_factor(ratio)} the time"


# ---------------------------------------------------------------- findings


def is_impossible(row: Row) -> bool:
    """Whether the rate is above what the hardware can carry."""
    return "impossible" in warnings_of(row) or (row.get("efficiency") or 0) > 1


def above_limit(row: Row) -> str:
    rate = row["busbw_gb_per_s"] or row["algbw_gb_per_s"]
    return (
        f"{format_number(rate)} GB/s is above the limit of {format_number(row['limit_gb_per_s'])}"
        f" GB/s ({row['limit_name']}): one of the two is wrong"
    )


def _impossible(case: GateCase) -> str:
    return next((above_limit(row) for row in case.rows if is_impossible(row)), "")


def _too_fast(case: GateCase, comparison: Comparison) -> str:
    """What is said of a case that is far faster than every healthy launch."""
    fastest_s = min(launch.median_s for launch in case.healthy)
    slowest_new_s = max(launch.median_s for launch in case.new)
    if comparison.ratio.value * comparison.suspect_ratio > 1 or slowest_new_s > fastest_s:
        return ""
    return (
        f"{format_seconds(comparison.new_s)} is far faster than every healthy launch (from"
        f" {format_seconds(fastest_s)} on): see whether the same was measured"
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
    yield (
        f"FAIL: slower for certain, by more than {100 * rules.margin:g} %; at most"
        f" {100 * rules.false_alarms:g} % of healthy suites have such a case. SUSPECT: slower by"
        f" more than {100 * rules.margin:g} % and {SUSPECT_SPREADS:g} spreads of the healthy"
        " launches, but not for certain."
    )


def _findings(answers: Sequence[CaseAnswer], summary: Summary) -> Iterator[str]:
    """What is too fast, then the guidelines and known values, which fail nothing beside a
    baseline."""
    for each in answers:
        if each.finding:
            yield f"{each.name}: {each.finding}."
    yield from summary.violation_lines
    for judged in summary.judged:
        if judged.verdict != NORMAL:
            yield known_value_text(judged)


def known_value_text(judged: Judged) -> str:
    """What a case has beside a published value."""
    return (
        f"{judged.case}: {judged.measured} is {judged.verdict} ({judged.expected} on"
        f" {judged.reference.title})."
    )


def _notes(cases: Sequence[GateCase], judged: Sequence[GateCase], own_runs: int) -> Iterator[str]:
    """What weakens the answers, or was not judged."""
    if own_runs:
        yield (
            f"{plural(own_runs, 'run of RESULTS is', 'runs of RESULTS are')} in the store as well,"
            " and no healthy launches here."
        )
    launches = [launch for case in judged for launch in case.healthy]
    for grouping, group_of in GROUP_OF.items():
        groups = sorted({group_of(launch) for launch in launches})
        if len(groups) == 1:
            yield (
                f"All healthy launches are of {SINGULAR[grouping]}, {groups[0]}: how much"
                f" {grouping} differ is not in the limits."
            )
    skipped = sum(bool(case.rows) for case in cases) - sum(bool(case.rows) for case in judged)
    if skipped:
        yield f"{plural(skipped, 'case', 'cases')} skipped, as in all healthy runs: not judged."
    missing = len(cases) - len(judged) - skipped
    if missing:
        yield f"{plural(missing, 'case', 'cases')} of the store not in RESULTS: not judged."
