"""The pictures over sizes: which families share a figure, what each point says, what each layer adds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.core.units import format_rate, format_seconds

from .axes import byte_axis, linear_axis, log_axis
from .figure_curves import Point, Series, curves, strips
from .figure_waterfall import Layer, waterfall
from .markup import Markup, element
from .recommend import Choice, name_of, size_text
from .style import Colours, interval_text, percent_text, rate_text, seconds_text

SAME = ("dtype", "device", "timing_mode", "staging")  # of the layers that are put beside one another
MOST_LINES, MOST_FIGURES, MOST_WATERFALLS, MOST_STRIPS = 12, 30, 6, 12
LABELS = {"median_s": "time of one operation", "algbw_gb_per_s": "bandwidth (GB/s, 10^9 B/s)",
          "efficiency": "share of the limit"}  # fmt: skip
WRITTEN: Mapping[str, Callable[[float], str]] = {
    "median_s": format_seconds, "algbw_gb_per_s": lambda value: f"{format_rate(value)} GB/s",
    "efficiency": percent_text,
}  # fmt: skip
Row = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Curves:
    """All that pictures over sizes need: rows by benchmark and line, and which cases have a distribution."""

    choice: Choice
    rows: Mapping[str, Mapping[str, Sequence[Row]]]
    linked: frozenset[str]
    colours: Colours


def curves_of(choice: Choice, linked: Iterable[str]) -> Curves:
    """Rows of the distinct cases by benchmark, then by name of their line, ascending sizes."""
    found: dict[str, dict[str, list[Row]]] = {}
    for record in choice.cases.to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        if row["message_bytes"] > 0:
            name = choice.name(row, without=("window",))
            found.setdefault(str(row["benchmark"]), {}).setdefault(name, []).append(row)
    for lines in found.values():
        for rows in lines.values():
            rows.sort(key=lambda row: int(row["message_bytes"]))
    names = sorted({name for lines in found.values() for name in lines})
    return Curves(choice, found, frozenset(linked), Colours(names))


def panels(data: Curves) -> Iterator[Markup]:
    """Time and bandwidth of each benchmark, side by side."""
    for benchmark, lines in list(data.rows.items())[:MOST_FIGURES]:
        note = None
        if len(lines) > MOST_LINES:
            note = element("p", f"{len(lines)} lines were measured, the first {MOST_LINES} by name are drawn; "
                           "--benchmark and fewer folders show the others.", class_="note")  # fmt: skip
        drawn = [_panel(data, benchmark, column) for column in ("median_s", "algbw_gb_per_s")]
        yield element("h3", benchmark, id=f"curves-{benchmark}")
        yield element("div", note, element("div", drawn, class_="grid2"))


def efficiency(data: Curves) -> list[Markup]:
    """Only benchmarks for which a limit is known."""
    known = [name for name, lines in data.rows.items() if any(_value(row, "efficiency") > 0 for rows in lines.values()
                                                              for row in rows)]  # fmt: skip
    return [element("div", element("h3", name), _panel(data, name, "efficiency")) for name in known[:MOST_FIGURES]]


def _panel(data: Curves, benchmark: str, column: str) -> Markup:
    lines = sorted(data.rows[benchmark].items())[:MOST_LINES]
    series = [_series(data, name, rows, column) for name, rows in lines]
    sizes = [x for one in series for x in one.xs]
    values = [value for one in series for value in one.values()]
    if column == "efficiency":
        y_axis = linear_axis(LABELS[column], [*values, 1.0], percent_text)
    else:
        y_axis = log_axis(LABELS[column], values, seconds_text if column == "median_s" else rate_text)
    title = f"{benchmark}: {LABELS[column]} over message size"
    limits = [1.0] if column == "efficiency" else []
    return element("div", curves(title, byte_axis("message size", sizes), y_axis, series, data.colours, limits),
                   class_="panel")  # fmt: skip


def _series(data: Curves, name: str, rows: Sequence[Row], column: str) -> Series:
    points = [_point(row, column) for row in rows]
    tips = [_tip(name, row, column, *point) for row, point in zip(rows, points, strict=True)]
    links = [f"#d-{row['case_id']}" if row["case_id"] in data.linked else None for row in rows]
    ys, lows, highs = zip(*points, strict=True)
    return Series(name, [float(row["message_bytes"]) for row in rows], ys, lows, highs, tips, links)


def _point(row: Row, column: str) -> tuple[float, float, float]:
    """A value with its interval; that of a rate is the one of the time, turned round."""
    value, median = _value(row, column), _value(row, "median_s")
    low, high = _value(row, "ci_low_s"), _value(row, "ci_high_s")
    if column == "median_s":
        return value, low, high
    return value, value * median / high if high else math.nan, value * median / low if low else math.nan


def _value(row: Row, column: str) -> float:
    value = row.get(column)
    return math.nan if value is None else float(value)


def _tip(name: str, row: Row, column: str, value: float, low: float, high: float) -> str:
    write = WRITTEN[column]
    if math.isnan(value):
        return f"{name}: not known"
    interval = f"{write(low)} .. {write(high)}" if math.isfinite(low + high) else "no interval"
    runs = f", {int(row['runs'])} runs" if row["runs"] > 1 else ""
    return f"{name}, {size_text(row['message_bytes'])}: {write(value)} ({interval}{runs})"


# ---------------------------------------------------------------- layouts


def layouts(data: Curves) -> list[Markup]:
    """Points over layouts at the smallest and the largest size that two of them share."""
    found = []
    for benchmark, lines in data.rows.items():
        rows = [row for group in lines.values() for row in group]
        for size in _shared_sizes(rows, "layout"):
            points = [_strip(row) for row in rows if row["message_bytes"] == size]
            values = [value for one in points for value in (one.value, one.low, one.high) if math.isfinite(value)]
            title = f"{benchmark}, {size_text(size)}: time by layout"
            y_axis = log_axis(LABELS["median_s"], values, seconds_text)
            picture = strips(title, "layout (nodes x ranks a node)", y_axis, points[:200], data.colours)
            found.append(element("div", element("h3", title), picture, class_="panel"))
    return found[:MOST_STRIPS]


def _shared_sizes(rows: Sequence[Row], variable: str) -> list[int]:
    by_size: dict[int, set[Any]] = {}
    for row in rows:
        by_size.setdefault(int(row["message_bytes"]), set()).add(row[variable])
    sizes = sorted(size for size, values in by_size.items() if len(values) > 1)
    return sorted({sizes[0], sizes[-1]}) if sizes else []


def _strip(row: Row) -> Point:
    told = [name for name in ("timing_mode", "staging") if row[name] not in (None, "host", "none")]
    name = name_of(row, ["backend", "engine", *told])
    low, high = _value(row, "ci_low_s"), _value(row, "ci_high_s")
    tip = f"{name} {row['layout']}: {format_seconds(row['median_s'])} ({interval_text(low, high)})"
    return Point(str(row["layout"]), name, float(row["median_s"]), low, high, tip)


# ---------------------------------------------------------------- layers


def waterfalls(data: Curves) -> list[Markup]:
    """Smallest and largest message that several backends or engines moved in the same layout and pair."""
    groups: dict[tuple[Any, ...], dict[tuple[str, str], Row]] = {}
    for benchmark, lines in data.rows.items():
        for row in (row for rows in lines.values() for row in rows):
            key = (
                benchmark,
                row["layout"],
                _text(row["pair"]),
                *(row[name] for name in SAME),
                int(row["message_bytes"]),
            )
            groups.setdefault(key, {}).setdefault((str(row["backend"]), str(row["engine"])), row)
    shared = {key: ways for key, ways in groups.items() if len(ways) > 1}
    widest: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in shared:
        widest.setdefault(key[:-1], []).append(key)
    ends = [key for keys in widest.values() for key in sorted({min(keys), max(keys)}, key=lambda one: one[-1])]
    return [_waterfall(key, shared[key]) for key in ends[:MOST_WATERFALLS]]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _waterfall(key: tuple[Any, ...], ways: Mapping[tuple[str, str], Row]) -> Markup:
    benchmark, layout, pair, *same, size = key
    mode = same[SAME.index("timing_mode")]
    clock = "" if mode in (None, "host") else f", {mode}"
    title = f"{benchmark}, {size_text(size)}, {layout}{f', ranks {pair}' if pair else ''}{clock}"
    layers = [Layer(backend, engine, float(row["median_s"])) for (backend, engine), row in ways.items()]
    return element("div", element("h3", title), waterfall(f"{title}: what each layer adds", layers), class_="panel")
