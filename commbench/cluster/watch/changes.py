"""Whether a case has changed, by its launches and the healthy ones of a store; since when, and what
else changed then.

A launch that `accept` would suspect, from CHANGED_SPREADS spreads on, is measured again. A change
is what all of these fresh launches show by themselves; the first one was chosen for being unlike
the others. (Their median would show smaller changes, but with it 8 of 1,000 turns told one that was
none, where 0.5 do: fresh launches are compared with the same healthy ones as the first.) They share
its day, so they must also be farther away than days explain (stats/levels.py). A smaller change is
looked for in the launches of many turns together (change_point.py), where all fresh launches must
be nearer to the last ones than to those before.

A change ends when fresh launches are nearer to the healthy ones than to the changed ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.baseline.healthy_launches import (
    HealthyLaunch,
    level_tests,
    levels_differ,
    medians_s,
)
from commbench.cluster.watch.change_point import LastingChange, last_change, lasting_change
from commbench.cluster.watch.state import CaseVerdict, KnownChange
from commbench.core.states import CaseStatus
from commbench.core.units import plural
from commbench.core.variables import Case
from commbench.report.compared_sides import DifferingFact, differing_facts
from commbench.results.row import Row
from commbench.stats.interval import Interval
from commbench.stats.thresholds import (
    CHANGED_SPREADS,
    DECIDING_LAUNCHES,
    FALSE_CHANGES,
    LASTING_SHARE,
)
from commbench.stats.verdict import suspect_ratio

BROKEN_STATUSES: tuple[CaseStatus, ...] = ("failed", "invalid")
NEAR_SHARE = 0.1  # 9 to 11 % is about 10 %
MOST_RECORDS = 20  # runs before a change whose records are compared with those after it


@dataclass(frozen=True)
class WatchRule:
    """How a suite is judged. `cases`: how many it has; `delta`: the least change that matters,
    0.02 is 2 %."""

    cases: int
    delta: float

    @property
    def lasting_risk(self) -> float:
        """That the last launches of a case look changed, without a change."""
        return LASTING_SHARE / max(self.cases, 1)

    @property
    def change_risk(self) -> float:
        """That days alone let a case look changed in a turn."""
        return FALSE_CHANGES / max(self.cases, 1)

    def healthy_range(
        self, healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]
    ) -> Interval | None:
        """Beyond which `accept` would suspect a launch, on the day of the new ones, from
        CHANGED_SPREADS on; None with too few of either."""
        if len(healthy) < DECIDING_LAUNCHES or not new:
            return None
        medians = medians_s(healthy)
        middle_s = float(np.median(medians))
        tests = level_tests(healthy, new[:1])
        factor = suspect_ratio(medians, 1, self.delta, tests, CHANGED_SPREADS)
        return Interval(middle_s, middle_s / factor, middle_s * factor, n=medians.size)

    def is_at_delta(self, healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]) -> bool:
        """Whether the new launches differ for certain, by so nearly `delta` that noise decides on
        which side of it each of them is."""
        if len(healthy) < DECIDING_LAUNCHES or not new:
            return False
        tests = level_tests(healthy, new[:1])
        noise = math.log(suspect_ratio(medians_s(healthy), 1, 0.0, tests, CHANGED_SPREADS))
        least = math.log1p(self.delta)
        step = abs(_step(healthy, new))
        return step > noise and abs(step - least) <= max(noise / 2, NEAR_SHARE * least)

    def day_levels(self, healthy: Sequence[HealthyLaunch]) -> DayLevels | None:
        """None with too few in the store."""
        if len(healthy) < DECIDING_LAUNCHES:
            return None
        of_days, *of_hosts = level_tests(healthy, [replace(healthy[-1], day="another")])
        farthest = max(test.distance(self.change_risk) for test in (of_days, *of_hosts))
        return DayLevels(of_days.between if of_days.degrees else None, math.exp(farthest))


@dataclass(frozen=True)
class DayLevels:
    """How much the days of a case differ: the standard deviation of the logs of their levels, None
    for a single day. `told_from`: the ratio from which one launch a day shows a change."""

    between: float | None
    told_from: float


@dataclass(frozen=True)
class CaseHistory:
    """What is known of a case before a turn. `healthy`: its launches in the store. `aside`: those
    of runs that were kept out of the store for another case, or until more turns are there."""

    healthy: tuple[HealthyLaunch, ...] = ()
    aside: tuple[HealthyLaunch, ...] = ()
    change: KnownChange | None = None

    @property
    def known(self) -> CaseVerdict:
        return "SAME" if self.change is None else self.change.verdict

    @property
    def series(self) -> list[HealthyLaunch]:
        """All of them, oldest first."""
        return sorted((*self.healthy, *self.aside), key=lambda launch: launch.run_id)

    def shows_change(self, new: Sequence[HealthyLaunch]) -> bool:
        """Whether these launches are nearer to the changed ones than to the healthy ones, and no
        farther beyond."""
        if self.change is None or self.change.ratio is None or not self.healthy:
            return False
        return 0.5 < _step(self.healthy, new) / math.log(self.change.ratio) < 1.5


def _step(healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]) -> float:
    """The logarithm of the ratio of the new median to the healthy one."""
    return math.log(np.median(medians_s(new)) / np.median(medians_s(healthy)))


@dataclass(frozen=True)
class FirstLook:
    """What the first launch of a turn shows. `lasting`: the change that the last launches show
    together; `needs_fresh`: whether fresh launches decide."""

    launch: CaseVerdict
    lasting: LastingChange | None = None
    needs_fresh: bool = False


def first_look(
    history: CaseHistory, row: Row | None, own: Sequence[HealthyLaunch], rule: WatchRule
) -> FirstLook:
    """`own` are the launches of `row`, which is None where the case was not measured."""
    if row is None:
        return FirstLook("UNDECIDED")
    if row.status in BROKEN_STATUSES:
        return FirstLook("FAILED", None, history.known != "FAILED")
    launch = _verdict(own, history.healthy, rule)
    if history.change is not None:
        return FirstLook(launch, None, bool(own) and not history.shows_change(own))
    if launch == "UNDECIDED":
        return FirstLook(launch)
    series = [*history.series, *own]
    lasting = lasting_change(series, rule.lasting_risk, rule.delta)
    return FirstLook(launch, lasting, launch != "SAME" or lasting is not None)


def verdict_after_fresh(
    history: CaseHistory,
    look: FirstLook,
    rows: Sequence[Row | None],
    fresh: Sequence[HealthyLaunch],
    rule: WatchRule,
) -> CaseVerdict:
    """The verdict on a case whose first launch needed fresh ones; `rows` and `fresh`: their rows
    and their times."""
    measured = [row for row in rows if row is not None]
    if measured and all(row.status in BROKEN_STATUSES for row in measured):
        return "FAILED" if look.launch == "FAILED" else history.known
    if not fresh or history.shows_change(fresh):
        return history.known
    shown = _verdict(fresh, history.healthy, rule)
    if history.change is not None:
        return shown if shown in ("SLOWER", "FASTER") else "SAME"
    is_confirmed = shown in ("SLOWER", "FASTER") and look.launch == shown
    if is_confirmed and levels_differ(history.healthy, fresh, rule.change_risk):
        return shown
    if look.lasting is not None and look.lasting.is_shown_by(fresh, rule.change_risk):
        return look.lasting.verdict
    return "SAME"


def _verdict(
    new: Sequence[HealthyLaunch], healthy: Sequence[HealthyLaunch], rule: WatchRule
) -> CaseVerdict:
    """On which side of the healthy launches all new ones are; undecided with too few of either."""
    expected = rule.healthy_range(healthy, new)
    if expected is None:
        return "UNDECIDED"
    medians = medians_s(new)
    if medians.min() > expected.high:
        return "SLOWER"
    return "FASTER" if medians.max() < expected.low else "SAME"


# ---------------------------------------------------------------- since when


def changed_since(
    verdict: CaseVerdict, before: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch], run: str
) -> KnownChange:
    """A change began with a run that was taken for healthy, or with `run`, whose launches and the
    fresh ones of its turn are `new`."""
    if verdict == "FAILED" or not before or not new:
        return KnownChange(verdict, run)
    new_s = float(np.median(medians_s(new)))
    point = last_change(np.array([*medians_s(before), new_s]), verdict, new_s)
    run_ids = [*(launch.run_id for launch in before), run]
    return KnownChange(verdict, run_ids[point.first], point.ratio)


def changed_facts(
    before: Sequence[Mapping[str, Any]], since: Sequence[Mapping[str, Any]]
) -> list[DifferingFact]:
    """The facts of run.json of which the last runs before a change and those since share no
    value."""
    if not before or not since:
        return []
    facts = differing_facts(before[-MOST_RECORDS:], since)
    return [fact for fact in facts if fact.apart]


# ---------------------------------------------------------------- the case after a turn


@dataclass(frozen=True)
class JudgedCase:
    """A case after a turn. `expected`: where a healthy launch is; `days`: how much days differ;
    `verdict`: what is shown; `change`: what is known then, None if it is as the healthy ones;
    `is_new`: since this turn; `note`: what fresh launches have shown otherwise, or how near it is
    to the least change; `has_fresh`: fresh launches were asked; `is_suspect`: they did not confirm
    a change."""

    case: Case
    row: Row | None
    history: CaseHistory
    expected: Interval | None
    days: DayLevels | None
    verdict: CaseVerdict
    change: KnownChange | None
    note: str = ""
    has_fresh: bool = False

    @property
    def is_new(self) -> bool:
        return self.change is not None and self.change is not self.history.change

    @property
    def is_suspect(self) -> bool:
        """Whether it looked changed, which fresh launches did not confirm."""
        return self.has_fresh and self.change is self.history.change is None


def judged_case(
    key: str,
    case: Case,
    history: CaseHistory,
    look: FirstLook,
    launch: FreshLaunch,
    fresh: Sequence[FreshLaunch],
    rule: WatchRule,
) -> JudgedCase:
    row = launch.rows.get(key)
    known = history.known
    shown = look.launch if history.change is None else known
    expected = rule.healthy_range(history.healthy, launch.launches(key) or history.healthy[-1:])
    days = rule.day_levels(history.healthy)
    judged = JudgedCase(
        case, row, history, expected, days, shown, history.change, has_fresh=look.needs_fresh
    )
    if not look.needs_fresh or row is None:
        return replace(judged, note=_at_delta_text(history, launch.launches(key), rule))
    rows = [each.rows.get(key) for each in fresh]
    measured = sum(row is not None for row in rows)
    if measured < len(fresh):
        note = f"{measured} of {len(fresh)} fresh launches measured it"
        verdict: CaseVerdict = "UNDECIDED" if history.change is None else known
        return replace(judged, verdict=verdict, note=note)
    again = [own for each in fresh for own in each.launches(key)]
    verdict = verdict_after_fresh(history, look, rows, again, rule)
    is_as_known = history.change is None or not again or history.shows_change(again)
    if verdict == known and is_as_known:
        denied = f"{_seen_text(look, known)}: {_denied_text(history, look, again, rule)}"
        note = _at_delta_text(history, again, rule) or denied
        return replace(judged, verdict=verdict, note=note)
    if verdict == "SAME":
        return replace(judged, verdict=verdict, change=None, note=f"no longer {known}")
    new = [*launch.launches(key), *again]
    change = changed_since(verdict, history.series, new, row.run_id)
    return replace(judged, verdict=verdict, change=change)


def _at_delta_text(history: CaseHistory, new: Sequence[HealthyLaunch], rule: WatchRule) -> str:
    """`about 10 % slower, at your --delta`; empty for what differs by less or more."""
    if history.change is not None or not rule.is_at_delta(history.healthy, new):
        return ""
    step = _step(history.healthy, new)
    which = "slower" if step > 0 else "faster"
    return (
        f"about {100 * math.expm1(abs(step)):.2g} % {which}, at your --delta"
        f" {100 * rule.delta:g}: give a smaller one to be told of it"
    )


def _denied_text(
    history: CaseHistory, look: FirstLook, fresh: Sequence[HealthyLaunch], rule: WatchRule
) -> str:
    """Why it is no change."""
    if (
        look.launch in ("SLOWER", "FASTER")
        and _verdict(fresh, history.healthy, rule) == look.launch
    ):
        return f"{plural(len(fresh), 'fresh one was', 'fresh ones were')} too, as days may be"
    return f"{plural(len(fresh), 'fresh one does', 'fresh ones do')} not confirm it"


def _seen_text(look: FirstLook, known: CaseVerdict) -> str:
    """What fresh launches were asked about."""
    if known != "SAME":
        return f"no longer {known} in this launch"
    if look.launch == "SAME" and look.lasting is not None:
        return f"{look.lasting.verdict} in the last launches together"
    return f"{look.launch} in this launch alone"
