"""Colours and ticks of all figures, and the figures of the notebooks.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which remain distinct with any
colour vision; lines that share a colour differ in their dashes. Yellow is left out because it is
hard to see on white.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.units import format_bytes, format_number, format_seconds

from .fit import families

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("", "7 3", "2 3", "9 3 2 3")
BAD_COLOUR = "#D55E00"
QUIET_COLOUR = "#8A8F98"
GRID = "#E5E7EB"
# light is fast, dark is slow
RAMP = ((247, 251, 255), (158, 202, 225), (49, 130, 189), (8, 48, 107))
WHITE_INK_FROM = 0.5  # share of the ramp
MOST_TICKS = 8
SIZE_INCHES = (7.2, 3.8)
BAND_OPACITY = 0.18  # of an interval


class Colours:
    """A colour and dashes for each name, the same in all figures.

    Names that begin with the same two words (backend and engine) share a colour and differ in their
    dashes, provided there are several such beginnings and enough dashes.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._shades: dict[str, dict[str, int]] = {}
        listed = list(dict.fromkeys(names))
        counts = Counter(_beginning(name) for name in listed)
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


def ramp(share: float, stops: Sequence[tuple[int, int, int]] = RAMP) -> tuple[str, str]:
    """Fill and text colour for a share between 0 (light) and 1 (dark)."""
    at = share * (len(stops) - 1)
    channels = zip(*stops, strict=True)
    mixed = (round(float(np.interp(at, range(len(stops)), channel))) for channel in channels)
    return "#{:02X}{:02X}{:02X}".format(*mixed), "#FFFFFF" if share > WHITE_INK_FROM else "#111827"


def with_gaps(columns: NDArray[np.float64], longest_step: float) -> NDArray[np.float64]:
    """Columns [k, n] over ascending values in the first, with NaN in every gap of over
    `longest_step` usual steps."""
    steps = np.diff(columns[0])
    gaps = (
        np.flatnonzero(steps > longest_step * np.median(steps)) + 1
        if steps.size
        else np.zeros(0, dtype=np.int64)
    )
    return np.insert(columns, gaps, np.nan, axis=1)


# ---------------------------------------------------------------- ticks


def byte_ticks(low: float, high: float) -> list[float]:
    """Powers of two that format_bytes writes short, at most MOST_TICKS of them."""
    first = math.ceil(math.log2(low) - 1e-9)
    last = math.floor(math.log2(high) + 1e-9)
    step = next(step for step in (1, 2, 5, 10, 20, 40) if (last - first) // step < MOST_TICKS)
    return [2.0**exponent for exponent in range(first, last + 1) if exponent % step == 0]


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


# ---------------------------------------------------------------- notebooks


@contextmanager
def figure(
    title: str, columns: int = 1, height: float = SIZE_INCHES[1]
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of a notebook with one or several axes side by side, shown at the end of the `with`
    block."""
    import matplotlib.pyplot as plt

    plt.rc("axes", grid=True, axisbelow=True)
    plt.rc("axes.spines", top=False, right=False)
    plt.rc("grid", color=GRID)
    plt.rc("font", size=9)
    plt.rc("legend", frameon=False)
    plt.rc("figure", dpi=80)
    made, axes = plt.subplots(
        1, columns, figsize=(SIZE_INCHES[0], height), layout="constrained", squeeze=False
    )
    made.suptitle(title, fontsize=11)
    yield made, list(axes[0])
    plt.show()


def byte_axis(axes: Axes, sizes: Sequence[float]) -> None:
    """Logarithmic, ticks at powers of two with binary units."""
    axes.set_xscale("log", base=2)
    low = float(min(sizes))
    high = float(max(sizes))
    set_ticks(axes.xaxis, byte_ticks(low, high * 1.0001) or [low], bytes_text)
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


def set_ticks(axis: Any, values: Sequence[float], text: Callable[[float], str]) -> None:
    """Ticks at these values with these texts, and none in between."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(list(values), labels=[text(value) for value in values])
    axis.set_minor_locator(NullLocator())


def line_style(dashes: str) -> Any:
    """SVG's stroke-dasharray as matplotlib's line style."""
    return (0, tuple(float(word) for word in dashes.split())) if dashes else "solid"


def curves(
    axes: Axes,
    cases: pd.DataFrame,
    by: Sequence[str],
    rate: bool = False,
    colours: Colours | None = None,
) -> None:
    """Seconds (GB/s with `rate`) over the message size: a line with its interval per value of the
    columns `by`.

    Pass the same `colours` to give names the same colours in several figures.
    """
    chosen = Colours() if colours is None else colours
    groups = list(cases.groupby(list(by), dropna=False))
    sizes: list[int] = []
    for values, part in groups:
        name = ", ".join(str(value) for value in values)
        for family in families(part):
            colour, dashes = chosen.of(name)
            middle = family.median_s
            low = family.low_s
            high = family.high_s
            if rate:
                middle, low, high = (
                    family.sizes / seconds * 1e-9 for seconds in (middle, high, low)
                )
            axes.plot(
                family.sizes,
                middle,
                color=colour,
                linestyle=line_style(dashes),
                marker="o",
                markersize=4,
                label=name,
            )
            axes.fill_between(
                family.sizes, low, high, color=colour, alpha=BAND_OPACITY, linewidth=0
            )
            sizes += family.sizes.tolist()
    byte_axis(axes, sizes)
    (rate_axis(axes) if rate else _log_axis(axes, "median time", seconds_text))
    if len(groups) > 1:
        axes.legend()


def published_curve(axes: Axes, values: pd.DataFrame, name: str, colour: str) -> None:
    """Published values over message size, as open points to distinguish them from measured ones."""
    axes.plot(
        values["message_bytes"].astype(float),
        values["value"],
        color=colour,
        marker="o",
        markersize=4,
        markerfacecolor="white",
        linestyle=":",
        label=name,
    )


def rate_over_time(axes: Axes, soak: pd.DataFrame) -> None:
    """The rate of one soak (cold_start.soak_intervals) over time, its median dashed, with gaps
    where nothing ran."""
    at, rate = with_gaps(soak[["at_s", "rate_gb_per_s"]].to_numpy(dtype=float).T, 1.5)
    axes.plot(at, rate, color=PALETTE[0], linewidth=1)
    axes.axhline(
        float(soak["rate_gb_per_s"].median()), color="black", linestyle="--", linewidth=0.8
    )
    axes.set_ylim(0)
    axes.set_xlabel("since the start, s")
    axes.set_ylabel("bandwidth, GB/s")


def heat_map(axes: Axes, matrix: pd.DataFrame, unit: str) -> None:
    """Rates [from, to] with a number in each cell; dark is slow, empty cells were not measured."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = [ramp(share)[0] for share in (1, 2 / 3, 1 / 3, 0)]
    values = matrix.to_numpy(dtype=float)
    image = axes.imshow(values, cmap=LinearSegmentedColormap.from_list("commbench", colours))
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
    """Counts of the values in bins of `width` that begin at zero."""
    from matplotlib.ticker import MaxNLocator

    known = [value for value in values if np.isfinite(value)]
    edges = np.arange(0, max([*known, width]) + 2 * width, width)
    axes.hist(known, bins=edges.tolist(), color=PALETTE[0], edgecolor="white")
    axes.set_xlabel(label)
    axes.set_ylabel(f"of {len(known)}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
