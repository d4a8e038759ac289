"""backend=ipc_copy without a GPU: memory files of this machine in place of a GPU's memory, all else
as it is.

A handle is the path of the file in the process that has it. Copies happen when somebody waits for
them, as on a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from commbench.core.variables import Device
from commbench.features.ipc_copy.backend import IpcCopy
from commbench.features.ipc_copy.memory import CopyingExporter
from commbench.hardware.cuda import CudaError


class FileExporter(CopyingExporter):
    """As CopyingExporter."""

    def __init__(self, early: bool = False, refused: str = "") -> None:
        self._early = early
        self._refused = refused
        self._queue: list[tuple[int, int, int]] = []
        self._pages: dict[int, tuple[mmap.mmap, str]] = {}

    def allocate(self, size: int) -> int:
        descriptor = os.memfd_create("commbench")
        os.ftruncate(descriptor, size)
        return self._mapped(descriptor, size, f"/proc/{os.getpid()}/fd/{descriptor}")

    def export(self, address: int) -> bytes:
        return self._pages[address][1].encode()

    def open(self, handle: bytes) -> int:
        path = handle.decode()
        if self._refused:
            raise CudaError(self._refused)
        descriptor = os.open(path, os.O_RDWR)
        size = os.fstat(descriptor).st_size
        address = self._mapped(descriptor, size, path)
        os.close(descriptor)
        return address

    def close(self, address: int) -> None:
        del self._pages[address]

    def copy(self, target: int, source: int, size: int) -> None:
        self._queue.append((target, source, size))

    def synchronise(self) -> None:
        queue = self._queue
        self._queue = []
        for move in () if self._early else queue:
            ctypes.memmove(*move)

    def upload(self, address: int, data: NDArray[np.uint8]) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    def download(self, address: int, size: int) -> NDArray[np.uint8]:
        return np.frombuffer(ctypes.string_at(address, size), dtype=np.uint8)

    def facts(self) -> dict[str, Any]:
        return {"library": "memory files", "device_ordinal": 0}

    def readings(self) -> dict[str, float]:
        return {}

    def _mapped(self, descriptor: int, size: int, path: str) -> int:
        pages = mmap.mmap(descriptor, size)
        address = int(np.frombuffer(pages, dtype=np.uint8).ctypes.data)
        self._pages[address] = pages, path
        return address


@dataclass(frozen=True)
class IpcFiles(IpcCopy):
    """See Backend."""

    name: ClassVar[str] = "ipc_files"
    devices: ClassVar[tuple[Device, ...]] = ("cpu",)  # no rank needs a GPU
    early: bool = False
    refused: str = ""

    def missing(self, device: Device = "cpu") -> str | None:
        return None

    def exporter(self, place: int) -> CopyingExporter:
        return FileExporter(self.early, self.refused)
