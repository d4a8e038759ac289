"""timing=soak in a run: a case is measured for a given time, and what is found out about that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commbench.measure.measuring import Measuring
from commbench.measure.visit_setup import VisitSetup

from .ramp import RAMP_COLUMNS
from .soak import Soak

FOUND = ("duration_s", "unmeasured_s", *RAMP_COLUMNS)


def strategy(setup: VisitSetup) -> Soak | None:
    return Soak(setup) if setup.settings.timing.is_soak else None


def of_last(values: Sequence[Any]) -> Any:
    return values[-1]


MEASURING = Measuring(strategy=strategy, columns=dict.fromkeys(FOUND, of_last))
