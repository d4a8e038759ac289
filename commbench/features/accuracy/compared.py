"""Beside the times of a comparison: whether both sides compute the same bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from commbench.analysis.compared_case import ComparedCase
from commbench.core.units import NO_NUMBER
from commbench.results.row import Row

HEAD = "bits"
PHRASES = {
    "same": "same bits",
    "other": "other bits",
    "varying": "varying bits",
    "BASE only": "bits of BASE only",
    "NEW only": "bits of NEW only",
}


def cells(case: ComparedCase) -> dict[str, str]:
    """The column of a table of comparisons."""
    return {HEAD: bits_word(case)}


def summary(cases: Sequence[ComparedCase]) -> str:
    """`same bits in 3, other bits in 1`; empty where no case has any."""
    words = Counter(bits_word(case) for case in cases)
    del words[NO_NUMBER]
    return ", ".join(f"{PHRASES[word]} in {count}" for word, count in words.most_common())


def bits_word(case: ComparedCase) -> str:
    """same, other, varying (from launch to launch), `BASE only` where only that side knows them, or
    `-`."""
    base = hashes(case.base.launches)
    new = hashes(case.new.launches)
    if not base or not new:
        return "BASE only" if base else "NEW only" if new else NO_NUMBER
    if len(base | new) == 1:
        return "same"
    return "other" if base.isdisjoint(new) else "varying"


def hashes(rows: Sequence[Row]) -> set[str]:
    """Of all launches."""
    return {text for row in rows for text in row.launch_hashes or ()}


def change(healthy: Sequence[Row], new: Sequence[Row]) -> str:
    """What is said of a case beside its times; empty where nothing is known, and where most of the
    healthy launches have bits of their own. A library that was updated leaves two kinds of bits."""
    before = hashes(healthy)
    now = hashes(new)
    launches = sum(len(row.launch_hashes or ()) for row in healthy)
    if not before or now <= before or len(before) > max(1, launches // 2):
        return ""
    return (
        "other bits than the healthy runs: the library, or its choice of an algorithm, has changed"
    )
