"""Lanes with bars over time, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commbench.report.figures import Colours, seconds_text
from commbench.report.plots import WIDE_INCHES, drawn, linear_axis
from commbench.report.section import Figure


@dataclass(frozen=True)
class Bar:
    """Something that lasted, in a lane of a time line; `level` of `levels` where several lie below
    one another."""

    lane: int
    begin_s: float
    duration_s: float
    name: str
    level: int = 0
    levels: int = 1


def time_line(title: str, lanes: Sequence[str], bars: Sequence[Bar], label: str) -> list[Figure]:
    """A bar for each, coloured by name; lanes are named."""
    colours = Colours(list(dict.fromkeys(bar.name for bar in bars)))
    size = (WIDE_INCHES[0], 1.2 + 0.35 * len(lanes))
    with drawn(title, size) as (axes, made):
        end_s = max((bar.begin_s + bar.duration_s for bar in bars), default=0.0)
        named = set[str]()
        for bar in bars:
            height = 0.7 / bar.levels
            axes.barh(
                bar.lane - 0.35 + (bar.level + 0.5) * height,
                max(bar.duration_s, end_s / 800),  # one without time can be seen
                height,
                left=bar.begin_s,
                color=colours.of(bar.name)[0],
                label=None if bar.name in named else bar.name,
            )
            named.add(bar.name)
        axes.set_yticks(range(len(lanes)), labels=list(lanes))
        axes.invert_yaxis()
        linear_axis(axes.xaxis, end_s, seconds_text, label)
    return made
