"""Communicators of NCCL that CuPy opens while the clock runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commbench.core.errors import Unsupported
from commbench.core.opening import Opening
from commbench.engines.lowered import Call

NO_SPLIT = "CuPy has no ncclCommSplit; use backend=nccl"


class CupyOpener:
    """See Opener. `connect` makes a communicator of all ranks of the case, with an id that goes
    through commbench's store; `barrier` enqueues one on it."""

    def __init__(
        self,
        connect: Callable[[], Any],
        barrier: Callable[[Any], None],
        synchronise: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._barrier = barrier
        self._synchronise = synchronise
        self._opened: Any = None

    def opening(self, step: Opening) -> Call:
        if step.groups:
            raise Unsupported(NO_SPLIT)
        return Call(self._open)

    def _open(self) -> None:
        self._opened = self._connect()

    def first_call(self) -> None:
        self._barrier(self._opened)

    def close(self) -> None:
        self._synchronise()  # the first call may still run
        self._opened.destroy()
        self._opened = None
