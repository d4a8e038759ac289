"""Cases of a watched suite with planted launches: what is known of them, and a turn."""

from __future__ import annotations

from pathlib import Path

from sample_cases import CASE, case_row

from commbench.cluster.baseline.fresh_launches import FreshLaunch
from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.cluster.watch.first_look import CaseTurn, case_turn
from commbench.cluster.watch.history import CaseHistory
from commbench.cluster.watch.rule import WatchRule
from commbench.cluster.watch.state import KnownChange
from commbench.results.row import Row

RULE = WatchRule(cases=1, delta=0.02)


def healthy_of(*medians_s: float, first: int = 0) -> list[HealthyLaunch]:
    return [
        HealthyLaunch(median_s, f"run{number:03}", "node1", "")
        for number, median_s in enumerate(medians_s, start=first)
    ]


STEADY = CaseHistory(tuple(healthy_of(*(1e-5 * (1 + 0.001 * number) for number in range(8)))))
SLOWER = CaseHistory(STEADY.healthy, change=KnownChange("SLOWER", "run008", 1.3))
# launches after a step of 4 % that none of them shows alone
WAVE = [1 + 0.02 * (number % 5 - 2) / 2 for number in range(40)]
STEP = tuple(healthy_of(*(1e-5 * factor for factor in WAVE)))
AFTER = tuple(healthy_of(*(1.04e-5 * factor for factor in WAVE[:15]), first=len(STEP)))
STEPPED = CaseHistory((*STEP, *AFTER))


def launch_of(median_s: float | None) -> FreshLaunch:
    """Of one case; None is one that failed."""
    status = "failed" if median_s is None else "ok"
    return launch_with(case_row(run_id="new", hosts="node1", status=status, median_s=median_s))


def launch_with(row: Row | None) -> FreshLaunch:
    """None: the case was not measured."""
    return FreshLaunch(Path(), {} if row is None else {"key": row}, {}, 0)


def turn_of(history: CaseHistory, first: FreshLaunch, rule: WatchRule = RULE) -> CaseTurn:
    return case_turn("key", CASE, history, first, rule)
