"""Two families over message size, and where the faster one changes.

Which of two is faster at a size is decided in analysis/best.py. A crossover lies between the last
size at which one was faster and the first at which the other is; on each side at least two sizes in
a row must agree, because one alone may be an outlier. Within that bracket it is estimated where the
medians cross, on straight lines between the sizes in log time over log size.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from commbench.analysis.best import (
    THIS_RUN,
    UNDECIDED,
    Best,
    Rival,
    comparable_families,
    shared_variables,
)
from commbench.analysis.case_names import telling
from commbench.core.texts import setting_texts
from commbench.core.units import about_bytes, format_bytes
from commbench.results.columns import grouped
from commbench.results.load import rows_of_frame
from commbench.results.row import Row, plain_values

if TYPE_CHECKING:
    import pandas as pd

LEAST_SIZES = 2  # in a row that agree on who is faster


class Crossing(NamedTuple):
    """`below` is faster up to low_bytes, `above` from high_bytes on; the medians cross at
    crossover_bytes."""

    below: str
    above: str
    crossover_bytes: float
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two families at the sizes [n] that both have. `winners` [n]: 0 the first, 1 the second, -1
    undecided.

    `log_ratio` [n]: log of the first median / the second; negative where the first is faster.
    `of_this_run`: some size has too few launches for more.
    """

    names: tuple[str, str]
    shared: Row
    sizes: NDArray[np.int64]
    winners: NDArray[np.int64]
    log_ratio: NDArray[np.float64]
    of_this_run: bool

    @functools.cached_property
    def firm(self) -> NDArray[np.int64]:
        """The winners [n], undecided (-1) where fewer than LEAST_SIZES decided sizes in a row
        agree."""
        firm = np.full(self.winners.size, -1)
        decided = np.flatnonzero(self.winners >= 0)
        for winner, stretch in itertools.groupby(decided.tolist(), key=lambda at: self.winners[at]):
            sizes = list(stretch)
            if len(sizes) >= LEAST_SIZES:
                firm[sizes] = winner
        return firm

    @property
    def is_decided(self) -> bool:
        """Whether one of the two is faster at each size, and at LEAST_SIZES in a row."""
        return bool((self.winners >= 0).all() and (self.firm >= 0).any())

    def crossings(self) -> list[Crossing]:
        """All crossings in the order of sizes."""
        crossings = []
        certain = np.flatnonzero(self.firm >= 0)
        for first, last in itertools.pairwise(certain.tolist()):
            if self.firm[first] == self.firm[last]:
                continue
            ratio = self.log_ratio[first : last + 1]
            logs = np.log(self.sizes[first : last + 1])
            # of the sign changes between the two sizes; of several the geometric mean counts
            places = []
            for i, j in itertools.pairwise(np.flatnonzero(ratio).tolist()):
                if (ratio[i] < 0) != (ratio[j] < 0):
                    ties = logs[i + 1 : j]
                    line = logs[i] + (logs[j] - logs[i]) * ratio[i] / (ratio[i] - ratio[j])
                    places.append(ties.mean() if ties.size else line)
            below, above = (self.names[self.winners[at]] for at in (first, last))
            size = float(np.exp(np.mean(places)))
            crossings.append(
                Crossing(below, above, size, int(self.sizes[first]), int(self.sizes[last]))
            )
        return crossings


def crossovers(cases: pd.DataFrame, variable: str = "backend") -> pd.DataFrame:
    """One row per crossover: what the two families share, below, above, crossover_bytes, low_bytes,
    high_bytes.

        commbench.crossovers(commbench.load("results"), "backend")

    All families that differ only in that variable are compared (a backend implies its engine and
    streams, a layout its pair). Families that do not cross have no row; sentences() mentions them.
    Raises CommbenchError, and ConfigError for an unknown variable.
    """
    import pandas as pd

    shared = shared_variables(variable)
    rows = [
        (*shared_values(pair.shared, shared), *crossing)
        for pair in comparisons(rows_of_frame(cases), variable)
        for crossing in pair.crossings()
    ]
    return pd.DataFrame(rows, columns=[*shared, *Crossing._fields])


def shared_values(shared: Row, names: Iterable[str]) -> list[Any]:
    """The values of these variables as a data frame has them."""
    values = plain_values(shared)
    return [values[name] for name in names]


def sentences(pairs: Sequence[Comparison], variable: str = "backend") -> list[str]:
    """A line for each: "all_reduce: mpi below 24 KiB (between 16 KiB and 32 KiB), gloo above
    (...)"."""
    by_benchmark = grouped((pair.shared for pair in pairs), lambda own: own.benchmark)
    shared = shared_variables(variable)
    told = itertools.chain.from_iterable(telling(own, shared) for own in by_benchmark.values())
    named = list(dict.fromkeys(("benchmark", *told)))
    lines = []
    for pair in pairs:
        ends = " .. ".join(format_bytes(int(size)) for size in pair.sizes[[0, -1]])
        unsure = int((pair.winners < 0).sum())
        basis = f"{pair.sizes.size} sizes, {ends}" + (
            f"; {UNDECIDED} at {unsure}" if unsure else ""
        )
        lines.append(f"{', '.join(setting_texts(pair.shared, named))}: {_outcome(pair)} ({basis})")
    return lines


def comparisons(rows: Iterable[Row], variable: str = "backend") -> list[Comparison]:
    """Every two families that differ only in that variable and have a size in common."""
    compared = []
    for shared, named in comparable_families(rows, variable):
        for (first_name, first), (second_name, second) in itertools.combinations(named, 2):
            if getattr(first.variables, variable) == getattr(second.variables, variable):
                continue
            sizes, left, right = np.intersect1d(first.sizes, second.sizes, return_indices=True)
            if not sizes.size:
                continue
            best_at = [
                Best.of(
                    shared,
                    size,
                    [Rival(first_name, first.at(size)), Rival(second_name, second.at(size))],
                    cases=sizes.size,
                )
                for size in sizes.tolist()
            ]
            names = (first_name, second_name)
            winners = [names.index(best.best) if best.is_decided else -1 for best in best_at]
            log_ratio = np.log(first.median_s[left] / second.median_s[right])
            of_this_run = any(best.of_this_run for best in best_at)
            compared.append(
                Comparison(names, shared, sizes, np.array(winners), log_ratio, of_this_run)
            )
    return compared


def _outcome(pair: Comparison) -> str:
    crossings = pair.crossings()
    certain = pair.firm[pair.firm >= 0]
    if not certain.size:
        decided = pair.winners[pair.winners >= 0]
        at_one = (
            f"; {pair.names[int(decided[0])]} is faster at one size only" if decided.size else ""
        )
        return f"{pair.names[0]} and {pair.names[1]} are {UNDECIDED}{at_one}"
    where = f"{THIS_RUN} " if pair.of_this_run else ""
    if not crossings:
        faster = pair.names[int(certain[0])]
        slower = pair.names[1 - int(certain[0])]
        partly = "" if certain.size == pair.sizes.size else " where they differ"
        return f"{where}{faster} is faster than {slower}{partly}"
    parts: list[str] = []
    for crossing in crossings:
        word = "up to" if parts else "below"
        between = (
            f"between {format_bytes(crossing.low_bytes)} and {format_bytes(crossing.high_bytes)}"
        )
        parts.append(f"{crossing.below} {word} {about_bytes(crossing.crossover_bytes)} ({between})")
    return where + ", ".join([*parts, f"{crossings[-1].above} above"])
