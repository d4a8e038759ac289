"""Operations on a part of a larger buffer, or among some of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from commbench.core.program import Recv, Send, View

IN_PLACE = ("all_reduce", "reduce")  # the only form that all libraries have


def placed_operation(step: Any, placed_view: Callable[[View], View], ranks: Sequence[int]) -> Any:
    """The operation with other views, of the group of these ranks of the layout. Messages need no
    group, so their peers become ranks of the layout."""
    values = vars(step).items()
    views = {name: placed_view(value) for name, value in values if isinstance(value, View)}
    if isinstance(step, Send | Recv):
        return replace(step, peer=ranks[step.peer], **views)
    return replace(step, **views)
