"""The numbers of a row as intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

from commbench.results.columns import GOOD_LEVEL, grouped
from commbench.results.row import Measured, Row
from commbench.stats.interval import CERTAIN, ORDER_OF_MAGNITUDE, Interval


def interval_of(row: Row, column: str = "median_s") -> Interval | None:
    """`median_s`, or a rate, which is in proportion to its inverse; None without a value.

    The interval is that of the time: both have the same visits.
    """
    value = getattr(row, column)
    if value is None or row.status != "ok":
        return None
    n, of = _basis(row)
    unknown = Interval(float(value), n=n, of=of, is_disturbed="waited" in row.warnings)
    low_s = row.ci_low_s
    high_s = row.ci_high_s
    if low_s is None or high_s is None:
        return unknown
    level = row.interval_level or GOOD_LEVEL
    if column == "median_s":
        return replace(unknown, low=float(low_s), high=float(high_s), level=level)
    if not (low_s and high_s):
        return unknown
    product = value * row.median_s
    return replace(unknown, low=product / high_s, high=product / low_s, level=level)


def known_interval(row: Row) -> Interval | None:
    """The median; None where it is zero or has no interval."""
    median = interval_of(row)
    return median if median is not None and median.value and median.is_known else None


def _basis(row: Row) -> tuple[int, str]:
    """How many values the median is the middle of, and what they are."""
    kind = row.interval_of
    if kind == "launches" and isinstance(row, Measured):
        return len(row.launch_medians), kind
    if kind == "visits":
        return row.visits or 1, kind
    return row.repetitions or 1, "repetitions"


def interval_note(intervals: Iterable[Interval]) -> str:
    """`±: 95 % confidence interval over 3 to 7 visits`: the level that all of them reach, and what
    they are made of. Empty where none is known."""
    known = [each for each in intervals if each.is_known and each.level]
    if not known:
        return ""
    levels = [each.level or 0.0 for each in known]
    kinds = sorted({each.of for each in known})
    counts = [sorted({each.n for each in known if each.of == kind}) for kind in kinds]
    over = [
        f"{' to '.join(dict.fromkeys(map(str, (count[0], count[-1]))))}"
        f" {kind if count[-1] > 1 else kind[:-1]}"
        for count, kind in zip(counts, kinds, strict=True)
    ]
    return f"±: {100 * min(levels):.3g} % confidence interval over {' or '.join(over)}"


def marks_note(intervals: Iterable[Interval]) -> str:
    """`~: over ±5 %; ?: over ±30 %`: what the marks of these values say of their intervals."""
    seen = {(each.certainty, _reason(each)) for each in intervals if each.certainty}
    by_mark = grouped(sorted(seen, reverse=True), itemgetter(0))  # ~ before ?
    return "; ".join(
        f"{mark}: {' or '.join(reason for _, reason in of_mark)}"
        for mark, of_mark in by_mark.items()
    )


def _reason(interval: Interval) -> str:
    """Why a value has its mark."""
    if not interval.is_known:
        return "no interval"
    if interval.is_narrow:
        return "waited"  # the flag
    limit = CERTAIN if interval.certainty == "~" else ORDER_OF_MAGNITUDE
    return f"over ±{100 * limit:.0f} %"
