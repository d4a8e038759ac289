"""Planned cases with only what the stamps of a visit need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def planned_of(
    headline: str, active: tuple[int, ...], senders: tuple[int, ...] = (0,), pairs: int = 0
) -> Any:
    case = SimpleNamespace(pairs=((0, 1),) * pairs, has_model_clock=False)
    shape = SimpleNamespace(headline=headline, ranks=None)
    return SimpleNamespace(case=case, shape=shape, active=active, senders=senders)
