"""The page's figures: over size, layouts, layers, distributions, soaks, ramps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from commbench.analysis.combined import CombinedCases
from commbench.analysis.fit import OF_BACKEND, key, varying
from commbench.core.states import Row
from commbench.core.texts import interval_text, limit_text, name_of, size_text
from commbench.core.units import format_number, format_seconds, natural_key, value_text
from commbench.core.variables import SHOWN, brought_along
from commbench.results.columns import grouped
from commbench.results.flags import doubts_of

from .distributions import Launches
from .figures import (
    BAD_COLOUR,
    PALETTE,
    QUIET_COLOUR,
    Colours,
    bytes_text,
    percent_text,
    ramp,
    rate_text,
    seconds_text,
    with_gaps,
)
from .numbers import NumberColumn, lines_by_window, rate_column, value_and_interval
from .svg import Chart

if TYPE_CHECKING:
    import pandas as pd

MOST_LINES = 12
MOST_FIGURES = 30
MOST_WATERFALLS = 6
MOST_STRIPS = 12
MOST_STRIP_POINTS = 200
LABELS: Mapping[NumberColumn, str] = {
    "median_s": "time of one operation",
    "algbw_gb_per_s": "bandwidth (GB/s, 10^9 B/s)",
    "busbw_gb_per_s": "bus bandwidth (GB/s, 10^9 B/s)",
    "efficiency": "share of the limit",
}
WRITTEN: Mapping[NumberColumn, Callable[[float], str]] = {
    "median_s": format_seconds,
    "algbw_gb_per_s": lambda value: f"{format_number(value)} GB/s",
    "busbw_gb_per_s": lambda value: f"{format_number(value)} GB/s",
    "efficiency": percent_text,
}
STACKS = (  # backend and engine, each on top of the one before it
    {("mpi", "native"): "MPI from C (native)", ("mpi", "python"): "MPI from Python (mpi4py)"},
    {("tcp", "python"): "plain TCP sockets", ("gloo", "python"): "torch gloo"},
    {("cupy_nccl", "python"): "raw NCCL", ("nccl", "python"): "torch NCCL"},
)
STACK_OF = {layer: number for number, stack in enumerate(STACKS) for layer in stack}
# what differs between the layers of a stack, and what a figure's title names anyway
OF_LAYERS = ("backend", *(name for name in brought_along("backend") if name in SHOWN))
IN_TITLE = ("benchmark", "layout", "pair", "timing_mode", *OF_LAYERS)
LABEL_WIDTH = 178.0
BAR_STEP = 34.0  # of the waterfall, in SVG units
# of the repetitions, of which a distribution shows the quantiles
SHARES = np.linspace(0, 1, 61).tolist()
MARKED_SHARES = (3, 15, 30, 45, 57)  # indices of 5, 25, 50, 75 and 95 %
RAMP_BINS = 24
MOST_TIPS = 100
WIDE_FIGURE = 1130.0  # SVG units
LARGEST_STEP = 3.0  # in usual steps; a longer one is a gap in the line


@dataclass(frozen=True)
class Picture:
    """A figure with its heading and the names, colours and dashes of its legend."""

    title: str
    svg: Markup
    legend: Sequence[tuple[str, str, str]] = ()


@dataclass(frozen=True)
class Panel:
    """The pictures of a benchmark, and a note on what is not drawn."""

    benchmark: str
    pictures: Sequence[Picture]
    note: str = ""


@dataclass(frozen=True, eq=False)
class Curves:
    """`rows`: benchmark -> name of the line -> rows by size. `short`: benchmark -> name -> short
    name. `linked`: the case_ids that have a distribution on the page."""

    rows: Mapping[str, Mapping[str, Sequence[Row]]]
    short: Mapping[str, Mapping[str, str]]
    linked: frozenset[str]
    colours: Colours


def curves_of(combined: CombinedCases, linked: Iterable[str]) -> Curves:
    """The lines of the cases with a message."""
    lines: dict[str, Mapping[str, Sequence[Row]]] = {}
    short = {}
    for benchmark, by_name, short_names in lines_by_window(combined):
        # a barrier and the sequence of a replay have none
        moving = {
            name: [row for row in rows if row["message_bytes"]] for name, rows in by_name.items()
        }
        moving = {name: rows for name, rows in moving.items() if rows}
        if moving:
            lines[benchmark] = moving
            short[benchmark] = {name: short_names[name] for name in moving}
    colours = Colours(
        sorted({name for by_name in lines.values() for name in by_name}, key=natural_key)
    )
    return Curves(lines, short, frozenset(linked), colours)


def size_panels(curves: Curves) -> Iterator[Panel]:
    """Time and bandwidth over size of each benchmark."""
    for benchmark, lines in list(curves.rows.items())[:MOST_FIGURES]:
        drawn = f"{len(lines)} lines were measured; the first {MOST_LINES} by name are drawn"
        note = (
            f"{drawn}. --benchmark or fewer folders show the others."
            if len(lines) > MOST_LINES
            else ""
        )
        columns: tuple[NumberColumn, ...] = ("median_s", rate_column(_rows_of(lines)))
        pictures = [_over_size(curves, benchmark, column, LABELS[column]) for column in columns]
        yield Panel(benchmark, pictures, note)


def efficiency_pictures(curves: Curves) -> list[Picture]:
    """The share of the physical limit over size, of the benchmarks for which a limit is known."""
    known = [
        benchmark
        for benchmark, lines in curves.rows.items()
        if any((row["efficiency"] or 0) > 0 for rows in lines.values() for row in rows)
    ]
    return [
        _over_size(
            curves,
            benchmark,
            "efficiency",
            f"{benchmark}: {limit_text(_rows_of(curves.rows[benchmark]))}",
        )
        for benchmark in known[:MOST_FIGURES]
    ]


def _rows_of(lines: Mapping[str, Sequence[Row]]) -> list[Row]:
    return [row for rows in lines.values() for row in rows]


def _over_size(curves: Curves, benchmark: str, column: NumberColumn, heading: str) -> Picture:
    """A line per backend, engine, layout, ... with its interval; points link to the distribution of
    their case, those in doubt are grey."""
    names = sorted(curves.rows[benchmark], key=natural_key)[:MOST_LINES]
    lines = [(name, curves.rows[benchmark][name]) for name in names]
    chart = Chart(f"{benchmark}: {LABELS[column]} over message size")
    values = {
        name: np.array([value_and_interval(row, column) for row in rows]) for name, rows in lines
    }
    known = [value for array in values.values() for value in array[np.isfinite(array)].tolist()]
    every_size = [float(row["message_bytes"]) for _, rows in lines for row in rows]
    is_one_size = len(set(every_size)) == 1
    chart.log("x", "message size", every_size, bytes_text)
    if column == "efficiency":
        chart.linear("y", LABELS[column], [*known, 1.0], percent_text)
        chart.axes.axhline(1.0, color="black", linestyle=(0, (2, 4)), linewidth=1, clip_on=False)
    else:
        chart.log("y", "", known, seconds_text if column == "median_s" else rate_text)
    text = WRITTEN[column]
    styles = _styles_of(names, curves.colours)
    for name, rows in lines:
        colour, dashes = styles[name]
        xs = [float(row["message_bytes"]) for row in rows]
        ys, lows, highs = values[name].T.tolist()
        tips = []
        for row, (value, low, high) in zip(rows, values[name].tolist(), strict=True):
            runs = f", {int(row['runs'])} runs" if row["runs"] > 1 else ""
            doubts = ", ".join(sorted(doubts_of(row)))
            tips.append(
                f"{name}, {size_text(row['message_bytes'])}: {text(value)}"
                f" ({interval_text(low, high, text)}{runs})"
                f"{f'; in doubt: {doubts}' if doubts else ''}"
            )
        links = [
            f"#d-{row['case_id']}" if row["case_id"] in curves.linked else None for row in rows
        ]
        series = curves.short[benchmark][name]
        chart.band(xs, lows, highs, colour, series)
        chart.line(xs, ys, colour, dashes, series)
        for is_doubtful, fill in ((False, colour), (True, QUIET_COLOUR)):
            shown = [bool(doubts_of(row)) == is_doubtful for row in rows]
            points = list(itertools.compress(zip(xs, ys, tips, links, strict=True), shown))
            if points:
                at, heights, texts, targets = zip(*points, strict=True)
                chart.points(at, heights, texts, fill, series, targets)
        if is_one_size and math.isfinite(ys[0]):
            chart.text(xs[0], ys[0], text(ys[0]), 10)
    legend = [(curves.short[benchmark][name], *styles[name]) for name in names]
    return Picture(heading, Markup(chart.svg()), legend)


def _styles_of(names: Sequence[str], colours: Colours) -> dict[str, tuple[str, str]]:
    """Colour and dashes of each line of a figure; where all lines of the page are more than there
    are styles, and two of these would look alike, the figure has styles of its own."""
    styles = {name: colours.of(name) for name in names}
    if len(set(styles.values())) < len(styles):
        own = Colours(names)
        styles = {name: own.of(name) for name in names}
    return styles


# ---------------------------------------------------------------- layouts and layers


def layout_pictures(curves: Curves) -> list[Picture]:
    """Times by layout at the smallest and the largest size that two layouts share."""
    pictures = []
    for benchmark, lines in curves.rows.items():
        rows = [row for group in lines.values() for row in group]
        by_size = grouped(rows, lambda row: int(row["message_bytes"]))
        shared = [
            size for size, alike in by_size.items() if len({row["layout"] for row in alike}) > 1
        ]
        for size in sorted({min(shared), max(shared)}) if shared else []:
            title = f"{benchmark}, {size_text(size)}: time by layout"
            pictures.append(_by_layout(title, by_size[size][:MOST_STRIP_POINTS], curves.colours))
            if len(pictures) == MOST_STRIPS:
                return pictures
    return pictures


def _by_layout(title: str, rows: Sequence[Row], colours: Colours) -> Picture:
    layouts = sorted({str(row["layout"]) for row in rows}, key=natural_key)
    named = []
    for row in rows:
        more = [
            name for name in ("timing_mode", "staging") if row[name] not in (None, "host", "none")
        ]
        named.append((name_of(row, ["backend", "engine", *more]), row))
    names = list(dict.fromkeys(name for name, _ in named))
    chart = Chart(title, height=280.0)
    chart.categories("layout (nodes x ranks per node)", layouts)
    triples = [value_and_interval(row, "median_s") for row in rows]
    chart.log(
        "y", LABELS["median_s"], [value for triple in triples for value in triple], seconds_text
    )
    for (name, row), (value, low, high) in zip(named, triples, strict=True):
        beside = (names.index(name) - (len(names) - 1) / 2) * min(0.12, 0.8 / len(names))
        x = layouts.index(row["layout"]) + beside
        colour, _ = colours.of(name)
        tip = f"{name} {row['layout']}: {format_seconds(value)} ({interval_text(low, high)})"
        if math.isfinite(low + high):
            chart.line([x, x], [low, high], colour, series=name)
        chart.points([x], [value], [tip], colour, name, radius=5.0)
    return Picture(title, Markup(chart.svg()), [(name, colours.of(name)[0], "") for name in names])


def waterfalls(curves: Curves) -> list[Picture]:
    """What each layer of a stack adds, for the smallest and the largest message that several layers
    moved alike."""
    rows = [row for lines in curves.rows.values() for rows in lines.values() for row in rows]
    layers = [
        row
        for row in rows
        if row["streams"] in (None, 1) and (row["backend"], row["engine"]) in STACK_OF
    ]
    shown: list[tuple[Row, list[tuple[str, float]]]] = []
    for (number, *_), alike in grouped(layers, _stack_key).items():
        # sizes of several layers, the lowest layer first
        shared: dict[int, list[tuple[str, Row]]] = {}
        for size, of_size in grouped(alike, lambda row: int(row["message_bytes"])).items():
            by_layer = grouped(of_size, lambda row: (row["backend"], row["engine"]))
            # of two libraries of a layer it is not known which one lies below
            single = {
                layer: layer_rows[0]
                for layer, layer_rows in by_layer.items()
                if len(layer_rows) == 1
            }
            if len(single) > 1:
                shared[size] = [
                    (name, single[layer])
                    for layer, name in STACKS[number].items()
                    if layer in single
                ]
        for size in sorted({min(shared), max(shared)}) if shared else []:
            times = [(name, float(row["median_s"])) for name, row in shared[size]]
            # else nothing was added that could be shown
            if times == sorted(times, key=lambda layer: layer[1]):
                shown.append((shared[size][0][1], times))
    by_benchmark = grouped((row for row, _ in shown), lambda row: row["benchmark"])
    more = {benchmark: varying(rows) for benchmark, rows in by_benchmark.items()}
    return [
        waterfall(_layers_title(row, more[row["benchmark"]]), times)
        for row, times in shown[:MOST_WATERFALLS]
    ]


def _stack_key(row: Row) -> tuple[Any, ...]:
    """The index in STACKS, then what its layers share; a stack of several backends has a library
    for each."""
    number = STACK_OF[row["backend"], row["engine"]]
    own = OF_BACKEND if len({backend for backend, _ in STACKS[number]}) > 1 else ()
    return (number, *key(row, (*OF_LAYERS, *own)))


def _layers_title(row: Row, more: Iterable[str]) -> str:
    """The variables that the layers share; `more`: those in which the figures differ."""
    mode = "" if row["timing_mode"] in (None, "host") else str(row["timing_mode"])
    pair = f"ranks {row['pair']}" if row["pair"] else ""
    others = (
        f"{name} {value_text(row[name])}" for name in more if row[name] and name not in IN_TITLE
    )
    parts = row["benchmark"], size_text(row["message_bytes"]), row["layout"], pair, mode, *others
    return ", ".join(filter(None, parts))


def waterfall(title: str, times: Sequence[tuple[str, float]]) -> Picture:
    """A bar per layer, the lowest first: light is the time of the layer below, dark is what this
    layer adds."""
    chart = Chart(
        f"{title}: what each layer adds", height=len(times) * BAR_STEP + 64, left=LABEL_WIDTH
    )
    most = times[-1][1]
    chart.linear("x", LABELS["median_s"], [most * 1.35], seconds_text)  # room for the numbers
    chart.axes.set_yticks([])
    chart.axes.set_ylim(len(times) - 0.4, -0.6)
    for index, (name, seconds) in enumerate(times):
        before, previous = (times[index - 1][1], times[index - 1][0]) if index else (0.0, "")
        added = seconds - before
        tip = f"{name}: {format_seconds(seconds)}"
        tip += f", {format_seconds(added)} more than {previous}" if previous else ""
        chart.bar(0.0, index - 0.35, before, 0.7, ramp(0.18)[0], tip, "layer")
        chart.bar(
            before,
            index - 0.35,
            max(added, most / 400),
            0.7,
            BAD_COLOUR if previous else QUIET_COLOUR,
            tip,
            "layer",
        )
        number = format_seconds(seconds) + (f"  (+{format_seconds(added)})" if previous else "")
        chart.text(0.0, index, name, -8, "right")
        chart.text(seconds, index, number, 8)
    return Picture(title, Markup(chart.svg()))


# ---------------------------------------------------------------- raw samples


def distribution_picture(title: str, launches: Launches) -> Picture:
    """The cumulative distribution of the times of the repetitions, one line per launch."""
    quantiles = {
        f"launch {number}: {run_id}": np.quantile(times, SHARES).tolist()
        for number, (run_id, times) in enumerate(launches, start=1)
    }
    names = list(quantiles)
    colours = Colours(names)
    chart = Chart(f"{title}: distribution", height=260.0)
    chart.log(
        "x",
        LABELS["median_s"],
        [value for values in quantiles.values() for value in values],
        seconds_text,
    )
    chart.linear("y", "share of repetitions", [1.0], percent_text)
    for name, values in quantiles.items():
        colour, dashes = colours.of(name)
        chart.line(values, SHARES, colour, dashes, name)
        marked = [values[at] for at in MARKED_SHARES]
        shares = [SHARES[at] for at in MARKED_SHARES]
        most = [f"at most {format_seconds(value)}" for value in marked]
        tips = [
            f"{percent_text(share)} of the repetitions take {text}"
            for share, text in zip(shares, most, strict=True)
        ]
        chart.points(marked, shares, tips, colour, name)
    legend = [(name, *colours.of(name)) for name in names] if len(names) > 1 else []
    return Picture(title, Markup(chart.svg()), legend)


def soak_picture(title: str, line: pd.DataFrame) -> Picture:
    """The median of each interval over time, with a band from minimum to maximum; a gap where
    nothing was measured."""
    chart = Chart(title, width=WIDE_FIGURE)
    colour = PALETTE[0]
    columns = line[["at_s", "min_s", "median_s", "max_s"]].to_numpy().T
    chart.linear("x", "time since the start (s)", columns[0].tolist(), lambda at: f"{at:g}")
    chart.log("y", LABELS["median_s"], [*columns[1].tolist(), *columns[3].tolist()], seconds_text)
    at, low, median, high = with_gaps(columns, LARGEST_STEP).tolist()
    chart.band(at, low, high, colour)
    chart.line(at, median, colour)
    marked = columns[:, :: max(1, len(line) // MOST_TIPS)]
    tips = [
        f"at {at_s:.3g} s: median {format_seconds(median_s)}, {interval_text(min_s, max_s)}"
        for at_s, min_s, median_s, max_s in marked.T.tolist()
    ]
    chart.points(marked[0].tolist(), marked[2].tolist(), tips, colour, radius=2.6)
    return Picture(title, Markup(chart.svg()))


def ramp_picture(backend: str, seconds: Sequence[float]) -> Picture:
    """A histogram of the time from the first call to 95 % of the steady rate, with logarithmic
    bins."""
    chart = Chart(f"{backend}: time from the first call to 95 % of the steady rate", height=240.0)
    edges = np.geomspace(
        *chart.log("x", "time to 95 % of the steady rate", seconds, seconds_text), RAMP_BINS + 1
    )
    counts, _ = np.histogram(seconds, bins=edges)
    chart.linear("y", "cases", counts.tolist(), lambda count: f"{count:g}", whole=True)
    for left, right, count in zip(
        edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True
    ):
        if count:
            tip = f"{count} between {seconds_text(left)} and {seconds_text(right)}"
            chart.bar(left, 0, (right - left) * 0.96, count, PALETTE[2], tip)
    return Picture(f"{backend}: {len(seconds)} cases", Markup(chart.svg()))


def by_variables(combined: CombinedCases, row: Row) -> tuple[Any, ...]:
    """The order of distinct cases: benchmark, backend, layout, other variables, size."""
    others = combined.name(row, without=("pair", "window"))
    texts = (row["benchmark"], row["backend"], row["layout"], others)
    return (*map(natural_key, texts), row["message_bytes"] or 0)
