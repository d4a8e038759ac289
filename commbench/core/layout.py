"""Layouts: `NxM` is N nodes with M ranks each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .case import World
from .errors import ConfigError

MAX_RANKS = 2**17


@dataclass(frozen=True, order=True)
class Layout:
    nodes: int
    ranks_per_node: int

    @classmethod
    def parse(cls, text: object) -> Layout:
        """From `2x4`; raises ConfigError."""
        match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", str(text))
        if not match or isinstance(text, bool | int | float):
            raise ConfigError(
                f"layout={text} is not a layout; write nodes x ranks per node, both >= 1, e.g. 1x2 or 2x4"
            )
        layout = cls(int(match[1]), int(match[2]))
        if layout.size > MAX_RANKS:
            raise ConfigError(f"layout={layout} has {layout.size} ranks; at most {MAX_RANKS} are allowed")
        return layout

    @classmethod
    def around(cls, layouts: Sequence[Layout], ranks: int = 2) -> Layout:
        """The smallest world that all layouts fit into; without any, one node with `ranks` ranks."""
        layouts = layouts or (cls(1, ranks),)
        return cls(max(layout.nodes for layout in layouts), max(layout.ranks_per_node for layout in layouts))

    @property
    def size(self) -> int:
        return self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks_per_node}"

    def misfit(self, world: World) -> str | None:
        """Why it does not fit into the world; None if it does."""
        large = [ranks for ranks in world.nodes if len(ranks) >= self.ranks_per_node]
        if len(large) >= self.nodes and len(world.nodes[0]) >= self.ranks_per_node:  # rank 0 decides and records
            return None
        ranks_by_node = " + ".join(str(len(ranks)) for ranks in world.nodes)
        return f"layout {self} does not fit into this world of {len(world.nodes)} node(s) with {ranks_by_node} rank(s)"

    def members(self, world: World) -> tuple[int, ...]:
        """The first ranks of each of the first nodes that are large enough, node after node."""
        large = [ranks for ranks in world.nodes if len(ranks) >= self.ranks_per_node]
        return tuple(rank for ranks in large[: self.nodes] for rank in ranks[: self.ranks_per_node])
