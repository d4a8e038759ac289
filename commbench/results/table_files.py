"""One file of a table, parquet or JSON lines, read with this version's columns and types.

What no run writes is refused, in one line that names the file.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.errors import ConfigError, Unreadable, no_permission
from commbench.core.terminal import first_line, one_line
from commbench.core.variables import BY_NAME, MAPS, NAMES, TABLE, is_required

from .columns import TABLES, arrow_schema, check_version
from .jsonl import json_columns, json_file, json_rows
from .row import WORDS

if TYPE_CHECKING:
    import pandas as pd

NEEDED = {  # columns without which a file is not read; any other may be absent and is null
    table: tuple(column.name for column in columns if column.role != "result")
    for table, columns in TABLES.items()
}
NEEDED["cases"] = (
    *filter(is_required, NAMES),
    "run_id",
    "case_id",
    "status",
    "median_s",
)
UNIT_RANGES = {"s": (0, 1e9), "GB/s": (0, 1e9)}
REQUIRED = ("benchmark", "backend", "message_bytes", "status")
RANGES: dict[str, tuple[float, float]] = {  # what a number of a case can be
    "nodes": (1, math.inf),
    "ranks_per_node": (1, math.inf),
    **{each.name: UNIT_RANGES[each.unit] for each in TABLES["cases"] if each.unit in UNIT_RANGES},
    "interval_level": (0, 1),
    "started_at": (0, 250_000_000_000_000_000),  # in us; Python has no year 10000
}
# whole numbers that floats have, too
RANGES |= {each.name: (0, 2**53) for each in TABLE if each.kind == "integer"}
FORMS = {  # variables that are texts with numbers
    "layout": r"^[1-9]\d{0,6}x[1-9]\d{0,6}$",
    "pair": r"^\d{1,7}-\d{1,7}( \d{1,7}-\d{1,7})*$",
}
RULED = {*RANGES, *FORMS, *WORDS}

Columns = tuple[str, ...] | None  # None: all


class Damaged(Unreadable):
    """Raised for a file that can't be read, in one line that names it."""


def read_table(file: Path, table: str, columns: Columns = None, where: Any = None) -> Any:
    """The columns of one parquet file, with our types; a result that the file does not have is
    null.

    Raises FileNotFoundError, Damaged, CommbenchError for another schema version, ConfigError for
    another unit.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = schema_of(table, columns)
    try:
        if not file.stat().st_size:
            raise Damaged(f"{file} is empty")
        with pq.ParquetFile(file, page_checksum_verification=True) as opened:
            stored = opened.schema_arrow  # pyarrow makes schemas and names anew at each access
            names = stored.names
            _check_schema(file, stored, table)
            _check_names(opened.metadata, names)
            present = [name for name in schema.names if name in names]
            # a column that the file lacks can be asked for only once it is null
            early = where is not None and len(present) == len(schema.names)
            rows = None if early else opened.read(columns=present, use_threads=False)
        if early:
            rows = pq.read_table(
                file, columns=present, filters=where, page_checksum_verification=True
            )
        rows = _with_schema(str(file), rows, schema)
        return rows if early or where is None else rows.filter(pq.filters_to_expression(where))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(why_unread(file, error)) from error


def json_table(run: Path, table: str, columns: Columns = None, where: Any = None) -> Any:
    """A table of a run in JSON lines, as read_table returns that of a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = json_file(run, table)
    whole = arrow_schema(table)
    try:
        if table == "cases":
            rows = pa.Table.from_pylist(
                [
                    {**row, **{name: list((row.get(name) or {}).items()) for name in MAPS}}
                    for row in json_rows(run)
                ],
                whole,
            )
        else:
            parts = [
                pa.table(part).select(whole.names).cast(whole) for part in json_columns(run, table)
            ]
            rows = pa.concat_tables(parts) if parts else whole.empty_table()
        rows = _with_schema(str(file), rows, schema_of(table, columns))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(why_unread(file, error)) from error
    return rows if where is None else rows.filter(pq.filters_to_expression(where))


def table_of(frame: pd.DataFrame) -> Any:
    """The cases of a user's data frame, as read_table returns those of a file; raises Damaged."""
    import pyarrow as pa

    names = [str(name) for name in frame]
    schema = schema_of("cases")
    _check_columns("a data frame", names, "cases")
    known = [name in schema.names for name in names]
    try:
        rows = pa.Table.from_pandas(frame.loc[:, known], preserve_index=False)
    except pa.ArrowException as error:
        raise Damaged(f"a data frame can't be read: {first_line(error)}") from error
    if not len(rows):
        raise Damaged("a data frame has no cases")
    return _with_schema("a data frame", rows, schema)


def why_unread(file: Path, error: BaseException) -> str:
    if isinstance(error, PermissionError):
        return no_permission(file)
    return f"{file} can't be read: {first_line(error)}"


# ---------------------------------------------------------------- what a table must be


@functools.cache
def schema_of(table: str, columns: Columns = None) -> Any:
    """The types of the columns, without metadata."""
    import pyarrow as pa

    schema = arrow_schema(table)
    return pa.schema([pa.field(name, schema.field(name).type) for name in columns or schema.names])


def _check_schema(file: Path, schema: Any, table: str) -> None:
    """Raises Damaged for a table of another kind; CommbenchError, ConfigError like read_table."""
    metadata = schema.metadata or {}
    if b"schema_version" in metadata:
        version = metadata[b"schema_version"].decode(errors="replace")
        check_version(int(version) if version.isdigit() else version, str(file))
    _check_columns(str(file), schema.names, table)
    units = {column.name: column.unit for column in TABLES[table]}
    for field in schema:
        unit = (field.metadata or {}).get(b"unit", b"").decode()
        ours = units.get(field.name)
        if field.metadata and b"unit" in field.metadata and ours not in (None, unit):
            raise ConfigError(
                f"{file}: column {field.name} is in {unit or 'no unit'}, commbench's in"
                f" {ours or 'no unit'}; mixed units are not compared: convert the column, then its"
                " metadata"
            )


def _check_names(metadata: Any, names: Sequence[str]) -> None:
    """Raises ValueError where a file's footer, which has no checksum, has two names of a column."""
    import pyarrow as pa

    written = (metadata.metadata or {}).get(b"ARROW:schema")  # by other programs than pyarrow: None
    if written is None:
        return
    differing = {*pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written))).names} ^ {*names}
    if differing:
        raise ValueError(f"a column has two names: {', '.join(sorted(differing))}")


def _check_columns(where: str, names: Sequence[str], table: str) -> None:
    missing = [name for name in NEEDED[table] if name not in names]
    if missing:
        seen = ", ".join(names[:6]) or "none"
        raise Damaged(
            f"{where} is not a table of {table}: it has the columns {seen}, but not"
            f" {', '.join(missing)}"
        )


def _with_schema(where: str, rows: Any, schema: Any) -> Any:
    """The rows with the columns and types of the schema; raises Damaged.

    A variable that rows of an earlier version lack has its default, any other column is null.
    """
    import pyarrow as pa

    by_name = dict(zip(rows.column_names, rows.columns, strict=True))
    if any(by_name[name].null_count for name in ("run_id", "case_id") if name in by_name):
        raise Damaged(f"{where} has rows without run_id or case_id")
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in by_name:
            default = BY_NAME[name].default if name in BY_NAME else None
            by_name[name] = pa.array([default] * len(rows), kind)
        elif by_name[name].type != kind:
            try:
                by_name[name] = _converted(by_name[name], name, kind)
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise Damaged(
                    f"{where}: column {name} is not of type {kind}: {first_line(error)}"
                ) from error
        _check_values(where, name, by_name[name])
    _check_rows(where, by_name)
    return pa.Table.from_arrays([by_name[name] for name in schema.names], schema=schema)


def _check_rows(where: str, columns: Mapping[str, Any]) -> None:
    """Raises Damaged for values that no case has together."""
    import pyarrow.compute as pc

    if {"status", "median_s"} <= {*columns}:
        unknown = pc.is_null(columns["median_s"], nan_is_null=True)
        if pc.any(pc.and_(pc.equal(columns["status"], "ok"), unknown)).as_py():
            raise Damaged(f"{where} has a case with status ok and without median_s")
    if {"headline", "pair"} <= {*columns}:
        is_of_pair = pc.not_equal(columns["headline"], "max_over_ranks")
        if pc.any(pc.and_(is_of_pair, pc.is_null(columns["pair"]))).as_py():
            raise Damaged(f"{where} has a case with the clock of a pair, and without a pair")
    if {"visit_medians_s", "visit_launches"} <= {*columns}:
        lengths = (
            pc.list_value_length(columns[name]) for name in ("visit_medians_s", "visit_launches")
        )
        if pc.any(pc.not_equal(*lengths)).as_py():
            raise Damaged(f"{where} has visit_medians_s and visit_launches of different lengths")


def _check_values(where: str, name: str, column: Any) -> None:
    """Raises Damaged for a variable that no case can have, and for a null in a list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name in REQUIRED and column.null_count:
        raise Damaged(f"{where} has rows without {name}")
    is_list = pa.types.is_list(column.type)
    if column.null_count == len(column) or not (is_list or name in RULED):
        return
    known = (pc.list_flatten if is_list else pc.drop_null)(column)
    if name in RANGES:
        least, most = RANGES[name]
        if name == "started_at":
            known = known.cast("int64")
        fits = pc.and_(pc.greater_equal(known, least), pc.less_equal(known, most))
    elif name in FORMS:
        fits = pc.match_substring_regex(known, FORMS[name])
    elif name in WORDS:
        fits = pc.is_in(known, pa.array(WORDS[name]))
    else:
        fits = pc.is_valid(known)
    if pc.all(fits, skip_nulls=False, min_count=0).as_py():
        return
    value = known.filter(pc.invert(pc.fill_null(fits, False)))[0].as_py()
    shown = repr(one_line(value)[:80]) if isinstance(value, str) else value
    raise Damaged(f"{where} has {name} {shown}, which no case has")


def _converted(column: Any, name: str, kind: Any) -> Any:
    """A column as pandas wrote it: a map as a list of pairs, a struct, or the text that
    commbench.load returns."""
    import pyarrow as pa

    if column.null_count == len(column):  # as numbers, in pandas
        return pa.nulls(len(column), kind)
    if name == "warnings" and _holds(column.type, pa.string()):
        return pa.array(
            [value if value is None else value.split() for value in column.to_pylist()], type=kind
        )
    if not pa.types.is_map(kind):
        if not _holds(column.type, kind):
            raise ValueError(f"it is {column.type}")
        return column.cast(kind)
    values = (
        json.loads(value) if isinstance(value, str) else value for value in column.to_pylist()
    )
    # a struct has nulls for the names of other rows
    maps = [
        None if value is None else [pair for pair in dict(value).items() if pair[1] is not None]
        for value in values
    ]
    return pa.array(maps, type=kind)


def _holds(seen: Any, kind: Any) -> bool:
    """Whether a column of type `seen` has values of this kind, in the width or encoding of another
    program; integers beside nulls are floats in pandas."""
    from pyarrow import types

    if types.is_list(kind):
        is_list = types.is_list(seen) or types.is_large_list(seen)
        return is_list and (
            types.is_null(seen.value_type) or _holds(seen.value_type, kind.value_type)
        )
    if types.is_dictionary(seen):
        return _holds(seen.value_type, kind)
    if types.is_string(kind):
        return bool(
            types.is_string(seen) or types.is_large_string(seen) or types.is_string_view(seen)
        )
    if types.is_integer(kind) or types.is_floating(kind):
        return bool(types.is_integer(seen) or types.is_floating(seen))
    return bool(seen.id == kind.id)
