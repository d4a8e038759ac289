"""Steps as calls of NCCL through CuPy, on one stream: addresses, counts and types, nothing between.

What is posted between two waits is one group of calls, and so are the operations that NCCL makes of messages
(gather, scatter, all_to_all). Nothing here waits: the engine's synchronisation does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commbench.backends.support import Lacking, in_place, refuse
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
from commbench.engines.lowered import Call, Rotating

from .cuda import CupyDevice

LACKING: Lacking = {("all_to_all", True): "NCCL receives over blocks that it has not sent yet"}
TYPES = {  # names in cupy.cuda.nccl; an older CuPy may lack the younger ones
    "float64": "NCCL_FLOAT64",
    "float32": "NCCL_FLOAT32",
    "float16": "NCCL_FLOAT16",
    "bfloat16": "NCCL_BFLOAT16",
    "int64": "NCCL_INT64",
    "int32": "NCCL_INT32",
    "int8": "NCCL_INT8",
    "uint8": "NCCL_UINT8",
}
NULL = 0  # what counts on the root only
REDUCTIONS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "min": "NCCL_MIN", "max": "NCCL_MAX", "avg": "NCCL_AVG"}

End = tuple[Any, View]  # of a message: the call and the memory
Part = tuple[Any, View, int, int]  # a call, a view, which of its blocks, the peer


class CupyLowering:
    """`nccl` is cupy.cuda.nccl, `met` one int8 of device memory for barriers.

    Raises Unsupported for what NCCL lacks.
    """

    def __init__(
        self, nccl: Any, communicator: Any, device: CupyDevice, buffers: Mapping[str, DeviceBuffer], met: int
    ) -> None:
        self._nccl, self._comm, self._device, self._buffers, self._met = nccl, communicator, device, buffers, met
        self._rank, self._size, self._stream = communicator.rank_id(), communicator.size(), device.pointer
        self._open = False  # a group of calls has begun
        self._addresses: dict[View, Rotating] = {}

    def call(self, step: Step) -> Call:
        """To be asked in the order of the program: a group begins with the first Isend or Irecv, a WaitAll ends it."""
        comm = self._comm
        match step:
            case Isend(data, peer, _):
                return self._posted(comm.send, *self._message(data), peer)
            case Irecv(data, peer, _):
                return self._posted(comm.recv, *self._message(data), peer)
            case WaitAll():
                return self._end_of_group()
            case Send(data, peer):
                return Call(comm.send, (*self._message(data), peer, self._stream))
            case Recv(data, peer):
                return Call(comm.recv, (*self._message(data), peer, self._stream))
            case Copy(source, target):
                size = self._count(target) * self._itemsize(target)
                return Call(self._device.move, (self._address(target), self._address(source), size))
            case _:
                return self._collective(step)

    def finish(self) -> None:
        """Raises Unsupported for messages that nobody waits for: their group would never end."""
        if self._open:
            raise Unsupported("NCCL needs a WaitAll behind Isend and Irecv")

    def _posted(self, function: Any, *args: Any) -> Call:
        begins, self._open = not self._open, True
        if begins:
            return Call(self._begin_with, (function, *args, self._stream))
        return Call(function, (*args, self._stream))

    def _begin_with(self, function: Any, *args: Any) -> None:
        self._nccl.groupStart()
        function(*args)

    def _end_of_group(self) -> Call:
        if not self._open:  # a second wait for parts of a group, which has ended as a whole
            return NONE
        self._open = False
        return Call(self._nccl.groupEnd)

    def _collective(self, step: Step) -> Call:
        refuse(LACKING, step)
        comm, stream = self._comm, self._stream
        match step:
            case Barrier():
                one = (self._met, self._met, 1, self._nccl.NCCL_INT8, self._nccl.NCCL_SUM, stream)
                return Call(comm.allReduce, one)
            case Broadcast(data, root):
                return Call(comm.bcast, (*self._message(data), root, stream))
            case AllGather(send, recv):
                address, count, kind = self._message(send)
                return Call(comm.allGather, (address, self._address(recv), count, kind, stream))
            case Gather(send, recv, root):
                return self._rooted(step, (comm.send, send), (comm.recv, recv), root)
            case Scatter(send, recv, root):
                return self._rooted(step, (comm.recv, recv), (comm.send, send), root)
            case AllToAll(send, recv):
                every = range(self._size)
                sends = ((comm.send, send, peer, peer) for peer in every)
                receives = ((comm.recv, recv, peer, peer) for peer in every)
                return self._together([*sends, *receives], self._count(send) // self._size)
            case _:
                return self._reduction(step)

    def _reduction(self, step: Step) -> Call:
        comm, stream = self._comm, self._stream
        match step:
            case AllReduce(send, recv, reduction):
                address, *message = self._message(send)
                return Call(
                    comm.allReduce, (address, self._address(recv), *message, self._operation(reduction), stream)
                )
            case Reduce(send, recv, reduction, root):
                address, *message = self._message(send)
                target = self._address(recv) if self._rank == root else NULL
                return Call(comm.reduce, (address, target, *message, self._operation(reduction), root, stream))
            case ReduceScatter(send, recv, reduction):
                address, *block = self._message(recv)
                return Call(
                    comm.reduceScatter, (self._address(send), address, *block, self._operation(reduction), stream)
                )
            case _:
                raise Unsupported(f"NCCL has no {type(step).__name__}")

    def _rooted(self, step: Step, leaf: End, root_end: End, root: int) -> Call:
        """Every rank has a message with the root, the root one with every rank; in place none with itself."""
        (function, own), (answer, whole) = leaf, root_end
        alone = in_place(step) and self._rank == root
        parts: list[Part] = [] if alone else [(function, own, 0, root)]
        if self._rank == root:
            peers = (peer for peer in range(self._size) if not (alone and peer == root))
            parts += [(answer, whole, peer, peer) for peer in peers]
        return self._together(parts, self._count(own))

    def _together(self, parts: Sequence[Part], count: int) -> Call:
        """One group of messages of `count` elements each."""
        rows = []
        for function, view, block, peer in parts:
            kind, begin = self._kind(view), block * count * self._itemsize(view)
            addresses = self._address(view).values
            rows.append([(function, (address + begin, count, kind, peer, self._stream)) for address in addresses])
        return Call(self._group, (Rotating(tuple(list(calls) for calls in zip(*rows, strict=True))),)) if rows else NONE

    def _group(self, calls: list[tuple[Any, tuple[int, ...]]]) -> None:
        self._nccl.groupStart()
        for function, args in calls:
            function(*args)
        self._nccl.groupEnd()

    def _message(self, view: View) -> tuple[Rotating, int, int]:
        """Address, elements and type."""
        return self._address(view), self._count(view), self._kind(view)

    def _address(self, view: View) -> Rotating:
        """The same object for the same view: the engine rotates each once."""
        if view not in self._addresses:
            buffer, offset = self._buffers[view.buffer], view.offset * self._itemsize(view)
            copies = range(buffer.pool)
            self._addresses[view] = Rotating(tuple(buffer.address(view.slot, copy) + offset for copy in copies))
        return self._addresses[view]

    def _count(self, view: View) -> int:
        return self._buffers[view.buffer].spec.count - view.offset if view.count is None else view.count

    def _itemsize(self, view: View) -> int:
        return dtype(self._buffers[view.buffer].spec.dtype).itemsize

    def _kind(self, view: View) -> int:
        return self._constant(TYPES[self._buffers[view.buffer].spec.dtype])

    def _operation(self, reduction: str) -> int:
        return self._constant(REDUCTIONS[reduction])

    def _constant(self, name: str) -> int:
        value: int | None = getattr(self._nccl, name, None)
        if value is None:
            raise Unsupported(f"this CuPy does not know {name}; take a newer one")
        return value


def _nothing() -> None:
    pass


NONE = Call(_nothing)
