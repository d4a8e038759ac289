"""What NVML answers on this machine, raw, what a reading costs, and by which numbers it names
processes."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from world import answer

from commbench.hardware import gpu, nvml
from commbench.hardware.cuda import CudaDriver

READINGS = 200


def raw_fields() -> list[dict[str, Any]]:
    """Each field that commbench asks for, with NVML's status and all that its answer may mean."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByPciBusId(CudaDriver().pci_bus_id(0))
    whole = (nvml.POWER_INSTANT_MW, nvml.PCIE_TX_BYTES, nvml.PCIE_RX_BYTES, nvml.C2C_LINK_COUNT)
    wanted = [(field, 0) for field in whole]
    wanted += [(field, nvml.ALL_LINKS) for field in (nvml.LINKS_TX_BYTES, nvml.LINKS_RX_BYTES)]
    per_link = (nvml.LINK_TX_KIB, nvml.LINK_RX_KIB, nvml.C2C_LINK_MBYTE_PER_S)
    wanted += [(field, link) for field in per_link for link in range(nvml.MAX_NVLINKS)]
    return [
        {
            "field": field,
            "scope": scope,
            "status": result.nvmlReturn,
            "type": result.valueType,
            # an older nvidia-ml-py lacks some of them
            "value": {name: getattr(result.value, name, None) for name in nvml.VALUE_MEMBERS},
            "latency_us": result.latencyUsec,
        }
        for (field, scope), result in zip(
            wanted, pynvml.nvmlDeviceGetFieldValues(handle, wanted), strict=True
        )
    ]


def cost_us(monitor: nvml.Monitor) -> dict[str, float]:
    times = []
    for _ in range(READINGS):
        begin_ns = time.perf_counter_ns()
        monitor.readings()
        times.append((time.perf_counter_ns() - begin_ns) * 1e-3)
    return {
        "median_us": float(np.median(times)),
        "p99_us": float(np.quantile(times, 0.99)),
        "max_us": max(times),
    }


def named_processes() -> dict[str, Any]:
    """By NVML, and this process by its own numbers."""
    device = nvml.gpus()[0]
    own = gpu.own_pids(Path("/proc"))
    return {"by_nvml": device.processes, "pid": os.getpid(), "NSpid": own,
            "users": gpu.users(device)}  # fmt: skip


def busy_cost_us(monitor: nvml.Monitor) -> dict[str, float]:
    """While the GPU works and another thread launches kernels."""
    import torch

    cuda: Any = torch.cuda
    going = threading.Event()

    def launch() -> None:
        while not going.is_set():
            cuda._sleep(1_000_000)
            cuda.synchronize()

    thread = threading.Thread(target=launch)
    thread.start()
    try:
        return cost_us(monitor)
    finally:
        going.set()
        thread.join()


def main() -> None:
    before = named_processes()
    begin_ns = time.perf_counter_ns()
    monitor = nvml.Monitor(CudaDriver().pci_bus_id(0))
    opened_us = (time.perf_counter_ns() - begin_ns) * 1e-3
    idle = cost_us(monitor)
    import torch

    held = torch.zeros(1 << 20, device="cuda")
    after = named_processes()
    answer(
        {
            "driver": [nvml.driver_version(), nvml.newest_cuda()],
            "gpus": [asdict(device) for device in nvml.gpus()],
            "own": gpu.own_gpu(0),
            "readings": monitor.readings(),
            "fields": raw_fields(),
            "opened_us": opened_us,
            "idle": idle,
            "busy": busy_cost_us(monitor),
            "processes_before": before,
            "processes_after": after,
            "held_bytes": held.nbytes,
        }
    )


if __name__ == "__main__":
    main()
