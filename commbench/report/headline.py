"""The first sentences of a report: what was measured with its extremes, and how far the numbers can
be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from commbench.core.units import format_number, format_seconds, plural
from commbench.results.columns import Row
from commbench.results.flags import DOUBTFUL, FLAGS, warnings_of
from commbench.results.load import row_dicts

from .combined import CombinedCases
from .texts import size_text

if TYPE_CHECKING:
    import pandas as pd


# flags of times that do not count as the shortest
UNTIMED = frozenset({"timer_limited", "impossible"})
UNRATED = UNTIMED | {"in_cache"}  # and of rates that do not count as the highest
MOST_FLAGS = 3


def headline(combined: CombinedCases, soaks: Sequence[str]) -> str:
    """What was measured, with the shortest time and the highest bandwidth, in one sentence."""
    measured = combined.shown
    if not len(measured):
        return soaks[0] if soaks else "No case has a number; what was tried is below."
    sizes = measured["message_bytes"]
    between = " to ".join(dict.fromkeys(size_text(size) for size in (sizes.min(), sizes.max())))
    listed = (
        ", ".join(map(str, measured[name].drop_duplicates()))
        for name in ("benchmark", "backend", "layout")
    )
    parts = ["{} over {} in {}, {}".format(*listed, between)]
    rows = row_dicts(measured)
    all_rows = row_dicts(combined.cases)
    # the others have many messages in flight
    single = [row for row in rows if row["window"] is None] or rows
    quick = min(_without(single, UNTIMED), key=lambda row: row["median_s"])
    shorter = sorted(
        (row for row in all_rows if row["median_s"] < quick["median_s"]),
        key=lambda row: row["median_s"],
    )
    more = _left_out(shorter, _time_text, UNTIMED, "shorter ones down to", of_windows=False)
    parts.append(f"shortest time {_time_text(quick)} ({_case_name(combined, quick)}{more})")
    # one message at a time is no measure of bandwidth
    windows = [row for row in rows if row["window"] is not None]
    wide = max(_without(windows or rows, UNRATED), key=_rate)
    if _rate(wide):
        higher = sorted(
            (row for row in all_rows if _rate(row) > _rate(wide)), key=_rate, reverse=True
        )
        more = _left_out(
            higher, _rate_text, UNRATED, "higher ones up to", of_windows=True if windows else None
        )
        parts.append(f"highest bandwidth {_rate_text(wide)} ({_case_name(combined, wide)}{more})")
    return "; ".join(parts) + "."


def _without(rows: Sequence[Row], flags: Collection[str]) -> Sequence[Row]:
    """The rows without these flags; all where each has one."""
    return [row for row in rows if not warnings_of(row) & set(flags)] or rows


def _rate(row: Row) -> float:
    return row["algbw_gb_per_s"] or 0.0


def _time_text(row: Row) -> str:
    return format_seconds(row["median_s"])


def _rate_text(row: Row) -> str:
    return f"{format_number(row['algbw_gb_per_s'])} GB/s"


def _case_name(combined: CombinedCases, row: Row) -> str:
    size = f" {size_text(row['message_bytes'])}" if row["message_bytes"] else ""
    return f"{row['benchmark']}{size}, {combined.name(row)}"


def _left_out(
    rows: Sequence[Row],
    text: Callable[[Row], str],
    flags: Collection[str],
    words: str,
    of_windows: bool | None,
) -> str:
    """The most extreme of the rows that do not count, and why they do not; empty without rows.

    `of_windows`: whether only rows with many messages in flight count; None: both kinds do.
    """
    reasons: dict[str, None] = {}
    for row in rows:
        reasons |= dict.fromkeys(sorted(warnings_of(row) & set(flags)))
        if of_windows is not None and (row["window"] is None) == of_windows:
            reasons |= {"one message at a time" if of_windows else "many messages in flight": None}
        reasons |= {"one rank": None} if row["world_size"] == 1 else {}
        reasons |= {"simulated": None} if row["engine"] == "virtual" else {}
    return f"; not counting {words} {text(rows[0])}: {', '.join(reasons)}" if rows else ""


def trust(cases: pd.DataFrame) -> str:
    """How many measured cases have a warning that casts doubt on their number, and the most
    frequent warnings."""
    measured = [
        warnings_of(row) for row in row_dicts(cases.loc[cases["status"] == "ok", ["warnings"]])
    ]
    doubted = [flags & DOUBTFUL for flags in measured if flags & DOUBTFUL]
    if not doubted:
        return ""
    counts = Counter(name for flags in doubted for name in sorted(flags)).most_common(MOST_FLAGS)
    frequent = "; ".join(f"{FLAGS[name].meaning} ({name}, {count})" for name, count in counts)
    advice = " Treat all numbers as rough." if 2 * len(doubted) > len(measured) else ""
    carry = "carries" if len(doubted) == 1 else "carry"
    of_all = f"{len(doubted)} of {plural(len(measured), 'measured case', 'measured cases')} {carry}"
    return f"{of_all} a warning that casts doubt on the number, most often: {frequent}.{advice}"
