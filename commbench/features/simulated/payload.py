"""The payload of a simulated world: views of all ranks' buffers, and what each collective moves
between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import HostBuffer
from commbench.core import program as steps
from commbench.core.errors import CommunicationError
from commbench.core.payload import DType
from commbench.core.program import View
from commbench.core.variables import ReductionName
from commbench.engines.lowered import displacements

Buffers = Mapping[int, Mapping[str, HostBuffer]]  # by rank and name
Words = NDArray[Any]  # [copies of the pool, elements] of a view

NUMPY_REDUCTIONS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "sum": lambda stack: stack.sum(axis=0),
    "avg": lambda stack: stack.sum(axis=0) / len(stack),
    "prod": lambda stack: stack.prod(axis=0),
    "max": lambda stack: stack.max(axis=0),
    "min": lambda stack: stack.min(axis=0),
}


@dataclass(frozen=True)
class Payload:
    """The first `copies` copies of the pool of all buffers. `order`: of sums, see Model; `call`:
    how many there have been before."""

    buffers: Buffers
    copies: int
    order: str | None = None
    call: int = 0

    def words(self, rank: int, view: View) -> Words:
        """The elements of the view in each copy."""
        buffer = self.buffers[rank][view.buffer]
        return buffer.words(view.slot, slice(self.copies))[:, view.elements]

    def bytes_of(self, rank: int, view: View) -> int:
        """The size of the view in one copy."""
        return int(self.words(rank, view)[0].nbytes)

    def copy(self, rank: int, step: steps.Copy) -> None:
        self.words(rank, step.target)[:] = self.words(rank, step.source)

    def collective(self, ranks: Sequence[int], step_of: Mapping[int, Any]) -> int:
        """Run a collective of these ranks, each with its step. Returns the bytes that determine its
        time: all that the root has or gets, or without one each rank."""
        first = step_of[ranks[0]]
        sums: Sequence[Words] = ()  # of the ranks, where they may differ
        match first:
            case steps.Barrier():
                return 0
            case steps.AllToAllV():
                return self._exchange_blocks(ranks, step_of)
            case steps.AllToAll():
                return self._exchange_equal_blocks(ranks, step_of)
            case steps.Broadcast() | steps.Scatter():
                root = ranks[first.root]
                message = self.words(root, _sent(step_of[root]))
            case steps.AllReduce() | steps.Reduce() | steps.ReduceScatter():
                sums = self._reduced(ranks, step_of, first.reduction)
                message = sums[0]
            case _:  # a gather
                blocks = [self.words(rank, _sent(step_of[rank])) for rank in ranks]
                message = np.concatenate(blocks, axis=1)
        is_divided = isinstance(first, steps.Scatter | steps.ReduceScatter)
        width = message.shape[1] // len(ranks)
        is_rooted = isinstance(first, steps.Reduce | steps.Gather)
        for place, rank in enumerate(ranks):
            own = sums[place] if sums else message
            if is_divided:
                own = own[:, place * width : (place + 1) * width]
            if not is_rooted or place == first.root:
                self.words(rank, _received(step_of[rank]))[:] = own
        return int(message[0].nbytes)

    def _exchange_equal_blocks(self, ranks: Sequence[int], step_of: Mapping[int, Any]) -> int:
        """An AllToAll."""
        blocks = [
            np.split(self.words(rank, step_of[rank].send), len(ranks), axis=1) for rank in ranks
        ]
        # first all that is received: in place, a block would be overwritten before it is sent
        received = [np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)]
        for rank, words in zip(ranks, received, strict=True):
            self.words(rank, step_of[rank].recv)[:] = words
        return int(received[0][0].nbytes)

    def _exchange_blocks(self, ranks: Sequence[int], step_of: Mapping[int, Any]) -> int:
        """An AllToAllV; returns the bytes that the busiest rank sends or receives."""
        blocks = {}
        for rank in ranks:
            step = step_of[rank]
            words = self.words(rank, step.send)[:, : sum(step.send_counts)]
            blocks[rank] = np.split(words, displacements(step.send_counts)[1:], axis=1)
        busiest = 0
        for place, rank in enumerate(ranks):
            step = step_of[rank]
            parts = [blocks[sender][place] for sender in ranks]
            sent = tuple(part.shape[1] for part in parts)
            if sent != step.recv_counts:
                raise CommunicationError(
                    f"rank {rank} receives blocks of {step.recv_counts} elements, the others send"
                    f" it {sent}"
                )
            received = np.concatenate(parts, axis=1)
            self.words(rank, step.recv)[:, : sum(sent)] = received
            busiest = max(busiest, received.shape[1], sum(step.send_counts))
        buffer = self.buffers[ranks[0]][step_of[ranks[0]].recv.buffer]
        return busiest * buffer.dtype.itemsize

    def _reduced(
        self, ranks: Sequence[int], step_of: Mapping[int, Any], reduction: ReductionName
    ) -> list[Words]:
        """The result of each rank."""
        kind = self.buffers[ranks[0]][step_of[ranks[0]].send.buffer].dtype
        sent = [self.words(rank, step_of[rank].send) for rank in ranks]
        stacks = [
            np.stack([kind.decode(words[copy]) for words in sent]) for copy in range(self.copies)
        ]
        if self.order is None or reduction != "sum":
            reduced = [kind.encode(NUMPY_REDUCTIONS[reduction](stack)) for stack in stacks]
            return [np.stack(reduced)] * len(ranks)
        return [
            np.stack([self._sum(stack, kind, place, copy) for copy, stack in enumerate(stacks)])
            for place in range(len(ranks))
        ]

    def _sum(self, stack: NDArray[Any], kind: DType, place: int, copy: int) -> Words:
        """The sum of the rank at `place`, rounded after each addition of `stack` [ranks, elements]:
        rank after rank, from a first one on, which `order` says."""
        ranks, count = stack.shape
        elements = np.arange(count)
        first = {
            "by_rank": place,  # that of the result
            "by_chunk": elements * ranks // count,  # each for a part of the elements, as in a ring
            "by_call": self.call + copy,
        }.get(str(self.order), 0)
        total = kind.encode(stack[first % ranks, elements])
        for turn in range(1, ranks):
            values = stack[(first + turn) % ranks, elements]
            total = kind.encode(kind.decode(total) + values)
        return total


def _sent(step: Any) -> View:
    view: View = step.data if isinstance(step, steps.Broadcast) else step.send
    return view


def _received(step: Any) -> View:
    view: View = step.data if isinstance(step, steps.Broadcast) else step.recv
    return view
