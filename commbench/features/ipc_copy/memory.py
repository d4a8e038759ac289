"""The GPU memory of a rank and of its peers, and copies between them.

A peer may still have a block open when its owner no longer needs it, and freeing it then is
undefined (cuIpcOpenMemHandle). So a released block is kept for the next buffer that fits and freed
with the process; for buffer sizes that double, all blocks together are less than twice the largest.
"""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.cuda_ipc import CudaExporter
from commbench.core.errors import Unsupported
from commbench.hardware.cuda import CudaError
from commbench.hardware.nvml import Monitor, cuda_version

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
REFUSED = "CUDA IPC is refused here"
Extent = tuple[int, int]  # bytes, and the address, of memory of the exporter


class CopyingExporter(CudaExporter):
    """See CudaExporter. Its copies are executed on a stream of their own."""

    def __init__(self, local_rank: int) -> None:
        super().__init__(local_rank)
        driver = self._driver
        self._stream = c_void_p()
        driver.call("cuStreamCreate", byref(self._stream), NON_BLOCKING)
        self._enqueue_copy = driver.function("cuMemcpyDtoDAsync_v2")
        self._wait = driver.function("cuStreamSynchronize")
        self._monitor = Monitor(driver.pci_bus_id(self._ordinal))

    def copy(self, target: int, source: int, size: int) -> None:
        """Enqueue a copy; copies are executed in order."""
        status = self._enqueue_copy(target, source, size, self._stream)
        if status != 0:
            self._driver.check("cuMemcpyDtoDAsync_v2", status)

    def synchronise(self) -> None:
        """Wait until all copies are complete and visible to other processes."""
        status = self._wait(self._stream)
        if status != 0:
            self._driver.check("cuStreamSynchronize", status)

    def facts(self) -> dict[str, Any]:
        return {
            "library": f"CUDA driver API {cuda_version(self._driver.version())}",
            "device_ordinal": self._ordinal,
        }

    def readings(self) -> dict[str, float]:
        return self._monitor.readings()


class IpcBlock:
    """See Allocation. Its extent is free again when the block is no longer referenced."""

    def __init__(self, extent: Extent, memory: IpcMemory) -> None:
        self.address = extent[1]
        self._exporter = memory.exporter
        weakref.finalize(self, memory.free.append, extent)

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._exporter.upload(self.address + offset, data)

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        return self._exporter.download(self.address + offset, size)


class IpcMemory:
    """The GPU memory of this process, and the memory of its peers that it has opened."""

    def __init__(self, exporter: CopyingExporter) -> None:
        self.exporter = exporter
        self.free: list[Extent] = []
        self._opened: dict[str, int] = {}  # handle -> address

    def allocate(self, size: int) -> IpcBlock:
        """The smallest free extent that is large enough, else a new one. Raises MemoryError."""
        smallest = min((extent for extent in self.free if extent[0] >= size), default=None)
        if smallest is None:
            return IpcBlock((size, self.exporter.allocate(size)), self)
        self.free.remove(smallest)
        return IpcBlock(smallest, self)

    def export(self, address: int, rank: int) -> str:
        """The handle of this rank's memory, in hex. Raises Unsupported where it can't be
        exported."""
        try:
            return self.exporter.export(address).hex()
        except CudaError as error:
            raise Unsupported(f"{REFUSED}: rank {rank}, {error}") from error

    def open(self, handle: str, rank: int) -> int:
        """The address of a peer's memory in this rank, open until `close`. Raises Unsupported where
        it is refused."""
        if handle not in self._opened:
            try:
                self._opened[handle] = self.exporter.open(bytes.fromhex(handle))
            except CudaError as error:
                raise Unsupported(f"{REFUSED}: rank {rank}, {error}") from error
        return self._opened[handle]

    def close(self) -> None:
        """Close the peers' memory. This process's memory is freed with it: a peer may still have it
        open."""
        opened = self._opened
        self._opened = {}
        for address in opened.values():
            self.exporter.close(address)
