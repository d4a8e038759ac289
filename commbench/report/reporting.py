"""What a part of commbench that can be deleted adds to a report. A folder of `features`, or an
annex, that does has a module `reporting` with its REPORTING; no other code knows it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from commbench.analysis.pairs.matrix import Matrix
from commbench.core.annexes import registered
from commbench.results.row import Row
from commbench.stats.verdict import Gate

from .plots import KnownCurve
from .section import Section
from .summary import Summary

# the sections of a report behind which others may stand; a verdict stands before all
Place = Literal[
    "verdict", "answers", "comparisons", "curves", "figures", "numbers", "checks", "costs"
]
SectionsOf = Callable[[Summary], Iterable[Section]]


@dataclass(frozen=True)
class Check:
    """What is said of a case without others to compare it with. `kind`: by what it is judged.

    `answer` is None for what must decide nothing; `reason` says why it is not PASS. `finding` is
    what must be said of it where something else decides; empty where it is as it should be.
    """

    kind: str
    name: str
    answer: Gate | None
    reason: str = ""
    finding: str = ""


@dataclass(frozen=True)
class Checks:
    """`basis`: what they rest on."""

    checks: Sequence[Check] = ()
    basis: Sequence[str] = ()


@dataclass(frozen=True)
class ReportOption:
    """An option of `commbench report`, with a word behind it: the report is these sections."""

    name: str
    meaning: str
    sections: Callable[[str], SectionsOf]


@dataclass(frozen=True)
class Reporting:
    """What it adds.

    sections: to a report, by place.
    answers: sentences on the cases; on_matrix: on those of a matrix of pairs.
    choices: sentences on what to choose, which come last.
    doubts: sentences on what to check before the numbers are used.
    curves: to the figures with these rows, over size or over time.
    checks: to what is known of results without a baseline.
    answer_of: what is printed after the runs of an experiment; None for those of others.
    options: of `commbench report`.
    """

    sections: Mapping[Place, SectionsOf] = field(default_factory=dict)
    answers: Callable[[Summary], Iterable[str]] = lambda summary: ()
    on_matrix: Callable[[Matrix], Iterable[str]] = lambda matrix: ()
    choices: Callable[[Summary], Iterable[str]] = lambda summary: ()
    doubts: Callable[[Summary], Iterable[str]] = lambda summary: ()
    curves: Callable[[Summary, Sequence[Row]], Iterable[KnownCurve]] = lambda summary, rows: ()
    checks: Callable[[Summary], Checks] = lambda summary: Checks()
    answer_of: Callable[[str], SectionsOf | None] = lambda experiment: None
    options: Sequence[ReportOption] = ()


def added_sections(place: Place, summary: Summary) -> Iterator[Section]:
    """Those that stand at the place."""
    for feature in registered(Reporting):
        if place in feature.sections:
            yield from feature.sections[place](summary)


def curves_beside(summary: Summary, rows: Sequence[Row]) -> list[KnownCurve]:
    return [
        *chain.from_iterable(feature.curves(summary, rows) for feature in registered(Reporting))
    ]
