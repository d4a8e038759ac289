"""Device memory that other processes can open: blocks of this process for reuse, and opened blocks of its peers.

A peer may still have a block open when its owner no longer needs it, and freeing it then is undefined
(cuIpcOpenMemHandle). So a released block is kept for the next buffer that fits and freed with the process; for buffer
sizes that double, all blocks together are less than twice the largest.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commbench.buffers.cuda_ipc import Exporter
from commbench.core.errors import Unsupported
from commbench.hardware.cuda_driver import CudaError

REFUSED = "CUDA IPC is refused here"


@dataclass(frozen=True)
class Extent:
    """Memory of the exporter, in bytes."""

    address: int
    size: int


class Block:
    """See buffers.device.Allocation. Its extent is free again when the block is no longer referenced."""

    def __init__(self, extent: Extent, memory: IpcMemory) -> None:
        self.address, self._exporter = extent.address, memory.exporter
        weakref.finalize(self, memory.free.append, extent)

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._exporter.upload(self.address + offset, data)

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        return self._exporter.download(self.address + offset, size)


class IpcMemory:
    """The memory of one process, and that of its peers which it has opened."""

    def __init__(self, exporter: Exporter) -> None:
        self.exporter = exporter
        self.free: list[Extent] = []
        self._opened: dict[str, int] = {}  # handle -> address

    def allocate(self, size: int) -> Block:
        """The smallest free extent that is large enough, else a new one. Raises MemoryError."""
        fitting = [extent for extent in self.free if extent.size >= size]
        if not fitting:
            return Block(Extent(self.exporter.allocate(size), size), self)
        smallest = min(fitting, key=lambda extent: extent.size)
        self.free.remove(smallest)
        return Block(smallest, self)

    def export(self, address: int, rank: int) -> str:
        """The handle of this rank's memory, in hex. Raises Unsupported where it can't be exported."""
        try:
            return self.exporter.export(address).hex()
        except CudaError as error:
            raise Unsupported(f"{REFUSED}: rank {rank}, {error}") from error

    def open(self, handle: str, rank: int) -> int:
        """The address of a peer's memory in this rank, open until `close`. Raises Unsupported where it is refused."""
        if handle not in self._opened:
            try:
                self._opened[handle] = self.exporter.open(bytes.fromhex(handle))
            except CudaError as error:
                raise Unsupported(f"{REFUSED}: rank {rank}, {error}") from error
        return self._opened[handle]

    def close(self) -> None:
        """Close the peers' memory. This process's memory is freed with it: a peer may still have it open."""
        opened, self._opened = self._opened, {}
        for address in opened.values():
            self.exporter.close(address)
