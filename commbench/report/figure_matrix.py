"""Matrices as coloured tables: rates of all pairs, and how devices are wired. Numbers stand in the cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from commbench.core.pairs import Pair
from commbench.core.slow_pairs import CLASSES, Matrix
from commbench.core.units import format_bytes, format_rate, format_seconds

from .markup import Markup, element, joined
from .style import LINK_CLASSES, link_colours, ramp

WIDE = 2.0  # a class whose slowest pair takes this times its fastest one's time uses all of its shades
LIGHTEST = 0.15
LARGEST = 64  # ranks of a side; a larger matrix is told by its classes


def pairs_table(matrix: Matrix, title: str, slow: Mapping[Pair, object]) -> Markup:
    """Senders down, receivers across; a colour for each class of links, dark is slow in it, a ring is a slow link.

    Without cells beyond LARGEST ranks.
    """
    ranks = matrix.ranks
    if len(ranks) > LARGEST or not any(matrix.classes.values()):
        return joined(element("h3", title), _classes(matrix))
    colours = {pair: found for name, times in matrix.classes.items() for pair, found in _colours(name, times).items()}
    head = element("tr", element("th", "from \\ to"), (element("th", str(rank), scope="col") for rank in ranks))
    rows = [
        element("tr", element("th", str(first), scope="row"),
                (_cell(matrix, (first, second), colours, slow) for second in ranks))
        for first in ranks
    ]  # fmt: skip
    body = element("table", element("caption", title), head, rows, class_="matrix")
    return joined(element("div", body, class_="scroll"), _classes(matrix))


def _cell(
    matrix: Matrix, pair: Pair, colours: Mapping[Pair, tuple[str, str, str]], slow: Mapping[Pair, object]
) -> Markup:
    row = matrix.rows.get(pair)
    if row is None or row["status"] != "ok":
        reason = "not measured" if row is None else f"{row['status']}: {row['reason']}"
        return element("td", "·" if row is None else str(row["status"])[:4], title=reason, class_="none")
    time = float(row["median_s"])
    name, fill, ink = colours[pair]
    rate = row["algbw_gb_per_s"]
    interval = f"{format_seconds(row['ci_low_s'])} .. {format_seconds(row['ci_high_s'])}"
    tip = f"{pair[0]} to {pair[1]}: {format_seconds(time)} ({interval}), {format_rate(rate)} GB/s"
    tip += f", {name}{', slow for its class' if pair in slow else ''}"
    shown = format_rate(rate) if matrix.shared["window"] is not None else format_seconds(time)
    return element("td", shown, title=tip, style=f"background:{fill};color:{ink}", tabindex="0",
                   class_="slow" if pair in slow else None)  # fmt: skip


def _colours(name: str, times: Mapping[Pair, float]) -> dict[Pair, tuple[str, str, str]]:
    """Class, fill and ink of each pair."""
    ends = min(times.values()), max(times.values())
    return {pair: (name, *_colour(name, time, *ends)) for pair, time in times.items()}


def _colour(name: str, time: float, least: float, most: float) -> tuple[str, str]:
    """Fill and ink; pairs that are alike stay light, however exactly they were told apart."""
    share = math.log(time / least) / max(math.log(most / least), math.log(WIDE)) if most > least else 0.0
    return ramp(LIGHTEST + (1 - LIGHTEST) * share, LINK_CLASSES[name])


def _classes(matrix: Matrix) -> Markup:
    items = []
    for name, times in matrix.classes.items():
        order = sorted(times, key=lambda pair: (times[pair], pair))
        ends = [f"{format_seconds(times[pair])} ({pair[0]}-{pair[1]})" for pair in (order[0], order[-1])]
        middle = format_seconds(times[order[(len(order) - 1) // 2]])
        swatch = element("span", " ", class_="swatch", style=f"background:{_colour(name, 1.0, 1.0, 1.0)[0]}")
        items.append(element("li", swatch, f" {len(order)} pairs {CLASSES[name]}: {middle}, {ends[0]} to {ends[1]}"))
    return element("ul", items)


def matrix_title(matrix: Matrix) -> str:
    shared = matrix.shared
    size = format_bytes(int(shared["message_bytes"]))
    return f"{shared['benchmark']} {size}, {shared['backend']} {shared['layout']}"


def wiring_table(cells: Sequence[tuple[str, Sequence[str]]], legend: Mapping[str, str]) -> Markup:
    """The matrix of `nvidia-smi topo -m`, coloured by kind of link; near is green, far is red."""
    names = [name for name, _ in cells]
    head = element("tr", element("th", ""), (element("th", name, scope="col") for name in names))
    rows = [element("tr", element("th", name, scope="row"), map(_link, links)) for name, links in cells]
    used = {link.rstrip("0123456789") for _, links in cells for link in links}
    meanings = [element("li", element("b", key), f" {text}") for key, text in legend.items() if key in used]
    return joined(element("div", element("table", head, rows, class_="matrix"), class_="scroll"),
                  element("ul", meanings))  # fmt: skip


def _link(link: str) -> Markup:
    fill, ink = link_colours(link)
    return element("td", link, style=f"background:{fill};color:{ink}")
