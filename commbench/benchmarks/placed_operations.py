"""Operations on a part of a larger buffer, or among some of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from commbench.core.program import Recv, Send, View

IN_PLACE = ("all_reduce", "reduce")  # the only form that all libraries have


def placed_operation(step: Any, placed_view: Callable[[View], View], ranks: Sequence[int]) -> Any:
    """The operation with other views, of the group of these ranks of the layout. Messages need no
    group, so their peers become ranks of the layout."""
    values = {field.name: getattr(step, field.name) for field in fields(step)}
    views = {name: placed_view(view) for name, view in values.items() if isinstance(view, View)}
    if isinstance(step, Send | Recv):
        return replace(step, peer=ranks[step.peer], **views)
    return replace(step, **views)
