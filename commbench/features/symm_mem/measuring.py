"""algorithm=all: each that the operation has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from commbench.core.variables import Case
from commbench.measure.measuring import Measuring

from .operations import algorithms_of

ALL = "all"  # in a case that is not one yet


def cases(case: Case) -> Iterable[Case]:
    """An operation with one algorithm, or none, has nothing to choose."""
    if case.algorithm is None:
        return (case,)
    known = algorithms_of(case.benchmark) or [None]
    if case.algorithm != ALL and known != [None]:
        return (case,)
    return [replace(case, algorithm=algorithm) for algorithm in known]


MEASURING = Measuring(cases=cases)
