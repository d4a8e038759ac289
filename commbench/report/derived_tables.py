"""Tables of what follows from the times of several rows of a run. A folder of `features` that has
one has a module `tables` with a function `derived`; no other code knows it by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from commbench.core.annexes import part_modules
from commbench.core.terminal import Terminal, paragraphs
from commbench.results.row import Row

from .table import Table


@dataclass(frozen=True)
class DerivedTable:
    """`title` is that of its section in a report, `meaning` that of its numbers, line by line."""

    title: str
    table: Table
    meaning: str

    def text(self, terminal: Terminal) -> str:
        return f"{self.table.text(terminal)}\n{paragraphs(self.meaning.splitlines(), terminal)}"


def derived_tables(rows: Sequence[Row]) -> Iterator[DerivedTable]:
    """Those that have lines, in the order of their titles."""
    tables = (module.derived(rows) for module in part_modules("tables"))
    for each in sorted(tables, key=attrgetter("title")):
        if each.table.rows:
            yield each
