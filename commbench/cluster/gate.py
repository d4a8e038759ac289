"""Whether a cluster is accepted: an answer for each case, from the launches of healthy machines.

The shift of a case is the log of its time over that of the healthy launches in the store; what it
varies by between healthy launches is known from their spread (prediction.py). With a margin m,
such as 5 %, a case

    fails      where its shift is above log(1 + m) by more than healthy launches vary, at a risk of
               the rate of false alarms over the number of cases: of all healthy suites at most that
               rate has a case that fails
    passes     where a loss of more than m is excluded, at ALPHA
    is else    undecided; the number of launches that would decide follows from the spread

With several groupings (days, sets of hosts) all of them must agree. Launches are often skewed: most
are alike, and some are slower. A limit made for normal logs would then fail healthy cases up to 20
times too often, so a case fails only if more agrees: with enough launches on each side the
Mann-Whitney test, which is right for any distribution; else the limit for exponential logs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from commbench.analysis.fit import varying
from commbench.analysis.reference import NORMAL, Judged
from commbench.cluster.baseline_store import (
    HealthyLaunch,
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
from commbench.core.texts import setting_texts
from commbench.core.units import format_factor, format_number, format_seconds, plural
from commbench.core.variables import is_usual
from commbench.report.summary import Results, Summary
from commbench.results.columns import case_text, grouped, row_order
from commbench.results.flags import warnings_of
from commbench.results.load import row_dicts
from commbench.stats.difference import ALPHA, MOST_LAUNCHES, launches_needed, mann_whitney
from commbench.stats.launches import FEW_LAUNCHES
from commbench.stats.thresholds import FALSE_ALARMS, TOLERATED_LOSS

from .prediction import (
    GROUP_OF,
    Grouping,
    PredictedShift,
    geometric_mean_s,
    predictions,
    skewed_limit,
)

Answer = Literal["PASS", "FAIL", "UNDECIDED"]
ORDER: tuple[Answer, ...] = ("FAIL", "UNDECIDED", "PASS")
NAMED_ALREADY = ("benchmark", "layout", "pair", "label", "hosts")
MOST_KEYS = 4  # that a message lists
MOST_PERCENT = 1000  # from here on a loss is a factor
LARGEST_SHIFT = 700.0  # of which a float holds the exponential
SINGULAR: dict[Grouping, str] = {"days": "one day", "sets of hosts": "one set of hosts"}


@dataclass(frozen=True)
class GateRules:
    """`margin`: the relative loss that is tolerated. `false_alarms`: the share of healthy suites of
    which a case may fail. `allow_missing`: a case that only the store has does not fail."""

    margin: float = TOLERATED_LOSS
    false_alarms: float = FALSE_ALARMS
    allow_missing: bool = False

    @property
    def shift(self) -> float:
        """The margin as a difference of logs."""
        return math.log1p(self.margin)


@dataclass(frozen=True)
class GateNumbers:
    """The geometric means over launches, and the time beyond which the case fails.

    `loss`: how much longer than healthy it takes, relatively; `most_loss`: what that is at most.
    """

    healthy_s: float
    limit_s: float
    measured_s: float
    loss: float
    most_loss: float
    healthy_launches: int
    new_launches: int


@dataclass(frozen=True)
class CaseAnswer:
    """`kind`: what `name` is of: a benchmark, or a check that needs no baseline. `reason` is empty
    for PASS; `short_reason` stands beside the numbers. `finding` is what must be said of a case
    whatever the answer."""

    kind: str
    name: str
    answer: Answer
    reason: str = ""
    finding: str = ""
    numbers: GateNumbers | None = None
    short_reason: str = ""


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
        """FAIL where a case fails, else UNDECIDED where one is or there is none, else PASS."""
        given = {each.answer for each in self.answers} or {"UNDECIDED"}
        return next(answer for answer in ORDER if answer in given)

    def count(self, answer: Answer) -> int:
        return sum(each.answer == answer for each in self.answers)

    def sentence(self) -> str:
        """`FAIL: of 40 cases 2 fail, 3 are undecided, 35 pass`."""
        words: dict[Answer, str] = {"FAIL": "fail", "UNDECIDED": "are undecided", "PASS": "pass"}
        counts = [f"{self.count(each)} {word}" for each, word in words.items() if self.count(each)]
        total = plural(len(self.answers), "case", "cases")
        return f"{self.answer}: of {total} {', '.join(counts) or 'nothing was judged'}"


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

    @property
    def is_comparable(self) -> bool:
        """Whether it was measured in all runs, and often enough by the store."""
        measured = bool(self.new) and not self.unmeasured_rows
        return measured and len(self.healthy) >= FEW_LAUNCHES

    def is_left_out(self, rules: GateRules) -> bool:
        """Whether nothing was to be expected: skipped here as in all healthy runs, or only in the
        store and allowed to be missing."""
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
    comparable = sum(case.is_comparable for case in judged)
    risk = rules.false_alarms / max(1, comparable)
    names = _case_names(judged)
    answers = [
        _case_answer(case, name, risk, rules) for case, name in zip(judged, names, strict=True)
    ]
    return GateResult(
        tuple(answers),
        (_basis(store, keys, judged), *_rule_sentences(rules, comparable)),
        tuple(_findings(answers, summary)),
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


def _case_names(cases: Sequence[GateCase]) -> list[str]:
    """`all_reduce 1x2 1 MiB`, and the variables in which cases of this benchmark differ."""
    by_benchmark = grouped((case.row for case in cases), lambda row: row["benchmark"])
    more = {benchmark: varying(rows) for benchmark, rows in by_benchmark.items()}
    names = []
    for row in (case.row for case in cases):
        shown = [
            name
            for name in more[row["benchmark"]]
            if name not in NAMED_ALREADY and not is_usual(name, row[name])
        ]
        names.append(" ".join([case_text(row), *setting_texts(row, shown)]))
    return names


def _case_answer(case: GateCase, name: str, risk: float, rules: GateRules) -> CaseAnswer:
    kind = str(case.row["benchmark"])
    finding = next((above_limit(row) for row in case.rows if is_impossible(row)), "")
    unmeasured = case.unmeasured_rows
    if not case.rows:
        healthy = plural(len(case.healthy), "launch", "launches")
        return CaseAnswer(kind, name, "FAIL", f"missing: the store has {healthy} of it")
    if unmeasured:
        return CaseAnswer(kind, name, "FAIL", unmeasured_text(unmeasured[0]), finding)
    if not case.is_comparable:
        few = (
            f"{plural(len(case.healthy), 'healthy launch', 'healthy launches')} in the store, at"
            f" least {FEW_LAUNCHES} are needed"
        )
        return CaseAnswer(kind, name, "UNDECIDED", few, finding)
    decision = decide(case.healthy, case.new, risk, rules)
    finding = "; ".join(filter(None, (finding, decision.finding)))
    return CaseAnswer(
        kind,
        name,
        decision.answer,
        decision.reason,
        finding,
        decision.numbers,
        decision.short_reason,
    )


def unmeasured_text(row: Row) -> str:
    return f"{row['status']}: {row['reason'] or 'no reason given'}"


class GateDecision(NamedTuple):
    answer: Answer
    reason: str
    short_reason: str
    finding: str
    numbers: GateNumbers


def decide(
    healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch], risk: float, rules: GateRules
) -> GateDecision:
    """By the rule above; needs FEW_LAUNCHES healthy launches. `risk`: of a false alarm in this
    case."""
    ways = predictions(healthy, new)
    is_confirmed_by_ranks = _ranks_confirm(healthy, new, risk, rules)
    least_shift = min(way.shift - way.half_width(risk) for way in ways)
    if is_confirmed_by_ranks is None:
        measured = math.log(geometric_mean_s(new))
        least_shift = min(least_shift, measured - skewed_limit(healthy, len(new), risk))
    most_shift = max(way.shift + way.half_width(ALPHA) for way in ways)
    numbers = _gate_numbers(healthy, new, least_shift, most_shift, rules)
    finding = ""
    fastest_s = min(launch.median_s for launch in healthy)
    is_beyond = all(-way.shift - way.half_width(risk) > rules.shift for way in ways)
    if is_beyond and max(launch.median_s for launch in new) < fastest_s:
        finding = (
            f"{format_seconds(numbers.measured_s)} is far faster than every healthy launch (from"
            f" {format_seconds(fastest_s)} on): see whether the same was measured"
        )
    if least_shift > rules.shift and is_confirmed_by_ranks is not False:
        limit = f"above its limit of {format_seconds(numbers.limit_s)}"
        return GateDecision("FAIL", _failure_text(numbers), limit, finding, numbers)
    if most_shift <= rules.shift:
        return GateDecision("PASS", "", "", finding, numbers)
    needed = _needed_text(ways, risk, rules)
    reason = f"loss {loss_text(numbers.loss)}, at most {loss_text(numbers.most_loss)}: {needed}"
    return GateDecision("UNDECIDED", reason, needed, finding, numbers)


def _ranks_confirm(
    healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch], risk: float, rules: GateRules
) -> bool | None:
    """Whether the new launches are slower, beyond the margin, by the Mann-Whitney test, which is
    right for any distribution; None where it takes more launches."""
    two_sided = 2 * risk
    if min(len(healthy), len(new)) < launches_needed(1, level=two_sided):
        return None
    tolerated_s = np.array([launch.median_s * (1 + rules.margin) for launch in healthy])
    new_s = np.array([launch.median_s for launch in new])
    return mann_whitney(tolerated_s, new_s) <= two_sided


def _gate_numbers(
    healthy: Sequence[HealthyLaunch],
    new: Sequence[HealthyLaunch],
    least_shift: float,
    most_shift: float,
    rules: GateRules,
) -> GateNumbers:
    healthy_s = geometric_mean_s(healthy)
    measured_s = geometric_mean_s(new)
    return GateNumbers(
        healthy_s,
        measured_s * _time_ratio(rules.shift - least_shift),
        measured_s,
        measured_s / healthy_s - 1,
        _time_ratio(most_shift) - 1,
        len(healthy),
        len(new),
    )


def _time_ratio(shift: float) -> float:
    """The ratio of times of a difference of logs; infinite beyond what a float holds."""
    return math.exp(shift) if shift < LARGEST_SHIFT else math.inf


def _failure_text(numbers: GateNumbers) -> str:
    return (
        f"{format_seconds(numbers.measured_s)}, {loss_text(numbers.loss)} longer than the"
        f" {format_seconds(numbers.healthy_s)} of healthy launches; their limit is"
        f" {format_seconds(numbers.limit_s)}"
    )


def _needed_text(ways: Sequence[PredictedShift], risk: float, rules: GateRules) -> str:
    """How many launches, days or sets of hosts would decide the case."""
    needed: list[tuple[int, Grouping]] = []
    for way in ways:
        gap = rules.shift - way.shift
        groups = way.groups_needed(abs(gap), ALPHA if gap > 0 else risk)
        if groups is None:
            return (
                f"over {MOST_LAUNCHES} {way.grouping} on each side would be needed: the margin is"
                " too small for the noise"
            )
        needed.append((groups, way.grouping))
        if gap < 0:  # that a loss is certain must hold for any distribution
            least = launches_needed(1, level=2 * risk)
            needed.append((max(least, ways[0].fewest + 1), "launches"))
    count, grouping = max(needed)
    return f"{count} {grouping} on each side would decide"


def loss_text(loss: float) -> str:
    """`3.2 %`, and from MOST_PERCENT on a factor."""
    if 100 * loss < MOST_PERCENT:
        return f"{100 * loss:.1f} %"
    return f"{format_factor(1 + loss)} the time" if math.isfinite(loss) else "any factor"


# ---------------------------------------------------------------- limits


def is_impossible(row: Row) -> bool:
    """Whether the rate is above what the hardware can carry."""
    return "impossible" in warnings_of(row) or (row.get("efficiency") or 0) > 1


def above_limit(row: Row) -> str:
    rate = row["busbw_gb_per_s"] or row["algbw_gb_per_s"]
    return (
        f"{format_number(rate)} GB/s is above the limit of {format_number(row['limit_gb_per_s'])}"
        f" GB/s ({row['limit_name']}): one of the two is wrong"
    )


# ---------------------------------------------------------------- what is said beside the answers


def _basis(store: Path, keys: Container[StoreKey], cases: Sequence[GateCase]) -> str:
    launches = sorted({len(case.healthy) for case in cases}) or [0]
    counts = " to ".join(dict.fromkeys((str(launches[0]), str(launches[-1]))))
    listed = "; ".join(str(key) for key in store_keys(store) if key in keys)
    return f"Baseline: {store}, {counts} healthy launches a case, of {listed}."


def _rule_sentences(rules: GateRules, comparable: int) -> Iterator[str]:
    if not comparable:
        return
    margin = f"{100 * rules.margin:g} %"
    each = 100 * rules.false_alarms / comparable
    yield (
        f"FAIL: longer than healthy launches take, by more than {margin}; of healthy suites at most"
        f" {100 * rules.false_alarms:g} % have such a case ({plural(comparable, 'case', 'cases')},"
        f" each at {each:.2g} %). PASS: a loss of more than {margin} is excluded, at"
        f" {100 - 100 * ALPHA:g} %."
    )


def _findings(answers: Iterable[CaseAnswer], summary: Summary) -> Iterator[str]:
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
        f" {judged.reference['hardware']})."
    )


def _notes(cases: Sequence[GateCase], judged: Sequence[GateCase], own_runs: int) -> Iterator[str]:
    """What weakens the answers, or was not judged."""
    if own_runs:
        yield (
            f"{plural(own_runs, 'run', 'runs')} of RESULTS are in the store as well, and do not"
            " count as healthy launches here."
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
