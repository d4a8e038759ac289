"""Matrices of pairs: the cases of a run that differ in nothing but the pair."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from commbench.core.layout import ACROSS_NODES, SAME_NODE, SELF, Layout, Link, Pair, single_pair
from commbench.core.units import Unit, bit_rate_unit, seconds_unit
from commbench.core.variables import NAMES
from commbench.results.columns import grouped
from commbench.results.flags import UNUSABLE
from commbench.results.intervals import interval_of
from commbench.results.row import Row
from commbench.stats.interval import Interval

CLASSES = {
    SELF: "of a rank with itself",
    SAME_NODE: "on one node",
    ACROSS_NODES: "between nodes",
}
MATRIX_VARIABLES = (*(name for name in NAMES if name != "pair"), "label")
_matrix_key = attrgetter("run_id", *MATRIX_VARIABLES)

MediansByClass = Mapping[Link, Mapping[Pair, Interval]]


@dataclass(frozen=True, eq=False)
class Matrix:
    """The cases of one run and size that differ only in the pair, with any status. `shared` is a
    row with their other variables; `medians` are the times of the cases that are ok."""

    shared: Row
    rows: Mapping[Pair, Row]
    medians: Mapping[Pair, Interval]

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout.parse(self.shared.layout)

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for pair in self.rows for rank in pair})

    @functools.cached_property
    def classes(self) -> MediansByClass:
        """All medians."""
        return self._by_class(self.medians)

    @functools.cached_property
    def usable(self) -> MediansByClass:
        """Those whose rows have no flag of UNUSABLE."""
        return self._by_class(filter(self.is_usable, self.medians))

    def is_usable(self, pair: Pair) -> bool:
        return pair in self.medians and UNUSABLE.isdisjoint(self.rows[pair].warnings)

    def _by_class(self, pairs: Iterable[Pair]) -> MediansByClass:
        by_link = grouped(pairs, self.layout.link)
        return {
            link: {pair: self.medians[pair] for pair in by_link[link]}
            for link in CLASSES
            if link in by_link
        }

    def extremes(self, link: Link) -> tuple[Pair, Pair, Pair]:
        """The pairs of a class with the shortest, the (lower) median and the longest time."""
        medians = self.classes[link]
        order = sorted(medians, key=lambda pair: (medians[pair].value, pair))
        return order[0], order[(len(order) - 1) // 2], order[-1]

    @property
    def is_one_way(self) -> bool:
        """Whether its messages go in one direction, in windows or a stream, so that they have a
        rate."""
        return self.shared.window is not None or self.shared.is_stream

    @property
    def column(self) -> str:
        """What shows a pair: for messages in one direction the rate, for others the time."""
        return "algbw_gb_per_s" if self.is_one_way else "median_s"

    @functools.cached_property
    def unit(self) -> Unit:
        """Of the numbers in `column`; rates of streams are in bits."""
        if self.is_one_way and not self.shared.is_stream:
            return Unit("GB/s", 1.0)
        values = (getattr(row, self.column) for row in self.rows.values())
        known = [value for value in values if value is not None]
        middle = float(np.median(known or [0.0]))
        return bit_rate_unit(middle) if self.is_one_way else seconds_unit(middle)

    def number(self, pair: Pair) -> str:
        return self.unit.text(getattr(self.rows[pair], self.column))

    def number_with_unit(self, pair: Pair) -> str:
        return f"{self.number(pair)} {self.unit.name}"


def matrices(rows: Iterable[Row]) -> list[Matrix]:
    """The cases of a single pair, grouped by all other variables; other cases are left out, and
    those without a layout, as of another tool."""
    single = [(pair, row) for row in rows if row.layout and (pair := single_pair(row.pair))]
    groups = grouped(single, lambda each: _matrix_key(each[1])).values()
    return [
        Matrix(
            replace(cases[0][1], pair=None),
            dict(cases),
            {pair: median for pair, row in cases if (median := interval_of(row)) is not None},
        )
        for cases in groups
    ]
