"""Steps as calls of mpi4py's communicator methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from commbench import contracts as c
from commbench.backends.mpi_types import typed
from commbench.engines.loop import Call, Rotating
from commbench.errors import Unsupported
from commbench.memory import HostBuffer


class PythonLowering:
    def __init__(self, mpi: Any, communicator: Any, buffers: Mapping[str, HostBuffer]) -> None:
        self._mpi, self._comm, self._buffers = mpi, communicator, buffers
        self._messages: dict[tuple[c.View, bool], Rotating] = {}

    def call(self, step: c.Step) -> Call:
        comm, mpi = self._comm, self._mpi
        match step:
            case c.Send(data, peer):
                return Call(comm.Send, (self._message(data), peer, 0))
            case c.Recv(data, peer):
                return Call(comm.Recv, (self._message(data), peer, 0))
            case c.Isend(data, peer, request):
                return Call(comm.Isend, (self._message(data), peer, 0), into=request)
            case c.Irecv(data, peer, request):
                return Call(comm.Irecv, (self._message(data), peer, 0), into=request)
            case c.WaitAll(requests):
                return Call(mpi.Request.Waitall, requests=requests)
            case c.Barrier():
                return Call(comm.Barrier)
            case c.AllReduce(send, recv, reduction):
                source = mpi.IN_PLACE if send == recv else self._message(send, reduced=True)
                return Call(comm.Allreduce, (source, self._message(recv, reduced=True), operation(mpi, reduction)))
            case c.Copy(source, target):
                return Call(np.copyto, (self._words(target), self._words(source)))
            case _:
                raise Unsupported(f"mpi4py has no {type(step).__name__}")

    def _message(self, view: c.View, reduced: bool = False) -> Rotating:
        """[array, count, datatype], built once: mpi4py then has nothing to infer."""
        key = (view, reduced)
        if key not in self._messages:
            buffer = self._buffers[view.buffer]
            kind = typed(self._mpi, buffer.spec.dtype, view_count(buffer, view), reduced)
            arrays = self._words(view).values
            self._messages[key] = Rotating(tuple([array, kind.count, kind.datatype] for array in arrays))
        return self._messages[key]

    def _words(self, view: c.View) -> Rotating:
        buffer = self._buffers[view.buffer]
        stop = None if view.count is None else view.offset + view.count
        return Rotating(tuple(buffer.words(view.slot, copy)[view.offset : stop] for copy in range(buffer.pool)))


def view_count(buffer: HostBuffer, view: c.View) -> int:
    return buffer.spec.count - view.offset if view.count is None else view.count


def operation(mpi: Any, reduction: str) -> Any:
    return getattr(mpi, reduction.upper())
