"""Layouts (`NxM`: N nodes with M ranks each), pairs of ranks, and rounds of pairs that can run at
the same time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .case import World
from .errors import ConfigError
from .units import format_ranges, parse_pairs

MAX_RANKS = 2**17
MAX_NAMED_MEMBERS = 16

Pair = tuple[int, int]
Link = Literal["self", "same node", "other node"]
SELF: Link = "self"
SAME_NODE: Link = "same node"
ACROSS_NODES: Link = "other node"


@dataclass(frozen=True, order=True)
class Layout:
    nodes: int
    ranks_per_node: int

    @classmethod
    def parse(cls, text: object) -> Layout:
        """Read a layout such as `2x4`; raises ConfigError."""
        match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", str(text))
        if not match or isinstance(text, bool | int | float):
            raise ConfigError(
                f"layout={text} is not a layout; write nodes x ranks per node, both >= 1, e.g. 1x2"
                " or 2x4"
            )
        layout = cls(int(match[1]), int(match[2]))
        if layout.size > MAX_RANKS:
            raise ConfigError(
                f"layout={layout} has {layout.size} ranks; at most {MAX_RANKS} are allowed"
            )
        return layout

    @classmethod
    def around(cls, layouts: Sequence[Layout], ranks: int = 2) -> Layout:
        """The smallest layout that all of them fit into; without any, one node with `ranks`
        ranks."""
        layouts = layouts or (cls(1, ranks),)
        return cls(
            max(layout.nodes for layout in layouts),
            max(layout.ranks_per_node for layout in layouts),
        )

    @classmethod
    def of_all(cls, world: World) -> Layout:
        """The largest layout that has all nodes of the world."""
        return cls(len(world.nodes), min(map(len, world.nodes)))

    @property
    def size(self) -> int:
        return self.nodes * self.ranks_per_node

    def doublings(self) -> tuple[Layout, ...]:
        """1, 2, 4 ... of its nodes, and all of them."""
        counts = [2**power for power in range(self.nodes.bit_length())]
        nodes = dict.fromkeys([*counts, self.nodes])
        return tuple(Layout(count, self.ranks_per_node) for count in nodes)

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks_per_node}"

    def misfit(self, world: World) -> str | None:
        """Why the layout does not fit into the world; None if it does."""
        large = [ranks for ranks in world.nodes if len(ranks) >= self.ranks_per_node]
        # rank 0 decides and records
        if len(large) >= self.nodes and len(world.nodes[0]) >= self.ranks_per_node:
            return None
        ranks_by_node = " + ".join(map(str, map(len, world.nodes)))
        return (
            f"layout {self} does not fit into this world of {len(world.nodes)} node(s) with"
            f" {ranks_by_node} rank(s)"
        )

    def members(self, world: World) -> tuple[int, ...]:
        """The world ranks of the layout: the first ranks of the first nodes that are large enough,
        node by node."""
        return self.members_of(world.nodes)

    def members_of(self, nodes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The same for the world ranks of each node."""
        large = [ranks for ranks in nodes if len(ranks) >= self.ranks_per_node]
        return tuple(rank for ranks in large[: self.nodes] for rank in ranks[: self.ranks_per_node])

    def link(self, pair: Pair) -> Link:
        """What a message of this pair of the layout's ranks passes through."""
        first, second = pair
        if first == second:
            return SELF
        is_on_one_node = first // self.ranks_per_node == second // self.ranks_per_node
        return SAME_NODE if is_on_one_node else ACROSS_NODES

    def idle_text(self, world: World) -> str | None:
        """Which ranks of the world have no place in the layout, and why; None if all have one."""
        idle = sorted(set(range(world.size)) - set(self.members(world)))
        if not idle:
            return None
        ranks_by_node = " + ".join(map(str, map(len, world.nodes)))
        ranks = "rank" if len(idle) == 1 else "ranks"
        verb = "is" if len(idle) == 1 else "are"
        return (
            f"layout {self} uses {self.size} of {world.size} ranks, {ranks} {format_ranges(idle)}"
            f" {verb} idle: a layout has as many ranks on each node, here are {ranks_by_node}"
        )

    def numbering_text(self, nodes: Sequence[Sequence[int]]) -> str | None:
        """Which ranks of the world the pairs of the layout name; None where they have the same
        numbers."""
        members = self.members_of(nodes)
        if members == tuple(range(self.size)) or len(members) < self.size:
            return None
        named = ", ".join(map(str, members[:MAX_NAMED_MEMBERS]))
        rest = ", ..." if self.size > MAX_NAMED_MEMBERS else ""
        return (
            f"layout {self}: ranks 0 to {self.size - 1} of its pairs are ranks {named}{rest} of the"
            " world"
        )


def pairs_text(pairs: Iterable[Pair]) -> str:
    """Pairs as the text of Case.pair: "0-1" is one, "0-2 1-3" are two at once."""
    return " ".join(f"{first}-{second}" for first, second in pairs)


def single_pair(text: str | None) -> Pair | None:
    """The pair in the text of Case.pair; None for several at once."""
    pairs = parse_pairs(text)
    return pairs[0] if len(pairs) == 1 else None


def link_of(layout_text: str, pair_text: str | None) -> Link:
    """Of the first pair in the text of Case.pair; without one, of all ranks of the layout."""
    layout = Layout.parse(layout_text)
    if pairs := parse_pairs(pair_text):
        return layout.link(pairs[0])
    return ACROSS_NODES if layout.nodes > 1 else SAME_NODE


def ends_of_pair(text: str | None) -> dict[str, int | None]:
    """The columns source and destination for the text of Case.pair; None unless it is a single
    pair."""
    source, destination = single_pair(text) or (None, None)
    return {"source": source, "destination": destination}


def all_pairs(size: int) -> list[Pair]:
    """Each rank with itself and with every other rank in both directions, ordered so that `rounds`
    fills each round.

    The circle method: one rank stays, the others rotate by one each turn; opposite ranks form a
    pair. If `size` is odd, one place is empty, and the rank opposite it is idle.
    """
    seats = size + size % 2
    forth = [pair for turn in range(seats - 1) for pair in _turn(size, turn)]
    with_itself = [(rank, rank) for rank in range(size)]
    return [*with_itself, *forth, *((second, first) for first, second in forth)]


def _turn(size: int, turn: int) -> list[Pair]:
    """The pairs of a turn of the circle, the lower rank first."""
    seats = size + size % 2
    circle = [seats - 1, *((turn + seat) % (seats - 1) for seat in range(seats - 1))]
    opposite = ((circle[seat], circle[seats - 1 - seat]) for seat in range(seats // 2))
    return [(min(pair), max(pair)) for pair in opposite if max(pair) < size]


def pairing(places: Sequence[int], turn: int) -> list[Pair]:
    """Disjoint pairs of these places; any two of them meet once in the turns 0 to len(places) - 2
    (if their number is odd, to len(places) - 1)."""
    return [(places[first], places[second]) for first, second in _turn(len(places), turn)]


def rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Divide pairs into rounds in which no rank occurs twice; each pair goes into the first round
    with room for it."""
    packed = list[list[Pair]]()
    busy: dict[int, int] = {}  # by rank: bit i is set if round i has the rank
    for pair in pairs:
        taken = busy.get(pair[0], 0) | busy.get(pair[1], 0)
        first_free = ~taken & (taken + 1)  # the lowest bit that is not set
        index = first_free.bit_length() - 1
        if index == len(packed):
            packed.append([])
        packed[index].append(pair)
        for rank in set(pair):
            busy[rank] = busy.get(rank, 0) | first_free
    return packed


@dataclass(frozen=True)
class AlikePairs:
    """The pairs of `cases` cases that need the same memory and time: those of the first and of the
    last case, each of which run at once."""

    first: tuple[Pair, ...]
    last: tuple[Pair, ...]
    cases: int


def alike_pairs(layout: Layout, at_once: bool) -> list[AlikePairs]:
    """`all_pairs`, or their rounds with `at_once`, without making them: thousands of ranks have
    millions. Each rank with itself first, then pairs on one node, then pairs of two nodes."""
    size = layout.size
    own = tuple((rank, rank) for rank in range(size))
    seats = size + size % 2
    if at_once:
        first = tuple(_turn(size, 0))
        last = tuple((second, first) for first, second in _turn(size, seats - 2))
        groups = [AlikePairs(own, own, 1), AlikePairs(first, last, 2 * (seats - 1))]
    else:
        within = layout.ranks_per_node
        groups = [
            AlikePairs(own[:1], own[-1:], size),
            AlikePairs(((0, 1),), ((size - 1, size - 2),), size * (within - 1)),
            AlikePairs(((0, within),), ((size - 1, 0),), size * (size - within)),
        ]
    return [group for group in groups if group.cases and group.first]
