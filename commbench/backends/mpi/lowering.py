"""Steps as calls of MPI: of mpi4py's communicator methods, and of the C functions below them for the native engine.

Both agree on what MPI accepts: datatypes and counts, also beyond the int of MPI-3's calls, and reductions.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from commbench.buffers.memory import HostBuffer
from commbench.core import program as steps
from commbench.core.errors import CommbenchError, Unsupported
from commbench.core.payload import dtype
from commbench.core.program import Program, Step, View
from commbench.engines.lowered import Call, NativeCall, Rotating, UnsupportedForms, check_form, in_place

INT_MAX = 2**31 - 1
MPI_NAMES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "int64": "INT64_T",
    "int32": "INT32_T",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
}
REDUCTIONS = ("sum", "prod", "min", "max")
UNSUPPORTED_FORMS: UnsupportedForms = {
    ("reduce_scatter", True): "MPI leaves an in-place result at the front of the buffer, not in the rank's own block",
}
Argument = int | tuple[int, ...]
Message = tuple[Argument, int, int]
CCall = tuple[str, Sequence[Argument]]
NULL = 0


@dataclass(frozen=True)
class TypedCount:
    count: int
    datatype: Any


def typed(mpi: Any, dtype_name: str, count: int, reduction: str | None, limit: int = INT_MAX) -> TypedCount:
    """`count` elements as a count and an MPI datatype; a contiguous type where the count exceeds `limit`.

    16-bit floats have no MPI type and travel as UINT16_T. Raises Unsupported for what MPI can't reduce.
    """
    problem = None if reduction is None else reduction_problem(dtype_name, reduction, count, limit)
    if problem is not None:
        raise Unsupported(problem)
    datatype = getattr(mpi, MPI_NAMES.get(dtype_name, "UINT16_T"))
    if count <= limit:
        return TypedCount(count, datatype)
    return TypedCount(1, _contiguous(mpi, datatype, count, dtype(dtype_name).itemsize, limit))


def reduction_problem(dtype_name: str, reduction: str, count: int, limit: int = INT_MAX) -> str | None:
    """Why MPI can't reduce that; None if it can."""
    if dtype_name not in MPI_NAMES:
        return f"MPI cannot reduce {dtype_name}"
    if reduction not in REDUCTIONS:
        return f"MPI has no reduction {reduction}"
    if count > limit:
        return f"{count} elements are more than the 2^31-1 of a reduction without large-count calls"
    return None


def operation(mpi: Any, reduction: str) -> Any:
    """MPI.SUM for "sum"; `typed` has refused what is not in REDUCTIONS."""
    return getattr(mpi, reduction.upper())


def passes_in_place(step: Step, rank: int) -> bool:
    """Whether this rank passes MPI_IN_PLACE: in an operation with a root, only the root does."""
    return in_place(step) and getattr(step, "root", rank) == rank


def _contiguous(mpi: Any, datatype: Any, count: int, itemsize: int, limit: int) -> Any:
    """A type that holds `count` old ones: whole chunks and a rest, with both counts at or below the limit."""
    chunk = datatype.Create_contiguous(limit)
    chunks, rest = divmod(count, limit)
    body = chunk.Create_contiguous(chunks)
    if not rest:
        return body.Commit()
    return mpi.Datatype.Create_struct([1, rest], [0, chunks * limit * itemsize], [body, datatype]).Commit()


class PythonLowering:
    """Raises Unsupported for what MPI does not have. `limit` is the largest count that one call takes."""

    def __init__(self, mpi: Any, communicator: Any, buffers: Mapping[str, Any], limit: int = INT_MAX) -> None:
        self._mpi, self._comm, self._buffers, self._limit = mpi, communicator, buffers, limit
        self._messages: dict[tuple[View, int, str | None], Rotating] = {}

    def call(self, step: Step) -> Call:
        comm = self._comm
        match step:
            case steps.Send(data, peer):
                return Call(comm.Send, (self._message(data), peer, 0))
            case steps.Recv(data, peer):
                return Call(comm.Recv, (self._message(data), peer, 0))
            case steps.Isend(data, peer, request):
                return Call(comm.Isend, (self._message(data), peer, 0), into=request)
            case steps.Irecv(data, peer, request):
                return Call(comm.Irecv, (self._message(data), peer, 0), into=request)
            case steps.WaitAll(requests):
                return Call(self._mpi.Request.Waitall, requests=requests)
            case steps.Copy(source, target):
                return Call(np.copyto, (self._elements(target), self._elements(source)))
            case _:
                return self._collective(step)

    def _collective(self, step: Step) -> Call:
        check_form(UNSUPPORTED_FORMS, step)
        comm = self._comm
        match step:
            case steps.Barrier():
                return Call(comm.Barrier)
            case steps.Broadcast(data, root):
                return Call(comm.Bcast, (self._message(data), root))
            case steps.AllGather(send, recv):
                return Call(comm.Allgather, (self._unless_in_place(step, send), self._message(recv, comm.size)))
            case steps.Gather(send, recv, root):
                gathered = self._message(recv, comm.size) if comm.rank == root else None
                return Call(comm.Gather, (self._unless_in_place(step, send), gathered, root))
            case steps.Scatter(send, recv, root):
                scattered = self._message(send, comm.size) if comm.rank == root else None
                return Call(comm.Scatter, (scattered, self._unless_in_place(step, recv), root))
            case steps.AllToAll(send, recv):
                messages = self._unless_in_place(step, send, comm.size), self._message(recv, comm.size)
                return Call(comm.Alltoall, messages)
            case _:
                return self._reduction(step)

    def _reduction(self, step: Step) -> Call:
        comm = self._comm
        match step:
            case steps.AllReduce(send, recv, reduction):
                messages = self._unless_in_place(step, send, 1, reduction), self._message(recv, 1, reduction)
                return Call(comm.Allreduce, (*messages, operation(self._mpi, reduction)))
            case steps.Reduce(send, recv, reduction, root):
                source = self._unless_in_place(step, send, 1, reduction)
                target = self._message(recv, 1, reduction) if comm.rank == root else None
                return Call(comm.Reduce, (source, target, operation(self._mpi, reduction), root))
            case steps.ReduceScatter(send, recv, reduction):
                messages = self._message(send, comm.size, reduction), self._message(recv, 1, reduction)
                return Call(comm.Reduce_scatter_block, (*messages, operation(self._mpi, reduction)))
            case _:
                raise Unsupported(f"mpi4py has no {type(step).__name__}")

    def _message(self, view: View, blocks: int = 1, reduction: str | None = None) -> Rotating:
        """[memory, count of one block, datatype], made once: mpi4py then has nothing to infer."""
        key = (view, blocks, reduction)
        if key not in self._messages:
            buffer = self._buffers[view.buffer]
            kind = typed(self._mpi, buffer.spec.dtype, view.count_in(buffer.spec) // blocks, reduction, self._limit)
            copies = self._memory(view).values
            self._messages[key] = Rotating(tuple([memory, kind.count, kind.datatype] for memory in copies))
        return self._messages[key]

    def _unless_in_place(self, step: Step, view: View, blocks: int = 1, reduction: str | None = None) -> Any:
        if passes_in_place(step, self._comm.rank):
            return self._mpi.IN_PLACE
        return self._message(view, blocks, reduction)

    def _memory(self, view: View) -> Rotating:
        """What mpi4py takes the address of: numpy arrays, for buffers in host memory."""
        return self._elements(view)

    def _elements(self, view: View) -> Rotating:
        buffer = self._buffers[view.buffer]
        return Rotating(tuple(buffer.words(view.slot, copy)[view.elements] for copy in range(buffer.pool)))


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
        posted = (step for step in program.steps if isinstance(step, steps.Isend | steps.Irecv))
        pending = max((step.request + 1 for step in posted), default=1)
        self._request_bytes: int = mpi._sizeof(mpi.Request)
        self._requests = np.zeros(pending * self._request_bytes, dtype=np.uint8)
        # real statuses everywhere: nothing reads them, but MPICH refuses a null one
        self._statuses = np.zeros(pending * mpi._sizeof(mpi.Status), dtype=np.uint8)
        self._datatypes: list[Any] = []

    def call(self, step: Step) -> NativeCall:
        name, args = self._lower(step)
        function = getattr(ctypes.CDLL(None) if name == "memcpy" else self._library, name)
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        return NativeCall(name, address, tuple(args), checked=name != "memcpy")

    def _lower(self, step: Step) -> CCall:
        status = self._statuses.ctypes.data
        match step:
            case steps.Send(data, peer):
                return "MPI_Send", (*self._message(data), peer, 0, self._comm)
            case steps.Recv(data, peer):
                return "MPI_Recv", (*self._message(data), peer, 0, self._comm, status)
            case steps.Isend(data, peer, request):
                return "MPI_Isend", (*self._message(data), peer, 0, self._comm, self._request(request))
            case steps.Irecv(data, peer, request):
                return "MPI_Irecv", (*self._message(data), peer, 0, self._comm, self._request(request))
            case steps.WaitAll(requests):
                if requests != tuple(range(requests[0], requests[0] + len(requests))):
                    raise Unsupported("the native engine can only wait for consecutive requests")
                return "MPI_Waitall", (len(requests), self._request(requests[0]), status)
            case steps.Copy(source, target):
                buffer = self._buffers[target.buffer]
                size = target.count_in(buffer.spec) * buffer.dtype.itemsize
                return "memcpy", (self._address_of(target), self._address_of(source), size)
            case _:
                return self._collective(step)

    def _collective(self, step: Step) -> CCall:
        check_form(UNSUPPORTED_FORMS, step)
        match step:
            case steps.Barrier():
                return "MPI_Barrier", (self._comm,)
            case steps.Broadcast(data, root):
                return "MPI_Bcast", (*self._message(data), root, self._comm)
            case steps.AllGather(send, recv):
                received = self._message(recv, self._size)
                return "MPI_Allgather", (*self._unless_in_place(step, send), *received, self._comm)
            case steps.Gather(send, recv, root):
                sent = self._unless_in_place(step, send)
                received = self._message(recv, self._size) if self._rank == root else self._null_message()
                return "MPI_Gather", (*sent, *received, root, self._comm)
            case steps.Scatter(send, recv, root):
                sent = self._message(send, self._size) if self._rank == root else self._null_message()
                return "MPI_Scatter", (*sent, *self._unless_in_place(step, recv), root, self._comm)
            case steps.AllToAll(send, recv):
                received = self._message(recv, self._size)
                return "MPI_Alltoall", (*self._unless_in_place(step, send, self._size), *received, self._comm)
            case _:
                return self._reduction(step)

    def _reduction(self, step: Step) -> CCall:
        match step:
            case steps.AllReduce(send, recv, reduction):
                source, *kind = self._unless_in_place(step, send, 1, reduction)
                return "MPI_Allreduce", (source, self._address_of(recv), *kind, self._operation(reduction), self._comm)
            case steps.Reduce(send, recv, reduction, root):
                source, *kind = self._unless_in_place(step, send, 1, reduction)
                target = self._address_of(recv) if self._rank == root else NULL
                return "MPI_Reduce", (source, target, *kind, self._operation(reduction), root, self._comm)
            case steps.ReduceScatter(send, recv, reduction):
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
