"""Which backend (engine, layout, ...) is faster at which size, and where that changes.

Which times count as different is decided in difference.py. A crossover lies between the last size
at which one was faster and the first at which the other is; on each side at least two sizes in a
row must agree, because one alone may be an outlier. Within that bracket it is estimated where the
medians cross, on straight lines between the sizes in log time over log size.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import ConfigError
from commbench.core.units import about_bytes, format_bytes, value_text
from commbench.core.variables import brought_along
from commbench.results.columns import Row, grouped

from .difference import FEW_LAUNCHES, differ
from .fit import FAMILY_VARIABLES, Family, answerable, families, key, varying

if TYPE_CHECKING:
    import pandas as pd

NO_VALUE: tuple[Any, ...] = (None, "", {})
UNDECIDED = "not distinguishable"
BEST = (
    "message_bytes",
    "best",
    "median_s",
    "ci_low_s",
    "ci_high_s",
    "second",
    "ratio",
    "compared",
    "alike",
    "alike_s",
    "launches",
)
LEAST_SIZES = 2  # in a row that agree on who is faster
THIS_RUN = "in this run"


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
    `launches`: the smallest number of launches of a size.
    """

    names: tuple[str, str]
    shared: Mapping[str, Any]
    sizes: NDArray[np.int64]
    winners: NDArray[np.int64]
    log_ratio: NDArray[np.float64]
    launches: int

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

    rows = [
        {**pair.shared, **crossing._asdict()}
        for pair in comparisons(cases, variable)
        for crossing in pair.crossings()
    ]
    return pd.DataFrame(rows, columns=[*_remaining(variable), *Crossing._fields])


def sentences(cases: pd.DataFrame, variable: str = "backend") -> list[str]:
    """One line per two families: "all_reduce: mpi below 24 KiB (between 16 KiB and 32 KiB), gloo
    above (...)"."""
    pairs = comparisons(cases, variable)
    named = [
        "benchmark",
        *(name for name in varying(pair.shared for pair in pairs) if name != "benchmark"),
    ]
    lines = []
    for pair in pairs:
        ends = " .. ".join(format_bytes(int(size)) for size in pair.sizes[[0, -1]])
        unsure = int((pair.winners < 0).sum())
        basis = f"{pair.sizes.size} sizes, {ends}" + (
            f"; {UNDECIDED} at {unsure}" if unsure else ""
        )
        lines.append(f"{', '.join(_setting_texts(pair.shared, named))}: {_outcome(pair)} ({basis})")
    return lines


def best(cases: pd.DataFrame, *variables: str) -> pd.DataFrame:
    """The fastest value of a variable (or of several together; default: backend) at each size that
    at least two have.

    One row per size: what they share, message_bytes, best (its name, or "not distinguishable" where
    its interval does not differ from another's), median_s with its interval, second, ratio (the
    second median / the best), compared (how many), alike (names that do not differ from the best,
    itself included), alike_s (their medians), launches (the fewest of those compared; below 3 the
    best is that of this run). Raises CommbenchError like crossovers.
    """
    import pandas as pd

    variables = variables or ("backend",)
    return pd.DataFrame(best_rows(cases, *variables), columns=[*_remaining(*variables), *BEST])


def best_rows(cases: pd.DataFrame, *variables: str) -> list[Row]:
    """The rows of `best`."""
    rows: list[Row] = []
    for shared, group in _comparable_families(cases, *variables):
        for size in np.unique(np.concatenate([family.sizes for _, family in group])).tolist():
            times = [(family.at(size), name) for name, family in group if size in family.sizes]
            if len(times) < 2:
                continue
            fastest, second, *_ = rivals = sorted(
                times, key=lambda rival: (rival[0].median_s, rival[1])
            )
            alike = [fastest, *(rival for rival in rivals[1:] if not differ(fastest[0], rival[0]))]
            time, name = fastest
            row = (
                size,
                UNDECIDED if len(alike) > 1 else name,
                time.median_s,
                time.low_s,
                time.high_s,
                second[1],
                second[0].median_s / time.median_s,
                len(rivals),
                tuple(name for _, name in alike),
                tuple(time.median_s for time, _ in alike),
                min(len(time.medians) for time, _ in rivals),
            )
            rows.append({**shared, **dict(zip(BEST, row, strict=True))})
    return rows


def comparisons(cases: pd.DataFrame, variable: str = "backend") -> list[Comparison]:
    """Every two families that differ only in that variable and have a size in common."""
    compared = []
    for shared, group in _comparable_families(cases, variable):
        for (first_name, first), (second_name, second) in itertools.combinations(group, 2):
            sizes, left, right = np.intersect1d(first.sizes, second.sizes, return_indices=True)
            if first.variables[variable] != second.variables[variable] and sizes.size:
                pairs = [
                    (first.times[i], second.times[j]) for i, j in zip(left, right, strict=True)
                ]
                log_ratio = np.log(first.median_s[left] / second.median_s[right])
                winners = np.where(
                    [differ(*pair) for pair in pairs], (log_ratio > 0).astype(int), -1
                )
                launches = min(len(side.medians) for pair in pairs for side in pair)
                names = first_name, second_name
                compared.append(Comparison(names, shared, sizes, winners, log_ratio, launches))
    return compared


def _remaining(*variables: str) -> list[str]:
    """Variables that are equal in families which differ only in these and their companions."""
    for name in variables:
        if name not in FAMILY_VARIABLES:
            raise ConfigError(
                f"variable={name} can't be compared; allowed: {', '.join(FAMILY_VARIABLES)}"
            )
    without = {
        *variables,
        *(companion for name in variables for companion in brought_along(name)),
    }
    return [name for name in FAMILY_VARIABLES if name not in without]


def _comparable_families(
    cases: pd.DataFrame, *variables: str
) -> Iterator[tuple[dict[str, Any], list[tuple[str, Family]]]]:
    """Groups of families that differ only in the variables and their companions: what the group
    shares, and its families by name: gloo, or gloo (python) where a companion differs."""
    remaining = _remaining(*variables)
    implied = set(FAMILY_VARIABLES) - set(remaining)
    groups = grouped(
        families(answerable(cases)), lambda family: key(family.variables, without=implied)
    )
    for group in groups.values():
        differing = [
            name for name in varying(family.variables for family in group) if name not in variables
        ]
        named = []
        for family in group:
            more = _setting_texts(family.variables, differing)
            name = " ".join(_setting_text(name, family.variables[name]) for name in variables)
            named.append((f"{name} ({', '.join(more)})" if more else name, family))
        yield {name: group[0].variables[name] for name in remaining}, named


def _setting_text(name: str, value: Any) -> str:
    """A value, with the variable's name where the value alone is not clear."""
    plain = isinstance(value, str) and name not in ("pair", "interface", "hosts", "label", "bind")
    return str(value) if plain else f"{name} {value_text(value)}"


def _setting_texts(variables: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [
        _setting_text(name, variables[name]) for name in names if variables[name] not in NO_VALUE
    ]


def _outcome(pair: Comparison) -> str:
    crossings = pair.crossings()
    certain = pair.firm[pair.firm >= 0]
    if not certain.size:
        decided = pair.winners[pair.winners >= 0]
        at_one = (
            f"; {pair.names[int(decided[0])]} is faster at one size only" if decided.size else ""
        )
        return f"{pair.names[0]} and {pair.names[1]} are {UNDECIDED}{at_one}"
    where = "" if pair.launches >= FEW_LAUNCHES else f"{THIS_RUN} "
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
