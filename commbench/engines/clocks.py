"""Which engine runs a timing mode."""

from __future__ import annotations

from commbench.contracts import Mode
from commbench.engines.device import Device, DeviceEvent, DeviceRunner, HostSync, Throughput
from commbench.engines.graph import Graph
from commbench.engines.loop import Call
from commbench.engines.lowered import Lowered

CLOCKS = {"host_sync": HostSync, "device_event": DeviceEvent, "throughput": Throughput}


def device_runner(device: Device, calls: Lowered[Call], pool: int, mode: Mode) -> DeviceRunner:
    """For one of settings.TIMING_MODES["cuda"]."""
    if mode.timing_mode == "graph":
        return Graph(device, calls, pool, mode.connected)
    return CLOCKS[mode.timing_mode](device, calls, pool)
