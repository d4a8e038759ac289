"""The CUDA driver API (libcuda), bound once by ctypes.

Not by cuda-bindings: that package comes only with CUDA wheels, and machines without them must be described, too. A
missing library, an old driver and a failed call are a CudaError that names the call. The queries of CudaDriver create
no context on a GPU; buffers/cuda_ipc.py makes the calls that need one.

After cuInit a process sees the GPUs that CUDA_VISIBLE_DEVICES named at that moment, and must not fork without exec.
"""

from __future__ import annotations

import ctypes
import uuid
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from .nvml import bus_id, cuda_version

LIBRARY = "libcuda.so.1"
TEXT_BYTES = 256
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}  # by the major version of CUDA
# CUdevice_attribute and CUdevice_P2PAttribute of cuda.h
L2_BYTES, CAPABILITY_MAJOR, CAPABILITY_MINOR = 38, 75, 76
PERFORMANCE_RANK, ACCESS_SUPPORTED, NATIVE_ATOMICS_SUPPORTED = 1, 2, 3


class CudaError(Exception):
    """A call that failed or that this driver does not have: `cuInit: CUDA_ERROR_NO_DEVICE (100)`."""


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: names an allocation in other processes of this node."""

    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


SIGNATURES: dict[str, tuple[Any, ...]] = {  # of cuda.h; the names with _v2 are those its macros choose
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetUuid": (c_void_p, c_int),
    "cuDeviceGetUuid_v2": (c_void_p, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_void_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (c_void_p, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDeviceGetP2PAttribute": (c_void_p, c_int, c_int, c_int),
    "cuDeviceCanAccessPeer": (c_void_p, c_int, c_int),
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
    "cuIpcOpenMemHandle_v2": (c_void_p, IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
}


def driver_missing() -> str | None:
    """Why there is no CUDA driver here, without asking any GPU; None if the library can be loaded."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return f"no NVIDIA driver: {LIBRARY} was not found"
    return None


def driver_too_old(library: str, built_for: str, install: str) -> str | None:
    """Why the driver can't run a library that is built for that CUDA (13.0); None if it can, or does not say.

    A driver runs all minor versions of its own major version (CUDA Compatibility, minor version compatibility).
    """
    newest, major = c_int(), int(built_for.partition(".")[0])
    try:  # needs no cuInit, and counts a compatibility package (cuda-compat) in the loader's path
        known = ctypes.CDLL(LIBRARY).cuDriverGetVersion(byref(newest)) == 0
    except (OSError, AttributeError):
        return None
    if not known or newest.value // 1000 >= major:
        return None
    driver = f"driver {LEAST_DRIVER[major]}" if major in LEAST_DRIVER else "a driver"
    return (
        f"{library} is built for CUDA {built_for}, and this driver runs CUDA {cuda_version(newest.value)} at most; "
        f"install {driver} or newer, or {install} (docs/gpu.md)"
    )


class CudaDriver:
    """The initialised driver; GPUs go by CUDA's ordinal. Raises CudaError where there is no driver or no GPU."""

    def __init__(self) -> None:
        missing = driver_missing()
        if missing is not None:
            raise CudaError(missing)
        self._library: Any = ctypes.CDLL(LIBRARY)
        self.call("cuInit", 0)

    def version(self) -> int:
        """The newest CUDA that the driver supports: 12040 for 12.4."""
        return self.number("cuDriverGetVersion")

    def count(self) -> int:
        return self.number("cuDeviceGetCount")

    def device(self, ordinal: int) -> int:
        return self.number("cuDeviceGet", ordinal)

    def uuid(self, ordinal: int) -> str:
        """1b2c... with dashes; with MIG, the UUID of the part of a GPU that CUDA sees."""
        raw, device = (c_char * 16)(), self.device(ordinal)
        try:
            self.call("cuDeviceGetUuid_v2", raw, device)
        except CudaError:  # before driver 470
            self.call("cuDeviceGetUuid", raw, device)
        return str(uuid.UUID(bytes=raw.raw))

    def name(self, ordinal: int) -> str:
        text = (c_char * TEXT_BYTES)()
        self.call("cuDeviceGetName", text, TEXT_BYTES, self.device(ordinal))
        return text.value.decode(errors="replace")

    def pci_bus_id(self, ordinal: int) -> str:
        """0000:1b:00.0, the form of nvml.bus_id."""
        text = (c_char * TEXT_BYTES)()
        self.call("cuDeviceGetPCIBusId", text, TEXT_BYTES, self.device(ordinal))
        return bus_id(text.value.decode(errors="replace"))

    def memory_bytes(self, ordinal: int) -> int:
        size = c_size_t()
        self.call("cuDeviceTotalMem_v2", byref(size), self.device(ordinal))
        return size.value

    def l2_bytes(self, ordinal: int) -> int:
        return self.number("cuDeviceGetAttribute", L2_BYTES, self.device(ordinal))

    def compute_capability(self, ordinal: int) -> str:
        """9.0"""
        device = self.device(ordinal)
        parts = (self.number("cuDeviceGetAttribute", part, device) for part in (CAPABILITY_MAJOR, CAPABILITY_MINOR))
        return ".".join(map(str, parts))

    def peer_attribute(self, attribute: int, source: int, target: int) -> int:
        """Of `source` accessing the memory of `target`."""
        return self.number("cuDeviceGetP2PAttribute", attribute, self.device(source), self.device(target))

    def can_access_peer(self, source: int, target: int) -> bool:
        """Whether `source` may map the memory of `target`."""
        return bool(self.number("cuDeviceCanAccessPeer", self.device(source), self.device(target)))

    def number(self, name: str, *arguments: int) -> int:
        """The result of a call that writes one int to its first argument."""
        value = c_int()
        self.call(name, byref(value), *arguments)
        return value.value

    def call(self, name: str, *arguments: Any) -> None:
        self.check(name, self.function(name)(*arguments))

    def function(self, name: str) -> Any:
        """The C function, for calls whose time counts; its status goes to `check`."""
        function = getattr(self._library, name, None)
        if function is None:
            raise CudaError(f"{name}: this driver does not have it")
        function.argtypes, function.restype = SIGNATURES[name], c_int
        return function

    def check(self, name: str, status: int) -> None:
        """Raises CudaError for a status other than success."""
        if status != 0:
            text = ctypes.c_char_p()
            known = self._library.cuGetErrorName(c_int(status), byref(text)) == 0 and text.value
            error = f"{text.value.decode()} ({status})" if known and text.value else f"error {status}"
            raise CudaError(f"{name}: {error}")
