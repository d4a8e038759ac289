"""Blocks of exportable memory, used again and freed only with the process.

A peer may have a block open when its owner is done with it, and freeing it then is undefined (cuIpcOpenMemHandle). So a
released block waits for the next buffer that fits; sizes that double keep all blocks under twice the largest.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commbench.buffers.cuda_ipc import Exporter


@dataclass(frozen=True)
class Extent:
    """Memory from the exporter, from its address on."""

    address: int
    size: int


class Block:
    """See device_memory.Allocation. Gives its extent back when nobody holds it any more."""

    def __init__(self, extent: Extent, arena: Arena) -> None:
        self.address, self._exporter = extent.address, arena.exporter
        weakref.finalize(self, arena.free.append, extent)

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._exporter.upload(self.address + offset, data)

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        return self._exporter.download(self.address + offset, size)


class Arena:
    """Of one process."""

    def __init__(self, exporter: Exporter) -> None:
        self.exporter = exporter
        self.free: list[Extent] = []

    def allocate(self, size: int) -> Block:
        """The smallest free extent that is large enough, else a new one. Raises MemoryError."""
        fitting = [extent for extent in self.free if extent.size >= size]
        if fitting:
            chosen = min(fitting, key=lambda extent: extent.size)
            self.free.remove(chosen)
        else:
            chosen = Extent(self.exporter.allocate(size), size)
        return Block(chosen, self)
