"""Host memory that a GPU reads and writes itself, and the buffers of staged programs in it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from commbench.core.errors import Unsupported
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Buffer

from .host import HostBuffer
from .staging import staged, twins


class PageLock(Protocol):
    """What keeps pages in physical memory, in a GPU's address space."""

    def lock(self, address: int, size: int) -> None:
        """Raises MemoryError where the system or the driver refuses."""

    def unlock(self, address: int) -> None: ...


class CudaPages:
    """The CUDA runtime as torch has loaded it; the rank's GPU must have been chosen."""

    def __init__(self) -> None:
        import torch

        cuda: Any = torch.cuda
        self._runtime = cuda.cudart()

    def lock(self, address: int, size: int) -> None:
        status = self._runtime.cudaHostRegister(address, size, 0)
        if status != self._runtime.cudaError.success:
            _forget_error()
            raise MemoryError(f"CUDA can't lock {size} B of host memory: {status}; see ulimit -l")

    def unlock(self, address: int) -> None:
        self._runtime.cudaHostUnregister(address)


def _forget_error() -> None:
    """CUDA remembers the last error, and torch would raise it in the next kernel that it launches."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    runtime = next((line.split()[-1] for line in lines if "libcudart.so" in line), None)
    if runtime is not None:
        ctypes.CDLL(runtime).cudaGetLastError()


class PinnedBuffer(HostBuffer):
    """See Buffer. Its pages are locked until it is gone. Raises MemoryError."""

    def __init__(self, spec: BufferSpec, pool: int, pages: PageLock) -> None:
        super().__init__(spec, pool)
        address = self.address()
        pages.lock(address, self._bytes.nbytes)
        # the finalizer holds the memory, so that it is unlocked before it is given back
        gone = weakref.finalize(self, _unlock, pages, address, self._bytes)
        gone.atexit = False  # the driver may have left by then, and takes its locks along


def _unlock(pages: PageLock, address: int, memory: object) -> None:
    pages.unlock(address)


def with_twins(
    program: Program,
    rank: int,
    buffers: Mapping[str, Any],
    allocate: Callable[[BufferSpec, int], Buffer],
) -> tuple[Program, dict[str, Any]]:
    """The staged program with all the buffers it needs: the twins are new. Raises Unsupported where they don't fit."""
    moving = staged(program, rank)
    pool = max((buffer.pool for buffer in buffers.values()), default=1)
    try:
        held = {spec.name: allocate(spec, pool) for spec in twins(moving)}
    except MemoryError as error:
        raise Unsupported(f"staging=pinned needs as much host memory as lies on the GPU: {error}") from error
    return moving, {**buffers, **held}
