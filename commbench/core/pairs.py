"""Pairs of ranks: which there are, and which can talk at the same time."""

from __future__ import annotations

from collections.abc import Iterable

Pair = tuple[int, int]


def pairs_text(pairs: Iterable[Pair]) -> str:
    """The text of Case.pair: "0-1" is one pair, "0-2 1-3" are two at once."""
    return " ".join(f"{first}-{second}" for first, second in pairs)


def all_pairs(size: int) -> list[Pair]:
    """Every rank with every rank in both directions and with itself, in an order that `rounds` packs without gaps.

    The circle method: one rank stands still, the others turn; each turn pairs everybody (one rests if size is odd).
    """
    seats = size + size % 2
    alone = [(rank, rank) for rank in range(size)]
    there = []
    for turn in range(seats - 1):
        ring = [seats - 1, *((turn + place) % (seats - 1) for place in range(seats - 1))]
        met = ((ring[place], ring[seats - 1 - place]) for place in range(seats // 2))
        there += [(min(pair), max(pair)) for pair in met if max(pair) < size]
    return [*alone, *there, *((second, first) for first, second in there)]


def rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Pairs that share no rank go into the same round; each pair into the first round with room for it."""
    packed: list[list[Pair]] = []
    busy: list[set[int]] = []
    for pair in pairs:
        place = next((index for index, taken in enumerate(busy) if not taken & set(pair)), len(packed))
        if place == len(packed):
            packed.append([])
            busy.append(set())
        packed[place].append(pair)
        busy[place].update(pair)
    return packed
