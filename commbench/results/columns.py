"""The columns of the result files: name, type, unit and meaning.

SCHEMA_VERSION history:
  4  2026-11-26: timing_mode is named timer, launch trial, segment launch; sync=window sync=clock.
     Earlier versions are not read. 2026-11-28: limit_kind, core_wait_share, fast_mode_s,
     slow_mode_s, slow_share; imported_from, and rows without a layout, or another variable that
     each case of commbench has; sync=clock and its columns are gone; payload and its columns.
     2026-11-29: visit_launches are integers; counted_ranks
  3  2026-11-25: case ids of the variables that differ from their defaults, so that a new variable
     changes no id of an earlier run; variables in the order of tables

Results and variables may be added within a version: they are null, or the default of
the variable, in the rows of earlier runs. Any other change of a variable, identity, unit or meaning
needs a new version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar, cast

from commbench.core.errors import Unreadable
from commbench.core.texts import sides_text
from commbench.core.units import format_bytes, natural_key, short_pairs
from commbench.core.variables import NAMES, TABLE, Kind, Variables, is_usual

from .row import KINDS, ColumnRole, Row

GroupItem = TypeVar("GroupItem")
GroupKey = TypeVar("GroupKey", bound=Hashable)
SCHEMA_VERSION = 4
GOOD_LEVEL = 0.95  # of an interval; that of a row that does not say it


@dataclass(frozen=True)
class Column:
    """A column of a table of results."""

    name: str
    kind: Kind
    role: ColumnRole
    unit: str
    meaning: str


def _columns(role: ColumnRole, table: str) -> tuple[Column, ...]:
    """The columns of a table of name, kind, unit and meaning, which may take several lines."""
    rows = re.sub(r"\n +(?=[^|\n]+$)", " ", table.strip(), flags=re.MULTILINE).splitlines()
    columns = []
    for row in rows:
        name, kind, unit, meaning = map(str.strip, row.split("|"))
        columns.append(Column(name, cast(Kind, kind), role, unit, meaning))
    return tuple(columns)


VARIABLES = tuple(
    Column(each.name, each.kind, "variable", each.unit, each.meaning) for each in TABLE
)


CASES = VARIABLES + tuple(  # the fields of Row beside the variables
    Column(each.name, KINDS[each.name], **each.metadata)
    for each in fields(Row)
    if "role" in each.metadata
)
SAMPLES = _columns(
    "identity",
    """
    run_id     | text    |    | folder of the run
    case_id    | text    |    | hash of the independent variables
    phase      | text    |    | connect, warmup, measure; check: untimed; late: of sync=clock, which
                                is gone, a rank began after the agreed instant
    block      | integer |    | number of the block: repetitions between two decisions
    repetition | integer |    | number of the repetition within the phase
    rank       | integer |    | rank of the layout
    start_ns   | integer | ns | on this rank's clock; null if only a device's clock was read
    end_ns     | integer | ns | like start_ns
    elapsed_ns | integer | ns | of the whole sample, not of one operation
    """,
) + _columns(
    "result",
    """
    visit      | integer |    | visit of the case, from 1; blocks and repetitions are counted across
                                visits
    """,
)
COUNTERS = _columns(
    "identity",
    """
    run_id  | text    |    | folder of the run
    case_id | text    |    | hash of the independent variables
    rank    | integer |    | rank of the layout
    t_ns    | integer | ns | on this rank's clock
    name    | text    |    | name of the counter
    value   | number  |    | value of the counter at that time
    """,
)
TABLES = {"cases": CASES, "samples": SAMPLES, "counters": COUNTERS}


@cache
def arrow_schema(table: str) -> Any:
    """The pyarrow schema of a table, units and meanings in the fields' metadata."""
    import pyarrow as pa

    kinds = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "flag": pa.bool_(),
        "texts": pa.list_(pa.string()),
        "numbers": pa.list_(pa.float64()),
        "integers": pa.list_(pa.int64()),
        "map": pa.map_(pa.string(), pa.string()),
        "time": pa.timestamp("us", tz="UTC"),
    }
    fields = [
        pa.field(
            column.name,
            kinds[column.kind],
            metadata={"unit": column.unit, "meaning": column.meaning},
        )
        for column in TABLES[table]
    ]
    return pa.schema(fields, metadata={"schema_version": str(SCHEMA_VERSION)})


def of_same_run(row: Row, differing: Container[str]) -> tuple[Any, ...]:
    """What rows of a run have in common that differ in these variables at most."""
    return (row.run_id, *(getattr(row, name) for name in NAMES if name not in differing))


def place_text(node: str) -> str:
    """`node 3`, or how many nodes run at once."""
    nodes = node.split()
    return f"{len(nodes)} nodes at once" if len(nodes) > 1 else f"node {node}"


Words = Mapping[str, Callable[[Any], str]]  # how the value of each variable is written
PLACE_WORDS: Words = {
    "benchmark": str,
    "layout": str,
    "pair": short_pairs,
    "node": place_text,
    "message_bytes": format_bytes,
}
PART_WORDS: Words = {
    "overlap": str,
    "timed": str,
    "gaps": "gaps {}".format,
    "late": "late {}".format,
}
IN_CASE_TEXT = (*PLACE_WORDS, *PART_WORDS)


def case_text(*sides: Variables) -> str:
    """A case, or that of a row, as `p2p_latency 1x2 0-1 1 KiB`; of many pairs, the first and
    the last. Of an overlap with its part: `all_reduce 1x2 1 KiB, matmul together`; of a job with
    what it is replayed with: `replay 1x2, gaps matmul late 1:2ms`. Of both sides of a comparison:
    `all_reduce 1x2 -> 2x1 1 KiB`."""
    parts = (_words(sides, words) for words in (PLACE_WORDS, PART_WORDS))
    return ", ".join(filter(None, parts))


def _words(sides: Sequence[Variables], words: Words) -> str:
    """The values of these variables; empty where all are usual."""
    texts = []
    for name, word in words.items():
        values = [getattr(side, name) for side in sides]
        shown = [word(each) if each and not is_usual(name, each) else "" for each in values]
        if any(shown):
            texts.append(sides_text(shown))
    return " ".join(texts)


def row_order(row: Variables) -> tuple[Any, ...]:
    """Sort key of a row or case."""
    return tuple(natural_key(getattr(row, name)) for name in NAMES)


def operation_order(row: Row) -> tuple[Any, ...]:
    """Sort key: ping-pongs first, then other messages between pairs, then collectives; rows of one
    operation by their variables."""
    return not row.is_half_round_trip, not row.pair, row.benchmark, row_order(row)


def hashable(value: Any) -> Any:
    """The value of a variable; a map as a tuple of sorted pairs."""
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


def grouped(
    items: Iterable[GroupItem], key: Callable[[GroupItem], GroupKey]
) -> dict[GroupKey, list[GroupItem]]:
    """The items by their key, in the order in which they come."""
    groups = dict[GroupKey, list[GroupItem]]()
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def check_version(version: object, where: str) -> None:
    """Raise Unreadable for results that this version can't read."""
    if version != SCHEMA_VERSION:
        raise Unreadable(
            f"{where} has schema version {version}, this commbench reads {SCHEMA_VERSION}; read it"
            " with the commbench that wrote it (run.json names the version)"
        )
