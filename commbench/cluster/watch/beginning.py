"""Since when a case has changed, and what else changed then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from commbench.cluster.baseline.healthy_launches import HealthyLaunch, medians_s
from commbench.cluster.watch.change_point import last_change
from commbench.cluster.watch.state import CaseVerdict, KnownChange
from commbench.report.compared_sides import DifferingFact, differing_facts

MOST_RECORDS = 20  # runs before a change whose records are compared with those after it


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
