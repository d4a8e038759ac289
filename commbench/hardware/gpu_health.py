"""What NVML says of a GPU's health: errors of its memory and links, and limits that slow it down.

The names are those of nvml.h. Values that a GPU or a driver does not have are None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NvmlCall = Callable[..., Any]  # (name, *arguments) -> the result, or None
# NVML_FI_DEV_*_ERROR_COUNT_TOTAL: CRC of flits, CRC of data, replays, recoveries
LINK_ERROR_FIELDS = (38, 45, 52, 59)
FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
# where the fabric's health mask has two bits for it, of which 1 is a fault
FABRIC_FAULTS = {
    "degraded bandwidth": 0,
    "route recovery": 2,
    "unhealthy route": 4,
    "access timeout recovery": 6,
}
CONFIGURATION_SHIFT = 8
CONFIGURATION_MASK = 0xF
RIGHT_CONFIGURATIONS = (0, 1)  # not supported, none is incorrect


class _FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster_uuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("clique_id", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
        ("health_mask", ctypes.c_uint32),
    )


FABRIC_INFO_V2 = ctypes.sizeof(_FabricInfo) | 2 << 24


@dataclass(frozen=True)
class GpuHealth:
    """`remapped_rows` counts rows of memory that were replaced. The limit is the enforced one."""

    power_limit_w: float | None = None
    remapped_rows: int | None = None
    remapping_pending: bool | None = None
    remapping_failed: bool | None = None
    fabric_state: str | None = None
    fabric_health: str | None = None


def read_health(call: NvmlCall, handle: Any) -> GpuHealth:
    limit_mw = call("nvmlDeviceGetEnforcedPowerLimit", handle)
    rows = call("nvmlDeviceGetRemappedRows", handle)
    state, health = _fabric(call, handle)
    return GpuHealth(
        power_limit_w=None if limit_mw is None else limit_mw * 1e-3,
        remapped_rows=None if rows is None else int(rows[0] + rows[1]),
        remapping_pending=None if rows is None else bool(rows[2]),
        remapping_failed=None if rows is None else bool(rows[3]),
        fabric_state=state,
        fabric_health=health,
    )


def _fabric(call: NvmlCall, handle: Any) -> tuple[str | None, str | None]:
    """State and health of the NVSwitch fabric; None for a GPU that belongs to none."""
    info = _FabricInfo(version=FABRIC_INFO_V2)
    if call("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info)) is None:
        return None, None
    state = FABRIC_STATES.get(info.state)
    return state, None if state is None else fabric_health(info.health_mask)


def fabric_health(mask: int) -> str:
    """`healthy`, or what is wrong: `degraded bandwidth, unhealthy route`."""
    faults = [name for name, shift in FABRIC_FAULTS.items() if (mask >> shift) & 0x3 == 1]
    configuration = (mask >> CONFIGURATION_SHIFT) & CONFIGURATION_MASK
    if configuration not in RIGHT_CONFIGURATIONS:
        faults.append(f"incorrect configuration ({configuration})")
    return ", ".join(faults) or "healthy"
