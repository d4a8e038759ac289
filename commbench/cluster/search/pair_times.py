"""The times of pairs of nodes that meet in rounds, and the nodes that do."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Aspect = Literal["sends", "receives", "latency"]
ASPECTS: tuple[Aspect, ...] = ("sends", "receives", "latency")
SENDS, RECEIVES, LATENCY = range(3)
LEAST_GROUP = 3  # nodes of a switch: two slow ones do not tell a slow switch


@dataclass(frozen=True)
class Cluster:
    """`nodes` meet each other with `ranks` each; of a single node its ranks count as nodes.
    `switches` has the name of each node's switch or None, and nothing if none is known."""

    nodes: int
    ranks: int = 1
    switches: tuple[str | None, ...] = ()

    @property
    def partners(self) -> int:
        """How many others a rank meets of which each may be slow by itself."""
        return self.nodes - 1 if self.nodes > 2 else self.ranks

    @property
    def unseen(self) -> int:
        """From so many slow nodes on none is seen: too few partners of the others are fast."""
        return math.ceil(2 / 3 * self.nodes)

    @property
    def widening(self) -> float:
        """Of an interval, because typical is the median of so few nodes only; pi / 2 is the
        variance of a median over that of a mean."""
        return math.sqrt(1 + math.pi / 2 / self.nodes)

    @property
    def members(self) -> dict[str, list[int]]:
        """The nodes of each switch that has several, but not all."""
        nodes: dict[str, list[int]] = {}
        for node, name in enumerate(self.switches):
            if name is not None:
                nodes.setdefault(name, []).append(node)
        return {name: own for name, own in nodes.items() if LEAST_GROUP <= len(own) < self.nodes}

    @property
    def switch_numbers(self) -> Indices:
        """Of each node; one whose switch is not known has one of its own."""
        known = self.switches or (None,) * self.nodes
        names = [name or f"of node {node}" for node, name in enumerate(known)]
        return np.asarray(np.unique(names, return_inverse=True)[1])


@dataclass(frozen=True, eq=False)
class PairTimes:
    """The measured pairs. Those with the same number of `case` ran at the same time, in one
    direction; a latency is a round trip and has none. Sources and destinations are ranks."""

    case: Indices
    is_latency: Flags
    source: Indices
    destination: Indices
    log_s: Numbers

    def __len__(self) -> int:
        return len(self.log_s)

    def chosen(self, entries: Flags) -> PairTimes:
        return PairTimes(*(getattr(self, column.name)[entries] for column in fields(self)))
