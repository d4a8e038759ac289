"""Device memory of a benchmark: laid out like host memory, filled and checked through a host copy."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.core.program import BufferSpec, Pattern

from .host import HostBuffer, slot_bytes


class Allocation(Protocol):
    """Bytes on a device. Copies are complete when they return."""

    address: int

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None: ...

    def download(self, offset: int, size: int) -> NDArray[np.uint8]: ...


class Allocator(Protocol):
    def __call__(self, size: int) -> Any:
        """An Allocation of `size` bytes. Raises MemoryError."""


class DeviceBuffer:
    """See Buffer. While it is written or checked, the host holds one of its copies."""

    def __init__(self, spec: BufferSpec, pool: int, allocate: Allocator) -> None:
        self.spec, self.pool = spec, pool
        self.copy_bytes = slot_bytes(spec) * spec.slots
        self.allocation: Allocation = allocate(self.copy_bytes * pool)
        self.write(None)

    def offset(self, slot: int = 0, copy: int = 0) -> int:
        """Bytes from the start of the allocation to that slot."""
        return copy * self.copy_bytes + slot * slot_bytes(self.spec)

    def address(self, slot: int = 0, copy: int = 0) -> int:
        return self.allocation.address + self.offset(slot, copy)

    def write(self, pattern: Pattern | None) -> None:
        host = HostBuffer(self.spec)
        host.write(pattern)
        for copy in range(self.pool):
            self.allocation.upload(self.offset(copy=copy), host.raw)

    def count_wrong(self, pattern: Pattern, copies: int = 1) -> int:
        host, wrong = HostBuffer(self.spec), 0
        for copy in range(min(copies, self.pool)):
            host.raw[:] = self.allocation.download(self.offset(copy=copy), self.copy_bytes)
            wrong += host.count_wrong(pattern)
        return wrong
