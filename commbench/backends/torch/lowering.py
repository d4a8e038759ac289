"""Steps as calls of torch.distributed, on tensors that share the buffers' memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commbench.backends.support import Lacking, refuse
from commbench.buffers.device import DeviceBuffer
from commbench.core.dtypes import dtype
from commbench.core.errors import Unsupported
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Copy,
    Gather,
    Irecv,
    Isend,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Step,
    View,
    WaitAll,
)
from commbench.core.protocols import Buffer
from commbench.engines.lowered import Call, Rotating

from .cuda import CudaMemory

LACKING: Lacking = {
    ("all_reduce", False): "torch.distributed reduces in place only",
    ("reduce", False): "torch.distributed reduces in place only",
    ("all_to_all", True): "torch.distributed receives over blocks that it has not sent yet",
}
REDUCTIONS = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


class TorchLowering:
    """Peers and roots are ranks of the group. Raises Unsupported for a form that torch.distributed lacks."""

    def __init__(self, group: Any, buffers: Mapping[str, Buffer]) -> None:
        import torch.distributed as dist

        self._dist, self._group, self._buffers = dist, group, buffers
        self._rank, self._size = group.rank(), group.size()
        self._tensors: dict[View, Rotating] = {}

    def call(self, step: Step) -> Call:
        dist, group = self._dist, self._group
        match step:
            case Send(data, peer):
                return Call(dist.send, (self.tensors(data), None, group, 0, peer))
            case Recv(data, peer):
                return Call(dist.recv, (self.tensors(data), None, group, 0, peer))
            case Isend(data, peer, request):
                return Call(dist.isend, (self.tensors(data), None, group, 0, peer), into=request)
            case Irecv(data, peer, request):
                return Call(dist.irecv, (self.tensors(data), None, group, 0, peer), into=request)
            case WaitAll(requests):
                return Call(_wait_all, requests=requests)
            case Copy(source, target):
                return Call(_copy, (self.tensors(target), self.tensors(source)))
            case _:
                return self._collective(step)

    def _collective(self, step: Step) -> Call:
        dist, group = self._dist, self._group
        refuse(LACKING, step)
        match step:
            case Barrier():
                return Call(dist.barrier, (group,))
            case Broadcast(data, root):
                return Call(dist.broadcast, (self.tensors(data), None, group, False, root))
            case AllGather(send, recv):
                return Call(self._named("all_gather"), (self.tensors(recv), self.tensors(send), group))
            case Gather(send, recv, root):
                return Call(dist.gather, (self.tensors(send), self._blocks(recv, root), None, group, False, root))
            case Scatter(send, recv, root):
                return Call(dist.scatter, (self.tensors(recv), self._blocks(send, root), None, group, False, root))
            case AllToAll(send, recv):
                return Call(dist.all_to_all_single, (self.tensors(recv), self.tensors(send), None, None, group))
            case _:
                return self._reduction(step)

    def _reduction(self, step: Step) -> Call:
        dist, group = self._dist, self._group
        match step:
            case AllReduce(_, recv, reduction):
                return Call(dist.all_reduce, (self.tensors(recv), self._operation(reduction), group))
            case Reduce(send, _, reduction, root):
                operation = self._operation(reduction)
                return Call(dist.reduce, (self.tensors(send), None, operation, group, False, root))
            case ReduceScatter(send, recv, reduction):
                tensors = self.tensors(recv), self.tensors(send)
                return Call(self._named("reduce_scatter"), (*tensors, self._operation(reduction), group))
            case _:
                raise Unsupported(f"torch.distributed has no {type(step).__name__}")

    def _named(self, operation: str) -> Any:
        """Newer torch renamed the calls on one tensor, and warns in those with the old names."""
        old = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[operation]
        return getattr(self._dist, f"{operation}_single", None) or getattr(self._dist, old)

    def _operation(self, reduction: str) -> Any:
        return getattr(self._dist.ReduceOp, REDUCTIONS[reduction])

    def tensors(self, view: View) -> Rotating:
        """One tensor for each copy of the pool; the same object for the same view."""
        if view not in self._tensors:
            buffer = self._buffers[view.buffer]
            stop = buffer.spec.count if view.count is None else view.offset + view.count
            copies = (elements(buffer, view.slot, copy) for copy in range(buffer.pool))
            self._tensors[view] = Rotating(tuple(one[view.offset : stop] for one in copies))
        return self._tensors[view]

    def _blocks(self, view: View, root: int) -> Rotating | None:
        """On the root a tensor for each rank, all of them parts of the view; the other ranks have no such buffer."""
        if self._rank != root:
            return None
        return Rotating(tuple(list(one.chunk(self._size)) for one in self.tensors(view).values))


def elements(buffer: Any, slot: int, copy: int) -> Any:
    """A slot as a tensor in the buffer's own memory: of the host, or of a GPU."""
    import torch

    kind = getattr(torch, buffer.spec.dtype)
    if isinstance(buffer, DeviceBuffer) and isinstance(buffer.allocation, CudaMemory):
        start = buffer.offset(slot, copy)
        size = buffer.spec.count * dtype(buffer.spec.dtype).itemsize
        return buffer.allocation.tensor[start : start + size].view(kind)
    return torch.from_numpy(buffer.words(slot, copy)).view(kind)


def _wait_all(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _copy(target: Any, source: Any) -> None:
    target.copy_(source)
