"""What a part of commbench that can be deleted adds to the tables of runs and of comparisons. A
folder of `features` that does has a module `showing` with its SHOWING; `missing_texts` alone knows
some by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from commbench.analysis.compared_case import ComparedCase
from commbench.analysis.disturbances import causes
from commbench.core.annexes import FEATURES, SOAKS, annex, registered
from commbench.core.terminal import Terminal, paragraphs
from commbench.results.load import Paths
from commbench.results.row import Row

from .section import Section
from .table import Table

Rows = Sequence[Row]
Record = Mapping[str, Any]  # a run.json, or columns of counters.parquet
Form = Callable[[Record, Rows], str]


@dataclass(frozen=True)
class DerivedTable:
    """`title` is that of its section in a report, `meaning` that of its numbers, line by line."""

    title: str
    table: Table
    meaning: str

    def text(self, terminal: Terminal) -> str:
        return f"{self.table.text(terminal)}\n{paragraphs(self.meaning.splitlines(), terminal)}"


class TextsBelow(Protocol):
    """Texts below the tables of one run, which see its counters."""

    def add(self, row: Row, counters: Callable[[], Iterable[Record]]) -> None:
        """What was counted during a case; it is read where it is needed."""

    def below(self, run: Record, rows: Rows, terminal: Terminal, every: bool) -> Iterator[str]:
        """`every`: intervals, not only some of them."""


class Comparison(NamedTuple):
    """What the runs below the folder were measured for, as a sentence and as a section."""

    folder: Path
    answer: str
    section: Section


@dataclass(frozen=True)
class Showing:
    """What it adds.

    tables: of what follows from the times of several rows, below a run and in a report.
    texts_below: below the tables of a run, each a new object for a run.
    is_apart: whether a row has a line below the tables of several runs, not in one of them.
    apart_texts: those lines, of such rows and the records of their runs.
    disturbances: what made numbers of these rows uncertain, a text for each cause.
    forms: of the tables of a run, by their names in `show --as`.
    comparisons: those whose runs a report finds in these folders, of all benchmarks or of one, and
    why others are left out.
    compared_cells: beside the verdict of a case of a comparison, by heading.
    compared_summary: of all its cases; empty without any.
    change: what `accept` and `watch` say of healthy rows and new ones of a case beside its times;
    empty without any. `changing`: the columns that it reads.
    """

    tables: Sequence[Callable[[Rows], DerivedTable]] = ()
    texts_below: Sequence[Callable[[], TextsBelow]] = ()
    is_apart: Callable[[Row], bool] = lambda row: False
    apart_texts: Callable[[Rows, Sequence[Record], Terminal], Iterable[str]] = lambda *_: ()
    disturbances: Callable[[Rows], Iterable[str]] = lambda rows: ()
    forms: Mapping[str, Form] = field(default_factory=dict)
    comparisons: Callable[
        [Sequence[Paths], str | None], tuple[Sequence[Comparison], Sequence[str]]
    ] = lambda *_: ((), ())
    compared_cells: Callable[[ComparedCase], Mapping[str, str]] = lambda case: {}
    compared_summary: Callable[[Sequence[ComparedCase]], str] = lambda cases: ""
    change: Callable[[Rows, Rows], str] = lambda healthy, new: ""
    changing: Sequence[str] = ()


def derived_tables(rows: Rows) -> Iterator[DerivedTable]:
    """Those that have lines, in the order of their titles."""
    tables = (table(rows) for feature in registered(Showing) for table in feature.tables)
    for each in sorted(tables, key=attrgetter("title")):
        if each.table.rows:
            yield each


def new_texts() -> list[TextsBelow]:
    """Those of all features for one run."""
    return [made() for feature in registered(Showing) for made in feature.texts_below]


def missing_texts(rows: Rows) -> Iterator[str]:
    """What is not said of the rows, because the folder that says it is not there."""
    has_soaks = any(row.is_soak for row in rows)
    has_sides = {"base", "new"} <= {row.label for row in rows}
    needed = {
        SOAKS: ("soaks over time", has_soaks),
        f"{FEATURES}.ab": ("comparisons of base and new", has_sides),
    }
    for feature, (user, is_needed) in needed.items():
        if is_needed and not annex(feature):
            yield f"{user} need {feature}, which is not there"


def is_apart(row: Row) -> bool:
    return any(feature.is_apart(row) for feature in registered(Showing))


def apart_texts(rows: Rows, records: Sequence[Record], terminal: Terminal) -> Iterator[str]:
    """Below the tables of runs side by side; `rows` are apart."""
    for feature in registered(Showing):
        yield from feature.apart_texts(rows, records, terminal)


def disturbances_text(runs: Sequence[Record], rows: Rows) -> str:
    """All causes in one paragraph; empty where there is none."""
    more = chain.from_iterable(feature.disturbances(rows) for feature in registered(Showing))
    found = [*causes(runs, rows), *more]
    return f"disturbances: {'; '.join(found)}" if found else ""


def forms() -> dict[str, Form]:
    """By name."""
    return {name: form for feature in registered(Showing) for name, form in feature.forms.items()}
