"""The checks of a cluster that features and annexes know without a baseline."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter

from commbench.core.annexes import registered
from commbench.report.reporting import Checks, Reporting
from commbench.report.summary import Summary


def checks_of(summary: Summary) -> Checks:
    """Of all features, those of a kind together."""
    found = [feature.checks(summary) for feature in registered(Reporting)]
    every = chain.from_iterable(each.checks for each in found)
    basis = chain.from_iterable(each.basis for each in found)
    return Checks(sorted(every, key=attrgetter("kind")), [*basis])
