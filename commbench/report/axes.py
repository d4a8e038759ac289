"""Two axes with units, grid and ticks, and what is drawn between them, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .markup import Markup, element, joined
from .style import byte_ticks, bytes_text, linear_ticks, log_ticks

WIDTH, HEIGHT = 600.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 16.0, 14.0, 46.0
ROOM = 0.04  # of the axis, beyond the data


@dataclass(frozen=True)
class Axis:
    """From values to places. `ticks` and their `text`; logarithmic unless `linear`."""

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    text: Callable[[float], str]
    linear: bool = False

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.linear:
            return (value - self.low) / (self.high - self.low)
        return math.log(max(value, self.low * 1e-3) / self.low) / math.log(self.high / self.low)


def log_axis(label: str, values: Iterable[float], text: Callable[[float], str], ticks: object = log_ticks) -> Axis:
    """All positive values with a little room; at least a factor of two wide."""
    known = [value for value in values if 0 < value < math.inf] or [1.0]
    low, high = min(known), max(known)
    spread = max(math.log(high / low), math.log(2))
    room = spread * ROOM if high > low * 2 else (math.log(2) - math.log(high / low)) / 2 + spread * ROOM
    low, high = low * math.exp(-room), high * math.exp(room)
    make = byte_ticks if ticks is byte_ticks else log_ticks
    return Axis(label, low, high, tuple(make(low, high)), text)


def byte_axis(label: str, values: Iterable[float]) -> Axis:
    return log_axis(label, values, bytes_text, byte_ticks)


def linear_axis(label: str, values: Iterable[float], text: Callable[[float], str], zero: bool = True) -> Axis:
    """From 0, unless told otherwise."""
    known = [value for value in values if math.isfinite(value)] or [1.0]
    low, high = (0.0 if zero else min(known)), max(known)
    high = high + (high - low) * ROOM if high > low else low + (abs(low) or 1.0)
    return Axis(label, low, high, tuple(linear_ticks(low, high)), text, linear=True)


@dataclass(frozen=True)
class Area:
    """The plane of a figure: x and y of a value in the SVG's own units."""

    x_axis: Axis
    y_axis: Axis
    width: float = WIDTH
    height: float = HEIGHT

    def x(self, value: float) -> float:
        return LEFT + self.x_axis.share(value) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.height - BOTTOM - self.y_axis.share(value) * (self.height - TOP - BOTTOM)

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """Straight lines through the points that exist; a gap where one does not."""
        words, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(y):
                words.append(f"{pen}{self.x(x):.1f} {self.y(y):.1f}")
            pen = "L" if math.isfinite(y) else "M"
        return "".join(words)

    def figure(self, title: str, *content: Markup | Iterable[Markup]) -> Markup:
        """The whole SVG; `title` is for those who do not see it."""
        return element(
            "svg", element("title", title), self._grid(), *content,
            viewBox=f"0 0 {self.width:g} {self.height:g}", role="img", class_="figure", aria_label=title,
        )  # fmt: skip

    def _grid(self) -> Markup:
        left, right, top, bottom = LEFT, self.width - RIGHT, TOP, self.height - BOTTOM
        lines = [element("line", x1=self.x(t), x2=self.x(t), y1=top, y2=bottom) for t in self.x_axis.ticks]
        lines += [element("line", x1=left, x2=right, y1=self.y(t), y2=self.y(t)) for t in self.y_axis.ticks]
        texts = [
            element("text", self.x_axis.text(t), x=self.x(t), y=bottom + 17, text_anchor="middle")
            for t in self.x_axis.ticks
        ]
        texts += [
            element("text", self.y_axis.text(t), x=left - 8, y=self.y(t) + 4, text_anchor="end")
            for t in self.y_axis.ticks
        ]
        middle = (top + bottom) / 2
        labels = [
            element("text", self.x_axis.label, x=(left + right) / 2, y=self.height - 8, text_anchor="middle"),
            element(
                "text", self.y_axis.label, x=14.0, y=middle, text_anchor="middle", transform=f"rotate(-90 14 {middle})"
            ),
        ]
        return joined(
            element("g", lines, class_="grid"), element("g", texts, class_="ticks"),
            element("g", labels, class_="labels"),
        )  # fmt: skip


def dot(x: float, y: float, tip: str, colour: str, href: str | None = None, radius: float = 3.4) -> Markup:
    """A point that says its number on hover and, with a link, leads to more."""
    point = element("circle", element("title", tip), cx=x, cy=y, r=radius, fill=colour, class_="dot", tabindex="0")
    return point if href is None else element("a", point, href=href)
