"""The C side of a comparison: reference.c, called with the addresses of the buffers that the
engines use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import HostBuffer
from commbench.backends.mpi.lowering import handle, operation, typed
from commbench.core.case import Planned

Addresses = ctypes.POINTER(ctypes.c_void_p)
WORDS = ("request_bytes", "type", "ack_type", "operation", "comm")
NUMBERS = ("count", "slots", "pool", "peer", "first")


class Job(ctypes.Structure):
    """struct job of reference.c."""

    _fields_ = (
        *((name, Addresses) for name in ("send", "recv", "ack")),
        *((name, ctypes.c_void_p) for name in ("requests", "statuses")),
        *((name, ctypes.c_ssize_t) for name in WORDS),
        *((name, ctypes.c_int) for name in NUMBERS),
    )


class Reference:
    """The compiled loops of all benchmarks, for one communicator of two ranks."""

    def __init__(self, path: str, mpi: Any, comm: Any) -> None:
        self._library = ctypes.CDLL(path)
        self._mpi = mpi
        self._comm = comm

    def side(
        self, planned: Planned, held: Mapping[str, HostBuffer]
    ) -> Callable[[int], NDArray[np.int64]]:
        """Runs n repetitions; stamps [1, n, 2] in ns as commbench's runners return them."""
        function = getattr(self._library, planned.case.benchmark)
        slots = planned.case.window or 1
        requests = np.zeros(slots * self._mpi._sizeof(self._mpi.Request), dtype=np.uint8)
        statuses = np.zeros(slots * self._mpi._sizeof(self._mpi.Status), dtype=np.uint8)
        job = self._job(planned, held, slots)
        job.requests = requests.ctypes.data
        job.statuses = statuses.ctypes.data

        def run(n: int, keep: object = (requests, statuses, held)) -> NDArray[np.int64]:
            stamps = np.zeros((1, n, 2), dtype=np.int64)
            code = function(ctypes.byref(job), n, ctypes.c_void_p(stamps.ctypes.data))
            assert code == 0, f"the C loop of {planned.case} returned {code}"
            return stamps

        return run

    def _job(self, planned: Planned, held: Mapping[str, HostBuffer], slots: int) -> Job:
        mpi = self._mpi
        case = planned.case
        rank = self._comm.rank
        count, datatype = typed(mpi, case.dtype, case.elements, case.reduction)
        return Job(
            send=_addresses(held, slots, "send", "source"),
            recv=_addresses(held, slots, "recv", "data"),
            ack=_addresses(held, 1, "ack"),
            request_bytes=mpi._sizeof(mpi.Request),
            type=handle(mpi, datatype),
            ack_type=handle(mpi, mpi.UINT8_T),
            operation=handle(mpi, operation(mpi, case.reduction or "sum")),
            comm=handle(mpi, self._comm),
            count=count,
            slots=slots,
            pool=planned.pool,
            peer=1 - rank,
            first=int(rank == 0),
        )


def _addresses(held: Mapping[str, HostBuffer], slots: int, *names: str) -> Any:
    """[pool][slots] addresses of the first of these buffers that exists; null if this rank has
    none.

    Where messages share one buffer, its address is there for each of them.
    """
    buffer = next((held[name] for name in names if name in held), None)
    if buffer is None:
        return None
    own = buffer.spec.slots
    words = [
        buffer.address(slot % own, copy) for copy in range(buffer.pool) for slot in range(slots)
    ]
    return ctypes.cast((ctypes.c_void_p * len(words))(*words), Addresses)
