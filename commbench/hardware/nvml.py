"""The GPUs of this machine as the NVIDIA driver's management library (NVML) tells them; nothing where there is none.

NVML sees all GPUs that the kernel lets this process see and does not know CUDA_VISIBLE_DEVICES. It stays open once it
was asked: opening it costs milliseconds, on machines without the persistence daemon seconds. Any call may be unknown to
an old driver, not supported by a GPU, or fail because a GPU fell off the bus; then a value is None and the others stay.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
MOST_LINKS = 36  # of NVLink, of any GPU up to now
VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
LINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
# nvmlClocksEventReasons that mean slower than asked; the others are idle, a chosen clock, sync boost and display
SLOWING = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
# nvml.h, NVML_FI_DEV_*: all of them only count upwards, and none takes longer than a millisecond.
# nvmlDeviceGetPcieThroughput would watch the bus for 20 ms.
POWER_INSTANT_MW = 186
PCIE_TX_BYTES, PCIE_RX_BYTES = 197, 198
LINK_TX_KIB, LINK_RX_KIB = 138, 139  # NVLINK_THROUGHPUT_DATA, up to NVLink 4: payload, one counter a link
LINKS_TX_BYTES, LINKS_RX_BYTES = 202, 204  # NVLINK_COUNT, from NVLink 5 on: one counter for all links
ALL_LINKS = 0xFFFFFFFF

Field = tuple[int, int]  # id, scope (a link's number)


@dataclass(frozen=True)
class Process:
    """A process that computes on a GPU. `memory_bytes` is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU; `index` is NVML's (order of the PCI bus). What could not be read is None.

    memory in bytes; widths in lanes; `nvlink_links` are the active ones, `sm_clock_max_mhz` the boost clock.
    """

    index: int
    error: str | None = None  # why not even its handle could be had
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None  # 0000:1b:00.0, as /sys writes it
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    mig: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlink_links: int | None = None
    nvlink_version: str | None = None
    sm_clock_max_mhz: int | None = None
    processes: tuple[Process, ...] | None = None


@dataclass(frozen=True)
class Driver:
    """Versions: of the kernel driver (580.65.06) and the newest CUDA that it can run (13.0)."""

    version: str | None = None
    cuda: str | None = None


def reason() -> str | None:
    """Why NVML tells nothing here; None where it does."""
    return _opened()[1]


def driver() -> Driver:
    """The driver's versions, as far as it tells them."""
    version, cuda = _ask("nvmlSystemGetDriverVersion"), _ask("nvmlSystemGetCudaDriverVersion_v2")
    cuda = _ask("nvmlSystemGetCudaDriverVersion") if cuda is None else cuda
    return Driver(version, cuda_version(cuda) if cuda else None)


def cuda_version(number: int) -> str:
    """12.4 of 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def count() -> int:
    """How many GPUs NVML sees; 0 where there is no driver."""
    return _ask("nvmlDeviceGetCount") or 0


def gpus() -> list[Gpu]:
    """All GPUs, also one that gives no answer any more (its `error`)."""
    return [_gpu(index) for index in range(count())]


def throttled(mask: int) -> list[str]:
    """The reasons in a mask of clock event reasons that slow a GPU down; idle or a clock that was asked for is none."""
    return [name for bit, name in SLOWING.items() if mask & bit]


def bus_id(text: str) -> str:
    """0000:1b:00.0 of NVML's 00000000:1B:00.0; another text in lower case."""
    match = re.fullmatch(r"0{0,4}([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", text.lower())
    return f"{match[1]}:{match[2]}" if match else text.lower()


class Monitor:
    """Watches one GPU, named by its UUID (GPU-..., MIG-...) or PCI bus id; an unknown one has no readings.

    What the GPU does not support is found out once, here.
    """

    def __init__(self, name: str) -> None:
        handle = _find(name)
        self._fields = None if handle is None else _Fields(handle)
        self._calls = {} if self._fields is None else _calls(handle, self._fields.names)

    def readings(self) -> dict[str, float]:
        """What can be read now, of gpu.sm_clock_mhz, .memory_clock_mhz, .temperature_c, .power_w, .throttle_reasons
        (a mask, see `throttled`), and the counters .nvlink_tx_bytes, .nvlink_rx_bytes (all links), .pcie_tx_bytes,
        .pcie_rx_bytes (they may wrap)."""
        found = {} if self._fields is None else self._fields.read()
        for name, (call, factor) in self._calls.items():
            value = _ask(*call)
            if value is not None:
                found[name] = factor * value
        return found


class _Fields:
    """The readings that are sums of NVML's fields: all of them in one call, into memory that is laid out once."""

    def __init__(self, handle: Any) -> None:
        links = _active_links(handle) or []
        wanted = _fields(links)
        answers = _ask("nvmlDeviceGetFieldValues", handle, list(wanted)) or ()
        members = {field: _member(one) for field, one in zip(wanted, answers, strict=False)}
        answered = [field for field, member in members.items() if member]
        older = [field for field in answered if field[0] in (LINK_TX_KIB, LINK_RX_KIB)]
        # one kind of counter only, or the same bytes would count twice
        chosen = [field for field in answered if not older or field[0] not in (LINKS_TX_BYTES, LINKS_RX_BYTES)]
        self._handle = handle
        self._values: Any = _ask("nvmlDeviceGetFieldValues", handle, chosen) if chosen else None
        self._call = None if self._values is None else ctypes.CDLL(LIBRARY).nvmlDeviceGetFieldValues
        self._groups: dict[tuple[str, float], list[tuple[Any, Any, str]]] = {}
        for field, one in zip(chosen, self._values or (), strict=False):  # unpacking costs more than the call itself
            self._groups.setdefault(wanted[field], []).append((one, one.value, members[field]))
        self.names = {name for name, _ in self._groups}

    def read(self) -> dict[str, float]:
        """A sum without one of its links would look like a step back: then there is none."""
        if self._call is None or self._call(self._handle, len(self._values), self._values) != 0:
            return {}
        return {
            name: factor * sum([getattr(value, member) for _, value, member in group])
            for (name, factor), group in self._groups.items()
            if not any(one.nvmlReturn for one, *_ in group)
        }


def _fields(links: Iterable[int]) -> dict[Field, tuple[str, float]]:
    """What to ask for; each with the reading that it adds to, and a factor."""
    fields = {(POWER_INSTANT_MW, 0): ("gpu.power_w", 1e-3)}
    fields |= {(PCIE_TX_BYTES, 0): ("gpu.pcie_tx_bytes", 1.0), (PCIE_RX_BYTES, 0): ("gpu.pcie_rx_bytes", 1.0)}
    fields |= {(LINKS_TX_BYTES, ALL_LINKS): ("gpu.nvlink_tx_bytes", 1.0)}
    fields |= {(LINKS_RX_BYTES, ALL_LINKS): ("gpu.nvlink_rx_bytes", 1.0)}
    for link in links:
        fields[LINK_TX_KIB, link] = "gpu.nvlink_tx_bytes", 1024.0
        fields[LINK_RX_KIB, link] = "gpu.nvlink_rx_bytes", 1024.0
    return fields


def _member(answer: Any) -> str:
    """Which member of the union is the value; an empty text where there is none."""
    known = answer.nvmlReturn == 0 and 0 <= answer.valueType < len(VALUE_MEMBERS)
    return VALUE_MEMBERS[answer.valueType] if known else ""


def _calls(handle: Any, known: Iterable[str]) -> dict[str, tuple[tuple[Any, ...], float]]:
    """For each reading that no field gives, the call that this driver and GPU answer, and a factor."""
    pynvml = _opened()[0]
    tries: dict[str, list[tuple[Any, ...]]] = {
        "gpu.sm_clock_mhz": [("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM)],
        "gpu.memory_clock_mhz": [("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM)],
        "gpu.temperature_c": [
            ("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
            ("nvmlDeviceGetTemperatureV", handle, pynvml.NVML_TEMPERATURE_GPU),  # the older one goes with CUDA 14
        ],
        "gpu.throttle_reasons": [
            ("nvmlDeviceGetCurrentClocksEventReasons", handle),
            ("nvmlDeviceGetCurrentClocksThrottleReasons", handle),  # its name before driver 535
        ],
        "gpu.power_w": [("nvmlDeviceGetPowerUsage", handle)],  # averaged over a second on newer GPUs
    }
    working = {
        name: next((one for one in calls if _ask(*one) is not None), None)
        for name, calls in tries.items()
        if name not in known
    }
    return {name: (call, 1e-3 if name == "gpu.power_w" else 1.0) for name, call in working.items() if call is not None}


@cache
def _opened() -> tuple[Any, str | None]:
    """(pynvml, None) once it is open for good, or (None, why not). pynvml is loaded only where there is a driver."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return None, f"no NVIDIA driver: {LIBRARY} was not found"
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    return pynvml, None


def _ask(name: str, *arguments: Any) -> Any:
    """What an NVML function returns; None where it is unknown here, not supported, or fails."""
    pynvml = _opened()[0]
    function = getattr(pynvml, name, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _gpu(index: int) -> Gpu:
    pynvml = _opened()[0]
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return Gpu(index, f"NVML: {error}")
    pci, memory, mig = (_ask(f"nvmlDeviceGet{what}", handle) for what in ("PciInfo", "MemoryInfo", "MigMode"))
    links = _active_links(handle)
    return Gpu(
        index,
        uuid=_ask("nvmlDeviceGetUUID", handle),
        name=_ask("nvmlDeviceGetName", handle),
        pci_bus_id=None if pci is None else bus_id(_text(pci.busId)),
        memory_total_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        compute_capability=_ask("nvmlDeviceGetCudaComputeCapability", handle),
        mig=None if mig is None else bool(mig[0]),
        pcie_generation=_ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_generation_max=_ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=_ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_width_max=_ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        nvlink_links=None if links is None else len(links),
        nvlink_version=_link_version(handle, links or ()),
        sm_clock_max_mhz=_ask("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM),
        processes=_processes(handle),
    )


def _text(value: str | bytes) -> str:
    """Fields of structs are bytes in some versions of pynvml."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _active_links(handle: Any) -> list[int] | None:
    """The numbers of the active links; None for a GPU that has no NVLink."""
    states = [_ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(MOST_LINKS)]
    return None if set(states) == {None} else [link for link, state in enumerate(states) if state]


def _link_version(handle: Any, links: Sequence[int]) -> str | None:
    number = _ask("nvmlDeviceGetNvLinkVersion", handle, links[0]) if links else None
    return None if number is None else LINK_VERSIONS.get(number, f"unknown ({number})")


def _processes(handle: Any) -> tuple[Process, ...] | None:
    """Drivers before 510 know only the second version of the call."""
    answers = (_ask(f"nvmlDeviceGetComputeRunningProcesses_{version}", handle) for version in ("v3", "v2"))
    found = next((answer for answer in answers if answer is not None), None)
    if found is None:
        return None
    return tuple(Process(int(one.pid), None if one.usedGpuMemory is None else int(one.usedGpuMemory)) for one in found)


def _find(name: str) -> Any:
    """A handle, of the whole GPU where a part of it (MIG) is named: a part has neither clocks nor counters."""
    if not name.startswith(("GPU-", "MIG-")):
        return _ask("nvmlDeviceGetHandleByPciBusId", name)
    handle = _ask("nvmlDeviceGetHandleByUUID", name)
    if handle is None or name.startswith("GPU-"):
        return handle
    return _ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
