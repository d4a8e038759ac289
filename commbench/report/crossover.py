"""Which backend (engine, layout, ...) is faster at which size, and where that changes.

Two medians count as different only where their intervals are disjoint. A crossover lies between the last size at which
one was faster and the first at which the other is; within that bracket it is estimated where the medians cross, on
straight lines between the sizes in log time over log size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import ConfigError
from commbench.core.units import format_bytes

from .fit import SHARED, Family, families, key, varying

if TYPE_CHECKING:
    import pandas as pd

COMPANIONS = {"backend": ("engine", "streams"), "layout": ("pair",)}  # variables that this choice implies
UNDECIDED = "not distinguishable"
CROSSED = ("below", "above", "crossover_bytes", "low_bytes", "high_bytes")
BEST = ("message_bytes", "best", "median_s", "ci_low_s", "ci_high_s", "second", "ratio", "compared", "alike")


@dataclass(frozen=True)
class Crossing:
    """`below` is faster up to low_bytes, `above` from high_bytes on; the medians cross at crossover_bytes."""

    below: str
    above: str
    crossover_bytes: float
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two families at the sizes [n] that both have. `winners` [n]: 0 the first, 1 the second, -1 undecided.

    `log_ratio` [n]: log of the first median / the second; negative where the first is faster.
    """

    names: tuple[str, str]
    shared: Mapping[str, Any]
    sizes: NDArray[np.int64]
    winners: NDArray[np.int64]
    log_ratio: NDArray[np.float64]

    def crossings(self) -> list[Crossing]:
        """All crossings in the order of sizes."""
        certain = np.flatnonzero(self.winners >= 0)
        changes = [(i, j) for i, j in itertools.pairwise(certain.tolist()) if self.winners[i] != self.winners[j]]
        return [self._crossing(first, last) for first, last in changes]

    def _crossing(self, first: int, last: int) -> Crossing:
        """The crossing between two decided sizes; of several sign changes in between, their geometric mean."""
        ratio, logs = self.log_ratio[first : last + 1], np.log(self.sizes[first : last + 1])
        decided = np.flatnonzero(ratio).tolist()  # a tie is a crossing only if the signs around it differ
        changes = [(i, j) for i, j in itertools.pairwise(decided) if (ratio[i] < 0) != (ratio[j] < 0)]
        places = [_meeting(logs[i : j + 1], ratio[i : j + 1]) for i, j in changes]
        names = self.names[int(self.winners[first])], self.names[int(self.winners[last])]
        return Crossing(*names, float(np.exp(np.mean(places))), int(self.sizes[first]), int(self.sizes[last]))


def _meeting(logs: NDArray[np.float64], ratio: NDArray[np.float64]) -> float:
    """Where a line between two points of opposite sign is 0; the middle of the ties if there are any between them."""
    if logs.size > 2:
        return float(logs[1:-1].mean())
    return float(logs[0] + (logs[1] - logs[0]) * ratio[0] / (ratio[0] - ratio[1]))


def crossovers(cases: pd.DataFrame, variable: str = "backend") -> pd.DataFrame:
    """One row per crossover: what the two families share, below, above, crossover_bytes, low_bytes, high_bytes.

    All families that differ only in that variable are compared (a backend implies its engine and streams, a layout its
    pair). Families that do not cross have no row; sentences() mentions them. Raises CommbenchError, and ConfigError for
    an unknown variable.
    """
    import pandas as pd

    rows = [
        {**pair.shared, **{name: getattr(one, name) for name in CROSSED}}
        for pair in comparisons(cases, variable)
        for one in pair.crossings()
    ]
    return pd.DataFrame(rows, columns=[*_remaining(variable), *CROSSED])


def sentences(cases: pd.DataFrame, variable: str = "backend") -> list[str]:
    """One line per two families: "all_reduce: mpi below 24 KiB (between 16 KiB and 32 KiB), gloo above (...)"."""
    found = comparisons(cases, variable)
    named = ["benchmark", *(name for name in varying(one.shared for one in found) if name != "benchmark")]
    return [f"{_described(one.shared, named)}: {_outcome(one)} ({_basis(one)})" for one in found]


def best(cases: pd.DataFrame, *variables: str) -> pd.DataFrame:
    """The fastest value of a variable (or of several together; default: backend) at each size that at least two have.

    One row per size: what they share, message_bytes, best (its name, or "not distinguishable" where its interval
    overlaps another's), median_s with its interval, second, ratio (the second median / the best), compared (how many),
    alike (names whose intervals overlap that of the best, itself included). Raises CommbenchError like crossovers.
    """
    import pandas as pd

    chosen = variables or ("backend",)
    rows = [row for group in _groups(cases, *chosen) for row in _best_of(group, _remaining(*chosen))]
    return pd.DataFrame(rows, columns=[*_remaining(*chosen), *BEST])


def comparisons(cases: pd.DataFrame, variable: str = "backend") -> list[Comparison]:
    """Every two families that differ only in that variable and have a size in common."""
    found = []
    for group in _groups(cases, variable):
        shared = {name: group[0][1].variables[name] for name in _remaining(variable)}
        for (first, one), (second, other) in itertools.combinations(group, 2):
            sizes, left, right = np.intersect1d(one.sizes, other.sizes, return_indices=True)
            if one.variables[variable] != other.variables[variable] and sizes.size:
                winners = np.full(sizes.size, -1)
                winners[one.high_s[left] < other.low_s[right]] = 0
                winners[other.high_s[right] < one.low_s[left]] = 1
                log_ratio = np.log(one.median_s[left] / other.median_s[right])
                found.append(Comparison((first, second), shared, sizes, winners, log_ratio))
    return found


def about(size: float) -> str:
    """A number of bytes with at most three digits: 24 KiB, 1.46 MiB."""
    for exponent, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        value = size / 1024**exponent
        if value >= 1:
            return f"{value:.0f} {prefix}iB" if value >= 100 else f"{value:.3g} {prefix}iB"
    return f"{size:.0f} B"


def _remaining(*variables: str) -> list[str]:
    """Variables that are equal in families which differ only in these and their companions."""
    for name in variables:
        if name not in SHARED:
            raise ConfigError(f"variable={name} can't be compared; allowed: {', '.join(SHARED)}")
    without = {*variables, *(companion for name in variables for companion in COMPANIONS.get(name, ()))}
    return [name for name in SHARED if name not in without]


def _groups(cases: pd.DataFrame, *variables: str) -> list[list[tuple[str, Family]]]:
    """Groups of families that differ only in the variables and their companions, each with its name in the group."""
    remaining = _remaining(*variables)
    groups: dict[tuple[Any, ...], list[Family]] = {}
    for family in families(cases):
        groups.setdefault(key({name: family.variables[name] for name in remaining}), []).append(family)
    return [_named(group, variables) for group in groups.values()]


def _named(group: Sequence[Family], variables: Sequence[str]) -> list[tuple[str, Family]]:
    """Each family with its name: gloo, or gloo (python) where a companion differs."""
    differing = [name for name in varying(family.variables for family in group) if name not in variables]
    named = []
    for family in group:
        more = [_value_text(name, family.variables[name]) for name in differing if family.variables[name] is not None]
        name = " ".join(_value_text(name, family.variables[name]) for name in variables)
        named.append((f"{name} ({', '.join(more)})" if more else name, family))
    return named


def _value_text(name: str, value: Any) -> str:
    """A value, with the variable's name where the value alone is not clear."""
    plain = isinstance(value, str) and name not in ("pair", "interface")
    return str(value) if plain else f"{name} {value}"


def _described(shared: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(_value_text(name, shared[name]) for name in names if shared[name] is not None)


def _outcome(pair: Comparison) -> str:
    crossings, certain = pair.crossings(), pair.winners[pair.winners >= 0]
    if not certain.size:
        return f"{pair.names[0]} and {pair.names[1]} are {UNDECIDED}"
    if not crossings:
        faster, slower = pair.names[int(certain[0])], pair.names[1 - int(certain[0])]
        return f"{faster} is faster than {slower}" + ("" if certain.size == pair.sizes.size else " where they differ")
    parts = [
        f"{one.below} {'up to' if index else 'below'} {_crossing_text(one)}" for index, one in enumerate(crossings)
    ]
    return ", ".join([*parts, f"{crossings[-1].above} above"])


def _crossing_text(one: Crossing) -> str:
    low, high = format_bytes(one.low_bytes), format_bytes(one.high_bytes)
    return f"{about(one.crossover_bytes)} (between {low} and {high})"


def _basis(pair: Comparison) -> str:
    count, unsure = pair.sizes.size, int((pair.winners < 0).sum())
    text = f"{count} sizes, {format_bytes(int(pair.sizes[0]))} .. {format_bytes(int(pair.sizes[-1]))}"
    return f"{text}; {UNDECIDED} at {unsure}" if unsure else text


def _best_of(group: Sequence[tuple[str, Family]], remaining: Sequence[str]) -> Iterator[dict[str, Any]]:
    shared = {name: group[0][1].variables[name] for name in remaining}
    for size in np.unique(np.concatenate([family.sizes for _, family in group])).tolist():
        rivals = sorted((_at(family, size), name) for name, family in group if size in family.sizes)
        if len(rivals) < 2:
            continue
        (median, low, high), name = rivals[0]
        alike = [name, *(other for (_, other_low, _), other in rivals[1:] if not high < other_low)]
        word = UNDECIDED if len(alike) > 1 else name
        second, ratio = rivals[1][1], rivals[1][0][0] / median
        row = (size, word, median, low, high, second, ratio, len(rivals), ", ".join(alike))
        yield {**shared, **dict(zip(BEST, row, strict=True))}


def _at(family: Family, size: int) -> tuple[float, float, float]:
    index = int(np.searchsorted(family.sizes, size))
    return float(family.median_s[index]), float(family.low_s[index]), float(family.high_s[index])
