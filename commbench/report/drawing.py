"""The figures of the notebooks: matplotlib's axes in the house's one style (style.py). Needs `commbench[notebooks]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .families import Family, families
from .style import RAMP, Colours, byte_ticks, bytes_text, log_ticks, rate_text, seconds_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (7.2, 3.8)
GRID = "#E5E7EB"
BAND = 0.18  # opacity of an interval


@contextmanager
def figure(title: str, columns: int = 1, height: float = SIZE_INCHES[1]) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with one or several axes side by side, shown at the end of the `with`."""
    import matplotlib.pyplot as plt

    plt.rc("axes", grid=True, axisbelow=True)
    plt.rc("axes.spines", top=False, right=False)
    plt.rc("grid", color=GRID)
    plt.rc("font", size=9)
    plt.rc("legend", frameon=False)
    plt.rc("figure", dpi=80)
    made, axes = plt.subplots(1, columns, figsize=(SIZE_INCHES[0], height), layout="constrained", squeeze=False)
    made.suptitle(title, fontsize=11)
    yield made, list(axes[0])
    plt.show()


def byte_axis(axes: Axes, sizes: Sequence[float], label: str = "message") -> None:
    """Logarithmic, ticks at powers of two with binary units."""
    axes.set_xscale("log", base=2)
    low, high = float(min(sizes)), float(max(sizes))
    _ticks(axes.xaxis, byte_ticks(low, high * 1.0001) or [low], bytes_text)
    axes.set_xlim(low / 1.5, high * 1.5)
    axes.set_xlabel(label)
    if len(axes.get_xticks()) > 5:
        axes.tick_params(axis="x", labelrotation=30)


def seconds_axis(axes: Axes, label: str) -> None:
    """Logarithmic, ticks with their unit."""
    _log(axes, label, seconds_text)


def rate_axis(axes: Axes, label: str = "algorithm bandwidth, GB/s") -> None:
    """Logarithmic, in GB/s (10^9 B/s)."""
    _log(axes, label, rate_text)


def _log(axes: Axes, label: str, text: Callable[[float], str]) -> None:
    known = [np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()]
    outlines = (path for band in axes.collections for path in band.get_paths())
    known += [np.asarray(path.vertices, dtype=float)[:, 1] for path in outlines]
    values = np.concatenate([*known, np.ones(0)])
    values = values[(values > 0) & np.isfinite(values)]
    low, high = (float(values.min()) / 1.6, float(values.max()) * 1.6) if values.size else (0.1, 10.0)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    _ticks(axes.yaxis, log_ticks(low, high), text)
    axes.set_ylabel(label)


def _ticks(axis: Any, places: Sequence[float], text: Callable[[float], str]) -> None:
    axis.set_ticks(list(places), labels=[text(place) for place in places])
    axis.set_minor_locator(_null())


def _null() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def curves(
    axes: Axes, cases: pd.DataFrame, by: Sequence[str] = (), rate: bool = False, colours: Colours | None = None
) -> None:
    """Seconds, or with `rate` GB/s, over the message: a line with its 95 % interval for each value of the columns `by`.

    The same `colours` give the same names the same colours in several figures.
    """
    chosen = Colours() if colours is None else colours
    groups = list(cases.groupby(list(by), dropna=False)) if by else [(("median",), cases)]
    sizes: list[int] = []
    for values, part in groups:
        name = ", ".join(str(value) for value in values)
        for one in families(part):
            _curve(axes, one, name, rate, *chosen.of(name))
            sizes += one.sizes.tolist()
    byte_axis(axes, sizes)
    (rate_axis(axes) if rate else seconds_axis(axes, "median time"))
    if len(groups) > 1:
        axes.legend()


def _curve(axes: Axes, one: Family, name: str, rate: bool, colour: str, dashes: str) -> None:
    middle, low, high = one.median_s, one.low_s, one.high_s
    if rate:
        middle, low, high = (one.sizes / times * 1e-9 for times in (middle, high, low))
    style: Any = (0, tuple(float(word) for word in dashes.split())) if dashes else "solid"
    axes.plot(one.sizes, middle, color=colour, linestyle=style, marker="o", markersize=4, label=name)
    axes.fill_between(one.sizes, low, high, color=colour, alpha=BAND, linewidth=0)


def published_curve(axes: Axes, values: pd.DataFrame, name: str, colour: str) -> None:
    """Published values over their message: open points, so that they are told from ours."""
    axes.plot(values["message_bytes"].astype(float), values["value"], color=colour, marker="o", markersize=4,
              markerfacecolor="white", linestyle=":", label=name)  # fmt: skip


def time_line(axes: Axes, soak: pd.DataFrame) -> None:
    """The rate of one soak (report/soak.py) over time, its median dashed; no line where no repetition began."""
    at, rate = soak["at_s"].to_numpy(dtype=float), soak["rate_gb_per_s"].to_numpy(dtype=float)
    steps = np.diff(at)
    holes = np.flatnonzero(steps > 1.5 * np.median(steps)) + 1 if steps.size else np.zeros(0, dtype=np.int64)
    at, rate = np.insert(at, holes, np.nan), np.insert(rate, holes, np.nan)
    axes.plot(at, rate, color=Colours(["soak"]).of("soak")[0], linewidth=1)
    axes.axhline(float(soak["rate_gb_per_s"].median()), color="black", linestyle="--", linewidth=0.8)
    axes.set_ylim(0)
    axes.set_xlabel("since the start, s")
    axes.set_ylabel("bandwidth, GB/s")


def heat_map(axes: Axes, matrix: pd.DataFrame, unit: str) -> None:
    """A number in each cell [from, to]; dark is slow, empty cells were not measured. `matrix` holds rates."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = [tuple(part / 255 for part in one) for one in reversed(RAMP)]
    values = matrix.to_numpy(dtype=float)
    image = axes.imshow(values, cmap=LinearSegmentedColormap.from_list("house", colours))
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = "white" if value < middle else "black"
            axes.text(column, row, rate_text(value), ha="center", va="center", color=ink)
    axes.set_xticks(range(values.shape[1]), labels=[str(one) for one in matrix.columns])
    axes.set_yticks(range(values.shape[0]), labels=[str(one) for one in matrix.index])
    axes.set_xlabel("to rank")
    axes.set_ylabel("from rank")
    axes.grid(False)
    axes.figure.colorbar(image, ax=axes, label=unit)


def bars(
    axes: Axes, values: pd.Series, label: str, low: pd.Series | None = None, high: pd.Series | None = None
) -> None:
    """A horizontal bar from zero for each name, with its interval; the number stands beside it."""
    places = np.arange(len(values))
    axes.barh(places, values, color=[Colours(map(str, values.index)).of(str(one))[0] for one in values.index])
    if low is not None and high is not None:
        axes.errorbar(values, places, xerr=[values - low, high - values], fmt="none", ecolor="black", capsize=3)
    ends = values if high is None else high
    for place, value, end in zip(places, values, ends, strict=True):
        axes.annotate(f"{value:.3g}", (end, place), xytext=(5, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, labels=[str(one) for one in values.index])
    axes.invert_yaxis()
    axes.set_xlim(0, float(ends.max()) * 1.15)
    axes.set_xlabel(label)


def histogram(axes: Axes, values: Sequence[float], label: str, width: float) -> None:
    """How often: bins of `width`, counted from zero."""
    from matplotlib.ticker import MaxNLocator

    known = [value for value in values if np.isfinite(value)]
    edges = np.arange(0, max([*known, width]) + 2 * width, width)
    axes.hist(known, bins=edges.tolist(), color=Colours(["all"]).of("all")[0], edgecolor="white")
    axes.set_xlabel(label)
    axes.set_ylabel(f"of {len(known)}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
