"""Steps as C calls into the MPI library that mpi4py has loaded."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from commbench.backends.support import check_form
from commbench.buffers.host import HostBuffer
from commbench.core.errors import CommbenchError, Unsupported
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

from .datatypes import INT_MAX, UNSUPPORTED_FORMS, operation, passes_in_place, typed

Argument = int | tuple[int, ...]
Message = tuple[Argument, int, int]
CCall = tuple[str, Sequence[Argument]]
NULL = 0


@cache
def loaded_library() -> ctypes.CDLL:
    """The libmpi in this process. mpi4py loads it privately, so its symbols are found by its path.

    Cached: a process has one, and its memory map takes milliseconds to read with torch loaded. Raises CommbenchError.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = sorted({line.split()[-1] for line in lines if re.search(r"/libmpi(ch|_cray)?\.so", line)})
    for path in paths:
        library = ctypes.CDLL(path)
        if hasattr(library, "MPI_Send"):
            return library
    raise CommbenchError("no loaded MPI library has MPI_Send; use engine=python")


def symbol(library: ctypes.CDLL, name: str) -> int:
    """The address of a function of the library; memcpy is that of the C library."""
    source = ctypes.CDLL(None) if name == "memcpy" else library
    return ctypes.cast(getattr(source, name), ctypes.c_void_p).value or 0


def handle(mpi: Any, mpi_object: Any) -> int:
    """The C handle of an mpi4py object: a pointer (Open MPI) or a signed int (MPICH)."""
    address = mpi._addressof(mpi_object)
    kind = ctypes.c_int64 if mpi._sizeof(mpi_object) == 8 else ctypes.c_int32
    return int(kind.from_address(address).value)


class NativeLowering:
    """Requests and statuses are in arrays with the strides of the loaded library (MPICH's handles have 4 bytes).

    Raises Unsupported for what MPI does not have. `limit` is the largest count that one call takes.
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

    def _lower(self, step: Step) -> CCall:
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
                    raise Unsupported("the native engine can only wait for consecutive requests")
                return "MPI_Waitall", (len(requests), self._request(requests[0]), status)
            case Copy(source, target):
                buffer = self._buffers[target.buffer]
                size = target.count_in(buffer.spec) * buffer.dtype.itemsize
                return "memcpy", (self._address_of(target), self._address_of(source), size)
            case _:
                return self._collective(step)

    def _collective(self, step: Step) -> CCall:
        check_form(UNSUPPORTED_FORMS, step)
        match step:
            case Barrier():
                return "MPI_Barrier", (self._comm,)
            case Broadcast(data, root):
                return "MPI_Bcast", (*self._message(data), root, self._comm)
            case AllGather(send, recv):
                received = self._message(recv, self._size)
                return "MPI_Allgather", (*self._unless_in_place(step, send), *received, self._comm)
            case Gather(send, recv, root):
                sent = self._unless_in_place(step, send)
                received = self._message(recv, self._size) if self._rank == root else self._null_message()
                return "MPI_Gather", (*sent, *received, root, self._comm)
            case Scatter(send, recv, root):
                sent = self._message(send, self._size) if self._rank == root else self._null_message()
                return "MPI_Scatter", (*sent, *self._unless_in_place(step, recv), root, self._comm)
            case AllToAll(send, recv):
                received = self._message(recv, self._size)
                return "MPI_Alltoall", (*self._unless_in_place(step, send, self._size), *received, self._comm)
            case _:
                return self._reduction(step)

    def _reduction(self, step: Step) -> CCall:
        match step:
            case AllReduce(send, recv, reduction):
                source, *kind = self._unless_in_place(step, send, 1, reduction)
                return "MPI_Allreduce", (source, self._address_of(recv), *kind, self._operation(reduction), self._comm)
            case Reduce(send, recv, reduction, root):
                source, *kind = self._unless_in_place(step, send, 1, reduction)
                target = self._address_of(recv) if self._rank == root else NULL
                return "MPI_Reduce", (source, target, *kind, self._operation(reduction), root, self._comm)
            case ReduceScatter(send, recv, reduction):
                source, block = self._address_of(send), self._message(recv, 1, reduction)
                return "MPI_Reduce_scatter_block", (source, *block, self._operation(reduction), self._comm)
            case _:
                raise Unsupported(f"the native MPI engine has no {type(step).__name__}")

    def _message(self, view: View, blocks: int = 1, reduction: str | None = None) -> Message:
        """Address, count per block and datatype."""
        buffer = self._buffers[view.buffer]
        kind = typed(self._mpi, buffer.spec.dtype, view.count_in(buffer.spec) // blocks, reduction, self._limit)
        self._datatypes.append(kind.datatype)  # a derived type lives as long as its handle is used
        return self._address_of(view), kind.count, handle(self._mpi, kind.datatype)

    def _unless_in_place(self, step: Step, view: View, blocks: int = 1, reduction: str | None = None) -> Message:
        address, count, datatype = self._message(view, blocks, reduction)
        if passes_in_place(step, self._rank):
            return int(self._mpi.IN_PLACE), count, datatype
        return address, count, datatype

    def _null_message(self) -> Message:
        """The argument of a rooted collective that is used on the root only: other ranks have no such buffer."""
        return NULL, 0, handle(self._mpi, self._mpi.BYTE)

    def _operation(self, reduction: str) -> int:
        return handle(self._mpi, operation(self._mpi, reduction))

    def _address_of(self, view: View) -> tuple[int, ...]:
        buffer = self._buffers[view.buffer]
        offset = view.offset * buffer.dtype.itemsize
        return tuple(buffer.address(view.slot, copy) + offset for copy in range(buffer.pool))

    def _request(self, index: int) -> int:
        return int(self._requests.ctypes.data) + index * self._request_bytes
