"""What a run is expected to reach: `expect='busbw_gb_per_s>=380'`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from commbench.core.columns import CASES
from commbench.core.errors import ConfigError

NUMBERS = tuple(column.name for column in CASES if column.kind in ("integer", "number"))
NORMAL = "normal"  # expect=normal
EXPECTATION = re.compile(r"\s*(?:(\w+):)?(\w+)\s*(>=|<=|>|<)\s*([-+0-9.eE]+)\s*")


@dataclass(frozen=True)
class Expectation:
    """`column` of every case (of one benchmark, if named) compared with a number."""

    text: str
    benchmark: str | None
    column: str
    comparison: str
    bound: float


def expectation(text: Any) -> Expectation:
    """From 'busbw_gb_per_s>=380' or 'all_reduce:median_s<1e-3'; raises ConfigError."""
    match = EXPECTATION.fullmatch(str(text))
    try:
        bound = float(match[4]) if match else None
    except ValueError:
        bound = None
    if match is None or bound is None:
        example = "'busbw_gb_per_s>=380' or 'all_reduce:median_s<1e-3'"
        raise ConfigError(
            f"expect={text} is neither normal nor a comparison: write"
            f" [benchmark:]column, one of >= <= > <, a number: {example}"
        )
    if match[2] not in NUMBERS:
        near = difflib.get_close_matches(match[2], NUMBERS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"expect={text}: {match[2]} is no column of numbers; {hint}columns: {', '.join(NUMBERS)}")
    return Expectation(str(text), match[1], match[2], match[3], bound)


def expectations(texts: list[Any], benchmarks: list[str]) -> tuple[Expectation, ...]:
    expected = tuple(expectation(text) for text in texts if text not in (None, NORMAL))
    for one in expected:
        if one.benchmark not in (None, *benchmarks):
            raise ConfigError(
                f"expect={one.text}: {one.benchmark} does not run here; benchmarks: {', '.join(benchmarks)}"
            )
    return expected
