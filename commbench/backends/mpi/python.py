"""Steps as calls of mpi4py's communicator methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from commbench.backends.support import check_form
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

from .datatypes import INT_MAX, UNSUPPORTED_FORMS, operation, passes_in_place, typed


class PythonLowering:
    """Raises Unsupported for what MPI does not have. `limit` is the largest count that one call takes."""

    def __init__(self, mpi: Any, communicator: Any, buffers: Mapping[str, Any], limit: int = INT_MAX) -> None:
        self._mpi, self._comm, self._buffers, self._limit = mpi, communicator, buffers, limit
        self._messages: dict[tuple[View, int, str | None], Rotating] = {}

    def call(self, step: Step) -> Call:
        comm = self._comm
        match step:
            case Send(data, peer):
                return Call(comm.Send, (self._message(data), peer, 0))
            case Recv(data, peer):
                return Call(comm.Recv, (self._message(data), peer, 0))
            case Isend(data, peer, request):
                return Call(comm.Isend, (self._message(data), peer, 0), into=request)
            case Irecv(data, peer, request):
                return Call(comm.Irecv, (self._message(data), peer, 0), into=request)
            case WaitAll(requests):
                return Call(self._mpi.Request.Waitall, requests=requests)
            case Copy(source, target):
                return Call(np.copyto, (self._elements(target), self._elements(source)))
            case _:
                return self._collective(step)

    def _collective(self, step: Step) -> Call:
        check_form(UNSUPPORTED_FORMS, step)
        comm = self._comm
        match step:
            case Barrier():
                return Call(comm.Barrier)
            case Broadcast(data, root):
                return Call(comm.Bcast, (self._message(data), root))
            case AllGather(send, recv):
                return Call(comm.Allgather, (self._unless_in_place(step, send), self._message(recv, comm.size)))
            case Gather(send, recv, root):
                gathered = self._message(recv, comm.size) if comm.rank == root else None
                return Call(comm.Gather, (self._unless_in_place(step, send), gathered, root))
            case Scatter(send, recv, root):
                scattered = self._message(send, comm.size) if comm.rank == root else None
                return Call(comm.Scatter, (scattered, self._unless_in_place(step, recv), root))
            case AllToAll(send, recv):
                messages = self._unless_in_place(step, send, comm.size), self._message(recv, comm.size)
                return Call(comm.Alltoall, messages)
            case _:
                return self._reduction(step)

    def _reduction(self, step: Step) -> Call:
        comm = self._comm
        match step:
            case AllReduce(send, recv, reduction):
                messages = self._unless_in_place(step, send, 1, reduction), self._message(recv, 1, reduction)
                return Call(comm.Allreduce, (*messages, operation(self._mpi, reduction)))
            case Reduce(send, recv, reduction, root):
                source = self._unless_in_place(step, send, 1, reduction)
                target = self._message(recv, 1, reduction) if comm.rank == root else None
                return Call(comm.Reduce, (source, target, operation(self._mpi, reduction), root))
            case ReduceScatter(send, recv, reduction):
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
