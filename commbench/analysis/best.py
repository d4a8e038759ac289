"""Which backend, layout or other setting is fastest at each size.

Families that differ only in that setting are compared. Which times count as different is decided in
difference.py. Layouts are compared only where they have the same number of ranks: 1x2 has less work
to do than 1x4.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from commbench.core.errors import ConfigError
from commbench.core.texts import (
    microseconds_text,
    setting_text,
    setting_texts,
    size_text,
)
from commbench.core.units import format_factor, plural
from commbench.core.variables import brought_along
from commbench.results.columns import grouped
from commbench.results.row import Row
from commbench.stats.difference import Time, are_enough, differ
from commbench.stats.interval import Interval

from .case_names import FAMILY_VARIABLES, OF_BACKEND, OF_LABEL, telling, unusual_texts
from .families import Family, answerable, families, key

UNDECIDED = "not distinguishable"
# chosen as a backend is, in the same run or another
CHOSEN_SETTINGS = ("label", *(name for name in OF_LABEL if name not in OF_BACKEND))
THIS_RUN = "in this run"


class Rival(NamedTuple):
    """One of the settings that are compared, and its time at that size."""

    name: str
    time: Time


@dataclass(frozen=True)
class Best:
    """The comparison at one size. `rivals`: at least two, the fastest first.

    `shared`: a row with the variables in which they do not differ; `more`: those of them that tell
    this comparison from others of its benchmark, as text. `cases`: of how many comparisons it
    is one, in which equal settings must have no winner.
    """

    shared: Row
    message_bytes: int
    rivals: tuple[Rival, ...]
    more: str = ""
    cases: int = 1

    @classmethod
    def of(cls, shared: Row, message_bytes: int, rivals: Iterable[Rival], cases: int = 1) -> Best:
        """Rivals with equal times are ordered by name."""
        order = sorted(rivals, key=lambda rival: (rival.time.median_s, rival.name))
        return cls(shared, message_bytes, tuple(order), cases=cases)

    @functools.cached_property
    def undistinguished(self) -> tuple[Rival, ...]:
        """The fastest, and those whose times do not differ from its."""
        fastest, *others = self.rivals
        alike = (rival for rival in others if not differ(fastest.time, rival.time, self.cases))
        return (fastest, *alike)

    @property
    def is_decided(self) -> bool:
        return len(self.undistinguished) == 1

    @property
    def best(self) -> str:
        """The name of the fastest, where its time differs from all others."""
        return self.rivals[0].name if self.is_decided else UNDECIDED

    @property
    def median(self) -> Interval:
        """The time of the fastest."""
        return self.rivals[0].time.median

    @property
    def second(self) -> str:
        return self.rivals[1].name

    @property
    def ratio(self) -> float:
        """The time of the second / that of the fastest."""
        return self.rivals[1].time.median_s / self.median.value

    @property
    def alike(self) -> tuple[str, ...]:
        return tuple(rival.name for rival in self.undistinguished)

    @property
    def launches(self) -> int:
        """The fewest launches of a rival."""
        return min(len(rival.time.launches_s) for rival in self.rivals)

    @property
    def of_this_run(self) -> bool:
        """Whether the launches are too few for more than what was fastest in this run."""
        return not are_enough(self.launches, self.launches, self.cases)


class ComparableFamilies(NamedTuple):
    """Families that differ only in what is compared, by name: gloo, or gloo (python) where what a
    backend brings along differs."""

    shared: Row
    families: tuple[tuple[str, Family], ...]


def best_of_each_size(
    rows: Iterable[Row], *variables: str, beside: Sequence[str] = ()
) -> list[Best]:
    """The comparison at each size that at least two values of the variables have; see
    comparable_families."""
    compared = list[Best]()
    for shared, named in comparable_families(rows, *variables, beside=beside):
        sizes = np.unique(np.concatenate([family.sizes for _, family in named])).tolist()
        for size in sizes:
            rivals = [
                Rival(name, family.at(size)) for name, family in named if size in family.sizes
            ]
            if len(rivals) > 1:
                compared.append(Best.of(shared, size, rivals, len(sizes)))
    return compared


def best_backends_and_layouts(
    rows: Iterable[Row], beside: Sequence[str] = CHOSEN_SETTINGS
) -> list[Best]:
    """The best backend and layout, with its setting, by number of ranks (`world_size` in `shared`)
    and size."""
    known = (row for row in answerable(rows) if row.world_size is not None)
    worlds = grouped(known, lambda row: row.world_size or 0)
    chosen = ("backend", "layout")
    compared = [
        best
        for _, of_world in sorted(worlds.items())
        for best in best_of_each_size(of_world, *chosen, beside=beside)
    ]
    by_benchmark = grouped(compared, lambda best: best.shared.benchmark)
    shared = shared_variables(*chosen, *beside)
    named = {
        benchmark: telling([best.shared for best in alike], shared)
        for benchmark, alike in by_benchmark.items()
    }
    return [
        replace(best, more=", ".join(setting_texts(best.shared, named[best.shared.benchmark])))
        for best in compared
    ]


def comparable_families(
    rows: Iterable[Row], *variables: str, beside: Sequence[str] = ()
) -> Iterator[ComparableFamilies]:
    """Groups of families that differ only in the variables, in what these bring along, and in those
    `beside`, which are named where they differ."""
    shared = shared_variables(*variables, *beside)
    implied = set(FAMILY_VARIABLES) - set(shared)
    groups = grouped(
        families(answerable(rows)), lambda family: key(family.variables, without=implied)
    )
    for group in groups.values():
        told = [
            name
            for name in telling([family.variables for family in group])
            if name not in variables
        ]
        named = []
        for family in group:
            more = unusual_texts(family.variables, told)
            chosen = ((name, getattr(family.variables, name)) for name in variables)
            name = " ".join(itertools.starmap(setting_text, chosen))
            named.append((f"{name} ({', '.join(more)})" if more else name, family))
        yield ComparableFamilies(group[0].variables, tuple(named))


def shared_variables(*variables: str) -> list[str]:
    """The variables that are equal in families which differ only in these and what these bring
    along; raises ConfigError for an unknown one."""
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


# ---------------------------------------------------------------- as text


# heading -> cell, of the table on the terminal and on the page
BEST_CELLS: Mapping[str, Callable[[Best], str]] = {
    "benchmark": lambda best: f"{best.shared.benchmark} {best.more}".strip(),
    "ranks": lambda best: str(best.shared.world_size),
    "message": lambda best: size_text(best.message_bytes),
    "best": lambda best: best.best if best.is_decided else f"{UNDECIDED}: {', '.join(best.alike)}",
    "time\nus": lambda best: best.median.text(microseconds_text),
    "second": lambda best: best.second,
    "takes": lambda best: format_factor(best.ratio),
    "based on": lambda best: plural(best.launches, "launch", "launches") if best.is_decided else "",
}


def best_rows(compared: Iterable[Best]) -> list[tuple[str, ...]]:
    """The rows of a table with the headings of BEST_CELLS."""
    return [tuple(cell(best) for cell in BEST_CELLS.values()) for best in compared]
