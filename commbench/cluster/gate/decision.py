"""Whether a cluster is accepted: an answer for each case, from the launches of healthy machines.

    FAIL       slower for certain, by more than the margin: the verdict SLOWER (stats/verdict.py);
               or missing, skipped, failed, invalid
    SUSPECT    the verdict SUSPECT: slower, but not for certain
    UNDECIDED  launches are too few, or healthy ones vary so much that a large loss could not be
               seen, or the interval of the ratio reaches a large loss (of all cases together, and
               of an only one: beyond the margin)
    PASS       none of these

Of healthy suites at most the rate of false alarms has a case that fails. Launches of one day, or on
the same hosts, may be more alike than others: what days and hosts explain neither fails nor is
suspect (stats/levels.py). A loss that many cases share shows in their mean: all cases together are
decided like one more case, which counts where none of them fails or is suspect by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commbench.analysis.case_names import case_names
from commbench.cluster.baseline.healthy_launches import HealthyLaunch, level_tests, medians_s
from commbench.cluster.gate.answers import (
    CaseAnswer,
    above_limit,
    is_impossible,
    loss_text,
    unmeasured_text,
)
from commbench.core.units import format_factor, format_seconds, plural
from commbench.results.row import Row
from commbench.stats.thresholds import (
    DECIDING_LAUNCHES,
    FALSE_ALARMS,
    FEW_LAUNCHES,
    LARGEST_UNSEEN,
    TOLERATED_LOSS,
)
from commbench.stats.verdict import (
    Comparison,
    Gate,
    Verdict,
    compare_launches,
    suspect_ratio,
    verdict,
    verdicts,
)

SUITE = "suite"  # the kind of the answer on all cases together


@dataclass(frozen=True)
class GateRules:
    """`margin`: the relative loss that is tolerated. `false_alarms`: the share of healthy suites of
    which a case may fail. `allow_missing`: a case that only the store has does not fail. `only`:
    the ids of the cases that are judged; None for all. `suite_cases`: how many cases p is corrected
    for, where those judged are chosen from more. `looks`: how often a suite is judged, with more
    launches each time."""

    margin: float = TOLERATED_LOSS
    false_alarms: float = FALSE_ALARMS
    allow_missing: bool = False
    only: frozenset[str] | None = None
    suite_cases: int = 0
    looks: int = 1

    def verdicts(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Of the cases of a suite; each test is two-sided, and only losses fail."""
        alpha = 2 * self.false_alarms / self.looks
        if not self.suite_cases:
            return verdicts(comparisons, self.margin, alpha)
        corrected = (min(1.0, each.p_value * self.suite_cases) for each in comparisons)
        return [
            verdict(each, p_value, self.margin, alpha)
            for each, p_value in zip(comparisons, corrected, strict=True)
        ]


@dataclass(frozen=True)
class GateCase:
    """A case of the results, the store, or both. `rows`: of the results, one a run; `row`: any one.

    `healthy` and `new`: the launches of the store and of the results. `is_new_only`: the store has
    no row of it; `was_measured`: some run of the store could measure it; `healthy_rows`: of the
    store, but for the runs that are judged.
    """

    row: Row
    rows: Sequence[Row]
    healthy: Sequence[HealthyLaunch]
    new: Sequence[HealthyLaunch]
    is_new_only: bool
    was_measured: bool
    healthy_rows: Sequence[Row] = ()

    @property
    def unmeasured_rows(self) -> list[Row]:
        return [row for row in self.rows if row.status != "ok"]

    def comparison(self, margin: float) -> Comparison | None:
        """None where a run has not measured it, or the store too seldom."""
        if not self.new or self.unmeasured_rows or len(self.healthy) < FEW_LAUNCHES:
            return None
        return compare_launches(
            medians_s(self.healthy),
            medians_s(self.new),
            margin,
            level_tests=level_tests(self.healthy, self.new),
        )

    def is_left_out(self, rules: GateRules) -> bool:
        """Whether nothing was to be expected: skipped here as in all healthy runs, or only in the
        store and allowed to be missing; or another case is asked for."""
        if rules.only is not None and self.row.case_id not in rules.only:
            return True
        if not self.rows:
            return rules.allow_missing or not self.was_measured
        skipped = all(row.status == "skipped" for row in self.rows)
        return skipped and not self.is_new_only and not self.was_measured


def suite_answers(cases: Sequence[GateCase], rules: GateRules) -> list[CaseAnswer]:
    """The answer on each of the cases of a suite, which are decided together."""
    names = case_names([case.row for case in cases])
    comparisons = [case.comparison(rules.margin) for case in cases]
    compared = [case for case, each in zip(cases, comparisons, strict=True) if each is not None]
    together = _together(compared) if len(compared) > 1 else None
    of_all = None if together is None else together.comparison(rules.margin)
    decided = iter(rules.verdicts([each for each in (*comparisons, of_all) if each is not None]))
    # of many intervals some reach beyond the margin, also where nothing is slower
    allowed = rules.margin if together is None else LARGEST_UNSEEN
    answers = [
        _not_compared(case, name)
        if comparison is None
        else _compared(case, name, comparison, next(decided), allowed, rules)
        for case, name, comparison in zip(cases, names, comparisons, strict=True)
    ]
    if together is None or of_all is None or any(each.is_slower for each in answers):
        return answers
    name = f"{len(compared)} cases together"
    answer = _compared(together, name, of_all, next(decided), rules.margin, rules)
    suite = replace(answer, kind=SUITE, case_id="", finding="")
    others = {each.answer for each in answers}
    return [*answers, suite] if suite.is_slower or others == {"PASS"} != {suite.answer} else answers


def _together(cases: Sequence[GateCase]) -> GateCase:
    """A case of which each launch is the mean of one of every case."""
    typical_s = [np.median(medians_s(case.healthy)) for case in cases]
    healthy = _means([case.healthy for case in cases], typical_s)
    new = _means([case.new for case in cases], typical_s)
    return replace(cases[0], healthy=healthy, new=new)


def _means(
    launches: Sequence[Sequence[HealthyLaunch]], typical_s: Sequence[np.floating[Any]]
) -> list[HealthyLaunch]:
    """The geometric means over the cases, each relative to what is typical of it; as many as the
    case with the fewest launches has."""
    return [
        replace(own[0], median_s=math.exp(np.mean(np.log(medians_s(own) / typical_s))))
        for own in zip(*launches, strict=False)
    ]


def _not_compared(case: GateCase, name: str) -> CaseAnswer:
    """The answer on a case without a comparison."""
    kind = case.row.benchmark
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
    case: GateCase,
    name: str,
    comparison: Comparison,
    verdict: Verdict,
    allowed: float,
    rules: GateRules,
) -> CaseAnswer:
    """`allowed`: the loss that the interval may reach where the case passes."""
    if verdict in ("SLOWER", "SUSPECT"):
        answer, reason = _slower(case, comparison, is_certain=verdict == "SLOWER")
    else:
        answer, reason = _not_slower(case, comparison, allowed, rules)
    findings = filter(None, (_impossible(case), _too_fast(case, comparison)))
    return CaseAnswer(
        case.row.benchmark,
        name,
        answer,
        reason,
        "; ".join(findings),
        case.row.case_id,
        comparison,
    )


def _slower(case: GateCase, comparison: Comparison, is_certain: bool) -> tuple[Gate, str]:
    """The answer on a slower case, and its reason."""
    reason = _loss_sentence(case, comparison)
    if is_certain:
        return "FAIL", reason
    new = plural(len(case.new), "launch", "launches")
    return "SUSPECT", f"{reason}; not certain with {new}"


def _not_slower(
    case: GateCase, comparison: Comparison, allowed: float, rules: GateRules
) -> tuple[Gate, str]:
    """PASS where the interval is below the loss allowed, and a large loss would have been seen;
    else undecided, with the reason."""
    if comparison.suspect_ratio > 1 + LARGEST_UNSEEN:
        unseen = f"a loss below {loss_text(comparison.suspect_ratio)} is not seen"
        disturbed = _disturbed(case, rules)
        vary = f"{disturbed or 'healthy launches vary too much'}: {unseen}"
        return "UNDECIDED", f"{vary}; more of them: commbench baseline add"
    new = plural(len(case.new), "launch", "launches")
    if len(case.new) < DECIDING_LAUNCHES or not comparison.ratio.is_known:
        return (
            "UNDECIDED",
            f"{new} can't show a loss that comes and goes: measure {DECIDING_LAUNCHES}",
        )
    slowest_s = max(launch.median_s for launch in case.healthy)
    slow = [each for each in case.new if each.median_s > slowest_s * (1 + LARGEST_UNSEEN)]
    if slow:
        worst = format_factor(max(launch.median_s for launch in slow) / slowest_s)
        return "UNDECIDED", f"{len(slow)} of {new} took up to {worst} the slowest healthy one"
    if comparison.ratio.high > 1 + allowed:
        farthest = loss_text(comparison.ratio.high)
        return "UNDECIDED", f"may take {farthest} longer by {new}: measure more, or raise --margin"
    return "PASS", ""


def _disturbed(case: GateCase, rules: GateRules) -> str:
    """The healthy launch without which a large loss would be seen; empty where there is none."""
    logs = np.log(medians_s(case.healthy))
    distances = np.abs(logs - np.median(logs))
    farthest = int(np.argmax(distances))
    others = np.exp(np.delete(logs, farthest))
    is_large = distances[farthest] > math.log1p(LARGEST_UNSEEN)
    seen_from = suspect_ratio(others, len(case.new), rules.margin)
    if not is_large or seen_from > 1 + LARGEST_UNSEEN:
        return ""
    launch = case.healthy[farthest]
    factor = format_factor(launch.median_s / float(np.median(others)))
    return f"healthy launch {launch.run_id} takes {factor} the time of the others"


def _loss_sentence(case: GateCase, comparison: Comparison) -> str:
    healthy = plural(len(case.healthy), "healthy launch", "healthy launches")
    return f"takes {loss_text(comparison.ratio.value)} longer than {healthy}"


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
