"""Steps as calls of MPI: of mpi4py's communicator methods, and of the C functions below them for
the native engine.

Both agree on what MPI accepts: datatypes and counts, also beyond the int of MPI-3's calls, and
reductions.

MPI has no streams. It reads and writes device memory when it is called, so all work on a buffer
must be complete by then (mpi4py's tutorial, CUDA-aware MPI + Python GPU arrays). Writes into
buffers are complete when they return (Allocation), and so are copies in a program; the engine waits
for the reset before a sample. What MPI returns is complete, so nothing waits after a call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import HostBuffer
from commbench.backends.torch.cuda import CudaDevice, view_tensors
from commbench.core import program as steps
from commbench.core.errors import Unsupported
from commbench.core.payload import dtype
from commbench.core.program import Operation, Program, Step, View
from commbench.core.units import INT_MAX
from commbench.core.variables import ReductionName
from commbench.engines.compute import compute_call
from commbench.engines.lowered import (
    Call,
    NativeCall,
    Rotating,
    UnsupportedForms,
    check_form,
    displacements,
    in_place,
)
from commbench.hardware.mpi_library import loaded_library

MPI_NAMES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "int64": "INT64_T",
    "int32": "INT32_T",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
}
MPI_REDUCTIONS = ("sum", "prod", "min", "max")
MPI_UNSUPPORTED: UnsupportedForms = {
    (
        steps.ReduceScatter,
        True,
    ): "MPI leaves an in-place result at the front of the buffer, not in the rank's own block",
    (steps.AllToAllV, True): "MPI's blocks in place must be as long in both directions",
}
Argument = int | tuple[int, ...]
NULL = 0
TAG = 0


@dataclass(frozen=True)
class Memory:
    """An argument: a view of `blocks` equal blocks, one per rank. `in_place`: MPI_IN_PLACE stands
    for it."""

    view: View
    blocks: int = 1
    reduction: ReductionName | None = None
    in_place: bool = False


@dataclass(frozen=True)
class CountedBlocks:
    """An argument: blocks of different length, one per rank, from the begin of a view on."""

    view: View
    counts: tuple[int, ...]

    @property
    def largest(self) -> int:
        """The largest of the numbers that MPI takes for them: a length, or where a block begins."""
        return max(*self.counts, *displacements(self.counts))


def alltoallv_name(library: Any, name: str, arguments: Sequence[Any], limit: int) -> str:
    """The C function of that name for these blocks: with 64-bit counts only if they need it. Raises
    Unsupported where the library has none."""
    if all(blocks.largest <= limit for blocks in arguments):
        return name
    if not hasattr(library, f"{name}_c"):
        raise Unsupported(
            f"this MPI library has no {name}_c, so a block must begin and end below {limit}"
            " elements"
        )
    return f"{name}_c"


def typed(
    mpi: Any, dtype_name: str, count: int, reduction: ReductionName | None, limit: int = INT_MAX
) -> tuple[int, Any]:
    """`count` elements as a count and an MPI datatype: one contiguous type where the count exceeds
    `limit`.

    Floats of 8 and 16 bits have no MPI type and travel as integers. Raises Unsupported for what MPI
    can't reduce.
    """
    problem = None if reduction is None else reduction_problem(dtype_name, reduction, count, limit)
    if problem is not None:
        raise Unsupported(problem)
    unsigned = f"UINT{8 * dtype(dtype_name).itemsize}_T"
    datatype = getattr(mpi, MPI_NAMES.get(dtype_name, unsigned))
    if count <= limit:
        return count, datatype
    # whole chunks and a rest, with both counts at or below the limit
    chunks, rest = divmod(count, limit)
    body = datatype.Create_contiguous(limit).Create_contiguous(chunks)
    if rest:
        offset = chunks * limit * dtype(dtype_name).itemsize
        body = mpi.Datatype.Create_struct([1, rest], [0, offset], [body, datatype])
    return 1, body.Commit()


def typed_memory(
    mpi: Any, memory: Memory, buffers: Mapping[str, Any], limit: int
) -> tuple[int, Any]:
    """The count of one block of that memory and its datatype; raises Unsupported as `typed`
    does."""
    spec = buffers[memory.view.buffer].spec
    return typed(
        mpi, spec.dtype, memory.view.count_in(spec) // memory.blocks, memory.reduction, limit
    )


def reduction_problem(
    dtype_name: str, reduction: ReductionName, count: int, limit: int = INT_MAX
) -> str | None:
    """Why MPI can't reduce that; None if it can."""
    if dtype_name not in MPI_NAMES:
        return f"MPI cannot reduce {dtype_name}"
    if reduction not in MPI_REDUCTIONS:
        return f"MPI has no reduction {reduction}"
    if count > limit:
        return f"{count} elements are more than the 2^31-1 of a reduction without large-count calls"
    return None


def operation(mpi: Any, reduction: str) -> Any:
    """MPI.SUM for "sum"; `typed` has refused what is not in MPI_REDUCTIONS."""
    return getattr(mpi, reduction.upper())


def mpi_call(step: Step, rank: int, size: int) -> tuple[str, tuple[Any, ...]]:
    """MPI's name of a message or collective, with I where it is only started, and its arguments up
    to the communicator: each is a Memory, CountedBlocks, None for memory that only the root has,
    the name of a reduction, or a rank or tag. Raises Unsupported for what MPI lacks.
    """
    name, arguments = _blocking_call(steps.operation_of(step), rank, size)
    return f"I{name.lower()}" if isinstance(step, steps.Start) else name, arguments


def _blocking_call(
    step: Operation | steps.Compute | steps.WaitAll, rank: int, size: int
) -> tuple[str, tuple[Any, ...]]:
    check_form(MPI_UNSUPPORTED, step)
    at_root = getattr(step, "root", rank) == rank
    # in an operation with a root, only the root passes MPI_IN_PLACE
    own = in_place(step) and at_root
    match step:
        case steps.Send() | steps.Recv():
            return type(step).__name__, (Memory(step.data), step.peer, TAG)
        case steps.Barrier():
            return "Barrier", ()
        case steps.Broadcast(data, root):
            return "Bcast", (Memory(data), root)
        case steps.AllGather(send, recv):
            return "Allgather", (Memory(send, in_place=own), Memory(recv, size))
        case steps.Gather(send, recv, root):
            return "Gather", (
                Memory(send, in_place=own),
                Memory(recv, size) if at_root else None,
                root,
            )
        case steps.Scatter(send, recv, root):
            return "Scatter", (
                Memory(send, size) if at_root else None,
                Memory(recv, in_place=own),
                root,
            )
        case steps.AllToAll(send, recv):
            return "Alltoall", (Memory(send, size, in_place=own), Memory(recv, size))
        case steps.AllToAllV(send, recv, send_counts, recv_counts):
            return "Alltoallv", (CountedBlocks(send, send_counts), CountedBlocks(recv, recv_counts))
        case steps.AllReduce(send, recv, name):
            return "Allreduce", (Memory(send, 1, name, own), Memory(recv, 1, name), name)
        case steps.Reduce(send, recv, name, root):
            return "Reduce", (
                Memory(send, 1, name, own),
                Memory(recv, 1, name) if at_root else None,
                name,
                root,
            )
        case steps.ReduceScatter(send, recv, name):
            return "Reduce_scatter_block", (Memory(send, size, name), Memory(recv, 1, name), name)
        case _:
            raise Unsupported(f"MPI has no {type(step).__name__}")


class PythonLowering:
    """Raises Unsupported for what MPI does not have. `limit` is the largest count that one call
    takes."""

    def __init__(
        self, mpi: Any, communicator: Any, buffers: Mapping[str, Any], limit: int = INT_MAX
    ) -> None:
        self._mpi = mpi
        self._comm = communicator
        self._buffers = buffers
        self._limit = limit
        self._messages: dict[Memory, Rotating] = {}

    def call(self, step: Step) -> Call:
        comm = self._comm
        match step:
            case steps.WaitAll(requests):
                return Call(self._mpi.Request.Waitall, requests=requests)
            case _ if isinstance(step, steps.Compute):
                return compute_call(step)
            case steps.Copy(source, target):
                return Call(np.copyto, (self._memory(target), self._memory(source)))
            case _:
                name, arguments = mpi_call(step, comm.rank, comm.size)
                if isinstance(steps.operation_of(step), steps.AllToAllV):
                    # mpi4py chooses by itself, but fails in the call where the library has none
                    alltoallv_name(loaded_library(), f"MPI_{name}", arguments, self._limit)
                args = tuple(map(self._argument, arguments))
                return Call(getattr(comm, name), args, into=getattr(step, "request", None))

    def within(self, communicator: Any) -> PythonLowering:
        inner = copy(self)
        inner._comm = communicator.comm
        return inner

    def _argument(self, value: Memory | CountedBlocks | str | int | None) -> Any:
        if isinstance(value, CountedBlocks):
            datatype = typed(self._mpi, self._buffers[value.view.buffer].spec.dtype, 0, None)[1]
            layout = (list(value.counts), displacements(value.counts))
            copies = self._memory(value.view).values
            return Rotating(tuple([copy, layout, datatype] for copy in copies))
        if isinstance(value, Memory):
            return self._mpi.IN_PLACE if value.in_place else self._message(value)
        return operation(self._mpi, value) if isinstance(value, str) else value

    def _message(self, memory: Memory) -> Rotating:
        """[memory, count of one block, datatype], made once: mpi4py then has nothing to infer."""
        if memory not in self._messages:
            kind = typed_memory(self._mpi, memory, self._buffers, self._limit)
            self._messages[memory] = Rotating(
                tuple([copy, *kind] for copy in self._memory(memory.view).values)
            )
        return self._messages[memory]

    def _memory(self, view: View) -> Rotating:
        """What mpi4py takes the address of: numpy arrays, for buffers in host memory."""
        buffer = self._buffers[view.buffer]
        return Rotating(
            tuple(buffer.words(view.slot, copy)[view.elements] for copy in range(buffer.pool))
        )


class CudaLowering(PythonLowering):
    """Messages by address, so that the same code serves host and device memory; copies are made by
    the GPU."""

    def __init__(
        self, mpi: Any, communicator: Any, buffers: Mapping[str, Any], gpu: CudaDevice
    ) -> None:
        super().__init__(mpi, communicator, buffers)
        self._gpu = gpu

    def call(self, step: Step) -> Call:
        if isinstance(step, steps.Copy):
            return Call(self._copy, (self._tensors(step.target), self._tensors(step.source)))
        return super().call(step)

    def _copy(self, target: Any, source: Any) -> None:
        """Complete when it returns."""
        target.copy_(source, non_blocking=True)
        self._gpu.synchronise()

    def _memory(self, view: View) -> Rotating:
        buffer = self._buffers[view.buffer]
        at = self._mpi.buffer.fromaddress
        return Rotating(
            tuple(at(address, buffer.size_bytes(view)) for address in buffer.addresses(view))
        )

    def _tensors(self, view: View) -> Rotating:
        return view_tensors(self._buffers[view.buffer], view)


def handle(mpi: Any, mpi_object: Any) -> int:
    """The C handle of an mpi4py object: a pointer (Open MPI) or a signed int (MPICH)."""
    address = mpi._addressof(mpi_object)
    kind = ctypes.c_int64 if mpi._sizeof(mpi_object) == 8 else ctypes.c_int32
    return int(kind.from_address(address).value)


@dataclass(frozen=True, eq=False)
class NumberedBlocks:
    """Blocks of a view, with their lengths and begins [2, ranks] as C integers."""

    view: View
    numbers: NDArray[Any]


class NativeLowering:
    """Requests and statuses are in arrays with the strides of the loaded library (MPICH's handles
    have 4 bytes).

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
        self._mpi = mpi
        self._buffers = buffers
        self._limit = limit
        self._library = loaded_library()
        self._comm = handle(mpi, communicator)
        self._rank = communicator.rank
        self._size = communicator.size
        posted = (step for step in program.from_lead if isinstance(step, steps.Start))
        pending = max((step.request + 1 for step in posted), default=1)
        self._request_bytes: int = mpi._sizeof(mpi.Request)
        self._requests = np.zeros(pending * self._request_bytes, dtype=np.uint8)
        # real statuses everywhere: nothing reads them, but MPICH refuses a null one
        self._statuses = np.zeros(pending * mpi._sizeof(mpi.Status), dtype=np.uint8)
        self._datatypes: list[Any] = []
        self._numbers: list[Any] = []  # memory that lives as long as the calls that use it

    def call(self, step: Step) -> NativeCall:
        from commbench.engines.native import native_compute

        args: Sequence[Argument]
        status = self._statuses.ctypes.data
        match step:
            case steps.WaitAll(requests):
                if requests != tuple(range(requests[0], requests[0] + len(requests))):
                    raise Unsupported("the native engine can only wait for consecutive requests")
                name = "MPI_Waitall"
                args = (len(requests), self._request(requests[0]), status)
            case _ if isinstance(step, steps.Compute):
                call, memory = native_compute(step)
                self._numbers.append(memory)
                return call
            case steps.Copy(source, target):
                size = self._buffers[target.buffer].size_bytes(target)
                name = "memcpy"
                args = (self._addresses(target), self._addresses(source), size)
            case _:
                mpi_name, arguments = mpi_call(step, self._rank, self._size)
                written = (status,) if isinstance(step, steps.Recv) else ()
                if isinstance(step, steps.Start):
                    written = (self._request(step.request),)
                name = f"MPI_{mpi_name}"
                if isinstance(steps.operation_of(step), steps.AllToAllV):
                    name = alltoallv_name(self._library, name, arguments, self._limit)
                    arguments = tuple(self._numbered(name, blocks) for blocks in arguments)
                args = (*self._c_arguments(arguments), self._comm, *written)
        function = getattr(ctypes.CDLL(None) if name == "memcpy" else self._library, name)
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        return NativeCall(name, address, tuple(args), checked=name != "memcpy")

    def within(self, communicator: Any) -> NativeLowering:
        """With the same requests: a wait is for those of all groups."""
        inner = copy(self)
        inner._comm = handle(self._mpi, communicator.comm)
        inner._rank = communicator.comm.rank
        inner._size = communicator.comm.size
        return inner

    def _c_arguments(self, arguments: Sequence[Any]) -> list[Argument]:
        match arguments:
            # a reduction has one count and datatype for both
            case (Memory() as source, target, str(name), *root):
                address, *kind = self._message(source)
                target_addresses = NULL if target is None else self._addresses(target.view)
                return [
                    address,
                    target_addresses,
                    *kind,
                    handle(self._mpi, operation(self._mpi, name)),
                    *root,
                ]
            case (*others, int(number)):
                return [*self._c_arguments(others), number]
            case _:
                return [value for message in arguments for value in self._message(message)]

    def _numbered(self, name: str, blocks: CountedBlocks) -> NumberedBlocks:
        """The blocks with their numbers as that function takes them."""
        kind = np.int64 if name.endswith("_c") else np.int32
        numbers = np.array([blocks.counts, displacements(blocks.counts)], dtype=kind)
        self._numbers.append(numbers)
        return NumberedBlocks(blocks.view, numbers)

    def _message(self, memory: Memory | NumberedBlocks | None) -> Sequence[Argument]:
        """Address, count per block and datatype; of blocks addresses of their counts and begins."""
        if isinstance(memory, NumberedBlocks):
            datatype = typed(self._mpi, self._buffers[memory.view.buffer].spec.dtype, 0, None)[1]
            numbers = (int(row.ctypes.data) for row in memory.numbers)
            return self._addresses(memory.view), *numbers, handle(self._mpi, datatype)
        if memory is None:
            return NULL, 0, handle(self._mpi, self._mpi.BYTE)
        count, datatype = typed_memory(self._mpi, memory, self._buffers, self._limit)
        self._datatypes.append(datatype)  # a derived type lives as long as its handle is used
        address = int(self._mpi.IN_PLACE) if memory.in_place else self._addresses(memory.view)
        return address, count, handle(self._mpi, datatype)

    def _addresses(self, view: View) -> tuple[int, ...]:
        return self._buffers[view.buffer].addresses(view)

    def _request(self, index: int) -> int:
        return int(self._requests.ctypes.data) + index * self._request_bytes
