"""Which engine runs a timing mode."""

from __future__ import annotations

from commbench.core.case import Mode

from .device import Device, DeviceEvent, DeviceRunner, HostSync, Throughput
from .graph import Graph
from .loop import Call
from .lowered import Lowered

CLOCKS = {"host_sync": HostSync, "device_event": DeviceEvent, "throughput": Throughput}


def device_runner(device: Device, calls: Lowered[Call], pool: int, mode: Mode) -> DeviceRunner:
    """For one of settings.TIMING_MODES["cuda"]."""
    if mode.timing_mode == "graph":
        return Graph(device, calls, pool, mode.connected)
    return CLOCKS[mode.timing_mode](device, calls, pool)
