"""The orders in which gloo's ring and Open MPI's algorithms of all_reduce add (gloo/allreduce.cc;
coll_base_allreduce.c and coll_base_reduce.c of 5.0), in numpy. Each takes the summands of all ranks
[ranks, elements] and rounds to the type after each addition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.payload import DType

Words = NDArray[Any]
Order = Callable[[NDArray[np.float64], DType], Words]


def linear(summands: NDArray[np.float64], kind: DType) -> Words:
    """The root begins with the last rank and ends with its own."""
    return _one_by_one(summands[::-1], kind)


def recursive_doubling(summands: NDArray[np.float64], kind: DType) -> Words:
    """Neighbours first, then pairs of neighbours. Where the ranks are no power of two, the first
    ones give theirs to a neighbour before."""
    ranks = len(summands)
    power = 1 << (ranks.bit_length() - 1)
    extra = ranks - power
    words = [kind.encode(values) for values in summands]
    merged = [_sum(words[2 * pair : 2 * pair + 2], kind) for pair in range(extra)]
    parts = [*merged, *words[2 * extra :]]
    while len(parts) > 1:
        parts = [_sum(parts[at : at + 2], kind) for at in range(0, len(parts), 2)]
    return parts[0]


def binary_tree(summands: NDArray[np.float64], kind: DType) -> Words:
    """Each rank adds what its two children have added, the first child first; below 4 ranks Open
    MPI adds one by one instead."""
    words = [kind.encode(values) for values in summands]

    def below(rank: int, width: int) -> Words:
        children = (rank + width, rank + 2 * width)
        parts = [below(child, 2 * width) for child in children if child < len(words)]
        return _sum([words[rank], *parts], kind)

    return linear(summands, kind) if len(words) < 4 else below(0, 1)


def ring(summands: NDArray[np.float64], kind: DType) -> Words:
    """Block k begins at rank k and goes once around; the first blocks are longer by one element
    where the elements can't be divided."""
    blocks = np.array_split(np.arange(summands.shape[1]), len(summands))
    return np.concatenate(
        [
            _one_by_one(np.roll(summands, -first, axis=0)[:, block], kind)
            for first, block in enumerate(blocks)
        ]
    )


def gloo_ring(summands: NDArray[np.float64], kind: DType) -> Words:
    """Block k begins at the rank before k and goes around backwards; the last block is shorter
    where the elements can't be divided."""
    ranks, count = summands.shape
    most = -(-count // ranks)
    blocks = [summands[:, begin : begin + most] for begin in range(0, count, most)]
    return np.concatenate(
        [
            _one_by_one(np.roll(block[::-1], number, axis=0), kind)
            for number, block in enumerate(blocks)
        ]
    )


def _one_by_one(summands: NDArray[np.float64], kind: DType) -> Words:
    return _sum([kind.encode(values) for values in summands], kind)


def _sum(parts: Sequence[Words], kind: DType) -> Words:
    total, *others = parts
    for words in others:
        total = kind.encode(kind.decode(total) + kind.decode(words))
    return total


# coll_tuned_allreduce_algorithm
OPEN_MPI: dict[int, tuple[str, Order]] = {
    1: ("basic linear", linear),
    2: ("reduce, then broadcast", binary_tree),
    3: ("recursive doubling", recursive_doubling),
    4: ("ring", ring),
    5: ("segmented ring", ring),
    6: ("Rabenseifner", recursive_doubling),
}
