"""Programs that send GPU memory through host memory, and the page-locked buffers they use there.

Every buffer that a message reads or writes gets a staging buffer in host memory. Data is copied
down before the step that sends it, and up after the step that received it, or after the wait for
it. The copies are steps like any others, so they are timed.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from commbench.core import program as steps
from commbench.core.errors import Unsupported
from commbench.core.program import PINNED, BufferSpec, Program, Step, View
from commbench.core.protocols import Buffer
from commbench.core.units import about_bytes
from commbench.hardware.sources import mapped_files

from .memory import HostBuffer, rotation_pool

SUFFIX = "@host"  # of the name of a staging buffer


def staged_program(program: Program, rank: int) -> Program:
    """The program of that rank with all messages in host memory.

    `reset` stays on the device. Staging buffers follow the buffers of the program, under their
    names with @host.
    """
    parts: dict[str, list[Step]] = {"lead": [], "steps": [], "after": []}
    pending: dict[int, tuple[View, ...]] = {}  # request -> what it receives
    for staged, step in ((parts[name], step) for name in parts for step in getattr(program, name)):
        operation = steps.operation_of(step)
        group = steps.group_of(step)
        own_rank = rank if group is None else group.index(rank)
        sent, received = _sent_and_received(operation, own_rank)
        staged += [steps.Copy(view, _staging_view(view)) for view in sent]
        changes: dict[str, Any] = {
            name: _staging_view(view) for name, view in _views(operation).items()
        }
        if isinstance(operation, steps.WaitAll):
            staged.append(operation)
            received = tuple(
                view for request in operation.requests for view in pending.pop(request, ())
            )
        elif isinstance(operation, steps.Copy | steps.Compute):
            staged.append(step)
        else:
            staged.append(steps.with_operation(step, replace(operation, **changes)))
        if isinstance(step, steps.Start):
            pending[step.request] = received
            continue
        staged += [steps.Copy(_staging_view(view), view) for view in received]
    operations = map(steps.operation_of, chain.from_iterable(parts.values()))
    used = {view.buffer for step in operations for view in _views(step).values()}
    twins = (replace(spec, name=spec.name + SUFFIX, memory=PINNED) for spec in program.buffers)
    buffers = (*program.buffers, *(spec for spec in twins if spec.name in used))
    staged_parts: dict[str, Any] = {name: tuple(staged) for name, staged in parts.items()}
    return replace(program, buffers=buffers, **staged_parts)


def with_staging(
    program: Program,
    rank: int,
    buffers: Mapping[str, Any],
    allocate: Callable[[BufferSpec, int], Buffer],
) -> tuple[Program, dict[str, Any]]:
    """The staged program and all its buffers, with new staging buffers. Raises Unsupported without
    memory for them."""
    program = staged_program(program, rank)
    pool = rotation_pool(buffers)
    try:
        staging = {
            spec.name: allocate(spec, pool)
            for spec in program.buffers
            if spec.name.endswith(SUFFIX)
        }
    except MemoryError as error:
        raise Unsupported(
            f"staging=pinned needs as much host memory as the buffers on the GPU: {error}"
        ) from error
    return program, {**buffers, **staging}


def _sent_and_received(step: Step, rank: int) -> tuple[tuple[View, ...], tuple[View, ...]]:
    """The views that a rank sends from and receives into; what only the root uses is included on
    the root only."""
    match step:
        case steps.Send(data, _):
            return (data,), ()
        case steps.Recv(data, _):
            return (), (data,)
        case steps.Broadcast(data, root):
            return ((data,), ()) if rank == root else ((), (data,))
        case steps.Reduce(send, recv, _, root) | steps.Gather(send, recv, root):
            return (send,), (recv,) if rank == root else ()
        case steps.Scatter(send, recv, root):
            return (send,) if rank == root else (), (recv,)
        case steps.AllReduce() | steps.ReduceScatter() | steps.AllGather():
            return (step.send,), (step.recv,)
        case steps.AllToAll() | steps.AllToAllV():
            return (step.send,), (step.recv,)
    return (), ()


def _views(step: Step) -> dict[str, View]:
    return {name: value for name, value in vars(step).items() if isinstance(value, View)}


def _staging_view(view: View) -> View:
    return replace(view, buffer=view.buffer + SUFFIX)


class CudaPageLock:
    """Page-locks host memory for the current GPU, through the CUDA runtime that torch has
    loaded."""

    def __init__(self) -> None:
        import torch

        cuda: Any = torch.cuda
        self._runtime = cuda.cudart()

    def lock(self, address: int, size: int) -> None:
        """Raises MemoryError where the system or the driver refuses."""
        status = self._runtime.cudaHostRegister(address, size, 0)
        if status != self._runtime.cudaError.success:
            # CUDA keeps the last error, and torch would raise it at the next kernel launch: read
            # it, which clears it
            for library in mapped_files(("libcudart.so",)):
                ctypes.CDLL(library).cudaGetLastError()
            raise MemoryError(
                f"CUDA can't lock {about_bytes(size)} of host memory: {status}; see ulimit -l"
            )

    def unlock(self, address: int) -> None:
        self._runtime.cudaHostUnregister(address)


class PinnedBuffer(HostBuffer):
    """See Buffer. Its pages are locked while it exists. Raises MemoryError."""

    def __init__(self, spec: BufferSpec, pool: int, pages: CudaPageLock) -> None:
        super().__init__(spec, pool)
        address = self.address()
        pages.lock(address, self._bytes.nbytes)
        # the finalizer refers to the memory, so that it is unlocked before it is freed
        finalizer = weakref.finalize(self, lambda memory: pages.unlock(address), self._bytes)
        # the driver may be unloaded by then, and its locks are gone with it
        finalizer.atexit = False
