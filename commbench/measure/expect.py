"""What the user expects of a run, compared with its rows."""

from __future__ import annotations

from typing import Any

from commbench.config.expectation import Expectation

COMPARE = {">=": float.__ge__, "<=": float.__le__, ">": float.__gt__, "<": float.__lt__}


def misses(expected: Expectation, rows: list[dict[str, Any]]) -> list[str]:
    """A line for each measured case that misses an expectation, and one where it matched no case at all."""
    chosen = [one for one in rows if expected.benchmark in (None, one["benchmark"])]
    numbers = [one for one in chosen if isinstance(one[expected.column], int | float)]
    if not numbers:
        return [f"expect {expected.text}: no measured case has {expected.column}"]
    failed = [one for one in numbers if not COMPARE[expected.comparison](float(one[expected.column]), expected.bound)]
    return [
        f"expect {expected.text}: {one['benchmark']} {one['layout']} {one['message_bytes']} B"
        f" has {one[expected.column]:g}"
        for one in failed
    ]
