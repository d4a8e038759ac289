"""Which ranks meet in each round of a search: every node in one pair, with all of its ranks at the
same time. The ranks of a single node meet each other.

Links within a node are left out where there are several nodes: they are not those between nodes,
and fast ones would clear a slow network card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from random import Random

from commbench.core.layout import Layout, Pair, pairing

LEAST_RANKS = 3  # of two, a slow one is in all pairs of both
FIRST_VISITS = 20  # of each node: at 5 % noise they leave no good one of 128 in doubt in most runs


def search_refusal(layout: Layout) -> str | None:
    """Why a layout can't be searched; None if it can."""
    if layout.size >= LEAST_RANKS:
        return None
    return (
        f"layout={layout} has {layout.size} ranks; a search compares them with each other and needs"
        f" at least {LEAST_RANKS}"
    )


@dataclass(frozen=True)
class Meetings:
    """The rounds of a search by number. After `period` of them all ranks of different nodes have
    met once, and the same pairs meet again."""

    layout: Layout
    seed: int

    @property
    def period(self) -> int:
        return self._turns * self._ranks

    def rounds(self, visits: int) -> int:
        """How many rounds have each node in so many pairs; of an odd number one is idle in each."""
        return math.ceil(visits * self._turns / (len(self._order) - 1))

    def pairs(self, number: int) -> tuple[Pair, ...]:
        """Of one round."""
        ranks = self._ranks
        shift = number // self._turns  # when all nodes have met, their ranks meet others of them
        return tuple(
            (first * ranks + rank, second * ranks + (rank + shift) % ranks)
            for first, second in pairing(self._order, number % self._turns)
            for rank in range(ranks)
        )

    @property
    def _ranks(self) -> int:
        return self.layout.ranks_per_node if self.layout.nodes > 1 else 1

    @property
    def _turns(self) -> int:
        return len(self._order) - 1 + len(self._order) % 2

    @cached_property
    def _order(self) -> list[int]:
        order = list(range(self.layout.size // self._ranks))
        Random(f"{self.seed}/nodes").shuffle(order)
        return order
