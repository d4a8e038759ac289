"""The time until the communicator of a layout is split into groups of neighbours."""

from __future__ import annotations

from itertools import pairwise

from commbench.core.variables import Case

from .communicator_init import CommunicatorInit, Groups


class CommunicatorSplit(CommunicatorInit):
    """Groups differ by one rank at most."""

    name = "communicator_split"
    axes = ("until", "split")
    min_ranks = 2

    def refusal(self, case: Case, size: int) -> str | None:
        if (case.split or 1) > size:
            return f"{size} ranks can't be split into {case.split} groups; use split=1 to {size}"
        return super().refusal(case, size)

    def opened_groups(self, case: Case, size: int) -> Groups:
        parts = case.split or 1
        edges = [size * number // parts for number in range(parts + 1)]
        return tuple(tuple(range(begin, end)) for begin, end in pairwise(edges))
