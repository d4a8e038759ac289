"""Planned cases with only what the stamps of a visit need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def planned_of(headline: str, active: tuple[int, ...], *pairs: tuple[int, int]) -> Any:
    case = SimpleNamespace(pairs=pairs, has_model_clock=False)
    shape = SimpleNamespace(headline=headline, ranks=None)
    return SimpleNamespace(case=case, shape=shape, active=active)
