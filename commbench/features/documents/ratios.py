"""Ratios that a document publishes: rows with one value of a variable over rows with another, which
share all else."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from typing import Any

import numpy as np

from commbench.results.columns import grouped
from commbench.results.row import Row
from commbench.stats.interval import Interval, of_formula
from commbench.stats.verdict import compare_launches

from .comparison import Compared, stand_in, value_in_unit
from .reference import UNITS, Point, Reference, fact

RATIO_SHARED = ("benchmark", "backend", "layout", "device", "dtype", "message_bytes")


@dataclass(frozen=True)
class LinkRatio:
    """Of one link and size. `row`: one of its rows; `libraries`: those that stand in for the
    document's."""

    row: Row
    ratio: Interval
    libraries: Sequence[str]


def compared_ratios(reference: Reference, rows: Sequence[Row]) -> Iterator[Compared]:
    """The ratios of one size of each layout: that of the decisive one where the document has an
    upper bound alone, else the largest."""
    (point,) = reference.points
    known = [row for row in rows if getattr(row, reference.of) and point.holds(row.message_bytes)]
    of_links = (_link_ratio(reference, alike) for alike in grouped(known, _link).values())
    links = [link for link in of_links if link is not None]
    libraries = dict.fromkeys(name for link in links for name in link.libraries)
    by_layout = grouped(links, lambda link: link.row.layout)
    for layout, own in by_layout.items():
        by_size = grouped(own, lambda link: link.row.message_bytes)
        size = max(by_size) if math.isfinite(point.low) else _decisive_size(point, by_size)
        yield Compared(
            reference,
            point,
            size or None,
            layout if len(by_layout) > 1 else "",
            tuple(link.ratio for link in by_size[size]),
            stand_in(reference, by_size[size][0].row, libraries),
        )


def _decisive_size(point: Point, by_size: Mapping[int, Sequence[LinkRatio]]) -> int:
    """The size of the largest ratio that is certain where it is above the upper bound, else of the
    one that reaches highest."""
    links = [link for own in by_size.values() for link in own]
    decisive = max(links, key=lambda link: (link.ratio.low, link.ratio.value))
    if decisive.ratio.low <= point.high:
        decisive = max(links, key=lambda link: (link.ratio.high, link.ratio.value))
    return decisive.row.message_bytes


# ---------------------------------------------------------------- of one link


def _link_ratio(reference: Reference, rows: Sequence[Row]) -> LinkRatio | None:
    """Rows with the first value of the variable over rows with the second; None without rows of
    both. The two directions of a pair have no order: theirs is the faster over the slower."""
    assert reference.over is not None
    ((variable, (first, second)),) = reference.over.items()
    sides = grouped(rows, lambda row: str(fact(row, variable)))
    if first not in sides or second not in sides:
        return None
    ratio = _ratio(reference.of, sides[first], sides[second])
    if reference.is_of_directions and ratio.value < 1:
        ratio = _ratio(reference.of, sides[second], sides[first])
    libraries = [
        _short(name)
        for side, library in reference.libraries.items()
        for name in (str(row.library) for row in sides.get(side, ()))
        if library not in name
    ]
    return LinkRatio(rows[0], 1 / UNITS[reference.unit] * ratio, libraries)


def _link(row: Row) -> tuple[Any, ...]:
    """What both sides of a ratio share: both directions are one link."""
    ranks = str(row.pair or "").split("-")
    return (*(getattr(row, name) for name in RATIO_SHARED), *sorted(ranks))


def _ratio(column: str, above: Sequence[Row], below: Sequence[Row]) -> Interval:
    """Of the medians: with the intervals of two rows, or of compare where each side is launches of
    one case."""
    if len(above) == len(below) == 1:
        sides = (value_in_unit(row, column, "x") for row in (*above, *below))
        return of_formula(truediv, *sides)
    first, second = (np.array([getattr(row, column) for row in side]) for side in (above, below))
    ratio = compare_launches(second, first, margin=0).ratio
    is_of_launches = all(len({row.case_id for row in side}) == 1 for side in (above, below))
    return ratio if is_of_launches else Interval(ratio.value, n=ratio.n, of=ratio.of)


def _short(library: str) -> str:
    """`Open MPI` of `Open MPI v5.0.11`."""
    return re.split(r"\s+(?:version|v?\d)", library, maxsplit=1, flags=re.IGNORECASE)[0]
