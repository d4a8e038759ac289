"""Which backend (engine, layout, ...) is faster at which size, and where that changes.

Which times count as different is decided in difference.py. A crossover lies between the last size at which one was
faster and the first at which the other is; on each side at least two sizes in a row must agree, because one alone may
be an outlier. Within that bracket it is estimated where the medians cross, on straight lines between the sizes in log
time over log size.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import ConfigError
from commbench.core.units import about_bytes, format_bytes, value_text

from .difference import FEW_LAUNCHES, differ
from .fit import COMPANIONS, SHARED, Family, answerable, families, key, varying

if TYPE_CHECKING:
    import pandas as pd

NO_VALUE: tuple[Any, ...] = (None, "", {})
UNDECIDED = "not distinguishable"
CROSSED = ("below", "above", "crossover_bytes", "low_bytes", "high_bytes")
BEST = (
    "message_bytes", "best", "median_s", "ci_low_s", "ci_high_s", "second", "ratio", "compared", "alike", "alike_s",
    "launches",
)  # fmt: skip
LEAST_SIZES = 2  # in a row that agree on who is faster
THIS_RUN = "in this run"


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

    `log_ratio` [n]: log of the first median / the second; negative where the first is faster. `launches`: the fewest
    of one size.
    """

    names: tuple[str, str]
    shared: Mapping[str, Any]
    sizes: NDArray[np.int64]
    winners: NDArray[np.int64]
    log_ratio: NDArray[np.float64]
    launches: int

    @functools.cached_property
    def firm(self) -> NDArray[np.int64]:
        """The winners [n], undecided (-1) where fewer than LEAST_SIZES decided sizes in a row agree."""
        firm = np.full(self.winners.size, -1)
        decided = np.flatnonzero(self.winners >= 0)
        for winner, stretch in itertools.groupby(decided.tolist(), key=lambda at: self.winners[at]):
            sizes = list(stretch)
            if len(sizes) >= LEAST_SIZES:
                firm[sizes] = winner
        return firm

    def crossings(self) -> list[Crossing]:
        """All crossings in the order of sizes."""
        certain = np.flatnonzero(self.firm >= 0)
        changes = [(i, j) for i, j in itertools.pairwise(certain.tolist()) if self.firm[i] != self.firm[j]]
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

        commbench.crossovers(commbench.load("results"), "backend")

    All families that differ only in that variable are compared (a backend implies its engine and streams, a layout its
    pair). Families that do not cross have no row; sentences() mentions them. Raises CommbenchError, and ConfigError for
    an unknown variable.
    """
    import pandas as pd

    rows = [
        {**pair.shared, **asdict(crossing)} for pair in comparisons(cases, variable) for crossing in pair.crossings()
    ]
    return pd.DataFrame(rows, columns=[*_remaining(variable), *CROSSED])


def sentences(cases: pd.DataFrame, variable: str = "backend") -> list[str]:
    """One line per two families: "all_reduce: mpi below 24 KiB (between 16 KiB and 32 KiB), gloo above (...)"."""
    pairs = comparisons(cases, variable)
    named = ["benchmark", *(name for name in varying(pair.shared for pair in pairs) if name != "benchmark")]
    return [f"{', '.join(_setting_texts(pair.shared, named))}: {_outcome(pair)} ({_basis(pair)})" for pair in pairs]


def best(cases: pd.DataFrame, *variables: str) -> pd.DataFrame:
    """The fastest value of a variable (or of several together; default: backend) at each size that at least two have.

    One row per size: what they share, message_bytes, best (its name, or "not distinguishable" where its interval
    does not differ from another's), median_s with its interval, second, ratio (the second median / the best), compared
    (how many), alike (names that do not differ from the best, itself included), alike_s (their medians), launches (the
    fewest of those compared; below 3 the best is that of this run). Raises CommbenchError like crossovers.
    """
    import pandas as pd

    chosen = variables or ("backend",)
    rows = [row for group in _comparable_families(cases, *chosen) for row in _best_of(group, _remaining(*chosen))]
    return pd.DataFrame(rows, columns=[*_remaining(*chosen), *BEST])


def comparisons(cases: pd.DataFrame, variable: str = "backend") -> list[Comparison]:
    """Every two families that differ only in that variable and have a size in common."""
    compared = []
    for group in _comparable_families(cases, variable):
        shared = {name: group[0][1].variables[name] for name in _remaining(variable)}
        for (first_name, first), (second_name, second) in itertools.combinations(group, 2):
            sizes, left, right = np.intersect1d(first.sizes, second.sizes, return_indices=True)
            if first.variables[variable] != second.variables[variable] and sizes.size:
                pairs = [(first.times[i], second.times[j]) for i, j in zip(left, right, strict=True)]
                log_ratio = np.log(first.median_s[left] / second.median_s[right])
                winners = np.where([differ(*pair) for pair in pairs], (log_ratio > 0).astype(int), -1)
                launches = min(len(side.medians) for pair in pairs for side in pair)
                names = first_name, second_name
                compared.append(Comparison(names, shared, sizes, winners, log_ratio, launches))
    return compared


def _remaining(*variables: str) -> list[str]:
    """Variables that are equal in families which differ only in these and their companions."""
    for name in variables:
        if name not in SHARED:
            raise ConfigError(f"variable={name} can't be compared; allowed: {', '.join(SHARED)}")
    without = {*variables, *(companion for name in variables for companion in COMPANIONS.get(name, ()))}
    return [name for name in SHARED if name not in without]


def _comparable_families(cases: pd.DataFrame, *variables: str) -> list[list[tuple[str, Family]]]:
    """Groups of families that differ only in the variables and their companions, each with its name in the group."""
    remaining = _remaining(*variables)
    groups: dict[tuple[Any, ...], list[Family]] = {}
    for family in families(answerable(cases)):
        groups.setdefault(key({name: family.variables[name] for name in remaining}), []).append(family)
    return [_with_names(group, variables) for group in groups.values()]


def _with_names(group: Sequence[Family], variables: Sequence[str]) -> list[tuple[str, Family]]:
    """Each family with its name: gloo, or gloo (python) where a companion differs."""
    differing = [name for name in varying(family.variables for family in group) if name not in variables]
    named = []
    for family in group:
        more = _setting_texts(family.variables, differing)
        name = " ".join(_setting_text(name, family.variables[name]) for name in variables)
        named.append((f"{name} ({', '.join(more)})" if more else name, family))
    return named


def _setting_text(name: str, value: Any) -> str:
    """A value, with the variable's name where the value alone is not clear."""
    plain = isinstance(value, str) and name not in ("pair", "interface", "hosts", "label", "bind")
    return str(value) if plain else f"{name} {value_text(value)}"


def _setting_texts(variables: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [_setting_text(name, variables[name]) for name in names if variables[name] not in NO_VALUE]


def _outcome(pair: Comparison) -> str:
    crossings, certain = pair.crossings(), pair.firm[pair.firm >= 0]
    if not certain.size:
        decided = pair.winners[pair.winners >= 0]
        at_one = f"; {pair.names[int(decided[0])]} is faster at one size only" if decided.size else ""
        return f"{pair.names[0]} and {pair.names[1]} are {UNDECIDED}{at_one}"
    where = "" if pair.launches >= FEW_LAUNCHES else f"{THIS_RUN} "
    if not crossings:
        faster, slower = pair.names[int(certain[0])], pair.names[1 - int(certain[0])]
        return f"{where}{faster} is faster than {slower}" + (
            "" if certain.size == pair.sizes.size else " where they differ"
        )
    parts: list[str] = []
    for crossing in crossings:
        word = "up to" if parts else "below"
        between = f"between {format_bytes(crossing.low_bytes)} and {format_bytes(crossing.high_bytes)}"
        parts.append(f"{crossing.below} {word} {about_bytes(crossing.crossover_bytes)} ({between})")
    return where + ", ".join([*parts, f"{crossings[-1].above} above"])


def _basis(pair: Comparison) -> str:
    count, unsure = pair.sizes.size, int((pair.winners < 0).sum())
    text = f"{count} sizes, {format_bytes(int(pair.sizes[0]))} .. {format_bytes(int(pair.sizes[-1]))}"
    return f"{text}; {UNDECIDED} at {unsure}" if unsure else text


def _best_of(group: Sequence[tuple[str, Family]], remaining: Sequence[str]) -> Iterator[dict[str, Any]]:
    shared = {name: group[0][1].variables[name] for name in remaining}
    for size in np.unique(np.concatenate([family.sizes for _, family in group])).tolist():
        rivals = sorted(
            ((family.at(size), name) for name, family in group if size in family.sizes),
            key=lambda rival: (rival[0].median_s, rival[1]),
        )
        if len(rivals) < 2:
            continue
        fastest, name = rivals[0]
        alike = [(fastest, name), *(rival for rival in rivals[1:] if not differ(fastest, rival[0]))]
        word = UNDECIDED if len(alike) > 1 else name
        times = [time for time, _ in rivals]
        ratio, launches = times[1].median_s / times[0].median_s, min(len(time.medians) for time in times)
        row = (size, word, fastest.median_s, fastest.low_s, fastest.high_s, rivals[1][1], ratio, len(rivals),
               ", ".join(other for _, other in alike), tuple(time.median_s for time, _ in alike), launches)  # fmt: skip
        yield {**shared, **dict(zip(BEST, row, strict=True))}
