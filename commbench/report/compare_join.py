"""Which rows of two sides belong together: equal variables, except those that are compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.core.columns import VARIABLES
from commbench.core.errors import ConfigError

from .compare_input import Side

if TYPE_CHECKING:
    import pandas as pd

NAMES = tuple(column.name for column in VARIABLES)
PAYLOAD = ("benchmark", "dtype", "message_bytes", "count")  # what was moved: never unlike
BYTES_TOLERANCE = 1e-6

Row = Mapping[Any, Any]


@dataclass(frozen=True)
class Difference:
    """A variable in which BASE and NEW may differ; the values select rows where they are given."""

    name: str
    base: str | None = None
    new: str | None = None


def parse_by(words: Iterable[str]) -> tuple[Difference, ...]:
    """`backend` or `backend=gloo:mpi`; raises ConfigError for unknown variables and for the payload."""
    return tuple(_difference(word.strip()) for word in words if word.strip())


def _difference(word: str) -> Difference:
    name, given, values = word.partition("=")
    allowed = ", ".join(one for one in NAMES if one not in PAYLOAD)
    if name in PAYLOAD:
        raise ConfigError(f"--by {name}: unlike payloads can't be compared; allowed: {allowed}")
    if name not in NAMES:
        raise ConfigError(f"--by {name} is no variable; allowed: {allowed}")
    base, colon, new = values.partition(":")
    if given and not (base and colon and new):
        raise ConfigError(f"--by {word} is not NAME or NAME=BASE:NEW, e.g. --by backend=gloo:mpi")
    return Difference(name, base or None, new or None)


def plain(value: Any) -> Any:
    """The value of a variable as JSON has it: nulls of all kinds alike, whole numbers whole, maps as sorted pairs."""
    value = value.tolist() if hasattr(value, "tolist") else value  # numpy's arrays and scalars
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, (list, tuple)):
        return sorted([str(name), str(one)] for name, one in value if one is not None)
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value if isinstance(value, (str, int)) else None  # pandas has several nulls


def text(value: Any) -> str:
    """For people: none, false, A=1 B=2."""
    value = plain(value)
    if isinstance(value, list):
        return " ".join("=".join(pair) for pair in value) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def key_of(row: Row, by: Iterable[str]) -> str:
    """The values of all variables but those as JSON: equal keys are compared."""
    excluded = set(by)
    return json.dumps([plain(row[name]) for name in NAMES if name not in excluded])


def rows_by_key(side: Side, by: Sequence[Difference]) -> dict[str, list[Row]]:
    """The selected rows of a side, one a run and key (of two attempts the later), in the order of their runs.

    Raises ConfigError where nothing is selected, where a side has several values of what is compared, or where the
    rows of a key are not alike.
    """
    cases = side.cases
    for one in by:
        wanted = getattr(one, side.name.lower())
        if wanted is not None:
            cases = _selected(side.name, cases, one.name, wanted)
    found: dict[str, dict[str, Row]] = {}
    for row in cases.to_dict("records"):
        same = found.setdefault(key_of(row, (one.name for one in by)), {})
        _check_single(side.name, by, next(iter(same.values()), row), row)
        same[row["run_id"]] = row
    return {key: [rows[run_id] for run_id in sorted(rows)] for key, rows in found.items()}


def _selected(side: str, cases: pd.DataFrame, name: str, wanted: str) -> pd.DataFrame:
    seen = [text(value) for value in cases[name]]
    if wanted not in seen:
        raise ConfigError(f"{side} has no case with {name}={wanted}; it has {', '.join(sorted(set(seen)))}")
    return cases[[value == wanted for value in seen]]


def _check_single(side: str, by: Sequence[Difference], one: Row, other: Row) -> None:
    for difference in by:
        name = difference.name
        first, last = text(one[name]), text(other[name])
        if first != last:
            raise ConfigError(
                f"{side} has {name} {first} and {last} for the same case; say which with --by {name}=BASE:NEW"
            )


def check_alike(name: str, rows: Sequence[Row]) -> None:
    """Raises ConfigError where rows of one key moved unlike payloads, or were timed by unlike clocks."""
    clocks = {row["clock"] for row in rows if isinstance(row["clock"], str)}
    if len(clocks) > 1:
        raise ConfigError(f"{name}: seconds of unlike clocks ({', '.join(sorted(clocks))}) can't be compared")
    sizes = [row["algbw_gb_per_s"] * 1e9 * row["median_s"] for row in rows]
    known = sorted(size for size in sizes if math.isfinite(size))
    if known and known[-1] > known[0] * (1 + BYTES_TOLERANCE):
        raise ConfigError(
            f"{name}: unlike payloads, {known[0]:.0f} B and {known[-1]:.0f} B an operation, can't be compared"
        )


def apart(base: Side, new: Side) -> list[str]:
    """Variables without a common value, as NAME (a / b): why no case is on both sides."""
    found = []
    for name in NAMES:
        values = [{text(value) for value in side.cases[name]} for side in (base, new)]
        if not values[0] & values[1]:
            found.append(f"{name} ({', '.join(sorted(values[0])[:4])} / {', '.join(sorted(values[1])[:4])})")
    return found
