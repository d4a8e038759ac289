"""Whether a case has changed, by its launches and the healthy ones of a store; since when, and what
else changed then.

A launch that lies where at most SUSPECTED_SHARE of healthy ones do is measured again in fresh
launches. Each of them must be suspected as well, and their mean lie where a single healthy launch
of any case of the suite is in at most FALSE_ALARM_SHARE of turns. The first launch does not count
for this, as it was chosen for being unlike the healthy ones; and the fresh ones count as one, as
the launches of a turn may be more alike than those of several.

A smaller change is looked for in the launches of many turns together (change_point.py), with a risk
of LASTING_SHARE for each turn of a suite; there the median of the fresh launches must be nearer to
the last launches than to those before. It ends when the median of as many launches as have shown
it, and that of fresh ones, are nearer to those before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commbench.cluster.baseline_store import HealthyLaunch, launches_of
from commbench.cluster.watch_state import CHANGE_VERDICTS, KnownChange, WatchVerdict
from commbench.core.states import CaseStatus, Row, case_status
from commbench.report.compare_text import DifferingFact, differing_facts

from .change_point import LastingChange, last_change, lasting_change
from .prediction import geometric_mean_s, predictions

SUSPECTED_SHARE = 0.01
FALSE_ALARM_SHARE = 0.01
LASTING_SHARE = 0.001  # of turns; one shares most launches with the next, so fewer are suspected
LEAST_HEALTHY = 5  # launches of a case, before it has a verdict
BROKEN_STATUSES: tuple[CaseStatus, ...] = ("failed", "invalid")
MOST_RECORDS = 20  # runs before a change whose records are compared with those after it


@dataclass(frozen=True)
class WatchRule:
    """How a suite is judged. `cases`: how many it has; `delta`: the least change that matters,
    0.02 is 2 %."""

    cases: int
    delta: float

    @property
    def suspected_risk(self) -> float:
        """On each side, of a single launch."""
        return SUSPECTED_SHARE / 2

    @property
    def confirmed_risk(self) -> float:
        """On each side, of the mean of the fresh launches."""
        return FALSE_ALARM_SHARE / 2 / max(self.cases, 1)

    @property
    def lasting_risk(self) -> float:
        """On both sides, of the last launches of many turns."""
        return LASTING_SHARE / max(self.cases, 1)


@dataclass(frozen=True)
class HealthyRange:
    """Where the median of a healthy launch is expected."""

    least_s: float
    most_s: float

    def verdict(self, median_s: float) -> WatchVerdict:
        if median_s > self.most_s:
            return "slower"
        return "faster" if median_s < self.least_s else "unchanged"


def healthy_range(
    healthy: Sequence[HealthyLaunch], risk: float, delta: float
) -> HealthyRange | None:
    """Where all but `risk` of healthy launches are on each side; None with too few of them. Of the
    ways to group launches the widest counts."""
    if len(healthy) < LEAST_HEALTHY:
        return None
    last = healthy[-1]
    least: list[float] = []
    most: list[float] = []
    for prediction in predictions(healthy, [last]):
        centre = math.log(last.median_s) - prediction.shift
        half = max(prediction.half_width(risk), math.log1p(delta))
        least.append(centre - half)
        most.append(centre + half)
    return HealthyRange(math.exp(min(least)), math.exp(max(most)))


def launch_verdict(
    row: Row | None, healthy: Sequence[HealthyLaunch], rule: WatchRule
) -> WatchVerdict:
    """The verdict on the first launch of a turn; `row` is None where the case was not measured."""
    if row is None:
        return "undecided"
    if case_status(row) in BROKEN_STATUSES:
        return "failed"
    return _mean_verdict(launches_of(row, ""), healthy, rule.suspected_risk, rule.delta)


def fresh_verdict(
    rows: Sequence[Row | None],
    known: WatchVerdict,
    healthy: Sequence[HealthyLaunch],
    rule: WatchRule,
) -> WatchVerdict:
    """The verdict on the fresh launches of a case: failed if none of them could measure it. What
    was unchanged is so where one of them alone would not have been suspected."""
    measured = [row for row in rows if row is not None]
    if measured and all(case_status(row) in BROKEN_STATUSES for row in measured):
        return "failed"
    launches = [launch for row in measured for launch in launches_of(row, "")]
    verdict = _mean_verdict(launches, healthy, rule.confirmed_risk, rule.delta)
    singly = {launch_verdict(row, healthy, rule) for row in measured}
    is_confirmed = verdict not in CHANGE_VERDICTS or singly == {verdict}
    return verdict if is_confirmed or known in CHANGE_VERDICTS else "unchanged"


def _mean_verdict(
    new: Sequence[HealthyLaunch], healthy: Sequence[HealthyLaunch], risk: float, delta: float
) -> WatchVerdict:
    expected = healthy_range(healthy, risk, delta)
    return "undecided" if expected is None or not new else expected.verdict(geometric_mean_s(new))


def needs_fresh_launches(known: WatchVerdict, launch: WatchVerdict) -> bool:
    """Whether the first launch of a turn contradicts what is known of the case."""
    return launch not in ("undecided", known)


def turn_verdict(known: WatchVerdict, launch: WatchVerdict, fresh: WatchVerdict) -> WatchVerdict:
    """What is known of a case after fresh launches: a change that they confirm, or that they end.

    `known` is unchanged or a change; `launch` and `fresh` are the verdicts of this turn.
    """
    if fresh == "undecided":
        return known
    return fresh if fresh == launch or known in CHANGE_VERDICTS else known


# ---------------------------------------------------------------- many turns together


@dataclass(frozen=True)
class FirstLook:
    """What the first launch of a turn shows. `lasting`: the change that the last launches show
    together, or have shown where it is known; `needs_fresh`: whether fresh launches decide."""

    launch: WatchVerdict
    lasting: LastingChange | None
    needs_fresh: bool


def first_look(
    change: KnownChange | None,
    row: Row | None,
    healthy: Sequence[HealthyLaunch],
    new: Sequence[HealthyLaunch],
    rule: WatchRule,
) -> FirstLook:
    """`change` is what is known of the case, `new` are the launches of `row`, which is None where
    the case was not measured."""
    launch = launch_verdict(row, healthy, rule)
    if change is None:
        lasting = lasting_change([*healthy, *new], rule.lasting_risk, rule.delta) if new else None
        is_suspected = needs_fresh_launches("unchanged", launch) or lasting is not None
        return FirstLook(launch, lasting, is_suspected)
    lasting = known_lasting(change)
    if lasting is None:
        return FirstLook(launch, None, needs_fresh_launches(change.verdict, launch))
    recent_s = change.with_launches([each.median_s for each in new]).recent_s
    is_back = not lasting.is_shown_by(recent_s)
    return FirstLook(launch, lasting, is_back or launch == "failed")


def known_lasting(change: KnownChange) -> LastingChange | None:
    """The change if many turns together have shown it, else None."""
    if change.middle_s is None:
        return None
    return LastingChange(change.verdict == "slower", len(change.recent_s), change.middle_s)


def verdict_after_fresh(
    change: KnownChange | None,
    look: FirstLook,
    rows: Sequence[Row | None],
    healthy: Sequence[HealthyLaunch],
    rule: WatchRule,
) -> WatchVerdict:
    """The verdict on a case whose first launch needed fresh ones, of which `rows` are."""
    known: WatchVerdict = "unchanged" if change is None else change.verdict
    fresh = fresh_verdict(rows, known, healthy, rule)
    if change is not None and known_lasting(change) is None:
        return turn_verdict(known, look.launch, fresh)
    was_alone = change is None and needs_fresh_launches(known, look.launch)
    if fresh == look.launch and (was_alone or fresh == "failed"):
        return fresh
    if look.lasting is None or look.launch == "failed":
        return known
    fresh_s = [each.median_s for row in rows if row is not None for each in launches_of(row, "")]
    if not fresh_s:
        return known
    if look.lasting.is_shown_by(fresh_s):
        return "slower" if look.lasting.slower else "faster"
    return "unchanged"


# ---------------------------------------------------------------- since when


@dataclass(frozen=True)
class FirstRun:
    """The first run that shows a change, and the ratio of the times since to those before; None
    where the case fails since."""

    run_id: str
    ratio: float | None


def changed_since(
    verdict: WatchVerdict, healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch], run: str
) -> FirstRun:
    """Where a change began: with a run that was taken for healthy, or with `run`, whose launches
    and the fresh ones of its turn are `new`."""
    if verdict == "failed" or not healthy or not new:
        return FirstRun(run, None)
    medians_s = [*(launch.median_s for launch in healthy), geometric_mean_s(new)]
    point = last_change(np.array(medians_s), slower=verdict == "slower")
    run_ids = [*(launch.run_id for launch in healthy), run]
    return FirstRun(run_ids[point.first], point.ratio)


def changed_facts(
    before: Sequence[Mapping[str, Any]], since: Sequence[Mapping[str, Any]]
) -> list[DifferingFact]:
    """The facts of run.json of which the last runs before a change and those since share no
    value."""
    if not before or not since:
        return []
    facts = differing_facts(before[-MOST_RECORDS:], since)
    return [fact for fact in facts if fact.apart]
