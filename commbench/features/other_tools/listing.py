"""The tables of other tools as plain text, with # comments."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any, ClassVar

from commbench.core.terminal import printable
from commbench.core.units import (
    format_bytes,
    natural_key,
    value_text,
)
from commbench.core.variables import SIZES
from commbench.report.row_writer import RowWriter
from commbench.report.run_heading import backend_text
from commbench.results.columns import VARIABLES, grouped
from commbench.results.row import Row

# so that a table is complete when it is cut out
IN_EVERY_HEADING = ("layout", "pair", "dtype", "engine")
# in the name of the program and in the lines
LINE_VARIABLES = ("benchmark", *SIZES)
HEADING_VARIABLES = tuple(column.name for column in VARIABLES if column.name not in LINE_VARIABLES)
LONGEST_PAIR_TABLE = 12  # rows; more pairs are printed as a matrix
MAX_MATRIX_RANKS = 16
WIDEST_MATRIX = 200  # characters, in a file
MAX_NAMED_PAIRS = 8


@dataclass
class Listing(RowWriter):
    """A Writer that prints the tables of another tool at the end."""

    tool: ClassVar[str]
    programs: ClassVar[Mapping[str, str]]  # benchmark -> program of the tool
    # variables that may differ inside a table, beside the sizes
    varying: ClassVar[tuple[str, ...]] = ()

    def finish(self, run: Mapping[str, Any], rows: Sequence[Row]) -> None:
        print(printable(self.text(run, rows)), flush=True)

    def text(self, run: Mapping[str, Any], rows: Sequence[Row]) -> str:
        """All tables of a run; all other lines begin with #."""
        known = [row for row in rows if row.benchmark in self.programs]
        lines = [*preface(run, rows, self.tool), *map(comment, self.notes(known))]
        explained: set[str] = set()
        for table in tables(known, self.varying):
            benchmark = table[0].benchmark
            lines += ["", heading(table, rows, self.programs[benchmark], self.varying)]
            lines += self.table_lines(table, benchmark in explained)
            explained.add(benchmark)
        missing = Counter(row.benchmark for row in rows if row.benchmark not in self.programs)
        lines += [""] if missing else []
        for name, count in sorted(missing.items()):
            rest = f"its {count} row(s) are in the other writers: console, parquet, jsonl"
            lines.append(comment(f"{name}: no such program in {self.tool}; {rest}"))
        return "\n".join(lines)

    @abstractmethod
    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Comments on all tables, above them."""

    @abstractmethod
    def table_lines(self, table: Sequence[Row], explained: bool) -> list[str]:
        """The lines of a table below its heading; `explained`: an earlier table was of the same
        program."""


def comment(text: str) -> str:
    """One line that begins with #, whatever the text contains."""
    visible = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"# {' '.join(visible.split())}"


def number(value: float | None) -> str:
    """At least two decimals and three significant digits; N/A for None."""
    if value is None:
        return "N/A"
    decimals = 2 - floor(log10(value)) if 0 < value < 1 else 2
    return f"{value:.{decimals}f}"


def preface(run: Mapping[str, Any], rows: Sequence[Row], tool: str) -> list[str]:
    """What was measured and with which library, and the variables that are the same in all rows."""
    world = run["world"]
    label = f", label {run['label']}" if run["label"] else ""
    lines = [
        comment(
            f"measured by commbench, printed in the columns of {tool}: run {run['run_id']}{label}"
        ),
        comment(
            f"{backend_text(run)}, {world.get('size', '?')} ranks,"
            f" {world.get('nodes', '?')} node(s), timing {run['timing']}"
        ),
    ]
    shared = [
        name
        for name in HEADING_VARIABLES
        if name not in IN_EVERY_HEADING and not _varies(rows, name)
    ]
    lines += [comment(f"wherever it applies: {_first_values(rows, shared)}")] if rows else []
    return lines


def tables(rows: Iterable[Row], columns: Collection[str]) -> list[list[Row]]:
    """The rows in tables, small messages first: rows of one table differ only in their sizes and
    the given columns."""
    varying = {*LINE_VARIABLES, *columns} - {"benchmark"}
    shared = [column.name for column in VARIABLES if column.name not in varying]
    rows_by_table = grouped(
        rows, lambda row: tuple(natural_key(getattr(row, name)) for name in shared)
    )
    order = (
        *(name for name in columns if name != "in_place"),
        *SIZES,
        "in_place",
    )
    return [
        sorted(
            rows_by_table[key], key=lambda row: [natural_key(getattr(row, name)) for name in order]
        )
        for key in sorted(rows_by_table)
    ]


def heading(
    table: Sequence[Row], rows: Sequence[Row], program: str, columns: Collection[str]
) -> str:
    """The program of the other tool, and the variables of this table that differ between tables."""
    shown = [
        name
        for name in HEADING_VARIABLES
        if name not in columns and (name in IN_EVERY_HEADING or _varies(rows, name))
    ]
    return comment(f"{table[0].benchmark}, as {program}: {_first_values(table, shown)}")


def status_line(row: Row, more: str = "") -> str:
    """The status of a row without numbers, and its reason."""
    return comment(f"{row.status}: {format_bytes(row.message_bytes)}{more}: {row.reason}")


def flag_lines(table: Iterable[Row]) -> list[str]:
    """A line for each flag of the measured rows, with their sizes."""
    sizes: dict[str, dict[str, None]] = {}
    for row in table:
        for flag in row.warnings or () if row.status == "ok" else ():
            sizes.setdefault(flag, {})[format_bytes(row.message_bytes or 0)] = None
    return [comment(f"{flag}: {', '.join(texts)}") for flag, texts in sorted(sizes.items())]


def _varies(rows: Iterable[Row], name: str) -> bool:
    values = (getattr(row, name) for row in rows)
    return len({value_text(value) for value in values if value is not None}) > 1


def _first_values(rows: Sequence[Row], names: Iterable[str]) -> str:
    """The first value of each variable that has one."""
    first = {
        name: next((each for row in rows if (each := getattr(row, name)) is not None), None)
        for name in names
    }
    return ", ".join(
        f"{name} {value_text(value)}"
        for name, value in first.items()
        if value not in (None, {}, ())
    )
