"""The GPUs of this machine according to the NVIDIA driver's management library (NVML); none without
a driver.

NVML sees all GPUs that the kernel exposes to this process and ignores CUDA_VISIBLE_DEVICES. It
stays open after the first call: opening it takes milliseconds, without the persistence daemon
seconds. Any function may be missing in an old driver, not be supported by a GPU, or fail because a
GPU has fallen off the bus; its value is then None.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .gpu_health import LINK_ERROR_FIELDS, GpuHealth, read_health

NVML_LIBRARY = "libnvidia-ml.so.1"
MAX_NVLINKS = 36  # of any GPU up to now
# by nvmlValueType_t
VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# nvmlClocksEventReasons that slow a GPU down; the others are idle, a chosen clock, sync boost and
# display
THROTTLE_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
# NVML_FI_DEV_* of nvml.h: counters, each read in less than a millisecond, whereas
# nvmlDeviceGetPcieThroughput observes the bus for 20 ms
POWER_INSTANT_MW = 186
PCIE_TX_BYTES = 197
PCIE_RX_BYTES = 198
LINK_TX_KIB = 138
LINK_RX_KIB = 139  # NVLINK_THROUGHPUT_DATA, up to NVLink 4: payload, one counter a link
LINKS_TX_BYTES = 202
LINKS_RX_BYTES = 204  # NVLINK_COUNT, from NVLink 5 on: one counter for all links
ALL_LINKS = 0xFFFFFFFF
C2C_LINK_COUNT = 170
C2C_LINK_MBYTE_PER_S = 172  # NVLink between a GPU and its CPU; the rate of a link, if it is active
CLOCK_SM = 1
CLOCK_MEMORY = 2
TEMPERATURE_GPU = 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU
# reading, factor, and the call of NVML with its arguments; of several calls the first that is
# supported counts
READING_CALLS: tuple[tuple[str, float, str, tuple[int, ...]], ...] = (
    ("gpu.sm_clock_mhz", 1.0, "nvmlDeviceGetClockInfo", (CLOCK_SM,)),
    ("gpu.memory_clock_mhz", 1.0, "nvmlDeviceGetClockInfo", (CLOCK_MEMORY,)),
    ("gpu.temperature_c", 1.0, "nvmlDeviceGetTemperature", (TEMPERATURE_GPU,)),
    # CUDA 14 removes the older call
    ("gpu.temperature_c", 1.0, "nvmlDeviceGetTemperatureV", (TEMPERATURE_GPU,)),
    ("gpu.throttle_reasons", 1.0, "nvmlDeviceGetCurrentClocksEventReasons", ()),
    # its name before driver 535
    ("gpu.throttle_reasons", 1.0, "nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    # where no field has it: averaged over a second on newer GPUs
    ("gpu.power_w", 1e-3, "nvmlDeviceGetPowerUsage", ()),
)

Field = tuple[int, int]  # id, scope (a link's number)


@dataclass(frozen=True)
class Gpu:
    """One GPU; `index` is NVML's (PCI bus order). What could not be read is None.

    Widths are in lanes; `nvlink_links` counts active links, `sm_clock_max_mhz` is the boost clock.
    """

    index: int
    error: str | None = None  # why NVML gives no handle of it
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None  # 0000:1b:00.0, as /sys writes it
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    compute_capability: str | None = None  # 9.0
    mig: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlink_links: int | None = None
    c2c_gb_per_s: float | None = None  # of all links to the CPU, in one direction
    sm_clock_max_mhz: int | None = None
    health: GpuHealth = field(default_factory=GpuHealth)
    # those that compute on it, and their bytes if NVML knows them
    processes: Mapping[int, int | None] | None = None


def reason() -> str | None:
    """Why NVML can't be used here; None if it can."""
    return _open_nvml()[1]


def driver_version() -> str | None:
    """The version of the kernel driver: 580.65.06."""
    version: str | None = _nvml_call("nvmlSystemGetDriverVersion")
    return version


def newest_cuda() -> str | None:
    """The newest CUDA that the driver supports: 13.0."""
    number = _first_result(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
    return cuda_version(number) if number else None


def cuda_version(number: int) -> str:
    """12.4 for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def count() -> int:
    """The number of GPUs that NVML sees; 0 without a driver."""
    return _nvml_call("nvmlDeviceGetCount") or 0


def gpus() -> list[Gpu]:
    """All GPUs. One that no longer responds has only an `error`."""
    return list(map(_read_gpu, range(count())))


def throttled(mask: int) -> list[str]:
    """The names of those reasons in a mask of clock event reasons that slow a GPU down."""
    return [name for bit, name in THROTTLE_REASONS.items() if mask & bit]


def bus_id(value: str | bytes) -> str:
    """0000:1b:00.0 for 00000000:1B:00.0, which is bytes in some versions of pynvml; any other text
    in lower case."""
    text = (value.decode(errors="replace") if isinstance(value, bytes) else value).lower()
    match = re.fullmatch(r"0{0,4}([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", text)
    return f"{match[1]}:{match[2]}" if match else text


class Monitor:
    """Readings of the GPU with this PCI bus id; none if NVML does not know it.

    What the GPU supports is determined once, here. All fields are read by one call into memory that
    is allocated once.
    """

    def __init__(self, pci_bus_id: str) -> None:
        self._handle: Any = _nvml_call("nvmlDeviceGetHandleByPciBusId", pci_bus_id)
        self._fields: Any = None  # an array of nvmlFieldValue_t
        # reading, factor: see _read_fields
        self._sums: dict[tuple[str, float], list[tuple[Any, Any, str]]] = {}
        self._calls: dict[str, tuple[float, tuple[Any, ...]]] = {}
        if self._handle is None:
            return
        self._allocate_fields()
        known = {reading for reading, _ in self._sums}
        for reading, factor, function, arguments in READING_CALLS:
            if reading not in known and _nvml_call(function, self._handle, *arguments) is not None:
                self._calls[reading] = factor, (function, self._handle, *arguments)
                known.add(reading)

    def readings(self) -> dict[str, float]:
        """The current values, as far as available: gpu.sm_clock_mhz, .memory_clock_mhz,
        .temperature_c, .power_w, .throttle_reasons (a mask, see `throttled`), and the counters
        .nvlink_tx_bytes, .nvlink_rx_bytes (all links), .nvlink_errors, .pcie_tx_bytes,
        .pcie_rx_bytes (they may wrap)."""
        readings = {} if self._fields is None else self._read_fields()
        for name, (factor, call) in self._calls.items():
            value = _nvml_call(*call)
            if value is not None:
                readings[name] = factor * value
        return readings

    def _allocate_fields(self) -> None:
        """Choose the fields that this GPU supports and allocate their array."""
        wanted: dict[Field, tuple[str, float]] = {  # the reading that a field adds to, and a factor
            (POWER_INSTANT_MW, 0): ("gpu.power_w", 1e-3),
            (PCIE_TX_BYTES, 0): ("gpu.pcie_tx_bytes", 1.0),
            (PCIE_RX_BYTES, 0): ("gpu.pcie_rx_bytes", 1.0),
            (LINKS_TX_BYTES, ALL_LINKS): ("gpu.nvlink_tx_bytes", 1.0),
            (LINKS_RX_BYTES, ALL_LINKS): ("gpu.nvlink_rx_bytes", 1.0),
        }
        for link in _active_nvlinks(self._handle) or []:
            wanted[LINK_TX_KIB, link] = "gpu.nvlink_tx_bytes", 1024.0
            wanted[LINK_RX_KIB, link] = "gpu.nvlink_rx_bytes", 1024.0
        for errors in LINK_ERROR_FIELDS:
            wanted[errors, 0] = "gpu.nvlink_errors", 1.0
        answers = _nvml_call("nvmlDeviceGetFieldValues", self._handle, list(wanted)) or ()
        named = zip(wanted, answers, strict=False)
        members = {field: member for field, answer in named if (member := _value_member(answer))}
        # or the same bytes would count twice
        if any(field[0] in (LINK_TX_KIB, LINK_RX_KIB) for field in members):
            members = {field: member for field, member in members.items() if field[1] != ALL_LINKS}
        if members:
            self._fields = _nvml_call("nvmlDeviceGetFieldValues", self._handle, list(members))
            # pynvml's allocates a new array
            self._get_fields = ctypes.CDLL(NVML_LIBRARY).nvmlDeviceGetFieldValues
        # as `_read_fields` needs them: to look them up there would take longer than NVML's call
        for each, value in zip(members, self._fields or (), strict=False):
            self._sums.setdefault(wanted[each], []).append((value, value.value, members[each]))

    def _read_fields(self) -> dict[str, float]:
        """The sums of fields, except those with a link that could not be read: they would seem to
        have decreased."""
        if self._get_fields(self._handle, len(self._fields), self._fields) != 0:
            return {}
        return {
            reading: factor * sum([getattr(value, member) for _, value, member in group])
            for (reading, factor), group in self._sums.items()
            if not any(field.nvmlReturn for field, *_ in group)
        }


def _value_member(answer: Any) -> str:
    """The member of the union that holds the value; empty if there is none, or if this nvidia-ml-py
    does not have it (12.535 to 12.560 lack usVal)."""
    if answer.nvmlReturn != 0 or not 0 <= answer.valueType < len(VALUE_MEMBERS):
        return ""
    member = VALUE_MEMBERS[answer.valueType]
    return member if hasattr(answer.value, member) else ""


@cache
def _open_nvml() -> tuple[Any, str | None]:
    """(pynvml, None) with NVML open, or (None, reason). pynvml is imported only if there is a
    driver."""
    try:
        ctypes.CDLL(NVML_LIBRARY)
    except OSError:
        return None, f"no NVIDIA driver: {NVML_LIBRARY} was not found"
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    return pynvml, None


def _nvml_call(name: str, *arguments: Any) -> Any:
    """The result of an NVML function; None if it is missing, not supported, or fails."""
    pynvml = _open_nvml()[0]
    function = getattr(pynvml, name, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _first_result(names: Sequence[str], *arguments: Any) -> Any:
    """The result of the first of these functions that is not None: newer versions come first."""
    results = (_nvml_call(name, *arguments) for name in names)
    return next((result for result in results if result is not None), None)


def _read_gpu(index: int) -> Gpu:
    pynvml = _open_nvml()[0]
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return Gpu(index, f"NVML: {error}")
    pci, memory, mig = (
        _nvml_call(f"nvmlDeviceGet{what}", handle) for what in ("PciInfo", "MemoryInfo", "MigMode")
    )
    links = _active_nvlinks(handle)
    capability = _nvml_call("nvmlDeviceGetCudaComputeCapability", handle)
    return Gpu(
        index,
        uuid=_nvml_call("nvmlDeviceGetUUID", handle),
        name=_nvml_call("nvmlDeviceGetName", handle),
        pci_bus_id=None if pci is None else bus_id(pci.busId),
        memory_total_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        compute_capability=None if capability is None else ".".join(map(str, capability)),
        mig=None if mig is None else bool(mig[0]),
        pcie_generation=_nvml_call("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_generation_max=_nvml_call("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=_nvml_call("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=_nvml_call("nvmlDeviceGetMaxPcieLinkWidth", handle),
        nvlink_links=None if links is None else len(links),
        c2c_gb_per_s=_c2c_gb_per_s(handle),
        sm_clock_max_mhz=_nvml_call("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM),
        health=read_health(_nvml_call, handle),
        processes=_compute_processes(handle),
    )


def _active_nvlinks(handle: Any) -> list[int] | None:
    """The numbers of the active links; None for a GPU that has no NVLink."""
    states = [_nvml_call("nvmlDeviceGetNvLinkState", handle, link) for link in range(MAX_NVLINKS)]
    return None if set(states) == {None} else [link for link, state in enumerate(states) if state]


def _c2c_gb_per_s(handle: Any) -> float | None:
    """The rate of all links to the CPU in one direction; None for a GPU without such links."""

    def values(fields: list[Field]) -> list[float]:
        answers = _nvml_call("nvmlDeviceGetFieldValues", handle, fields) or ()
        return [
            getattr(answer.value, member) for answer in answers if (member := _value_member(answer))
        ]

    (count,) = values([(C2C_LINK_COUNT, 0)]) or (0,)
    rates = values([(C2C_LINK_MBYTE_PER_S, link) for link in range(int(count))]) if count else []
    return sum(rates) / 1e3 or None


def _compute_processes(handle: Any) -> dict[int, int | None] | None:
    """Drivers before 510 have only the second version of the call."""
    versions = (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    )
    processes = _first_result(versions, handle)
    return (
        None if processes is None else {process.pid: process.usedGpuMemory for process in processes}
    )
