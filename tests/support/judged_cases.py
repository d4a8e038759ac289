"""Judged cases of two sides of launches."""

from __future__ import annotations

import math
from typing import Any

from sample_cases import case_row, measured_row

from commbench.analysis.compared_case import ComparedCase, Judged, SideOfCase
from commbench.core.variables import NAMES
from commbench.stats.interval import Interval
from commbench.stats.verdict import Comparison, Verdict

LAUNCH = measured_row("all_reduce")
FOUR = SideOfCase(launches=(LAUNCH,) * 4)


def judged(
    verdict: Verdict = "SLOWER",
    ratio: tuple[float, ...] = (1.2, 1.1, 1.3),
    base_s: float = 1e-6,
    launches: int = 4,
    **tails: float,
) -> Judged:
    """`ratio`: with or without the ends of its interval."""
    interval = Interval(*ratio, n=launches, of="launches")
    comparison = Comparison(base_s, 1.2e-6, interval, 0.03, math.inf, (launches, launches))
    return Judged(comparison, 0.02, 0.03, verdict, **tails)


def compared(*cases: dict[str, Any]) -> list[ComparedCase]:
    """SLOWER cases of 8, 9, 10 ... B, with these variables, sides, and arguments of judged()."""
    return [_compared(**{"message_bytes": 8 + index} | case) for index, case in enumerate(cases)]


def _compared(base: SideOfCase = FOUR, new: SideOfCase = FOUR, **values: Any) -> ComparedCase:
    variables = {name: values.pop(name) for name in (*NAMES, "median_of") if name in values}
    known = {"benchmark": "all_reduce", "layout": "1x2", "elements": 2, "in_place": None}
    case = case_row(**known | variables)
    result = values.pop("judged") if "judged" in values else judged(**values)
    return ComparedCase((case, case), base, new, result)
