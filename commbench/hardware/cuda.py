"""CUDA on this machine: the driver API (libcuda) by ctypes, and CUDA IPC.

cuda-bindings comes only with CUDA wheels, but machines without them are described, too. The queries
of CudaDriver create no context on a GPU; backends/buffers/cuda_ipc.py makes the calls that need
one. After cuInit a process sees the GPUs that CUDA_VISIBLE_DEVICES named at that moment, and must
not fork without exec.

The key `cuda_ipc` becomes variables of each library. Their meaning is that of NCCL's user guide, of
Open MPI's btl_smcuda_component.c, of UCX's docs/source/faq.md ("^" excludes a list) and of the user
guide of MVAPICH2-GDR. MPICH has no switch: it uses IPC from a threshold on, and below it for
buffers that are sent again (src/mpid/ch4/shm/ipc; pmodels/mpich#7302).
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Iterable, Mapping
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from commbench.core.units import INT_MAX
from commbench.core.variables import Ipc

from .nvml import bus_id, cuda_version
from .sources import Facts, fact_text

CUDA_LIBRARY = "libcuda.so.1"
TEXT_BYTES = 256
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}  # by the major version of CUDA
# CUdevice_attribute of cuda.h
L2_BYTES = 38
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76

CUDA_IPC_VALUES = ("auto", "on", "off")
NCCL = "NCCL"
OPEN_MPI = "Open MPI"
UCX = "UCX"
MPICH = "MPICH"
MVAPICH = "MVAPICH"
SMCUDA = "OMPI_MCA_btl_smcuda_use_cuda_ipc"
THRESHOLD = "MPIR_CVAR_CH4_IPC_GPU_P2P_THRESHOLD"
REPEATED = "MPIR_CVAR_CH4_IPC_MAP_REPEAT_ADDR"
# UCX uses all transports by default, and naming one would disable the others; MPICH's threshold is
# a C int, so messages of 2 GiB and more use IPC all the same
EXPORTS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    # NVLink multicast (NVLS) also maps memory of other processes, and NCCL_P2P_DISABLE does not
    # disable it
    NCCL: {
        "on": {"NCCL_P2P_DISABLE": "0"},
        "off": {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"},
    },
    OPEN_MPI: {"on": {SMCUDA: "1"}, "off": {SMCUDA: "0"}},
    UCX: {"on": {}, "off": {"UCX_TLS": "^cuda_ipc"}},
    MPICH: {"on": {}, "off": {THRESHOLD: str(INT_MAX), REPEATED: "0"}},
    MVAPICH: {"on": {"MV2_CUDA_IPC": "1"}, "off": {"MV2_CUDA_IPC": "0"}},
}
NOT_SET = "not set"
NO = ("0", "false", "no", "off", "n")
YES = ("1", "true", "yes", "on", "y")


class CudaError(Exception):
    """The driver or a function is missing, or a call failed: `cuInit: CUDA_ERROR_NO_DEVICE
    (100)`."""


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: names an allocation in other processes of this node."""

    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


# of cuda.h; the names with _v2 are those its macros choose
SIGNATURES: dict[str, tuple[Any, ...]] = {
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
    """Why there is no CUDA driver; None if the library can be loaded. No GPU is accessed."""
    try:
        ctypes.CDLL(CUDA_LIBRARY)
    except OSError:
        return f"no NVIDIA driver: {CUDA_LIBRARY} was not found"
    return None


def driver_too_old(library: str, built_for: str, install: str) -> str | None:
    """Why the driver can't run a library that was built for a CUDA version (13.0); None if it can,
    or if unknown.

    A driver runs all minor versions of its own major version (CUDA Compatibility, minor version
    compatibility).
    """
    newest = c_int()
    major = int(built_for.partition(".")[0])
    # needs no cuInit; a compatibility package (cuda-compat) in the loader's path answers for itself
    try:
        known = ctypes.CDLL(CUDA_LIBRARY).cuDriverGetVersion(byref(newest)) == 0
    except (OSError, AttributeError):
        return None
    if not known or newest.value // 1000 >= major:
        return None
    driver = f"driver {LEAST_DRIVER[major]}" if major in LEAST_DRIVER else "a driver"
    return (
        f"{library} is built for CUDA {built_for}, and this driver runs CUDA"
        f" {cuda_version(newest.value)} at most; install {driver} or newer, or {install}"
        " (docs/gpu.md)"
    )


class CudaDriver:
    """The initialised driver; GPUs are given by CUDA's ordinal. Raises CudaError if there is no
    driver or no GPU."""

    def __init__(self) -> None:
        missing = driver_missing()
        if missing is not None:
            raise CudaError(missing)
        self._library: Any = ctypes.CDLL(CUDA_LIBRARY)
        self.call("cuInit", 0)

    def version(self) -> int:
        """The newest CUDA version that the driver supports: 12040 for 12.4."""
        return self.number("cuDriverGetVersion")

    def count(self) -> int:
        return self.number("cuDeviceGetCount")

    def device(self, ordinal: int) -> int:
        return self.number("cuDeviceGet", ordinal)

    def pci_bus_id(self, ordinal: int) -> str:
        """The PCI bus id as nvml.bus_id writes it: 0000:1b:00.0."""
        return bus_id(self.text("cuDeviceGetPCIBusId", ordinal))

    def properties(self, ordinal: int) -> Facts:
        """The UUID without its prefix `GPU-`, name, PCI bus id, sizes and compute capability of a
        GPU.

        With MIG, they are those of the part of a GPU that CUDA sees.
        """
        device = self.device(ordinal)
        raw_uuid = (c_char * 16)()
        memory_bytes = c_size_t()
        try:
            self.call("cuDeviceGetUuid_v2", raw_uuid, device)
        except CudaError:  # before driver 470
            self.call("cuDeviceGetUuid", raw_uuid, device)
        self.call("cuDeviceTotalMem_v2", byref(memory_bytes), device)
        attributes = (CAPABILITY_MAJOR, CAPABILITY_MINOR, L2_BYTES)
        major, minor, l2_bytes = (
            self.number("cuDeviceGetAttribute", number, device) for number in attributes
        )
        return {
            "uuid": str(uuid.UUID(bytes=raw_uuid.raw)),
            "name": fact_text(self.text("cuDeviceGetName", ordinal)),
            "pci_bus_id": self.pci_bus_id(ordinal),
            "memory_total_bytes": memory_bytes.value,
            "l2_bytes": l2_bytes,
            "compute_capability": f"{major}.{minor}",
        }

    def number(self, name: str, *arguments: int) -> int:
        """The result of a call that writes one int to its first argument."""
        value = c_int()
        self.call(name, byref(value), *arguments)
        return value.value

    def text(self, name: str, ordinal: int) -> str:
        """The result of a call that writes a text about a GPU."""
        text = (c_char * TEXT_BYTES)()
        self.call(name, text, TEXT_BYTES, self.device(ordinal))
        return text.value.decode(errors="replace")

    def call(self, name: str, *arguments: Any) -> None:
        self.check(name, self.function(name)(*arguments))

    def function(self, name: str) -> Any:
        """The C function; its status is to be passed to `check`."""
        function = getattr(self._library, name, None)
        if function is None:
            raise CudaError(f"{name}: this driver does not have it")
        function.argtypes = SIGNATURES[name]
        function.restype = c_int
        return function

    def check(self, name: str, status: int) -> None:
        """Raises CudaError for a status other than success."""
        if status != 0:
            text = ctypes.c_char_p()
            known = self._library.cuGetErrorName(c_int(status), byref(text)) == 0 and text.value
            error = (
                f"{text.value.decode()} ({status})" if known and text.value else f"error {status}"
            )
            raise CudaError(f"{name}: {error}")


# ---------------------------------------------------------------- CUDA IPC


def cuda_ipc_exports(setting: Ipc, libraries: Iterable[str]) -> dict[str, str]:
    """The variables to export before these libraries start; none for auto."""
    exports = dict[str, str]()
    for library in libraries:
        exports |= EXPORTS[library].get(setting, {})
    return exports


def cuda_ipc_without_effect(
    setting: Ipc, library: str, environment: Mapping[str, str]
) -> str | None:
    """Why the setting can't have had an effect on the library in this environment; None if it may
    have had one."""
    reason = None if setting == "auto" else NO_EFFECT_REASONS[library](setting, environment)
    return None if reason is None else f"cuda_ipc={setting} had no effect on {library}: {reason}"


def _no_effect_on_nccl(setting: Ipc, environment: Mapping[str, str]) -> str | None:
    disabled = environment.get("NCCL_P2P_DISABLE")
    level = environment.get("NCCL_P2P_LEVEL", "").upper()
    if setting == "off":
        if disabled != "1" and level not in ("LOC", "0"):
            return f"NCCL_P2P_DISABLE is {disabled or NOT_SET}"
        multicast = environment.get("NCCL_NVLS_ENABLE", "0")
        return (
            None
            if multicast == "0"
            else f"NCCL_NVLS_ENABLE={multicast} leaves NVLink multicast between GPUs"
        )
    if disabled == "1":
        return "NCCL_P2P_DISABLE=1 forbids all transfers between GPUs"
    return (
        f"NCCL_P2P_LEVEL={level} forbids all transfers between GPUs"
        if level in ("LOC", "0")
        else None
    )


def _no_effect_on_open_mpi(setting: Ipc, environment: Mapping[str, str]) -> str | None:
    """Only the PML ob1 uses btl smcuda and reads its switch, the PMLs ucx and cm do not."""
    pml = environment.get("OMPI_MCA_pml", "")
    btl = environment.get("OMPI_MCA_btl", "")
    if not includes_any(pml, ("ob1",)):
        if includes_any(pml, ("ucx",)) and _no_effect_on_ucx(setting, environment) is None:
            return None
        return f"OMPI_MCA_pml={pml} carries the messages, and btl smcuda's switch is one of ob1"
    if not includes_any(btl, ("smcuda",)):
        return None if setting == "off" else f"OMPI_MCA_btl={btl} excludes smcuda"
    allowed = not _is_one_of(environment.get(SMCUDA), NO)
    return (
        None if allowed == (setting == "on") else f"{SMCUDA} is {environment.get(SMCUDA, NOT_SET)}"
    )


def _no_effect_on_ucx(setting: Ipc, environment: Mapping[str, str]) -> str | None:
    pml = environment.get("OMPI_MCA_pml", "")
    transports = environment.get("UCX_TLS", "")
    if not includes_any(pml, ("ucx",)):
        return f"OMPI_MCA_pml={pml} carries the messages, not UCX"
    allowed = includes_any(transports, ("cuda_ipc", "cuda", "all"))
    if allowed == (setting == "on"):
        return None
    return (
        f"UCX_TLS is {transports or NOT_SET}, which {'includes' if allowed else 'excludes'}"
        " cuda_ipc"
    )


def _no_effect_on_mpich(setting: Ipc, environment: Mapping[str, str]) -> str | None:
    if setting == "on":
        for name, words in (("MPIR_CVAR_ENABLE_GPU", NO), ("MPIR_CVAR_NOLOCAL", YES)):
            if _is_one_of(environment.get(name), words):
                return f"{name}={environment[name]} forbids it"
        return None
    threshold = environment.get(THRESHOLD, NOT_SET)
    repeated = environment.get(REPEATED, NOT_SET)
    if threshold != NOT_SET and _is_one_of(repeated, NO):
        return None
    return f"{THRESHOLD} is {threshold} and {REPEATED} is {repeated}"


def _no_effect_on_mvapich(setting: Ipc, environment: Mapping[str, str]) -> str | None:
    if setting == "on" and not _is_one_of(environment.get("MV2_USE_CUDA"), YES):
        return (
            f"MV2_USE_CUDA is {environment.get('MV2_USE_CUDA', NOT_SET)}, so it does not accept GPU"
            " memory"
        )
    allowed = not _is_one_of(environment.get("MV2_CUDA_IPC"), NO)
    return (
        None
        if allowed == (setting == "on")
        else f"MV2_CUDA_IPC is {environment.get('MV2_CUDA_IPC', NOT_SET)}"
    )


NO_EFFECT_REASONS: Mapping[str, Callable[[Ipc, Mapping[str, str]], str | None]] = {
    NCCL: _no_effect_on_nccl,
    OPEN_MPI: _no_effect_on_open_mpi,
    UCX: _no_effect_on_ucx,
    MPICH: _no_effect_on_mpich,
    MVAPICH: _no_effect_on_mvapich,
}


def includes_any(chosen: str, names: Iterable[str]) -> bool:
    """Whether a list of MCA or UCX (`a,b`, or `^a,b` for all others) includes one of the names; an
    empty list does."""
    listed = {word.strip() for word in chosen.removeprefix("^").split(",") if word.strip()}
    return not listed or listed.isdisjoint(names) == chosen.startswith("^")


def _is_one_of(value: str | None, words: tuple[str, ...]) -> bool:
    return value is not None and value.strip().lower() in words
