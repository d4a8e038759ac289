"""The four timers against a kernel of known length, their floors, and NCCL's 8 B with and
without a hold.

`python clocks.py torch|cupy`. The kernel counts clock ticks; how long a tick is, one kernel of 20
ms tells, in which events and launches are invisible. A shorter kernel takes 1 to 3 us more than its
ticks.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from world import answer, opened, runner

from commbench.core.variables import Mode, TimerName
from commbench.engines.device import device_runner
from commbench.engines.lowered import Call, Lowered

# samples between two stamps
MODES: dict[TimerName, int] = {"host_sync": 1, "device_event": 1, "throughput": 20, "graph": 20}
WORK_US = (0.0, 5.0, 20.0, 100.0)  # 0: nothing is enqueued, so what is left is the floor
LONG_S = 20e-3
REPETITIONS = 100


class Unheld:
    """The device without its hold, as nccl-tests measures: the first call meets an idle stream."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def hold(self, seconds: float) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_device":
            object.__setattr__(self, name, value)
        else:
            setattr(self._device, name, value)


def durations_us(measured: Any, samples: int) -> dict[str, float]:
    """Per sample; the first tenth is a warm-up."""
    stamps = measured(REPETITIONS)[0][REPETITIONS // 10 :]
    times = (stamps[:, 1] - stamps[:, 0]) * 1e-3 / samples
    return {
        "median_us": float(np.median(times)),
        "min_us": float(times.min()),
        "p90_us": float(np.quantile(times, 0.9)),
    }


def spun(device: Any, mode: TimerName, work_us: float, samples: int) -> Any:
    steps = (Call(device.hold, (work_us * 1e-6,)),) * samples if work_us else ()
    return device_runner(device, Lowered(steps), 1, Mode("python", timer=mode, connected=True))


def true_scale(device: Any) -> float:
    """How much longer than it was asked for a kernel takes: clock rates are what the driver says of
    them."""
    begin = device.event()
    end = device.event()
    for _ in range(5):  # the first ones wake the GPU up
        device.record(begin)
        device.hold(LONG_S)
        device.record(end)
        device.synchronise()
    return float(device.elapsed_ns(begin, end) * 1e-9 / LONG_S)


def main(library: str) -> None:
    communicator = opened(library)
    device = communicator.gpu if library == "torch" else communicator.device
    if library == "cupy":
        device.ready_to_hold()
    scale = true_scale(device)
    rows = []
    for mode, samples in MODES.items():
        for work_us in WORK_US:
            before = device.host_bound
            try:
                seen: dict[str, Any] = durations_us(spun(device, mode, work_us, samples), samples)
            except Exception as error:  # a graph of nothing may be refused
                seen = {"error": f"{type(error).__name__}: {error}"}
            rows.append(
                {
                    "mode": mode,
                    "samples": samples,
                    "asked_us": work_us,
                    "true_us": scale * work_us,
                    **seen,
                    "host_bound": device.host_bound - before,
                }
            )
    calls = []
    for mode, samples in MODES.items():
        for held in (True, False) if mode != "host_sync" else (True,):
            if not held:
                name = "_gpu" if library == "torch" else "_device"
                setattr(communicator, name, Unheld(device))
            measured, buffers = runner(communicator, mode, samples)
            before = device.host_bound
            calls.append({"mode": mode, "held": held, **durations_us(measured, samples),
                          "host_bound": device.host_bound - before})  # fmt: skip
            del measured, buffers
            setattr(communicator, "_gpu" if library == "torch" else "_device", device)
    answer(
        {
            "library": library,
            "scale": scale,
            "kernels": rows,
            "all_gather_8B": calls,
            "facts": {
                name: value for name, value in communicator.facts().items() if name != "nccl_log"
            },
        }
    )
    communicator.close()


if __name__ == "__main__":
    main(sys.argv[1])
