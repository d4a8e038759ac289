"""Many nodes in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from commbench.core.units import format_ranges
from commbench.results.columns import grouped

LAST_NUMBER = re.compile(r"(.*?)(0*)(0|[1-9]\d*)(\D*)")


def names_text(names: Iterable[str]) -> str:
    """`node0-9,11-31,login`: those that differ in their last number as ranges of it. The zeros
    before it (`n001`) and what is behind it (`n1.site`) are the same within a range."""
    read = [(name, LAST_NUMBER.fullmatch(name)) for name in names]
    ranges = grouped(
        ((name, match) for name, match in read if match is not None),
        lambda each: (each[1][1] + each[1][2], each[1][4]),
    )
    texts = [
        f"{start}{format_ranges(int(match[3]) for _, match in own)}{end}"
        for (start, end), own in ranges.items()
    ]
    return ",".join([*texts, *(name for name, match in read if match is None)])
