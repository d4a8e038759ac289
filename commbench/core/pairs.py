"""Pairs of ranks: their text, all pairs of a world, and rounds of pairs that can communicate at the same time."""

from __future__ import annotations

from collections.abc import Iterable

Pair = tuple[int, int]


def pairs_text(pairs: Iterable[Pair]) -> str:
    """The text of Case.pair: "0-1" is one pair, "0-2 1-3" are two at once."""
    return " ".join(f"{first}-{second}" for first, second in pairs)


def all_pairs(size: int) -> list[Pair]:
    """Every rank with itself and with every other rank in both directions, ordered so that `rounds` leaves no gaps.

    The circle method: one rank stays, the others rotate by one each turn; ranks opposite each other form a pair. If
    `size` is odd, the place of the missing rank is empty, and its partner idles.
    """
    seats = size + size % 2
    forth: list[Pair] = []
    for turn in range(seats - 1):
        circle = [seats - 1, *((turn + seat) % (seats - 1) for seat in range(seats - 1))]
        opposite = ((circle[seat], circle[seats - 1 - seat]) for seat in range(seats // 2))
        forth += [(min(pair), max(pair)) for pair in opposite if max(pair) < size]
    with_itself = [(rank, rank) for rank in range(size)]
    return [*with_itself, *forth, *((second, first) for first, second in forth)]


def rounds(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Pairs of one round share no rank; each pair goes into the first round that has room for it."""
    packed: list[list[Pair]] = []
    busy: list[set[int]] = []  # ranks of each round
    for pair in pairs:
        index = next((index for index, ranks in enumerate(busy) if not ranks & set(pair)), len(packed))
        if index == len(packed):
            packed.append([])
            busy.append(set())
        packed[index].append(pair)
        busy[index].update(pair)
    return packed
