"""What each collective does to the payload in the simulated world. Functions return the message's bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.core.dtypes import DType
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
    View,
)

Words = list[NDArray[Any]]


class Memory(Protocol):
    """What the functions need: the elements of a view in each copy of the pool, and their type."""

    def words(self, rank: int, view: View) -> Words: ...

    def kind(self, rank: int, view: View) -> DType: ...


_REDUCTIONS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "sum": lambda stack: stack.sum(axis=0),
    "avg": lambda stack: stack.sum(axis=0) / len(stack),
    "prod": lambda stack: stack.prod(axis=0),
    "max": lambda stack: stack.max(axis=0),
    "min": lambda stack: stack.min(axis=0),
}


def barrier(memory: Memory, ranks: Sequence[int], steps: Mapping[int, Any]) -> int:
    return 0


def all_reduce(memory: Memory, ranks: Sequence[int], steps: Mapping[int, AllReduce]) -> int:
    results = _reduced(memory, ranks, steps, steps[ranks[0]].reduction)
    for rank in ranks:
        _store(memory.words(rank, steps[rank].recv), results)
    return results[0].nbytes


def reduce(memory: Memory, ranks: Sequence[int], steps: Mapping[int, Reduce]) -> int:
    results = _reduced(memory, ranks, steps, steps[ranks[0]].reduction)
    root = steps[ranks[0]].root
    _store(memory.words(root, steps[root].recv), results)
    return results[0].nbytes


def broadcast(memory: Memory, ranks: Sequence[int], steps: Mapping[int, Broadcast]) -> int:
    root = steps[ranks[0]].root
    source = memory.words(root, steps[root].data)
    for rank in ranks:
        _store(memory.words(rank, steps[rank].data), source)
    return source[0].nbytes


def all_gather(memory: Memory, ranks: Sequence[int], steps: Mapping[int, AllGather]) -> int:
    gathered = _joined([memory.words(rank, steps[rank].send) for rank in ranks])
    for rank in ranks:
        _store(memory.words(rank, steps[rank].recv), gathered)
    return gathered[0].nbytes


def gather(memory: Memory, ranks: Sequence[int], steps: Mapping[int, Gather]) -> int:
    gathered = _joined([memory.words(rank, steps[rank].send) for rank in ranks])
    root = steps[ranks[0]].root
    _store(memory.words(root, steps[root].recv), gathered)
    return gathered[0].nbytes


def scatter(memory: Memory, ranks: Sequence[int], steps: Mapping[int, Scatter]) -> int:
    root = steps[ranks[0]].root
    source = memory.words(root, steps[root].send)
    for index, rank in enumerate(ranks):
        _store(memory.words(rank, steps[rank].recv), _block(source, index, len(ranks)))
    return source[0].nbytes


def reduce_scatter(memory: Memory, ranks: Sequence[int], steps: Mapping[int, ReduceScatter]) -> int:
    results = _reduced(memory, ranks, steps, steps[ranks[0]].reduction)
    for index, rank in enumerate(ranks):
        _store(memory.words(rank, steps[rank].recv), _block(results, index, len(ranks)))
    return results[0].nbytes


def all_to_all(memory: Memory, ranks: Sequence[int], steps: Mapping[int, AllToAll]) -> int:
    sent = [[words.copy() for words in memory.words(rank, steps[rank].send)] for rank in ranks]
    for index, rank in enumerate(ranks):
        _store(memory.words(rank, steps[rank].recv), _joined([_block(words, index, len(ranks)) for words in sent]))
    return sent[0][0].nbytes


COLLECTIVES: dict[type, Callable[[Memory, Sequence[int], Mapping[int, Any]], int]] = {
    Barrier: barrier,
    AllReduce: all_reduce,
    Reduce: reduce,
    Broadcast: broadcast,
    AllGather: all_gather,
    Gather: gather,
    Scatter: scatter,
    ReduceScatter: reduce_scatter,
    AllToAll: all_to_all,
}


def _reduced(memory: Memory, ranks: Sequence[int], steps: Mapping[int, Any], reduction: str) -> Words:
    kind = memory.kind(ranks[0], steps[ranks[0]].send)
    sources = [memory.words(rank, steps[rank].send) for rank in ranks]
    return [
        kind.encode(_REDUCTIONS[reduction](np.stack([kind.decode(source[copy]) for source in sources])))
        for copy in range(len(sources[0]))
    ]


def _joined(parts: Sequence[Words]) -> Words:
    return [np.concatenate([part[copy] for part in parts]) for copy in range(len(parts[0]))]


def _block(words: Words, index: int, blocks: int) -> Words:
    return [copy[index * (len(copy) // blocks) : (index + 1) * (len(copy) // blocks)] for copy in words]


def _store(targets: Words, sources: Words) -> None:
    for target, source in zip(targets, sources, strict=True):
        target[:] = source
