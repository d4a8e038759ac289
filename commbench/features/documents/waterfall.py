"""The figure of what each layer of a stack adds."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.core.units import format_seconds
from commbench.report.figures import BAD_COLOUR, GRID, QUIET_COLOUR, seconds_text
from commbench.report.plots import TIME, drawn, linear_axis
from commbench.report.section import Figure


def waterfall(title: str, times: Sequence[tuple[str, float]]) -> list[Figure]:
    """A bar per layer, the lowest first: light is the time of the layer below, dark is what this
    layer adds."""
    with drawn(f"{title}: what each layer adds") as (axes, made):
        before = 0.0
        for number, (_, seconds) in enumerate(times):
            axes.barh(number, before, color=GRID)
            colour = BAD_COLOUR if number else QUIET_COLOUR
            axes.barh(number, seconds - before, left=before, color=colour)
            added = f"  (+{format_seconds(seconds - before)})" if number else ""
            axes.annotate(
                f" {format_seconds(seconds)}{added}", (seconds, number), va="center", fontsize=8
            )
            before = seconds
        axes.set_yticks(range(len(times)), labels=[name for name, _ in times])
        axes.invert_yaxis()
        # room for the numbers
        linear_axis(axes.xaxis, 1.3 * times[-1][1], seconds_text, TIME)
    return made
