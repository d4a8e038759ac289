"""Families of cases: the same thing at several message sizes, over all runs that measured it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.columns import VARIABLES
from commbench.core.errors import CommbenchError

if TYPE_CHECKING:
    import pandas as pd

Times = NDArray[np.float64]
Row = Mapping[str, Any]

SHARED = tuple(column.name for column in VARIABLES if column.name not in ("message_bytes", "count"))
NEEDED = ("benchmark", "status", "message_bytes", "median_s", "ci_low_s", "ci_high_s")


@dataclass(frozen=True, eq=False)
class Family:
    """Cases that differ in nothing but their size: `sizes` in bytes, ascending, and seconds for each of them.

    Where several runs measured a size, its time is the median over them and its interval the widest; NaN: no interval.
    A window that shrinks at large messages stays in its family; `variables` has the one that was asked for.
    """

    variables: Mapping[str, Any]
    sizes: NDArray[np.int64]
    median_s: Times
    low_s: Times
    high_s: Times
    runs: int  # most of one size
    labels: frozenset[str]


def families(cases: pd.DataFrame) -> list[Family]:
    """All families with at least one size, in an order that does not depend on the rows'.

    Raises CommbenchError where a column is missing.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in _records(cases):
        if _refusal(row) is None and row["message_bytes"] > 0:
            key = tuple(_hashable(row.get(name)) for name in SHARED if name != "window")
            groups.setdefault(key, []).append(row)
    split = [family for rows in groups.values() for family in _by_window(rows)]
    return [_family(window, rows) for window, rows in sorted(split, key=lambda one: _place(*one))]


def ignored(cases: pd.DataFrame) -> dict[str, int]:
    """Why rows are in no family -> how many: skipped, failed, invalid, or ok without a usable time."""
    reasons = [reason for reason in map(_refusal, _records(cases)) if reason is not None]
    return {reason: reasons.count(reason) for reason in sorted(set(reasons))}


def _records(cases: pd.DataFrame) -> list[Row]:
    absent = [name for name in NEEDED if name not in cases.columns]
    if absent:
        raise CommbenchError(f"the cases have no column {', '.join(absent)}; give what commbench.load returns")
    return [{str(name): _plain(value) for name, value in row.items()} for row in cases.to_dict("records")]


def _plain(value: Any) -> Any:
    """Pandas turns nulls into NaN and columns of integers with nulls into floats: undo it."""
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value.item() if isinstance(value, np.generic) else value


def _hashable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


def _refusal(row: Row) -> str | None:
    if row["status"] != "ok":
        return str(row["status"])
    time, size = row["median_s"], row["message_bytes"]
    usable = time is not None and size is not None and 0 < time < math.inf
    return None if usable else "ok without a time"


def _by_window(rows: Sequence[Row]) -> list[tuple[Any, list[Row]]]:
    """Rows by the window that was asked for: beyond the largest size measured with it, the largest smaller one."""
    smallest = min(row["message_bytes"] for row in rows)
    asked = {row.get("window") for row in rows if row["message_bytes"] == smallest}
    found, used = [], set()
    for window in asked:
        own = [row for row in rows if row.get("window") == window]
        found.append((window, own + _shrunk(rows, window, max(row["message_bytes"] for row in own))))
        used |= {id(row) for row in found[-1][1]}
    rest = [row for row in rows if id(row) not in used]
    return found + (_by_window(rest) if rest else [])


def _shrunk(rows: Sequence[Row], window: Any, largest: int) -> list[Row]:
    if window is None:
        return []
    beyond = [row for row in rows if row["message_bytes"] > largest and (row.get("window") or math.inf) < window]
    widest: dict[int, int] = {}
    for row in beyond:
        widest[row["message_bytes"]] = max(row["window"], widest.get(row["message_bytes"], 0))
    return [row for row in beyond if row["window"] == widest[row["message_bytes"]]]


def _place(window: Any, rows: Sequence[Row]) -> tuple[str, ...]:
    return (*(str(_hashable(rows[0].get(name))) for name in SHARED if name != "window"), f"{window or 0:09}")


def _family(window: Any, rows: Sequence[Row]) -> Family:
    by_size: dict[int, list[Row]] = {}
    for row in rows:
        by_size.setdefault(row["message_bytes"], []).append(row)
    sizes = sorted(by_size)
    medians, low, high = np.array([_time(by_size[size]) for size in sizes]).T
    variables = {name: rows[0].get(name) for name in SHARED} | {"window": window}
    labels = frozenset(str(row["label"]) for row in rows if row.get("label"))
    runs = max(len(of_size) for of_size in by_size.values())
    return Family(variables, np.array(sizes, dtype=np.int64), medians, low, high, runs, labels)


def _time(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Median over runs, and the widest interval, which holds every run's median."""
    medians = [row["median_s"] for row in rows]
    low, high = ([row[name] for row in rows if row[name] is not None] for name in ("ci_low_s", "ci_high_s"))
    if not low or not high:
        return float(np.median(medians)), math.nan, math.nan
    return float(np.median(medians)), min(*low, *medians), max(*high, *medians)


def varying(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """The variables that are not the same in all of them, in the schema's order."""
    values = list(found)
    return [name for name in SHARED if len({_hashable(one.get(name)) for one in values}) > 1]


def key(variables: Mapping[str, Any], without: Iterable[str] = ()) -> tuple[Any, ...]:
    """What two families share if they differ only in `without`."""
    return tuple(_hashable(variables.get(name)) for name in SHARED if name not in without)
