"""Which backend (engine, layout, ...) is faster at which size, and where that changes.

Two medians are told apart only where their intervals are disjoint. A crossover lies between the last size at which one
was certainly faster and the first at which the other certainly is; within that bracket it is estimated where the
medians cross, on straight lines between the sizes in log time over log size.
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

from .families import SHARED, Family, families, key, varying

if TYPE_CHECKING:
    import pandas as pd

COMPANIONS = {"backend": ("engine", "streams"), "layout": ("pair",)}  # what such a choice decides on the way
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
class Duel:
    """Two families at the sizes [n] that both have. `winners` [n]: 0 the first, 1 the second, -1 nobody knows.

    `log_ratio` [n] is that of their medians: negative where the first is faster.
    """

    names: tuple[str, str]
    shared: Mapping[str, Any]
    sizes: NDArray[np.int64]
    winners: NDArray[np.int64]
    log_ratio: NDArray[np.float64]

    def crossings(self) -> list[Crossing]:
        """In the order of sizes; each begins where the one before ended."""
        certain = np.flatnonzero(self.winners >= 0)
        changes = [(i, j) for i, j in itertools.pairwise(certain.tolist()) if self.winners[i] != self.winners[j]]
        return [self._crossing(first, last) for first, last in changes]

    def _crossing(self, first: int, last: int) -> Crossing:
        """Medians that cross several times within the bracket do so at the geometric mean of these places."""
        ratio, logs = self.log_ratio[first : last + 1], np.log(self.sizes[first : last + 1])
        decided = np.flatnonzero(ratio).tolist()  # a tie is a crossing only if the signs around it differ
        changes = [(i, j) for i, j in itertools.pairwise(decided) if (ratio[i] < 0) != (ratio[j] < 0)]
        places = [_meeting(logs[i : j + 1], ratio[i : j + 1]) for i, j in changes]
        names = self.names[int(self.winners[first])], self.names[int(self.winners[last])]
        return Crossing(*names, float(np.exp(np.mean(places))), int(self.sizes[first]), int(self.sizes[last]))


def _meeting(logs: NDArray[np.float64], ratio: NDArray[np.float64]) -> float:
    """Where a line between two points of opposite sign is 0; the middle of the ties, if any lie between them."""
    if logs.size > 2:
        return float(logs[1:-1].mean())
    return float(logs[0] + (logs[1] - logs[0]) * ratio[0] / (ratio[0] - ratio[1]))


def crossovers(cases: pd.DataFrame, variable: str = "backend") -> pd.DataFrame:
    """One row a crossover: what the two families share, below, above, crossover_bytes, low_bytes, high_bytes.

    Compared are all families that differ in that variable only (a backend brings its engine and streams, a layout its
    pair). Pairs that do not cross have no row; sentences() tells of them. Raises CommbenchError, ConfigError for an
    unknown variable.
    """
    import pandas as pd

    rows = [
        {**duel.shared, **{name: getattr(one, name) for name in CROSSED}}
        for duel in duels(cases, variable)
        for one in duel.crossings()
    ]
    return pd.DataFrame(rows, columns=[*_remaining(variable), *CROSSED])


def sentences(cases: pd.DataFrame, variable: str = "backend") -> list[str]:
    """A line for each two families: "all_reduce: mpi below 24 KiB (between 16 KiB and 32 KiB), gloo above (...)"."""
    found = duels(cases, variable)
    told = ["benchmark", *(name for name in varying(duel.shared for duel in found) if name != "benchmark")]
    return [f"{_words(duel.shared, told)}: {_verdict(duel)} ({_basis(duel)})" for duel in found]


def best(cases: pd.DataFrame, *variables: str) -> pd.DataFrame:
    """The fastest value of a variable (or of several together; default: backend) at each size that at least two have.

    One row: what they share, message_bytes, best (its name, or "not distinguishable" where its interval overlaps
    another's), median_s with its interval, second, ratio (the second's median / the best's), compared (how many),
    alike (names whose intervals overlap the best's, itself included). Raises CommbenchError like crossovers.
    """
    import pandas as pd

    chosen = variables or ("backend",)
    rows = [row for group in _groups(cases, *chosen) for row in _best_of(group, _remaining(*chosen))]
    return pd.DataFrame(rows, columns=[*_remaining(*chosen), *BEST])


def duels(cases: pd.DataFrame, variable: str = "backend") -> list[Duel]:
    """Every two families that differ in that variable only and have a size in common."""
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
                found.append(Duel((first, second), shared, sizes, winners, log_ratio))
    return found


def about(size: float) -> str:
    """A number of bytes to three digits at most, for a text: 24 KiB, 1.46 MiB."""
    for exponent, prefix in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        value = size / 1024**exponent
        if value >= 1:
            return f"{value:.0f} {prefix}iB" if value >= 100 else f"{value:.3g} {prefix}iB"
    return f"{size:.0f} B"


def _remaining(*variables: str) -> list[str]:
    """Variables that families share which differ in these only."""
    for name in variables:
        if name not in SHARED:
            raise ConfigError(f"variable={name} can't be compared; allowed: {', '.join(SHARED)}")
    without = {*variables, *(companion for name in variables for companion in COMPANIONS.get(name, ()))}
    return [name for name in SHARED if name not in without]


def _groups(cases: pd.DataFrame, *variables: str) -> list[list[tuple[str, Family]]]:
    """Families that differ in the variables and their companions only, each with its name among the others."""
    remaining = _remaining(*variables)
    groups: dict[tuple[Any, ...], list[Family]] = {}
    for family in families(cases):
        groups.setdefault(key({name: family.variables[name] for name in remaining}), []).append(family)
    return [_named(group, variables) for group in groups.values()]


def _named(group: Sequence[Family], variables: Sequence[str]) -> list[tuple[str, Family]]:
    """gloo, or gloo (python) where a companion differs."""
    differing = [name for name in varying(family.variables for family in group) if name not in variables]
    named = []
    for family in group:
        more = [_text(name, family.variables[name]) for name in differing if family.variables[name] is not None]
        name = " ".join(_text(name, family.variables[name]) for name in variables)
        named.append((f"{name} ({', '.join(more)})" if more else name, family))
    return named


def _text(name: str, value: Any) -> str:
    """A value that says what it is."""
    plain = isinstance(value, str) and name not in ("pair", "interface")
    return str(value) if plain else f"{name} {value}"


def _words(shared: Mapping[str, Any], told: Sequence[str]) -> str:
    return ", ".join(_text(name, shared[name]) for name in told if shared[name] is not None)


def _verdict(duel: Duel) -> str:
    crossings, certain = duel.crossings(), duel.winners[duel.winners >= 0]
    if not certain.size:
        return f"{duel.names[0]} and {duel.names[1]} are {UNDECIDED}"
    if not crossings:
        faster, slower = duel.names[int(certain[0])], duel.names[1 - int(certain[0])]
        return f"{faster} is faster than {slower}" + ("" if certain.size == duel.sizes.size else " where they differ")
    parts = [f"{one.below} {'up to' if index else 'below'} {_place(one)}" for index, one in enumerate(crossings)]
    return ", ".join([*parts, f"{crossings[-1].above} above"])


def _place(one: Crossing) -> str:
    low, high = format_bytes(one.low_bytes), format_bytes(one.high_bytes)
    return f"{about(one.crossover_bytes)} (between {low} and {high})"


def _basis(duel: Duel) -> str:
    count, unsure = duel.sizes.size, int((duel.winners < 0).sum())
    text = f"{count} sizes, {format_bytes(int(duel.sizes[0]))} .. {format_bytes(int(duel.sizes[-1]))}"
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
