"""Rows as plain tables with # comments, the way other tools print them: for eyes and scripts that know those."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from numpy.typing import NDArray

from commbench.core.columns import VARIABLES
from commbench.core.text import printable
from commbench.core.units import format_bytes

Row = Mapping[str, Any]
NAMED = ("layout", "pair", "dtype", "engine")  # in every heading, so that a table says what it is when cut out
SIZES = ("benchmark", "message_bytes", "count")  # in the program's name and in the lines


@dataclass
class Listing(ABC):
    """See Writer. Everything is printed at the end; of two rows of a case the later one."""

    def __post_init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def begin(self, run: Mapping[str, Any], folder: str) -> None:
        self._rows = {}

    def case(
        self, row: Mapping[str, Any], samples: Mapping[str, NDArray[Any]], counters: Mapping[str, NDArray[Any]]
    ) -> None:
        self._rows[row["case_id"]] = row

    def end(self, run: Mapping[str, Any]) -> None:
        if "backend" in run:  # a run may end before it has begun
            print(printable(self.text(run, list(self._rows.values()))), flush=True)

    @abstractmethod
    def text(self, run: Mapping[str, Any], rows: Sequence[Row]) -> str:
        """All tables of a run."""


def comment(text: str) -> str:
    """One line that begins with #, whatever the text holds."""
    visible = "".join(letter if letter.isprintable() else " " for letter in text)
    return f"# {' '.join(visible.split())}"


def number(value: float | None) -> str:
    """At least two decimals and three significant digits; N/A for none."""
    if value is None:
        return "N/A"
    decimals = 2 - floor(log10(value)) if 0 < value < 1 else 2
    return f"{value:.{decimals}f}"


def preface(run: Mapping[str, Any], rows: Sequence[Row], tool: str) -> list[str]:
    """What was measured, by what, and the variables that are the same in all rows."""
    backend, world = run["backend"], run["world"]
    library = f"{backend['name']} ({backend.get('library', '')})"
    label = f", label {run['label']}" if run["label"] else ""
    lines = [
        comment(f"measured by commbench, printed in the columns of {tool}: run {run['run_id']}{label}"),
        comment(f"{library}, {world['size']} ranks, {world['nodes']} node(s), timing {run['timing']}"),
    ]
    shared = [name for name in _told() if name not in NAMED and not _varies(rows, name)]
    lines += [comment(f"wherever it applies: {_values(rows, shared)}")] if rows else []
    if any(row["segment"] for row in rows):
        lines.append(comment("this run went on after a stop: rows of earlier starts are in its folder only"))
    return lines


def tables(rows: Iterable[Row], columns: Collection[str]) -> list[list[Row]]:
    """Rows that differ in the given columns and their sizes only stand together, small messages first."""
    inside = {*SIZES, *columns} - {"benchmark"}
    outside = [column.name for column in VARIABLES if column.name not in inside]
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(_natural(row[name]) for name in outside), []).append(row)
    order = (*(name for name in columns if name != "in_place"), "message_bytes", "count", "in_place")
    return [sorted(found[key], key=lambda row: [_natural(row[name]) for name in order]) for key in sorted(found)]


def heading(table: Sequence[Row], rows: Sequence[Row], program: str, columns: Collection[str]) -> str:
    """The program of the other tool, and the variables of this table that are not the same everywhere."""
    shown = [name for name in _told() if name not in columns and (name in NAMED or _varies(rows, name))]
    return comment(f"{table[0]['benchmark']}, as {program}: {_values(table, shown)}")


def refusal(row: Row, more: str = "") -> str:
    """Why a row has no numbers."""
    return comment(f"{row['status']}: {format_bytes(row['message_bytes'] or 0)}{more}: {row['reason']}")


def doubts(table: Iterable[Row]) -> list[str]:
    """A line for each flag of the measured rows, with their sizes."""
    sizes: dict[str, dict[str, None]] = {}
    for row in table:
        for flag in row["flags"] or () if row["status"] == "ok" else ():
            sizes.setdefault(flag, {})[format_bytes(row["message_bytes"] or 0)] = None
    return [comment(f"{flag}: {', '.join(found)}") for flag, found in sorted(sizes.items())]


def strangers(rows: Iterable[Row], tool: str) -> list[str]:
    """A line for each operation that the other tool does not have."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["benchmark"]] = counts.get(row["benchmark"], 0) + 1
    return [
        comment(f"{name}: no such program in {tool}; its {count} row(s) are in writer=console, parquet and jsonl")
        for name, count in sorted(counts.items())
    ]


def _told() -> list[str]:
    return [column.name for column in VARIABLES if column.name not in SIZES]


def _varies(rows: Iterable[Row], name: str) -> bool:
    return len({_text(row[name]) for row in rows if row[name] is not None}) > 1


def _values(rows: Sequence[Row], names: Iterable[str]) -> str:
    """The first value of each variable, without those that have none."""
    found = {name: next((row[name] for row in rows if row[name] is not None), None) for name in names}
    return ", ".join(f"{name} {_text(value)}" for name, value in found.items() if value not in (None, {}, ()))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        value = tuple(value.items())
    return " ".join(f"{name}={one}" for name, one in value) if isinstance(value, tuple) else str(value)


def _natural(value: Any) -> tuple[Any, ...]:
    """Sorts 0-2 before 0-10, and None before all."""
    if value is None:
        return ()
    parts = re.split(r"(\d+)", _text(value))
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))
