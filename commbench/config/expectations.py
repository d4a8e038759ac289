"""`expect`: bounds of columns, as they are written on the command line.

A file of bounds becomes such texts, so that ranks and run.json have the bounds themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from commbench.core.errors import ConfigError
from commbench.core.suggestions import did_you_mean
from commbench.core.terminal import first_line
from commbench.core.units import parse_bytes
from commbench.results.columns import CASES

from .user_files import bounded_yaml

EXPECT_NORMAL = "normal"  # expect=normal
KNOWN_VALUES = "commbench.features.documents.expectation"  # which knows what is normal
EXPECTATION = re.compile(
    r"(?:(?P<benchmark>[^\W\d]\w*):)?(?:(?P<layout>\d+x\d+):)?"
    r"(?:(?P<first>[^:.]+(?:\.\d[^:.]*)?)\.\.(?P<last>[^:]+):)?"
    r"(?P<column>\w+)\s*(?P<comparison>>=|<=|>|<)"
    r"\s*(?P<bound>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
)
INTERVAL_COLUMNS = (
    "median_s",
    "algbw_gb_per_s",
    "busbw_gb_per_s",
    "wire_gb_per_s",
    "message_rate_per_s",
    "efficiency",
)
NUMERIC_COLUMNS = tuple(column.name for column in CASES if column.kind in ("integer", "number"))
SUFFIXES = (".yaml", ".yml")
ENTRY_KEYS = ("benchmark", "layout", "sizes", "column", "bound")
NEEDED_KEYS = ("column", "bound")
EXAMPLE = "{benchmark: all_reduce, layout: 1x4, sizes: 1KiB..1MiB, column: median_s, bound: <=1e-3}"


@dataclass(frozen=True)
class Expectation:
    """A comparison of `column` with a number, for every case or those of one benchmark, layout and
    range of sizes (both ends included)."""

    text: str
    benchmark: str | None
    column: str
    comparison: str
    bound: float
    layout: str | None = None
    sizes_bytes: tuple[int, int] | None = None


def parse_expectation(text: Any) -> Expectation:
    """Read 'busbw_gb_per_s>=380' or 'all_reduce:median_s<1e-3'; raises ConfigError."""
    match = EXPECTATION.fullmatch(str(text).strip())
    if match is None:
        example = "'busbw_gb_per_s>=380' or 'all_reduce:median_s<1e-3'"
        raise ConfigError(
            f"expect={text} is neither normal nor a comparison: write"
            " [benchmark:][layout:][FROM..TO:]column, one of >= <= > <, a number:"
            f" {example}; or a file of them, FILE.yaml"
        )
    column = match["column"]
    if column not in NUMERIC_COLUMNS:
        hint = did_you_mean(column, NUMERIC_COLUMNS)
        raise ConfigError(
            f"expect={text}: {column} is not a numeric column; {hint}all columns: docs/report.md"
        )
    return Expectation(
        str(text),
        match["benchmark"],
        column,
        match["comparison"],
        float(match["bound"]),
        match["layout"],
        _size_limits(str(text), match),
    )


def _size_limits(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    if match["first"] is None:
        return None
    try:
        first_bytes = parse_bytes(match["first"].strip())
        last_bytes = parse_bytes(match["last"].strip())
    except ConfigError as error:
        raise ConfigError(f"expect={text}: {error}") from error
    if first_bytes > last_bytes:
        raise ConfigError(f"expect={text}: the range of sizes is empty; write the smaller first")
    return first_bytes, last_bytes


def expectations(
    texts: Sequence[Any], benchmarks: Sequence[str], decided_by: str
) -> tuple[Expectation, ...]:
    """Raises ConfigError, also for a benchmark that does not run and a column that has no
    interval."""
    expected = tuple(parse_expectation(text) for text in texts if text not in (None, EXPECT_NORMAL))
    for expectation in expected:
        if expectation.benchmark not in (None, *benchmarks):
            raise ConfigError(
                f"expect={expectation.text}: {expectation.benchmark} does not run here;"
                f" benchmarks: {', '.join(benchmarks)}"
            )
        if decided_by == "interval" and expectation.column not in INTERVAL_COLUMNS:
            raise ConfigError(
                f"expect={expectation.text}: {expectation.column} has no interval; use"
                f" expect_by=median, or one of {', '.join(INTERVAL_COLUMNS)}"
            )
    return expected


# ---------------------------------------------------------------- a file of bounds


def is_bounds_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(SUFFIXES)


def with_bounds(expect: Any) -> Any:
    """The value of `expect` with the bounds of each file in its place; raises ConfigError."""
    values = expect if isinstance(expect, list) else [expect]
    if not any(map(is_bounds_file, values)):
        return expect
    return [
        text for value in values for text in (_texts(value) if is_bounds_file(value) else [value])
    ]


def _texts(path: str) -> list[str]:
    try:
        entries = yaml.safe_load(bounded_yaml(path))
    except ConfigError as error:
        raise ConfigError(f"expect={error}") from error
    except (ValueError, yaml.YAMLError) as error:  # ValueError: a number, a date
        raise ConfigError(f"expect={path} can't be read: {first_line(error)}") from error
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"expect={path} is not a list of bounds; write entries like {EXAMPLE}")
    return [
        _text(f"expect={path}, entry {number}", entry) for number, entry in enumerate(entries, 1)
    ]


def _text(where: str, entry: Any) -> str:
    """`all_reduce:1x4:1KiB..1MiB:median_s<=1e-3`."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: {entry} is not a bound; write one like {EXAMPLE}")
    unknown = [str(name) for name in entry if name not in ENTRY_KEYS]
    if unknown:
        allowed = ", ".join(ENTRY_KEYS)
        raise ConfigError(f"{where}: {', '.join(unknown)} is unknown; allowed: {allowed}")
    missing = [name for name in NEEDED_KEYS if entry.get(name) is None]
    if missing:
        raise ConfigError(f"{where} lacks {' and '.join(missing)}; write one like {EXAMPLE}")
    sizes = entry.get("sizes")
    if sizes is not None and ".." not in str(sizes):
        sizes = f"{sizes}..{sizes}"
    scope = (entry.get("benchmark"), entry.get("layout"), sizes)
    prefix = "".join(f"{value}:" for value in scope if value is not None)
    return f"{prefix}{entry['column']}{entry['bound']}"
