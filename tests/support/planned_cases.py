"""Planned cases with only what the stamps of a visit need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from commbench.core.case import Shape


def planned_of(headline: Any, active: tuple[int, ...], *pairs: tuple[int, int]) -> Any:
    case = SimpleNamespace(pairs=pairs, has_model_clock=False)
    shape = Shape(1, 0, headline)
    return SimpleNamespace(case=case, shape=shape, active=active)
