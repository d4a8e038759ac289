"""Colours, ticks and their texts in all figures: those of the page and those of the notebooks.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which remain distinct with any
colour vision; lines that share a colour differ in their dashes. Yellow is left out because it is
hard to see on white.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from commbench.core.units import format_bytes, format_number, format_seconds

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
BAD_COLOUR = "#D55E00"
QUIET_COLOUR = "#8A8F98"
GRID = "#E5E7EB"
MOST_TICKS = 8
BAND_OPACITY = 0.18  # of an interval
# what an axis spans; a file may have any number
LEAST_DRAWN = 1e-18
MOST_DRAWN = 1e18


class Colours:
    """A colour and dashes for each name, the same in all figures.

    Names that begin with the same two words (backend and engine) share a colour and differ in their
    dashes, provided there are several such beginnings and enough dashes.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._shades: dict[str, dict[str, int]] = {}
        listed = list(dict.fromkeys(names))
        counts = Counter(map(_beginning, listed))
        self._shared = len(counts) > 1 and max(counts.values()) <= len(DASHES)
        for name in listed:
            self.of(name)

    def of(self, name: str) -> tuple[str, str]:
        """Colour and stroke-dasharray."""
        shades = self._shades.setdefault(_beginning(name) if self._shared else name, {})
        number = list(self._shades.values()).index(shades)
        shade = shades.setdefault(name, len(shades))
        round_of_palette = 0 if self._shared else number // len(PALETTE)
        return PALETTE[number % len(PALETTE)], DASHES[(shade + round_of_palette) % len(DASHES)]


def _beginning(name: str) -> str:
    return " ".join(name.split(" ")[:2])


# ---------------------------------------------------------------- ticks


def byte_ticks(low: float, high: float) -> list[float]:
    """Powers of two that format_bytes writes short, at most MOST_TICKS of them."""
    first = math.ceil(math.log2(low) - 1e-9)
    last = math.floor(math.log2(high) + 1e-9)
    step = next(step for step in (1, 2, 5, 10, 20, 40) if (last - first) // step < MOST_TICKS)
    return [2.0**exponent for exponent in range(first, last + 1) if exponent % step == 0]


def size_ticks(sizes: Iterable[float], low: float, high: float) -> list[float]:
    """The measured sizes between the ends where they are few and far enough apart to be read, or
    else byte_ticks."""
    measured = sorted(set(sizes))
    steps = [math.log(second / first) for first, second in itertools.pairwise(measured)]
    if len(measured) <= MOST_TICKS and min(steps, default=1.0) * MOST_TICKS >= math.log(high / low):
        return measured
    return byte_ticks(low, high)


def log_ticks(low: float, high: float) -> list[float]:
    """Decades; 1, 2 and 5 of them where there are few, and equal steps within one or two of
    those."""
    first = math.floor(math.log10(low))
    last = math.ceil(math.log10(high))
    each = (1,) if last - first > 3 else (1, 2, 5)
    step = max(1, math.ceil((last - first) / MOST_TICKS))
    ticks = (digit * 10.0**exponent for exponent in range(first, last + 1, step) for digit in each)
    inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    return inside if len(inside) > 2 or high <= low else linear_ticks(low, high)


def linear_ticks(low: float, high: float) -> list[float]:
    """Round numbers, at most MOST_TICKS of them."""
    rough = (high - low) / (MOST_TICKS - 2)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * scale for digit in (1, 2, 5, 10) if digit * scale >= rough * (1 - 1e-9))
    return [
        index * step
        for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def bytes_text(value: float) -> str:
    return format_bytes(round(value))


def seconds_text(value: float) -> str:
    """The text of a tick: 1 ms, not 1.00 ms."""
    number, _, unit = format_seconds(value).partition(" ")
    return f"{float(number):g} {unit}"


def rate_text(value: float) -> str:
    return f"{float(format_number(value)):g}".replace("e-0", "e-")


def percent_text(value: float) -> str:
    return f"{100 * value:.3g} %"


def set_ticks(axis: Any, values: Sequence[float], text: Callable[[float], str]) -> None:
    """Ticks at these values with these texts, and none in between."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(list(values), labels=[text(value) for value in values])
    axis.set_minor_locator(NullLocator())


def line_style(dashes: str) -> Any:
    """SVG's stroke-dasharray as matplotlib's line style."""
    return (0, tuple(map(float, dashes.split()))) if dashes else "solid"
