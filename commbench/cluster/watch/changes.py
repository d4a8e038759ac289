"""Whether a case has changed, by the fresh launches of a turn.

A change is what all fresh launches show by themselves; the first one was chosen for being unlike
the others. (Their median would show smaller changes, but with it 8 of 1,000 turns told one that was
none, where 0.5 do: fresh launches are compared with the same healthy ones as the first.) They share
its day, so they must also be farther away than days explain (stats/levels.py). Of what many turns
show together (change_point.py), all fresh launches must be nearer to the last ones than to those
before.

A change ends when fresh launches are nearer to the healthy ones than to the changed ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.baseline.healthy_launches import HealthyLaunch, levels_differ, log_ratio
from commbench.cluster.watch.beginning import changed_since
from commbench.cluster.watch.first_look import BROKEN_STATUSES, CaseTurn
from commbench.cluster.watch.history import CaseHistory
from commbench.cluster.watch.rule import DayLevels, WatchRule
from commbench.cluster.watch.state import CaseVerdict, KnownChange
from commbench.core.units import plural
from commbench.core.variables import Case
from commbench.results.row import Row
from commbench.stats.interval import Interval


@dataclass(frozen=True)
class Outcome:
    """What a turn shows of a case: the verdict, why, and what became of a doubt:

    unasked  there was none, so no fresh launches were asked
    lost     not all fresh launches measured the case
    denied   they do not confirm what the first launch showed
    begun    they show a change, or one that is another than the known one
    ended    they show that the known change is over
    """

    kind: Literal["unasked", "lost", "denied", "begun", "ended"]
    verdict: CaseVerdict
    why: str = ""


@dataclass(frozen=True)
class JudgedCase:
    """A case after a turn. `expected`: where a healthy launch is; `days`: how much days differ;
    `change`: what is known now, None if it is as the healthy ones."""

    case: Case
    row: Row | None
    history: CaseHistory
    expected: Interval | None
    days: DayLevels | None
    outcome: Outcome
    change: KnownChange | None

    @property
    def verdict(self) -> CaseVerdict:
        return self.outcome.verdict

    @property
    def is_new(self) -> bool:
        """Whether its change is told in this turn."""
        return self.outcome.kind == "begun"

    @property
    def is_suspect(self) -> bool:
        """Whether it looked changed, which fresh launches did not confirm."""
        return self.history.change is None and self.outcome.kind in ("lost", "denied")


def judged_case(turn: CaseTurn, fresh: Sequence[FreshLaunch], rule: WatchRule) -> JudgedCase:
    """`fresh`: the fresh launches of the turn, of all cases that are in doubt."""
    history = turn.history
    outcome = case_outcome(turn, fresh, rule)
    return JudgedCase(
        turn.case,
        turn.row,
        history,
        expected=rule.healthy_range(history.healthy, turn.launches or history.healthy[-1:]),
        days=rule.day_levels(history.healthy),
        outcome=outcome,
        change=_change_after(outcome, turn, fresh),
    )


def _change_after(
    outcome: Outcome, turn: CaseTurn, fresh: Sequence[FreshLaunch]
) -> KnownChange | None:
    match outcome.kind:
        case "begun":
            new = [*turn.launches, *_launches(fresh, turn.key)]
            return changed_since(outcome.verdict, turn.history.series, new, turn.run_id)
        case "ended":
            return None
        case "unasked" | "lost" | "denied":
            return turn.history.change


def case_outcome(turn: CaseTurn, fresh: Sequence[FreshLaunch], rule: WatchRule) -> Outcome:
    """What was in doubt is decided by the fresh launches alone."""
    history = turn.history
    if not turn.look.doubt:
        verdict = turn.look.launch if history.change is None else history.known
        return Outcome("unasked", verdict, _at_delta_text(history, turn.launches, rule))
    rows = [each.rows[turn.key] for each in fresh if turn.key in each.rows]
    if len(rows) < len(fresh):
        verdict = "UNDECIDED" if history.change is None else history.known
        return Outcome("lost", verdict, f"{len(rows)} of {len(fresh)} fresh launches measured it")
    if turn.look.launch == "FAILED" and all(row.status in BROKEN_STATUSES for row in rows):
        return Outcome("begun", "FAILED")
    again = _launches(fresh, turn.key)
    if not again or history.shows_change(again):
        return Outcome("denied", history.known, _denied_text(turn, again, rule))
    if history.change is not None:
        shown = rule.verdict(history.healthy, again)
        if shown in ("SLOWER", "FASTER"):
            return Outcome("begun", shown)
        return Outcome("ended", "SAME", f"no longer {history.known}")
    confirmed = _confirmed_change(turn, again, rule)
    if confirmed is None:
        return Outcome("denied", "SAME", _denied_text(turn, again, rule))
    return Outcome("begun", confirmed)


def _confirmed_change(
    turn: CaseTurn, again: Sequence[HealthyLaunch], rule: WatchRule
) -> CaseVerdict | None:
    """What fresh launches confirm of a case without a known change: what the first launch shows,
    or the last launches together."""
    healthy = turn.history.healthy
    if _show_the_same(turn, again, rule) and levels_differ(healthy, again, rule.change_risk):
        return turn.look.launch
    lasting = turn.look.lasting
    if lasting is not None and lasting.is_shown_by(again, rule.change_risk):
        return lasting.verdict
    return None


def _show_the_same(turn: CaseTurn, again: Sequence[HealthyLaunch], rule: WatchRule) -> bool:
    """Whether the first launch and all fresh ones are on the same side of the healthy range."""
    first = turn.look.launch
    return first in ("SLOWER", "FASTER") and rule.verdict(turn.history.healthy, again) == first


def _launches(fresh: Sequence[FreshLaunch], key: str) -> list[HealthyLaunch]:
    return [launch for each in fresh for launch in each.launches(key)]


# ---------------------------------------------------------------- why


def _at_delta_text(history: CaseHistory, new: Sequence[HealthyLaunch], rule: WatchRule) -> str:
    """`about 10 % slower, at your --delta`; empty for what differs by less or more."""
    if history.change is not None or not rule.is_at_delta(history.healthy, new):
        return ""
    step = log_ratio(history.healthy, new)
    which = "slower" if step > 0 else "faster"
    return (
        f"about {100 * math.expm1(abs(step)):.2g} % {which}, at your --delta"
        f" {100 * rule.delta:g}: give a smaller one to be told of it"
    )


def _denied_text(turn: CaseTurn, again: Sequence[HealthyLaunch], rule: WatchRule) -> str:
    """Why what was in doubt is no change."""
    at_delta = _at_delta_text(turn.history, again, rule)
    if at_delta:
        return at_delta
    if turn.history.change is not None and again:
        answer = plural(len(again), "fresh one is", "fresh ones are")
    elif _show_the_same(turn, again, rule):
        fresh = plural(len(again), "fresh one was", "fresh ones were")
        return f"{turn.look.launch} in this launch: {fresh} too, as days may be"
    else:
        answer = f"{plural(len(again), 'fresh one does', 'fresh ones do')} not confirm it"
    return f"{turn.look.doubt}: {answer}"
