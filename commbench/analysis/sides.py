"""The two sides of a comparison: which rows and runs each has, and what it is compared by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.errors import ConfigError
from commbench.core.terminal import first_line
from commbench.core.texts import meant, some_of
from commbench.core.units import natural_key, value_text
from commbench.core.variables import MAPS, NAMES, SIZES, Options
from commbench.results.columns import SCHEMA_VERSION, arrow_schema
from commbench.results.load import RUNS, find_runs, newest_rows, plain, read_cases
from commbench.results.row import Row
from commbench.results.run_folder import publish
from commbench.results.table_files import Damaged, table_of

from .case_names import without_shared

if TYPE_CHECKING:
    import pandas as pd

    Source = str | Path | pd.DataFrame

# what was moved: must be equal on both sides
PAYLOAD = ("benchmark", "dtype", *SIZES)
COMPARABLE = (*(name for name in NAMES if name not in PAYLOAD), "label")


@dataclass(frozen=True)
class Side:
    """BASE, NEW or A/A. `runs`: the records (run.json); `problems`: a line for each source that was
    left out."""

    name: str
    rows: tuple[Row, ...]
    runs: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class ComparedVariable:
    """A variable in which BASE and NEW may differ, or an entry of a map (`env.NAME`); the values,
    where given, select the rows of each side."""

    name: str
    base: str | None = None
    new: str | None = None

    @property
    def entry(self) -> tuple[str, str] | None:
        """The map and the name in it; None for a whole variable."""
        column, dot, name = self.name.partition(".")
        return (column, name) if dot else None

    @property
    def is_given(self) -> bool:
        """Whether the values are: that of a missing label is empty."""
        return self.base is not None

    @property
    def texts(self) -> tuple[str, str]:
        """Both values, `no label` for an empty one."""
        alone = f"no {self.name}"
        return self.base or alone, self.new or alone


def parse_by(words: Iterable[str]) -> tuple[ComparedVariable, ...]:
    """`backend`, `backend=gloo:mpi` or `env.NAME=1:36`; raises ConfigError for unknown variables
    and for the payload."""
    variables = []
    for word in filter(None, map(str.strip, words)):
        name, given, values = word.partition("=")
        allowed = ", ".join(COMPARABLE)
        if name in PAYLOAD:
            raise ConfigError(
                f"--by {name}: different payloads can't be compared; allowed: {allowed}"
            )
        column, _, entry = name.partition(".")
        if name not in COMPARABLE and not (column in MAPS and entry):
            raise ConfigError(f"--by {name} is not a variable; allowed: {allowed}")
        base, colon, new = values.partition(":")
        if given and not (base and colon and new):
            raise ConfigError(
                f"--by {word} is not NAME or NAME=BASE:NEW, e.g. --by backend=gloo:mpi"
            )
        variables.append(ComparedVariable(name, base or None, new or None))
    return tuple(variables)


def sources_of(source: Any) -> list[Any]:
    return list(source) if isinstance(source, list | tuple) else [source]


def read_side(name: str, source: Source | Sequence[Source]) -> Side:
    """Read all sources of a side; raises ConfigError if none can be used."""
    tables = list[Any]()
    runs = dict[str, dict[str, Any]]()
    problems = list[str]()
    sources = sources_of(source)
    for given in sources:
        if not isinstance(given, str | Path):
            try:
                tables.append(table_of(given))
            except Damaged as error:
                problems.append(str(error))
            continue
        path = Path(given)
        if not path.is_file() and not (path.is_dir() and find_runs(path)):
            raise ConfigError(
                f"{name}={path} is neither a folder with runs (run.json) nor a parquet file of"
                " cases"
            )
        parts, unreadable = read_cases([path])
        problems += unreadable
        for part in parts:
            if not part.has_version:
                problems.append(f"{path} names no schema version: taken as {SCHEMA_VERSION}")
            runs |= {str(record.get("run_id")): record for record in part.records}
            tables.append(part.cases)
    if not tables:
        raise ConfigError(
            f"{name} has nothing to compare: {'; '.join(some_of(problems)) or 'no cases in it'}"
        )
    label = ", ".join(
        str(given) if isinstance(given, str | Path) else "a data frame" for given in sources
    )
    return Side(name, tuple(newest_rows(tables)), tuple(runs.values()), tuple(problems), label)


def select_rows(side: Side, by: Sequence[ComparedVariable]) -> Side:
    """The rows with the values that `by` names for this side, and the records of their runs; raises
    ConfigError where there are none."""
    rows = side.rows
    for variable in by:
        wanted = getattr(variable, side.name.lower())
        if wanted is not None:
            values = _values(rows, variable)
            if wanted not in values:
                listed = ", ".join(sorted(set(values), key=natural_key))
                raise ConfigError(
                    f"{side.name} has no case with {variable.name}={wanted}; it has {listed}"
                )
            rows = tuple(row for row, value in zip(rows, values, strict=True) if value == wanted)
        if variable.entry:
            rows = tuple(_without_entry(row, *variable.entry) for row in rows)
    if len(rows) == len(side.rows):
        return replace(side, rows=rows)
    own = {row.run_id for row in rows}
    runs = tuple(run for run in side.runs if run.get("run_id") in own)
    given = [(each.name, getattr(each, side.name.lower())) for each in by if each.is_given]
    chosen = [f"{name} {value}" if value else f"no {name}" for name, value in given]
    label = ", ".join([side.label, *chosen])
    return replace(side, rows=rows, runs=runs, label=label)


def _without_entry(row: Row, column: str, entry: str) -> Row:
    """The row with the rest of a map, which must be the same on both sides."""
    options: Options = getattr(row, column)
    rest: dict[str, Any] = {column: tuple(pair for pair in options if pair[0] != entry)}
    return replace(row, **rest)


def _values(rows: Sequence[Row], variable: ComparedVariable) -> list[str]:
    """The values of a variable as texts, those of a map without what all rows of a backend have."""
    if variable.entry:
        column, entry = variable.entry
        return [variable_text(dict(getattr(row, column)).get(entry)) for row in rows]
    name = variable.name
    reduced = without_shared(rows) if name in MAPS else rows
    return [variable_text(getattr(row, name), name) for row in reduced]


def by_each_value(
    source: Side, by: Sequence[ComparedVariable]
) -> list[tuple[ComparedVariable, ...]]:
    """`by` once for each value that its first variable has in one source but one, which is BASE:
    no value, else the first. Raises ConfigError for a single value."""
    first, *others = by
    order = sorted(set(_values(source.rows, first)), key=natural_key)
    usual = ("null", variable_text(None, first.name))  # a backend's options are texts
    base, *settings = sorted(order, key=lambda value: value not in usual)
    if not settings:
        raise ConfigError(
            f"--by {first.name} takes two values or more in {source.label}; it has {base}"
        )
    return [(replace(first, base=base, new=new), *others) for new in settings]


def save(side: Side, target: str | Path) -> None:
    """Write the side's cases and run records as one parquet file, a later BASE, without
    samples."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {b"schema_version": str(SCHEMA_VERSION), RUNS: json.dumps(side.runs)}
    schema = arrow_schema("cases").with_metadata(metadata)
    path = Path(target)
    aside = path.with_name(f".{path.name}.tmp")
    try:
        columns = {name: [getattr(row, name) for row in side.rows] for name in schema.names}
        table = pa.table(columns, schema)
        pq.write_table(table, aside, write_page_checksum=True)
        publish(aside, path)
    except OSError as error:
        raise ConfigError(f"--save {target} can't be written: {first_line(error)}") from error


def variable_text(value: Any, name: str = "") -> str:
    """The value of a variable as text: none, false, A=1 B=2; with its name, see `meant`."""
    value = meant(name, value)
    if value in (None, ()):
        return "none"
    return str(value).lower() if isinstance(value, bool) else value_text(plain(value))
