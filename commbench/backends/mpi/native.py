"""Steps as rows of C calls into the MPI library that mpi4py has loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from commbench.backends.support import refuse
from commbench.buffers.host import HostBuffer
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
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Step,
    View,
    WaitAll,
)
from commbench.engines.lowered import NativeCall

from .symbols import loaded_library, symbol
from .types import INT_MAX, LACKING, operation, passes_in_place, typed, view_count

Argument = int | tuple[int, ...]
Message = tuple[Argument, int, int]
Lowering = tuple[str, Sequence[Argument]]
NULL = 0


class NativeLowering:
    """Requests and statuses lie in arrays with the strides of the loaded library (MPICH's handles have 4 bytes).

    Raises Unsupported for what MPI lacks. `limit` is the largest count that one call takes.
    """

    def __init__(
        self,
        mpi: Any,
        communicator: Any,
        buffers: Mapping[str, HostBuffer],
        program: Program,
        limit: int = INT_MAX,
    ) -> None:
        self._mpi, self._buffers, self._limit, self._library = mpi, buffers, limit, loaded_library()
        self._comm, self._rank, self._size = handle(mpi, communicator), communicator.rank, communicator.size
        pending = max((step.request + 1 for step in program.steps if isinstance(step, Isend | Irecv)), default=1)
        self._request_bytes: int = mpi._sizeof(mpi.Request)
        self._requests = np.zeros(pending * self._request_bytes, dtype=np.uint8)
        # real statuses everywhere: nothing reads them, but MPICH refuses a null one
        self._statuses = np.zeros(pending * mpi._sizeof(mpi.Status), dtype=np.uint8)
        self._datatypes: list[Any] = []

    def call(self, step: Step) -> NativeCall:
        name, args = self._lower(step)
        return NativeCall(name, symbol(self._library, name), tuple(args), checked=name != "memcpy")

    def _lower(self, step: Step) -> Lowering:
        status = self._statuses.ctypes.data
        match step:
            case Send(data, peer):
                return "MPI_Send", (*self._message(data), peer, 0, self._comm)
            case Recv(data, peer):
                return "MPI_Recv", (*self._message(data), peer, 0, self._comm, status)
            case Isend(data, peer, request):
                return "MPI_Isend", (*self._message(data), peer, 0, self._comm, self._request(request))
            case Irecv(data, peer, request):
                return "MPI_Irecv", (*self._message(data), peer, 0, self._comm, self._request(request))
            case WaitAll(requests):
                if requests != tuple(range(requests[0], requests[0] + len(requests))):
                    raise Unsupported("the native engine waits for neighbouring requests only")
                return "MPI_Waitall", (len(requests), self._request(requests[0]), status)
            case Copy(source, target):
                buffer = self._buffers[target.buffer]
                size = view_count(buffer, target) * buffer.dtype.itemsize
                return "memcpy", (self._address_of(target), self._address_of(source), size)
            case _:
                return self._collective(step)

    def _collective(self, step: Step) -> Lowering:
        refuse(LACKING, step)
        every = self._size
        match step:
            case Barrier():
                return "MPI_Barrier", (self._comm,)
            case Broadcast(data, root):
                return "MPI_Bcast", (*self._message(data), root, self._comm)
            case AllGather(send, recv):
                received = self._message(recv, every)
                return "MPI_Allgather", (*self._unless_in_place(step, send), *received, self._comm)
            case Gather(send, recv, root):
                sent = self._unless_in_place(step, send)
                received = self._message(recv, every) if self._rank == root else self._nothing()
                return "MPI_Gather", (*sent, *received, root, self._comm)
            case Scatter(send, recv, root):
                sent = self._message(send, every) if self._rank == root else self._nothing()
                return "MPI_Scatter", (*sent, *self._unless_in_place(step, recv), root, self._comm)
            case AllToAll(send, recv):
                received = self._message(recv, every)
                return "MPI_Alltoall", (*self._unless_in_place(step, send, every), *received, self._comm)
            case _:
                return self._reduction(step)

    def _reduction(self, step: Step) -> Lowering:
        match step:
            case AllReduce(send, recv, reduction):
                source, *kind = self._unless_in_place(step, send, reduced=True)
                return "MPI_Allreduce", (source, self._address_of(recv), *kind, self._operation(reduction), self._comm)
            case Reduce(send, recv, reduction, root):
                source, *kind = self._unless_in_place(step, send, reduced=True)
                target = self._address_of(recv) if self._rank == root else NULL
                return "MPI_Reduce", (source, target, *kind, self._operation(reduction), root, self._comm)
            case ReduceScatter(send, recv, reduction):
                block = self._message(recv, reduced=True)
                all_of_it = self._address_of(send)
                return "MPI_Reduce_scatter_block", (all_of_it, *block, self._operation(reduction), self._comm)
            case _:
                raise Unsupported(f"the native MPI engine has no {type(step).__name__}")

    def _message(self, view: View, blocks: int = 1, reduced: bool = False) -> Message:
        """Address, count of one block and datatype."""
        buffer = self._buffers[view.buffer]
        kind = typed(self._mpi, buffer.spec.dtype, view_count(buffer, view) // blocks, reduced, self._limit)
        self._datatypes.append(kind.datatype)  # a derived type lives as long as its handle is used
        return self._address_of(view), kind.count, handle(self._mpi, kind.datatype)

    def _unless_in_place(self, step: Step, view: View, blocks: int = 1, reduced: bool = False) -> Message:
        address, count, datatype = self._message(view, blocks, reduced)
        inside = passes_in_place(step, self._rank)
        return int(self._mpi.IN_PLACE) if inside else address, count, datatype

    def _nothing(self) -> Message:
        """The side of a rooted collective that counts on the root only: others have no such buffer."""
        return NULL, 0, handle(self._mpi, self._mpi.BYTE)

    def _operation(self, reduction: str) -> int:
        return handle(self._mpi, operation(self._mpi, reduction))

    def _address_of(self, view: View) -> tuple[int, ...]:
        buffer = self._buffers[view.buffer]
        offset = view.offset * buffer.dtype.itemsize
        return tuple(buffer.address(view.slot, copy) + offset for copy in range(buffer.pool))

    def _request(self, index: int) -> int:
        return int(self._requests.ctypes.data) + index * self._request_bytes


def handle(mpi: Any, thing: Any) -> int:
    """The C handle of an mpi4py object: a pointer (Open MPI) or a signed int (MPICH)."""
    address = mpi._addressof(thing)
    kind = ctypes.c_int64 if mpi._sizeof(thing) == 8 else ctypes.c_int32
    return int(kind.from_address(address).value)
