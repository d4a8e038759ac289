"""Steps as torch.distributed's calls on NCCL: what is posted between two waits is one batch, one kernel on the GPU.

An isend of its own would be a kernel of its own, behind all others of the communicator, so that two ranks that both
send first would wait for each other (P4). A batch has no order within.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from commbench.core.errors import Unsupported
from commbench.core.program import Barrier, Irecv, Isend, Program, Recv, Send, Step, WaitAll
from commbench.core.protocols import Buffer
from commbench.engines.lowered import Call, Lowered, Rotating

from .lowering import TorchLowering

Posted = Isend | Irecv | Send | Recv


def lowered(program: Program, sync: str, lowering: NcclLowering) -> Lowered[Call]:
    """The program in batches. Raises Unsupported."""
    parts = Lowered.of(program, sync, lowering.calls)
    lowering.finish()
    steps, before, enter = (tuple(chain.from_iterable(part)) for part in (parts.steps, parts.before, parts.enter))
    return Lowered(steps, before, enter, parts.windowed)


class NcclLowering:
    """Peers are ranks of the group; `met` is a tensor of one element for barriers. Raises Unsupported."""

    def __init__(self, group: Any, buffers: Mapping[str, Buffer], met: Any) -> None:
        import torch.distributed as dist

        self._torch, self._dist, self._group, self._met = TorchLowering(group, buffers), dist, group, met
        self._posted: list[Posted] = []

    def calls(self, step: Step) -> tuple[Call, ...]:
        """No call for a message that is posted: it goes with the wait."""
        match step:
            case Isend() | Irecv():
                self._posted.append(step)
                return ()
            case Send() | Recv() if self._posted:
                self._join(step)
                return ()
            case WaitAll(requests):
                return self._batch(set(requests))
            case Barrier():  # dist.barrier would let the host wait, not the stream
                self.finish()
                return (Call(self._dist.all_reduce, (self._met, self._dist.ReduceOp.SUM, self._group)),)
            case _:
                self.finish()
                return (self._torch.call(step),)

    def finish(self) -> None:
        """Raises Unsupported for messages that nobody has waited for."""
        if self._posted:
            raise Unsupported("nccl needs a WaitAll behind Isend and Irecv before anything but messages follows")

    def _join(self, step: Send | Recv) -> None:
        """A blocking message among posted ones goes with them: so a rank can send to itself, and no order is lost."""
        both = _buffers(self._posted, Irecv, Recv) & _buffers([step], Send)
        if both:
            raise Unsupported(f"nccl sends {', '.join(both)} together with what it receives there")
        self._posted.append(step)

    def _batch(self, waited: set[int]) -> tuple[Call, ...]:
        posted, self._posted = self._posted, []
        if {step.request for step in posted if isinstance(step, Isend | Irecv)} != waited:
            raise Unsupported("nccl waits for all that was posted since the last WaitAll, or for nothing")
        if not posted:
            return ()
        rows = [self._operations(step) for step in posted]
        return (Call(self._exchange, (Rotating(tuple(list(batch) for batch in zip(*rows, strict=True))),)),)

    def _operations(self, step: Posted) -> list[Any]:
        """One for each copy of the rotation pool."""
        kind = self._dist.isend if isinstance(step, Isend | Send) else self._dist.irecv
        tensors = self._torch.tensors(step.data).values
        return [self._dist.P2POp(kind, one, group=self._group, group_peer=step.peer) for one in tensors]

    def _exchange(self, operations: list[Any]) -> None:
        for work in self._dist.batch_isend_irecv(operations):
            work.wait()


def _buffers(steps: Iterable[Posted], *kinds: type) -> set[str]:
    return {step.data.buffer for step in steps if isinstance(step, kinds)}
