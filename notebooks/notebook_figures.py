"""The figures of the notebooks, drawn by matplotlib with colours and ticks of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from commbench.analysis.case_names import telling, without_shared
from commbench.analysis.families import Family, families
from commbench.core.texts import setting_texts
from commbench.core.units import natural_key
from commbench.features.streams.figures import with_gaps
from commbench.report.figures import (
    BAND_OPACITY,
    GRID,
    PALETTE,
    Colours,
    bytes_text,
    line_style,
    log_ticks,
    rate_text,
    seconds_text,
    set_ticks,
    size_ticks,
)
from commbench.report.plots import KnownCurve
from commbench.results.columns import grouped
from commbench.results.load import plain, rows_of_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (7.2, 3.8)
DARK_TO_LIGHT = ("#08306B", "#3182BD", "#9ECAE1", "#F7FBFF")  # slow to fast


@contextmanager
def figure(
    title: str, columns: int = 1, height: float = SIZE_INCHES[1], panels: int | None = None
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of a notebook with axes side by side, shown at the end of the `with` block; of more
    `panels` than columns each further row has `height`."""
    import matplotlib.pyplot as plt

    plt.rc("axes", grid=True, axisbelow=True)
    plt.rc("axes.spines", top=False, right=False)
    plt.rc("grid", color=GRID)
    plt.rc("font", size=9)
    plt.rc("legend", frameon=False)
    plt.rc("figure", dpi=80)
    count = columns if panels is None else panels
    rows = -(-count // columns)
    size = SIZE_INCHES[0], height * rows
    made, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    made.suptitle(title, fontsize=11)
    for unused in axes.flat[count:]:
        unused.axis("off")
    yield made, list(axes.flat[:count])
    plt.show()


def byte_axis(axes: Axes, sizes: Sequence[float]) -> None:
    """Logarithmic, ticks at the sizes, or at powers of two where the sizes are many."""
    axes.set_xscale("log", base=2)
    low = float(min(sizes))
    high = float(max(sizes))
    set_ticks(axes.xaxis, size_ticks(sizes, low, high * 1.0001), bytes_text)
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.set_xlabel("message")
    if len(axes.get_xticks()) > 5:
        axes.tick_params(axis="x", labelrotation=30)


def rate_axis(axes: Axes, label: str = "algorithm bandwidth, GB/s") -> None:
    """Logarithmic, in GB/s (10^9 B/s)."""
    _log_axis(axes, label, rate_text)


def _log_axis(axes: Axes, label: str, text: Callable[[float], str]) -> None:
    least = axes.dataLim.minposy
    most = axes.dataLim.ymax
    low, high = (least / 1.6, most * 1.6) if 0 < least <= most else (0.1, 10.0)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    set_ticks(axes.yaxis, log_ticks(low, high), text)
    axes.set_ylabel(label)


def curves(
    axes: Axes,
    cases: pd.DataFrame,
    by: Sequence[str] = (),
    rate: bool = False,
    colours: Colours | None = None,
) -> None:
    """Seconds (GB/s with `rate`) over the message size, and their intervals: a line per value of
    the columns `by`, and of whatever else differs.

    Pass the same `colours` to give names the same colours in several figures.
    """
    chosen = Colours() if colours is None else colours
    lines = named_lines(cases, by)
    sizes: list[int] = []
    for name, family in lines:
        colour, dashes = chosen.of(name)
        middle = family.median_s
        low = family.low_s
        high = family.high_s
        if rate:
            middle, low, high = (family.sizes / seconds * 1e-9 for seconds in (middle, high, low))
        axes.plot(
            family.sizes,
            middle,
            color=colour,
            linestyle=line_style(dashes),
            marker="o",
            markersize=4,
            label=name,
        )
        axes.fill_between(family.sizes, low, high, color=colour, alpha=BAND_OPACITY, linewidth=0)
        sizes += family.sizes.tolist()
    byte_axis(axes, sizes or [1])
    (rate_axis(axes) if rate else _log_axis(axes, "median time", seconds_text))
    if len(lines) > 1:
        axes.legend()


def named_lines(cases: pd.DataFrame, by: Sequence[str] = ()) -> list[tuple[str, Family]]:
    """The lines over the message size, each with a name: its values of the columns `by`, then what
    else tells it from the others."""
    rows = without_shared(rows_of_frame(cases))
    # of the frame, not of its rows: a notebook groups by columns of its own, too
    keys = [tuple(map(plain, values)) for values in cases[list(by)].to_numpy(dtype=object)]
    groups = grouped(zip(keys, rows, strict=True), lambda each: each[0])
    in_order = sorted(groups.items(), key=lambda group: tuple(map(natural_key, group[0])))
    by_values = {values: families(row for _, row in own) for values, own in in_order}
    told = dict.fromkeys(
        name
        for own in by_values.values()
        for name in telling([family.variables for family in own])
        if name not in by
    )
    return [
        (", ".join([*map(str, values), *setting_texts(family.variables, list(told))]), family)
        for values, own in by_values.items()
        for family in own
    ]


def published_curve(axes: Axes, curve: KnownCurve, name: str, colour: str) -> None:
    """Published values over message size, as open points to distinguish them from measured ones."""
    axes.plot(
        curve.at,
        curve.values,
        color=colour,
        marker="o",
        markersize=4,
        markerfacecolor="white",
        linestyle=":",
        label=name,
    )


def rate_over_time(axes: Axes, soak: pd.DataFrame) -> None:
    """The rate of one soak (commbench.soak_intervals) over time, its median dashed, with gaps
    where nothing ran."""
    at, rate = with_gaps(soak[["at_s", "rate_gb_per_s"]].to_numpy(dtype=float).T, 1.5)
    axes.plot(at, rate, color=PALETTE[0], linewidth=1)
    axes.axhline(
        float(soak["rate_gb_per_s"].median()), color="black", linestyle="--", linewidth=0.8
    )
    axes.set_ylim(0, 1.1 * float(np.nanmax(rate)))
    axes.set_xlabel("since the start, s")
    axes.set_ylabel("bandwidth, GB/s")


def heat_map(axes: Axes, matrix: pd.DataFrame, unit: str) -> None:
    """Rates [from, to] with a number in each cell; dark is slow, empty cells were not measured."""
    from matplotlib.colors import LinearSegmentedColormap

    values = matrix.to_numpy(dtype=float)
    image = axes.imshow(values, cmap=LinearSegmentedColormap.from_list("commbench", DARK_TO_LIGHT))
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = "white" if value < middle else "black"
            axes.text(column, row, rate_text(value), ha="center", va="center", color=ink)
    axes.set_xticks(range(values.shape[1]), labels=[str(rank) for rank in matrix.columns])
    axes.set_yticks(range(values.shape[0]), labels=[str(rank) for rank in matrix.index])
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, label=unit)


def bars(axes: Axes, values: pd.Series, label: str, low: pd.Series, high: pd.Series) -> None:
    """A horizontal bar from zero for each name, with its interval and its number."""
    places = np.arange(len(values))
    names = [str(name) for name in values.index]
    colours = Colours(names)
    axes.barh(places, values, color=[colours.of(name)[0] for name in names])
    axes.errorbar(
        values, places, xerr=[values - low, high - values], fmt="none", ecolor="black", capsize=3
    )
    for place, value, end in zip(places, values, high, strict=True):
        axes.annotate(
            f"{value:.3g}", (end, place), xytext=(5, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(places, labels=names)
    axes.invert_yaxis()
    axes.set_xlim(0, float(high.max()) * 1.15)
    axes.set_xlabel(label)


def histogram(axes: Axes, values: Sequence[float], label: str, width: float) -> None:
    """Counts of the values in bins around multiples of `width`, as on the page."""
    from matplotlib.ticker import MaxNLocator

    known = [value for value in values if np.isfinite(value)]
    edges = np.arange(-0.5, max(known, default=0.0) / width + 1.5) * width
    axes.hist(known, bins=edges.tolist(), color=PALETTE[0], edgecolor="white")
    axes.set_xlabel(label)
    axes.set_ylabel(f"of {len(known)}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
