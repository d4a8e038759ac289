"""The figures of the page, drawn by matplotlib."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commbench.analysis.case_names import telling
from commbench.analysis.pairs.judgement import JudgedMatrix
from commbench.core.texts import name_of, size_text
from commbench.core.units import natural_key
from commbench.core.variables import brought_along
from commbench.results.columns import grouped
from commbench.results.row import Measured
from commbench.stats.interval import Interval

from .distributions import Launches
from .figures import (
    BAND_OPACITY,
    GRID,
    LEAST_DRAWN,
    MOST_DRAWN,
    PALETTE,
    QUIET_COLOUR,
    Colours,
    bytes_text,
    line_style,
    linear_ticks,
    log_ticks,
    percent_text,
    rate_text,
    seconds_text,
    set_ticks,
    size_ticks,
)
from .quantities import MEDIAN, Quantity, limit_text
from .section import Figure, clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

INCHES = (6.4, 3.5)
WIDE_INCHES = (12.0, 3.2)
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "commbench",  # the same data, the same file
    "text.parse_math": False,  # a $ in a name is a $
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
PNG_DPI = 200
TITLE_LETTERS = 70  # in a line
MOST_LINES = 12
MOST_LAYOUT_POINTS = 200
ROOM = 1.15  # of an axis, beyond the data, as a factor
MOST_LEGEND_COLUMNS = 3
LETTERS_PER_INCH = 14.0  # of a legend, with room for its lines
KNOWN_MARKERS = "os^D"  # of published curves
TIME = "time of one operation"
SHARES = np.linspace(0, 1, 61).tolist()  # of the repetitions, whose quantiles are drawn
LARGEST_WITH_NUMBERS = 16  # ranks; a larger matrix has colours only
UNKNOWN = Interval(math.nan)
FULL_SCALE = 2.0  # the ratio to the fastest of its class that has the darkest colour
OVER_TIME = "rate_gb_per_s"  # of intervals, not a column of the rows


class KnownCurve(NamedTuple):
    """A published curve: sizes in bytes or times in seconds, and values in the unit of the column,
    which is OVER_TIME for times."""

    name: str
    column: str
    at: tuple[float, ...]
    values: tuple[float, ...]


@contextmanager
def drawn(title: str, size: tuple[float, float] = INCHES) -> Iterator[tuple[Axes, list[Figure]]]:
    """Axes to draw on, and a list that has the figure at the end of the block."""
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    made = list[Figure]()
    with matplotlib.rc_context(SETTINGS):
        drawing = Drawing(figsize=size, layout="constrained")
        axes = drawing.add_subplot()
        yield axes, made
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            fitting = int(size[0] * LETTERS_PER_INCH / max(map(len, labels)))
            columns = max(1, min(MOST_LEGEND_COLUMNS, fitting))
            drawing.legend(handles, labels, loc="outside lower center", ncols=columns)
        svg = _image(drawing, "svg")
    titled = partial(_titled_image, drawing, clean(title))
    made.append(Figure(clean(title), svg, size[0] == WIDE_INCHES[0], titled))


def _image(drawing: Drawing, form: str) -> bytes:
    file = io.BytesIO()
    nameless = dict.fromkeys(("Creator", "Date", "Format", "Type")) if form == "svg" else None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a browser has fonts of its own
        drawing.savefig(file, format=form, dpi=PNG_DPI, metadata=nameless)
    return clean(file.getvalue().decode()).encode() if form == "svg" else file.getvalue()


def _titled_image(drawing: Drawing, title: str, form: str) -> bytes:
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        drawing.suptitle(textwrap.fill(title, TITLE_LETTERS), fontsize=10)
        return _image(drawing, form)


def log_axis(
    axis: Any, values: Iterable[float], text: Callable[[float], str], label: str = ""
) -> tuple[float, float]:
    """Make an axis logarithmic with all values that can be drawn, at least a factor of two wide;
    returns its ends."""
    known = [value for value in values if LEAST_DRAWN < value < MOST_DRAWN] or [1.0]
    low = min(known) / ROOM
    high = max(max(known) * ROOM, 2 * low)
    which = axis.axis_name
    # before the scale, which would else find ends of its own among all values
    getattr(axis.axes, f"set_{which}lim")(low, high)
    getattr(axis.axes, f"set_{which}scale")("log")
    ticks = size_ticks(known, low, high) if text is bytes_text else log_ticks(low, high)
    set_ticks(axis, ticks, text)
    axis.set_label_text(label)
    return low, high


def linear_axis(
    axis: Any, most: float, text: Callable[[float], str], label: str, whole: bool = False
) -> None:
    """From 0 to the largest value; `whole`: ticks at whole numbers only."""
    high = ROOM * (most if LEAST_DRAWN < most < MOST_DRAWN else 1.0)
    ticks = [tick for tick in linear_ticks(0.0, high) if not whole or tick.is_integer()]
    set_ticks(axis, ticks, text)
    getattr(axis.axes, f"set_{axis.axis_name}lim")(0.0, high)
    axis.set_label_text(label)


# ---------------------------------------------------------------- over size


@dataclass(frozen=True, eq=False)
class Curves:
    """`rows`: benchmark -> name of the line -> rows by size."""

    rows: Mapping[str, Mapping[str, Sequence[Measured]]]
    colours: Colours

    def of_benchmark(self, benchmark: str) -> list[Measured]:
        return [row for rows in self.rows[benchmark].values() for row in rows]

    def drawn(self, benchmark: str) -> Iterator[tuple[str, Sequence[Measured], str, Any]]:
        """The name, rows, colour and line style of the lines that are drawn.

        Where all lines of the page are more than there are styles, and two of these would look
        alike, the figure has styles of its own.
        """
        names = sorted(self.rows[benchmark], key=natural_key)[:MOST_LINES]
        is_told_apart = len(set(map(self.colours.of, names))) == len(names)
        colours = self.colours if is_told_apart else Colours(names)
        for name in names:
            colour, dashes = colours.of(name)
            yield name, self.rows[benchmark][name], colour, line_style(dashes)


def curves_of(lines: Iterable[tuple[str, Mapping[str, Sequence[Measured]]]]) -> Curves:
    """The lines of the cases with a message: a barrier and the sequence of a replay have none."""
    moving = {
        benchmark: {
            name: sized
            for name, rows in by_name.items()
            if (sized := [row for row in rows if row.message_bytes])
        }
        for benchmark, by_name in lines
    }
    rows = {benchmark: by_name for benchmark, by_name in moving.items() if by_name}
    names = {name for by_name in rows.values() for name in by_name}
    return Curves(rows, Colours(sorted(names, key=natural_key)))


def over_size(
    curves: Curves, benchmark: str, quantity: Quantity, known: Sequence[KnownCurve] = ()
) -> list[Figure]:
    """A line per backend, engine, layout, ... with its interval; values that are known to no better
    than 30 % are hollow. `known`: published curves, those of this quantity are drawn dotted."""
    is_time = quantity is MEDIAN
    label = TIME if is_time else f"{quantity.name} ({quantity.usual})"
    with drawn(f"{benchmark}: {label} over message size") as (axes, made):
        every = list[float]()
        sizes = list[float]()
        for name, rows, colour, style in curves.drawn(benchmark):
            at, middle, low, high = _points(rows, quantity)
            axes.plot(at, middle, color=colour, linestyle=style, label=name)
            axes.fill_between(at, low, high, color=colour, alpha=BAND_OPACITY, linewidth=0)
            sure = [(quantity.of(row) or UNKNOWN).certainty != "?" for row in rows]
            for is_sure, fill in ((True, colour), (False, "white")):
                shown = np.array(sure) == is_sure
                axes.plot(
                    at[shown], middle[shown], "o", markersize=4, color=colour, markerfacecolor=fill
                )
            every += middle.tolist()
            sizes += at.tolist()
        own = [curve for curve in known if curve.column == quantity.column]
        every += draw_known(axes, own)
        sizes += [at for curve in own for at in curve.at]
        log_axis(axes.xaxis, sizes, bytes_text, "message")
        log_axis(axes.yaxis, every, seconds_text if is_time else rate_text, label)
    return made


def draw_known(axes: Axes, known: Sequence[KnownCurve]) -> list[float]:
    """Published curves, dotted and grey; returns their values."""
    for curve, marker in zip(known, itertools.cycle(KNOWN_MARKERS)):
        axes.plot(
            curve.at,
            curve.values,
            marker=marker,
            linestyle=":",
            markersize=4,
            color=QUIET_COLOUR,
            markerfacecolor="white",
            label=curve.name,
        )
    return [value for curve in known for value in curve.values]


def share_of_limit(curves: Curves, benchmark: str) -> list[Figure]:
    """The share of the physical limit over size, where one is known."""
    rows = curves.of_benchmark(benchmark)
    shares = [row.efficiency for row in rows if row.efficiency]
    if not shares:
        return []
    with drawn(f"{benchmark}: share of the {limit_text(rows)}") as (axes, made):
        for name, every, colour, style in curves.drawn(benchmark):
            known = [
                (row.message_bytes, row.efficiency) for row in every if row.efficiency is not None
            ]
            axes.plot(
                [size for size, _ in known],
                [share for _, share in known],
                "o",
                linestyle=style,
                markersize=4,
                color=colour,
                label=name,
            )
        axes.axhline(1.0, color="black", linestyle=":", linewidth=1)
        log_axis(axes.xaxis, [row.message_bytes for row in rows], bytes_text, "message")
        linear_axis(axes.yaxis, max(*shares, 1.0), percent_text, "share of the limit")
    return made


def _points(rows: Sequence[Measured], quantity: Quantity) -> Any:
    """Size, value and both ends of the interval of each row [4, rows]; NaN where there is none."""
    points = []
    for row in rows:
        interval = quantity.of(row) or UNKNOWN
        points.append((float(row.message_bytes), interval.value, *interval.ends))
    return np.array(points).T


# ---------------------------------------------------------------- layouts and layers


def by_layout(curves: Curves) -> list[Figure]:
    """Times by layout at the smallest and the largest size that two layouts share."""
    figures = list[Figure]()
    for benchmark in curves.rows:
        by_size = grouped(curves.of_benchmark(benchmark), lambda row: row.message_bytes)
        shared = [size for size, alike in by_size.items() if len({row.layout for row in alike}) > 1]
        for size in sorted({min(shared), max(shared)}) if shared else []:
            title = f"{benchmark}, {size_text(size)}: time by layout"
            figures += _of_layouts(title, by_size[size][:MOST_LAYOUT_POINTS], curves.colours)
    return figures


def _of_layouts(title: str, rows: Sequence[Measured], colours: Colours) -> list[Figure]:
    layouts = sorted({row.layout for row in rows}, key=natural_key)
    told = [name for name in telling(rows) if name not in ("layout", *brought_along("layout"))]
    by_name = grouped(rows, lambda row: name_of(row, told))
    with drawn(title) as (axes, made):
        for number, (name, own) in enumerate(by_name.items()):
            beside = (number - (len(by_name) - 1) / 2) * min(0.12, 0.8 / len(by_name))
            intervals = [MEDIAN.of(row) or UNKNOWN for row in own]
            at = [layouts.index(row.layout) + beside for row in own]
            middle = [interval.value for interval in intervals]
            below = [each.value - each.low if each.is_known else 0.0 for each in intervals]
            above = [each.high - each.value if each.is_known else 0.0 for each in intervals]
            colour = colours.of(name)[0]
            axes.errorbar(at, middle, [below, above], fmt="o", color=colour, label=name)
        axes.set_xticks(range(len(layouts)), labels=layouts)
        axes.set_xlim(-0.5, len(layouts) - 0.5)
        axes.set_xlabel("layout (nodes x ranks per node)")
        log_axis(axes.yaxis, [row.median_s for row in rows], seconds_text, TIME)
    return made


# ---------------------------------------------------------------- pairs


def pair_matrix(matrix: JudgedMatrix, name: str) -> list[Figure]:
    """Senders down, receivers across; dark is slow for its class of links, a frame marks slow
    pairs. Numbers are times in us, of messages in one direction bandwidths in GB/s."""
    ranks = matrix.ranks
    place = {rank: number for number, rank in enumerate(ranks)}
    shades = np.full((len(ranks), len(ranks)), np.nan)
    for medians in matrix.classes.values():
        least_s = min(median.value for median in medians.values())
        for (first, second), median in medians.items():
            shade = math.log(median.value / least_s) / math.log(FULL_SCALE) if least_s else 0.0
            shades[place[first], place[second]] = min(1.0, shade)
    side = max(2.8, min(9.0, 0.55 * len(ranks)))
    with drawn(f"{name} ({matrix.unit.name})", (side, side)) as (axes, made):
        axes.imshow(shades, cmap="YlOrBr", vmin=0.0, vmax=1.2)
        axes.grid(False)
        for pair, row in matrix.rows.items():
            y, x = (place[rank] for rank in pair)
            if len(ranks) <= LARGEST_WITH_NUMBERS:
                text = matrix.number(pair) if row.status == "ok" else row.status[:4]
                axes.annotate(text, (x, y), ha="center", va="center", fontsize=7)
            if pair in matrix.slow:
                axes.plot(x, y, "s", markersize=22, markerfacecolor="none", color="black")
        for set_ticks in (axes.set_xticks, axes.set_yticks):
            set_ticks(range(len(ranks)), labels=list(map(str, ranks)))
        axes.set_xlabel("receiver")
        axes.set_ylabel("sender")
    return made


# ---------------------------------------------------------------- raw samples


def distribution(title: str, launches: Launches) -> list[Figure]:
    """The cumulative distribution of the times of the repetitions, one line per launch."""
    with drawn(f"{title}: distribution") as (axes, made):
        every = list[float]()
        for number, (run_id, times) in enumerate(launches, start=1):
            values = np.quantile(times, SHARES).tolist()
            name = f"launch {number}: {run_id}" if len(launches) > 1 else None
            axes.plot(values, SHARES, color=PALETTE[(number - 1) % len(PALETTE)], label=name)
            every += values
        log_axis(axes.xaxis, every, seconds_text, TIME)
        axes.set_ylim(0.0, 1.0)
        axes.set_ylabel("share of repetitions")
    return made
