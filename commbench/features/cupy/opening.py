"""Communicators of NCCL that CuPy opens while the clock runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commbench.backends.opening import Opening
from commbench.core.program import Group
from commbench.engines.lowered import Call

from .backend import CupyCommunicator, CupyNccl


class CupyOpener:
    """See Opener. The id of a communicator goes through commbench's store."""

    def __init__(self, communicator: CupyCommunicator) -> None:
        self._connect = communicator.connect
        self._device = communicator.device
        self._nccl = communicator.nccl
        self._element = communicator.barrier_memory.address
        self._opened: Any = None

    def open(self, groups: Sequence[Group], colour: int | None) -> Call:
        return Call(self._open)

    def _open(self) -> None:
        self._opened = self._connect()

    def first_call(self, members: Group) -> Call:
        return Call(self._reduce)

    def _reduce(self) -> None:
        element = self._element, self._element, 1, self._nccl.NCCL_INT8
        self._opened.allReduce(*element, self._nccl.NCCL_SUM, self._device.pointer)

    def close(self, members: Group) -> Call:
        return Call(self._close)

    def _close(self) -> None:
        self._device.synchronise()  # the first call may still run
        self._opened.destroy()
        self._opened = None


OPENING = Opening(
    CupyNccl,
    CupyCommunicator,
    CupyOpener,
    no_split="CuPy has no ncclCommSplit; use backend=nccl",
)
