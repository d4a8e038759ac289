"""Curves with interval bands over sizes, and points with interval bars over categories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .axes import BOTTOM, LEFT, RIGHT, Area, Axis, dot
from .markup import Markup, element, joined
from .style import Colours

BAND_OPACITY = 0.16


@dataclass(frozen=True)
class Series:
    """A line: values [n] with their interval (NaN: none), a tip and perhaps a link for each of them."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    tips: Sequence[str]
    links: Sequence[str | None] = field(default=())

    def values(self) -> list[float]:
        """All that the axis must show."""
        return [value for value in (*self.ys, *self.lows, *self.highs) if math.isfinite(value)]


def curves(
    title: str, x_axis: Axis, y_axis: Axis, lines: Sequence[Series], colours: Colours, limits: Sequence[float] = ()
) -> Markup:
    """Lines with bands and points, and dashed horizontal limits; a legend where there are several."""
    area = Area(x_axis, y_axis)
    drawn = [_line(area, one, *colours.of(one.name)) for one in lines]
    bounds = [
        element("line", x1=LEFT, x2=area.width - RIGHT, y1=area.y(limit), y2=area.y(limit), class_="limit")
        for limit in limits
    ]
    return joined(area.figure(title, bounds, drawn), legend([one.name for one in lines], colours))


def legend(names: Sequence[str], colours: Colours) -> Markup:
    """What each colour means; a click hides its line, where scripts run."""
    keys = []
    for name in names:
        colour, dashes = colours.of(name)
        sample = element("line", x1=0.0, x2=26.0, y1=6.0, y2=6.0, stroke=colour, stroke_width=3.0,
                         stroke_dasharray=dashes or None)  # fmt: skip
        key = element("svg", sample, viewBox="0 0 26 12", class_="key", aria_hidden="true")
        keys.append(element("button", key, name, type="button", data_series=name))
    return element("div", keys, class_="legend")


def _line(area: Area, one: Series, colour: str, dashes: str) -> Markup:
    band = [_band(area, piece, colour) for piece in _stretches(one)]
    path = element("path", d=area.path(one.xs, one.ys), stroke=colour, stroke_dasharray=dashes or None, class_="line")
    links = one.links or [None] * len(one.xs)
    points = [
        dot(area.x(x), area.y(y), tip, colour, link)
        for x, y, tip, link in zip(one.xs, one.ys, one.tips, links, strict=True)
        if math.isfinite(y)
    ]
    return element("g", band, path, points, data_series=one.name)


def _stretches(one: Series) -> list[list[tuple[float, float, float]]]:
    """x, low, high of neighbours that have an interval."""
    found: list[list[tuple[float, float, float]]] = [[]]
    for place in zip(one.xs, one.lows, one.highs, strict=True):
        if all(map(math.isfinite, place)):
            found[-1].append(place)
        elif found[-1]:
            found.append([])
    return [piece for piece in found if len(piece) > 1]


def _band(area: Area, piece: Sequence[tuple[float, float, float]], colour: str) -> Markup:
    there = [f"{area.x(x):.1f},{area.y(low):.1f}" for x, low, _ in piece]
    back = [f"{area.x(x):.1f},{area.y(high):.1f}" for x, _, high in reversed(piece)]
    return element("polygon", points=" ".join([*there, *back]), fill=colour, fill_opacity=str(BAND_OPACITY))


# ---------------------------------------------------------------- categories


@dataclass(frozen=True)
class Point:
    """A value of one category with its interval (NaN: none)."""

    category: str
    name: str
    value: float
    low: float
    high: float
    tip: str


def strips(title: str, label: str, y_axis: Axis, points: Sequence[Point], colours: Colours) -> Markup:
    """Points over categories, never joined: between two layouts there is nothing."""
    categories = list(dict.fromkeys(point.category for point in points))
    names = list(dict.fromkeys(point.name for point in points))
    x_axis = Axis(label, -0.5, len(categories) - 0.5, tuple(range(len(categories))), lambda at: categories[round(at)],
                  linear=True)  # fmt: skip
    area = Area(x_axis, y_axis, height=280.0)
    drawn = [
        _whisker(area, point, categories.index(point.category) + _aside(names.index(point.name), len(names)), colours)
        for point in points
    ]
    return joined(area.figure(title, drawn), legend(names, colours))


def _aside(place: int, count: int) -> float:
    """Rivals stand beside one another."""
    return (place - (count - 1) / 2) * min(0.12, 0.8 / count)


def _whisker(area: Area, point: Point, place: float, colours: Colours) -> Markup:
    colour, _ = colours.of(point.name)
    x, bar = area.x(place), None
    if math.isfinite(point.low) and math.isfinite(point.high):
        bar = element("line", x1=x, x2=x, y1=area.y(point.low), y2=area.y(point.high), stroke=colour, class_="whisker")
    return element("g", bar, dot(x, area.y(point.value), point.tip, colour, radius=5.0), data_series=point.name)


def steps(title: str, x_axis: Axis, y_axis: Axis, edges: Sequence[float], counts: Sequence[int], colour: str) -> Markup:
    """A histogram: counts [n] between edges [n + 1]."""
    area = Area(x_axis, y_axis, height=240.0)
    bars = [
        element(
            "rect", element("title", f"{count} between {x_axis.text(left)} and {x_axis.text(right)}"),
            x=area.x(left) + 0.5, width=max(area.x(right) - area.x(left) - 1, 1.0), y=area.y(count),
            height=area.height - BOTTOM - area.y(count), fill=colour, class_="bar",
        )
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    ]  # fmt: skip
    return area.figure(title, bars)
