"""Distributions and time: ECDF of repetitions, time line of a soak, histogram of ramps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from commbench.core.units import format_seconds

from .axes import Area, dot, linear_axis, log_axis
from .figure_curves import BAND_OPACITY, legend, steps
from .markup import Markup, element, joined
from .samples import Distribution, TimeLine
from .style import PALETTE, Colours, percent_text, seconds_text

MARKS = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles that say their number
BINS = 24
WIDE, LONGEST_STEP = 1130.0, 3.0
Moment = tuple[float, float, float, float]  # at, least, median, most


def ecdf(title: str, one: Distribution) -> Markup:
    """The share of repetitions that took at most so long, a line a launch."""
    names = [f"launch {index + 1}: {run_id}" for index, (run_id, _) in enumerate(one.launches)]
    colours = Colours(names)
    times = [value for _, values in one.launches for value in values]
    x_axis = log_axis("time of one operation", times, seconds_text)
    area = Area(x_axis, linear_axis("share of repetitions", [0.0, 1.0], percent_text), height=260.0)
    shares = np.linspace(0, 1, len(one.launches[0][1])).tolist()
    drawn = []
    for name, (_, values) in zip(names, one.launches, strict=True):
        colour, dashes = colours.of(name)
        path = element(
            "path", d=area.path(values, shares), stroke=colour, stroke_dasharray=dashes or None, class_="line"
        )
        places = [round(mark * (len(shares) - 1)) for mark in MARKS]
        dots = [
            dot(area.x(values[at]), area.y(shares[at]),
                f"{percent_text(shares[at])} of the repetitions take at most {format_seconds(values[at])}", colour)
            for at in places
        ]  # fmt: skip
        drawn.append(element("g", path, dots, data_series=name))
    return joined(area.figure(title, drawn), legend(names, colours) if len(names) > 1 else None)


def time_line(title: str, line: TimeLine) -> Markup:
    """Median of each interval as a line, least to most as a band; broken where nothing was measured for a while."""
    colour = PALETTE[0]
    y_axis = log_axis("time of one operation", [*line.least_s, *line.most_s], seconds_text)
    area = Area(linear_axis("time since the start (s)", line.at_s, lambda at: f"{at:g}"), y_axis, width=WIDE)
    points = list(zip(line.at_s, line.least_s, line.median_s, line.most_s, strict=True))
    drawn = [mark for piece in _pieces(points) for mark in _stretch(area, piece, colour)]
    dots = [
        dot(area.x(at), area.y(middle), f"at {at:.3g} s: median {format_seconds(middle)}, {format_seconds(low)} .. "
            f"{format_seconds(high)}", colour, radius=2.6)
        for at, low, middle, high in points[:: max(1, len(points) // 100)]
    ]  # fmt: skip
    return area.figure(title, drawn, dots)


def _pieces(points: list[Moment]) -> list[list[Moment]]:
    """Neighbours that are not further apart than three usual steps."""
    usual = float(np.median(np.diff([one[0] for one in points]))) if len(points) > 1 else 0.0
    pieces = [points[:1]]
    for before, after in pairwise(points):
        if after[0] - before[0] > LONGEST_STEP * usual:
            pieces.append([])
        pieces[-1].append(after)
    return pieces


def _stretch(area: Area, points: list[Moment], colour: str) -> list[Markup]:
    there = [f"{area.x(at):.1f},{area.y(low):.1f}" for at, low, _, _ in points]
    back = [f"{area.x(at):.1f},{area.y(high):.1f}" for at, _, _, high in reversed(points)]
    band = element("polygon", points=" ".join([*there, *back]), fill=colour, fill_opacity=str(BAND_OPACITY))
    path = area.path([at for at, *_ in points], [middle for _, _, middle, _ in points])
    return [band, element("path", d=path, stroke=colour, class_="line")]


def ramp_histogram(title: str, seconds: tuple[float, ...]) -> Markup:
    """How long cases took from the first call to 95 % of the steady rate; logarithmic bins."""
    x_axis = log_axis("time to 95 % of the steady rate", seconds, seconds_text)
    edges = np.geomspace(x_axis.low, x_axis.high, BINS + 1)
    counts, _ = np.histogram(seconds, bins=edges)
    y_axis = linear_axis("cases", [float(counts.max())], lambda count: f"{count:g}")
    y_axis = replace(y_axis, ticks=tuple(tick for tick in y_axis.ticks if tick.is_integer()))
    return steps(title, x_axis, y_axis, edges.tolist(), counts.tolist(), PALETTE[2])
