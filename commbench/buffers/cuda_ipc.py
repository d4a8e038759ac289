"""Memory that another process of this node can open, and copies into it: CUDA IPC through the driver's own calls.

The driver is asked by ctypes: torch's allocator hands out parts of blocks, and only a whole allocation has a handle.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from commbench.hardware.nvml import Monitor

LIBRARY = "libcuda.so.1"
# the driver puts smaller allocations into a shared block, of which a handle would show all (cuIpcGetMemHandle)
GRANULE_BYTES = 2 << 20
LAZY_PEER_ACCESS, NON_BLOCKING = 1, 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CU_STREAM_NON_BLOCKING
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class IpcError(Exception):
    """A call that was refused: `call: CUDA_ERROR_...`."""


class Exporter(Protocol):
    """Memory of one process, and that of others which it has opened. Addresses are those of this process."""

    def allocate(self, size: int) -> int:
        """The address of so many bytes, which live as long as the process. Raises MemoryError."""

    def export(self, address: int) -> bytes:
        """The handle of an allocation, for other processes of this node. Raises IpcError."""

    def open(self, handle: bytes) -> int:
        """The address of another process's allocation; not of one's own. Raises IpcError."""

    def close(self, address: int) -> None:
        """Of what was opened, before its owner frees it or ends."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Enqueue a copy; copies happen in order. Raises IpcError."""

    def synchronise(self) -> None:
        """Until all copies have happened, and can be seen from other processes. Raises IpcError."""

    def upload(self, address: int, data: NDArray[np.uint8]) -> None:
        """From the host; complete when it returns."""

    def download(self, address: int, size: int) -> NDArray[np.uint8]: ...

    def facts(self) -> dict[str, Any]:
        """Whose library and device this is."""

    def readings(self) -> dict[str, float]:
        """The device's clocks and counters, as far as they can be read."""


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


BUS_ID_BYTES = 32
SIGNATURES: dict[str, tuple[Any, ...]] = {  # of cuda.h; the names with _v2 are what its macros choose
    "cuDeviceGetPCIBusId": (ctypes.c_char_p, c_int, c_int),
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuIpcGetMemHandle": (c_void_p, c_uint64),
    "cuIpcOpenMemHandle_v2": (c_void_p, _Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
}


def driver_missing() -> str | None:
    """Why there are no CUDA calls here; asks no GPU."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return f"no NVIDIA driver: {LIBRARY} is not here"
    return None


class CudaExporter:
    """See Exporter: device memory, in the context that torch uses too. Belongs to the thread that made it.

    Raises IpcError where there is no driver or no GPU; `place` is the rank's place in its node.
    """

    def __init__(self, place: int) -> None:
        missing = driver_missing()
        if missing is not None:
            raise IpcError(missing)
        self._library: Any = ctypes.CDLL(LIBRARY)
        self._call("cuInit", 0)
        count = self._number("cuDeviceGetCount")
        if count == 0:
            raise IpcError("cuDeviceGetCount: no GPU is visible")
        self._ordinal, self._stream, context = place % count, c_void_p(), c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), self._number("cuDeviceGet", self._ordinal))
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", byref(self._stream), NON_BLOCKING)
        self._enqueue = self._function("cuMemcpyDtoDAsync_v2")
        self._wait = self._function("cuStreamSynchronize")
        self._monitor = Monitor(self._bus_id())

    def allocate(self, size: int) -> int:
        address, whole = c_uint64(), -(-max(size, 1) // GRANULE_BYTES) * GRANULE_BYTES
        try:
            self._call("cuMemAlloc_v2", byref(address), whole)
        except IpcError as error:
            if OUT_OF_MEMORY in str(error):
                raise MemoryError(f"{whole} B on GPU {self._ordinal}: {error}") from error
            raise
        return address.value

    def export(self, address: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", byref(handle), address)
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        address = c_uint64()
        self._call("cuIpcOpenMemHandle_v2", byref(address), _Handle.from_buffer_copy(handle), LAZY_PEER_ACCESS)
        return address.value

    def close(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", address)

    def copy(self, target: int, source: int, size: int) -> None:
        status = self._enqueue(target, source, size, self._stream)
        if status != 0:
            raise IpcError(f"cuMemcpyDtoDAsync_v2: {self._error_name(status)}")

    def synchronise(self) -> None:
        status = self._wait(self._stream)
        if status != 0:
            raise IpcError(f"cuStreamSynchronize: {self._error_name(status)}")

    def upload(self, address: int, data: NDArray[np.uint8]) -> None:
        data = np.ascontiguousarray(data)
        self._call("cuMemcpyHtoD_v2", address, data.ctypes.data, data.nbytes)
        self._call("cuCtxSynchronize")  # pageable memory: the call returns when it is staged, not when it has arrived

    def download(self, address: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, dtype=np.uint8)
        self._call("cuMemcpyDtoH_v2", data.ctypes.data, address, size)
        return data

    def facts(self) -> dict[str, Any]:
        version = self._number("cuDriverGetVersion")
        return {"library": f"CUDA driver API {version // 1000}.{version % 1000 // 10}", "device_ordinal": self._ordinal}

    def readings(self) -> dict[str, float]:
        return self._monitor.readings()

    def _bus_id(self) -> str:
        text = ctypes.create_string_buffer(BUS_ID_BYTES)
        self._call("cuDeviceGetPCIBusId", text, BUS_ID_BYTES, self._ordinal)
        return text.value.decode(errors="replace")

    def _number(self, name: str, *arguments: int) -> int:
        value = c_int()
        self._call(name, byref(value), *arguments)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._function(name)(*arguments)
        if status != 0:
            raise IpcError(f"{name}: {self._error_name(status)}")

    def _function(self, name: str) -> Any:
        function = getattr(self._library, name, None)
        if function is None:
            raise IpcError(f"{name}: this driver does not have it")
        function.argtypes, function.restype = SIGNATURES[name], c_int
        return function

    def _error_name(self, status: int) -> str:
        name = ctypes.c_char_p()
        known = self._library.cuGetErrorName(c_int(status), byref(name)) == 0
        return name.value.decode(errors="replace") if known and name.value else f"error {status}"
