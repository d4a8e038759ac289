"""Lists of ranks or processors as text: 0-3,8 is 0, 1, 2, 3 and 8."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def parse_ranges(text: str) -> list[int]:
    """The numbers of such a list, in its order; empty if the text is not one."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        match = _PART.fullmatch(part)
        if match is None:
            return []
        numbers.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


def format_ranges(numbers: Iterable[int]) -> str:
    """These numbers as such a list, in ascending order; empty for none."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
