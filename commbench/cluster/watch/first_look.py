"""What the first launch of a turn shows of a case, and whether fresh launches are asked.

A launch that `accept` would suspect, from CHANGED_SPREADS spreads on, is measured again. A smaller
change is looked for in the launches of many turns together (change_point.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.cluster.watch.change_point import LastingChange, lasting_change
from commbench.cluster.watch.history import CaseHistory
from commbench.cluster.watch.rule import WatchRule
from commbench.cluster.watch.state import CaseVerdict
from commbench.core.states import CaseStatus
from commbench.core.variables import Case
from commbench.results.row import Row

BROKEN_STATUSES: tuple[CaseStatus, ...] = ("failed", "invalid")


@dataclass(frozen=True)
class FirstLook:
    """What the first launch of a turn shows of a case. `lasting`: the change that the last launches
    show together; `doubt`: what fresh launches are asked about, empty where none are needed."""

    launch: CaseVerdict
    lasting: LastingChange | None = None
    doubt: str = ""


def first_look(
    history: CaseHistory, row: Row | None, own: Sequence[HealthyLaunch], rule: WatchRule
) -> FirstLook:
    """`own` are the launches of `row`, which is None where the case was not measured."""
    if row is None:
        return FirstLook("UNDECIDED")
    if row.status in BROKEN_STATUSES:
        is_known = history.known == "FAILED"
        return FirstLook("FAILED", doubt="" if is_known else _doubt(history.known, "FAILED"))
    launch = rule.verdict(history.healthy, own)
    if history.change is not None:
        is_known = not own or history.shows_change(own)
        return FirstLook(launch, doubt="" if is_known else _doubt(history.known, launch))
    if launch == "UNDECIDED":
        return FirstLook(launch)
    lasting = lasting_change([*history.series, *own], rule.lasting_risk, rule.delta)
    if launch != "SAME":
        return FirstLook(launch, lasting, _doubt("SAME", launch))
    if lasting is not None:
        return FirstLook(launch, lasting, f"{lasting.verdict} in the last launches together")
    return FirstLook(launch)


def _doubt(known: CaseVerdict, launch: CaseVerdict) -> str:
    if known == "SAME":
        return f"{launch} in this launch alone"
    return f"not {known} as before in this launch"


@dataclass(frozen=True)
class CaseTurn:
    """A case in a turn: what is known of it, and its row and launches in the first launch, None and
    empty where it was not measured."""

    key: str
    case: Case
    history: CaseHistory
    row: Row | None
    launches: Sequence[HealthyLaunch]
    look: FirstLook

    @property
    def run_id(self) -> str:
        return "" if self.row is None else self.row.run_id


def case_turn(
    key: str, case: Case, history: CaseHistory, launch: FreshLaunch, rule: WatchRule
) -> CaseTurn:
    """`launch`: the first one of the turn, of the whole suite."""
    row = launch.rows.get(key)
    own = launch.launches(key)
    return CaseTurn(key, case, history, row, own, first_look(history, row, own, rule))
