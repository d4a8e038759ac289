"""The CUDA driver itself (libcuda), asked without a runtime and without making a context on any GPU.

After cuInit a process sees the GPUs that CUDA_VISIBLE_DEVICES named at that moment, and must not fork without exec.
"""

from __future__ import annotations

import ctypes
import uuid
from ctypes import byref, c_char, c_int, c_size_t
from typing import Any

from .nvml import bus_id

LIBRARY = "libcuda.so.1"
TEXT_BYTES = 256
# CUdevice_attribute and CUdevice_P2PAttribute of cuda.h
L2_BYTES, CAPABILITY_MAJOR, CAPABILITY_MINOR = 38, 75, 76
PERFORMANCE_RANK, ACCESS_SUPPORTED, NATIVE_ATOMICS_SUPPORTED = 1, 2, 3


class CudaError(Exception):
    """A call of the driver that failed, or that it does not have, in words."""


class CudaDriver:
    """The GPUs that CUDA sees, by ordinal. Raises CudaError where there is no driver or no GPU."""

    def __init__(self) -> None:
        try:
            self._library: Any = ctypes.CDLL(LIBRARY)
        except OSError:
            raise CudaError(f"{LIBRARY} is not here: no NVIDIA driver") from None
        self._call("cuInit", 0)

    def count(self) -> int:
        return self._number("cuDeviceGetCount")

    def uuid(self, ordinal: int) -> str:
        """1b2c... with dashes; of the part of a GPU where that is what CUDA sees (MIG)."""
        found, device = (c_char * 16)(), self._device(ordinal)
        try:
            self._call("cuDeviceGetUuid_v2", found, device)
        except CudaError:  # before driver 470
            self._call("cuDeviceGetUuid", found, device)
        return str(uuid.UUID(bytes=found.raw))

    def name(self, ordinal: int) -> str:
        text = (c_char * TEXT_BYTES)()
        self._call("cuDeviceGetName", text, TEXT_BYTES, self._device(ordinal))
        return text.value.decode(errors="replace")

    def pci_bus_id(self, ordinal: int) -> str:
        """0000:1b:00.0, as commbench.hardware.nvml writes it."""
        text = (c_char * TEXT_BYTES)()
        self._call("cuDeviceGetPCIBusId", text, TEXT_BYTES, self._device(ordinal))
        return bus_id(text.value.decode(errors="replace"))

    def memory_bytes(self, ordinal: int) -> int:
        size = c_size_t()
        self._call("cuDeviceTotalMem_v2", byref(size), self._device(ordinal))
        return size.value

    def l2_bytes(self, ordinal: int) -> int:
        return self._number("cuDeviceGetAttribute", L2_BYTES, self._device(ordinal))

    def compute_capability(self, ordinal: int) -> str:
        """9.0"""
        device = self._device(ordinal)
        return ".".join(
            str(self._number("cuDeviceGetAttribute", which, device)) for which in (CAPABILITY_MAJOR, CAPABILITY_MINOR)
        )

    def peer_attribute(self, attribute: int, source: int, target: int) -> int:
        """Of `source` working on the memory of `target`."""
        return self._number("cuDeviceGetP2PAttribute", attribute, self._device(source), self._device(target))

    def can_access_peer(self, source: int, target: int) -> bool:
        """Whether `source` may open the memory of `target` directly."""
        return bool(self._number("cuDeviceCanAccessPeer", self._device(source), self._device(target)))

    def _device(self, ordinal: int) -> int:
        return self._number("cuDeviceGet", ordinal)

    def _number(self, name: str, *arguments: int) -> int:
        """Most calls write one int to their first argument."""
        value = c_int()
        self._call(name, byref(value), *arguments)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise CudaError(f"{name}: this driver does not have it")
        status = function(*arguments)
        if status != 0:
            raise CudaError(f"{name}: {self._error_name(status)}")

    def _error_name(self, status: int) -> str:
        name = ctypes.c_char_p()
        known = self._library.cuGetErrorName(status, byref(name)) == 0 and name.value
        return f"{name.value.decode()} ({status})" if known and name.value else f"error {status}"
