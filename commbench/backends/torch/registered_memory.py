"""Buffers that torch registers with NCCL: ncclCommRegister, or windows for symmetric kernels.

A pool that has grown since it was registered is not registered again by torch 2.14
(pytorch/pytorch#192112), so a case allocates all its buffers first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from commbench.backends.nccl_library import newer_nccl_needed
from commbench.core.program import AllGather, AllReduce, Program, ReduceScatter
from commbench.core.variables import Case, Registration
from commbench.hardware.machine_facts import newer_torch_needed

TORCH_SINCE = (2, 9)  # register_mem_pool(pool, symm=...)
WINDOWS_SINCE = 22700  # ncclCommWindowRegister
# NCCL's symmetric kernels; their buffers are alike on all ranks, as a window's must be
SYMMETRIC = (AllGather, AllReduce, ReduceScatter)


def registration_refusal(case: Case, program: Program) -> str | None:
    """Why the case can't have its buffers registered; None if it can, or need not."""
    asked = case.registration
    if asked == "none":
        return None
    if program.groups:
        return f"registration={asked} is for one communicator, and {case.benchmark} uses several"
    if not program.buffers:
        return f"{case.benchmark} has no buffers to register; use registration=none"
    if asked == "symmetric" and program.operation not in SYMMETRIC:
        names = "all_gather, all_reduce, reduce_scatter"
        return f"NCCL has symmetric kernels for {names} only; use registration=local"
    what = f"registration={asked}"
    reason = newer_torch_needed(TORCH_SINCE, what)
    return reason or (newer_nccl_needed(WINDOWS_SINCE, what) if asked == "symmetric" else None)


class RegisteredMemory:
    """The buffers of one case, in a pool of NCCL's allocator. `backend` is torch's
    ProcessGroupNCCL."""

    def __init__(self, backend: Any, registration: Registration) -> None:
        self._backend = backend
        self._registration = registration
        self._pool: Any = None
        self._registered = False

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """What torch allocates in the block belongs to the pool."""
        import torch

        self._pool = torch.cuda.MemPool(self._backend.mem_allocator)
        with torch.cuda.use_mem_pool(self._pool):
            yield

    def register(self) -> None:
        """Once, by all ranks, when each has its buffers: windows are made together."""
        if self._registered:
            return
        self._registered = True
        if self._registration == "symmetric":
            self._backend.register_mem_pool(self._pool, symm=True)
        else:
            self._backend.register_mem_pool(self._pool)

    def release(self) -> None:
        """Before the pool goes: NCCL would keep addresses that others may get."""
        if self._registered:
            self._backend.deregister_mem_pool(self._pool)
        self._pool = None
