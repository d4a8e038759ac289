"""Communicators of MPI that are opened while the clock runs: MPI_Comm_dup, and MPI_Comm_split.

MPI_Init, which opens the first one, can run once in a process only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from commbench.core.opening import CloseCommunicator, FirstCall, OpenCommunicator, Opening
from commbench.core.program import Step
from commbench.engines.lowered import Call, NativeCall
from commbench.hardware.mpi_library import loaded_library

from .lowering import NativeLowering, handle


class MpiOpener:
    """See Opener: methods of mpi4py's communicator."""

    def __init__(self, communicator: Any) -> None:
        self._comm = communicator
        self._opened: Any = None

    def opening(self, step: Opening) -> Call:
        if not step.groups:
            return Call(self._open, (self._comm.Dup,))
        rank = self._comm.rank
        return Call(self._open, (self._comm.Split, step.colour(rank), rank))

    def _open(self, function: Callable[..., Any], *args: int) -> None:
        self._opened = function(*args)

    def first_call(self) -> None:
        self._opened.Barrier()

    def close(self) -> None:
        self._opened.Free()


class NativeOpening:
    """The same as C calls, beside the lowering of all other steps. The handle of the open
    communicator is in memory of its own, as MPI writes it there."""

    def __init__(self, mpi: Any, communicator: Any, lowering: NativeLowering) -> None:
        self._lowering = lowering
        self._library = loaded_library()
        self._comm = handle(mpi, communicator)
        self._rank = int(communicator.rank)
        self._opened = np.zeros(1, dtype=np.int64)  # MPICH's handles fill the first half

    def call(self, step: Step) -> NativeCall:
        where = int(self._opened.ctypes.data)
        match step:
            case OpenCommunicator(()):
                return self._c_call("MPI_Comm_dup", self._comm, where)
            case OpenCommunicator():
                colour = step.colour(self._rank)
                return self._c_call("MPI_Comm_split", self._comm, colour, self._rank, where)
            case FirstCall():
                return self._call_of_opened("MPI_Barrier")
            case CloseCommunicator():
                return self._c_call("MPI_Comm_free", where)
            case _:
                return self._lowering.call(step)

    def within(self, communicator: Any) -> NativeLowering:
        return self._lowering.within(communicator)

    def _c_call(self, name: str, *args: int) -> NativeCall:
        return NativeCall(name, self._address(name), args)

    def _call_of_opened(self, name: str) -> NativeCall:
        """A C function of the communicator that is open by then."""
        from commbench.engines.native import call_with_handle

        return call_with_handle(name, self._address(name), int(self._opened.ctypes.data))

    def _address(self, name: str) -> int:
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0
