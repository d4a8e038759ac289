"""Steps as rows of C calls into the MPI library that mpi4py has loaded."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commbench import contracts as c
from commbench.backends.mpi_python import operation, view_count
from commbench.backends.mpi_types import typed
from commbench.engines.native import NativeCall
from commbench.errors import CommbenchError, Unsupported
from commbench.memory import HostBuffer

Argument = int | tuple[int, ...]


class NativeLowering:
    """Requests and statuses lie in arrays with the strides of the loaded library (MPICH's handles have 4 bytes)."""

    def __init__(self, mpi: Any, communicator: Any, buffers: Mapping[str, HostBuffer], program: c.Program) -> None:
        self._mpi, self._buffers, self._library = mpi, buffers, loaded_library()
        self._comm = handle(mpi, communicator)
        pending = max((step.request + 1 for step in program.steps if isinstance(step, c.Isend | c.Irecv)), default=1)
        self._request_bytes: int = mpi._sizeof(mpi.Request)
        self._requests = np.zeros(pending * self._request_bytes, dtype=np.uint8)
        # real statuses everywhere: nothing reads them, but MPICH refuses a null one
        self._statuses = np.zeros(pending * mpi._sizeof(mpi.Status), dtype=np.uint8)
        self._datatypes: list[Any] = []

    def call(self, step: c.Step) -> NativeCall:
        name, args = self._lower(step)
        return NativeCall(name, self._address(name), tuple(args), checked=name != "memcpy")

    def _lower(self, step: c.Step) -> tuple[str, Sequence[Argument]]:
        status = self._statuses.ctypes.data
        match step:
            case c.Send(data, peer):
                return "MPI_Send", (*self._message(data), peer, 0, self._comm)
            case c.Recv(data, peer):
                return "MPI_Recv", (*self._message(data), peer, 0, self._comm, status)
            case c.Isend(data, peer, request):
                return "MPI_Isend", (*self._message(data), peer, 0, self._comm, self._request(request))
            case c.Irecv(data, peer, request):
                return "MPI_Irecv", (*self._message(data), peer, 0, self._comm, self._request(request))
            case c.WaitAll(requests):
                if requests != tuple(range(requests[0], requests[0] + len(requests))):
                    raise Unsupported("the native engine waits for neighbouring requests only")
                return "MPI_Waitall", (len(requests), self._request(requests[0]), status)
            case c.Barrier():
                return "MPI_Barrier", (self._comm,)
            case c.Copy(source, target):
                buffer = self._buffers[target.buffer]
                size = view_count(buffer, target) * buffer.dtype.itemsize
                return "memcpy", (self._address_of(target), self._address_of(source), size)
            case _:
                return self._lower_collective(step)

    def _lower_collective(self, step: c.Step) -> tuple[str, Sequence[Argument]]:
        match step:
            case c.AllReduce(send, recv, reduction):
                data, count, datatype = self._message(recv, reduced=True)
                source = int(self._mpi.IN_PLACE) if send == recv else self._address_of(send)
                return "MPI_Allreduce", (source, data, count, datatype, self._operation(reduction), self._comm)
            case _:
                raise Unsupported(f"the native MPI engine has no {type(step).__name__}")

    def _message(self, view: c.View, reduced: bool = False) -> tuple[Argument, int, int]:
        buffer = self._buffers[view.buffer]
        kind = typed(self._mpi, buffer.spec.dtype, view_count(buffer, view), reduced)
        self._datatypes.append(kind.datatype)  # a derived type lives as long as its handle is used
        return self._address_of(view), kind.count, handle(self._mpi, kind.datatype)

    def _address_of(self, view: c.View) -> tuple[int, ...]:
        buffer = self._buffers[view.buffer]
        offset = view.offset * buffer.dtype.itemsize
        return tuple(buffer.address(view.slot, copy) + offset for copy in range(buffer.pool))

    def _operation(self, reduction: str) -> int:
        return handle(self._mpi, operation(self._mpi, reduction))

    def _request(self, index: int) -> int:
        return int(self._requests.ctypes.data) + index * self._request_bytes

    def _address(self, name: str) -> int:
        library = ctypes.CDLL(None) if name == "memcpy" else self._library
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def handle(mpi: Any, thing: Any) -> int:
    """The C handle of an mpi4py object: a pointer (Open MPI) or a signed int (MPICH)."""
    address = mpi._addressof(thing)
    kind = ctypes.c_int64 if mpi._sizeof(thing) == 8 else ctypes.c_int32
    return int(kind.from_address(address).value)


def loaded_library() -> ctypes.CDLL:
    """The libmpi in this process: mpi4py loads it privately, so its symbols are found by its path."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = sorted({line.split()[-1] for line in lines if re.search(r"/libmpi(ch|_cray)?\.so", line)})
    for path in paths:
        library = ctypes.CDLL(path)
        if hasattr(library, "MPI_Send"):
            return library
    raise CommbenchError("no loaded MPI library has MPI_Send; use engine=python")
