"""How a report writes sizes, times and the values that tell cases apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from commbench.core.units import (
    about_bytes,
    format_bytes,
    format_number,
    value_text,
)
from commbench.core.variables import BY_NAME, TABLE, Variables

EMPTY: tuple[Any, ...] = (None, "", {}, ())
FIRST = ("backend", "engine")  # of each name
BARE = tuple(each.name for each in TABLE if each.bare)
SHORT = 8  # characters of an exact size
OF_LIBRARY = re.compile(r"=null\b")  # an option that is left to the library or the kernel


def size_text(size: float) -> str:
    """A size in bytes, exact where that is short: 40 MB, 16 KiB; else rounded."""
    exact = format_bytes(round(size))
    return exact if len(exact) <= SHORT else about_bytes(size)


def message_text(message_bytes: int | None) -> str:
    return size_text(message_bytes) if message_bytes else "no message"


def microseconds_text(seconds: float | None) -> str:
    """The number alone, for a column in microseconds."""
    return format_number(None if seconds is None else 1e6 * seconds)


def name_of(
    variables: Variables, distinguishing: Sequence[str], first: Sequence[str] = FIRST
) -> str:
    """The values of `first`, then those of `distinguishing`, with the name of the variable unless
    it is in BARE."""
    order = sorted(
        (name for name in distinguishing if name not in FIRST), key=lambda name: name not in BARE
    )
    begin = (str(getattr(variables, name)) for name in first)
    return " ".join([*begin, *setting_texts(variables, order)])


def setting_text(name: str, value: Any) -> str:
    """A value, with the variable's name where the value alone is not clear."""
    text = OF_LIBRARY.sub("=default", value_text(value))
    return text if name in BARE else f"{name} {text}"


def setting_texts(variables: Variables, names: Iterable[str]) -> list[str]:
    """The settings that have a value."""
    values = {name: getattr(variables, name) for name in names}
    return [setting_text(name, value) for name, value in values.items() if value not in EMPTY]


def meant(name: str, value: Any) -> Any:
    """The value of a variable, of one without a value what its key calls that: payload integers."""
    return BY_NAME[name].null if value is None and name in BY_NAME else value


def sides_text(texts: Iterable[str]) -> str:
    """`1x2 -> 2x1`, of both sides of a comparison; a text that both have stands once."""
    return " -> ".join(dict.fromkeys(text or "none" for text in texts))


def some_of(texts: Sequence[str], most: int = 3) -> list[str]:
    """The first of them, and how many are left: `a`, `b`, `and 3 more`."""
    left = len(texts) - most
    return [*texts[:most], f"and {left} more"] if left > 0 else list(texts)


def span_text(values: Collection[Any], text: Callable[[Any], str] = str) -> str:
    """`8 B to 1 MiB`: the least and the largest value, or one that both are written as."""
    return " to ".join(dict.fromkeys(map(text, (min(values), max(values)))))
