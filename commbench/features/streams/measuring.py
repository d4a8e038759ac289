"""timing=soak in a run: a case is measured for a given time, and what is found out about that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commbench.config.settings import Settings
from commbench.core.errors import ConfigError
from commbench.measure.measuring import Measuring
from commbench.measure.visit_setup import VisitSetup

from .ramp import RAMP_COLUMNS
from .soak import Soak

FOUND = ("duration_s", "unmeasured_s", *RAMP_COLUMNS)


def strategy(setup: VisitSetup) -> Soak | None:
    return Soak(setup) if setup.settings.timing.is_soak else None


def check(settings: Settings) -> None:
    if settings.timing.is_soak and settings.nodes == "each":
        raise ConfigError(
            "nodes=each needs the stamps of all ranks, which a soak does not keep; use another"
            " timing"
        )


def of_last(values: Sequence[Any]) -> Any:
    return values[-1]


MEASURING = Measuring(check=check, strategy=strategy, columns=dict.fromkeys(FOUND, of_last))
