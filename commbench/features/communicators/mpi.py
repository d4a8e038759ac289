"""Communicators of MPI that are opened while the clock runs: MPI_Comm_dup, and MPI_Comm_split.

MPI_Init, which opens the first one, can run once in a process only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from commbench.backends.mpi.backend import MpiCommunicator
from commbench.backends.mpi.lowering import handle
from commbench.core.program import Group
from commbench.engines.lowered import Call, NativeCall
from commbench.hardware.mpi_library import loaded_library


class MpiOpener:
    """See Opener: methods of mpi4py's communicator."""

    def __init__(self, communicator: MpiCommunicator) -> None:
        self._comm = communicator.comm
        self._opened: Any = None

    def open(self, groups: Sequence[Group], colour: int | None) -> Call:
        if colour is None:
            return Call(self._open, (self._comm.Dup,))
        return Call(self._open, (self._comm.Split, colour, self._comm.rank))

    def _open(self, function: Callable[..., Any], *args: int) -> None:
        self._opened = function(*args)

    def first_call(self, members: Group) -> Call:
        return Call(lambda: self._opened.Barrier())

    def close(self, members: Group) -> Call:
        return Call(lambda: self._opened.Free())


class NativeMpiOpener:
    """The same as C calls. The handle of the open communicator is in memory of its own, as MPI
    writes it there."""

    def __init__(self, communicator: MpiCommunicator) -> None:
        self._library = loaded_library()
        self._comm = handle(communicator.mpi, communicator.comm)
        self._rank = int(communicator.comm.rank)
        self._opened = np.zeros(1, dtype=np.int64)  # MPICH's handles fill the first half
        self._where = int(self._opened.ctypes.data)

    def open(self, groups: Sequence[Group], colour: int | None) -> NativeCall:
        if colour is None:
            return self._call("MPI_Comm_dup", self._comm, self._where)
        return self._call("MPI_Comm_split", self._comm, colour, self._rank, self._where)

    def first_call(self, members: Group) -> NativeCall:
        from commbench.engines.native import call_with_handle

        return call_with_handle("MPI_Barrier", self._address("MPI_Barrier"), self._where)

    def close(self, members: Group) -> NativeCall:
        return self._call("MPI_Comm_free", self._where)

    def _call(self, name: str, *args: int) -> NativeCall:
        return NativeCall(name, self._address(name), args)

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0
