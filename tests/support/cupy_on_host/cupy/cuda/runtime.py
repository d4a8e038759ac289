"""See cupy."""

from __future__ import annotations

import ctypes
import os
from typing import Any

memcpyHostToDevice = 1  # noqa: N816
memcpyDeviceToHost = 2  # noqa: N816
memcpyDeviceToDevice = 3  # noqa: N816
streamCaptureModeThreadLocal = 1  # noqa: N816
cudaDevAttrClockRate = 13  # noqa: N816
CLOCK_KHZ = 1_755_000
STREAMS: dict[int, Any] = {}
CHOSEN: list[int] = []


def getDeviceCount() -> int:  # noqa: N802
    return int(os.environ["CUPY_ON_HOST_GPUS"])


def setDevice(index: int) -> None:  # noqa: N802
    CHOSEN[:] = [index]


def deviceGetAttribute(attribute: int, index: int) -> int:  # noqa: N802
    assert (attribute, [index]) == (cudaDevAttrClockRate, CHOSEN)
    return CLOCK_KHZ


def deviceGetPCIBusId(index: int) -> str:  # noqa: N802
    return f"0000:{0x1A + index:02X}:00.0"


def memGetInfo() -> tuple[int, int]:  # noqa: N802
    return 2**30, 2**31


def deviceSynchronize() -> None:  # noqa: N802
    for stream in STREAMS.values():
        stream.synchronize()


def memcpy(target: int, source: int, size: int, kind: int) -> None:
    assert kind in (memcpyHostToDevice, memcpyDeviceToHost)
    ctypes.memmove(target, source, size)


def memcpyAsync(target: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
    assert kind == memcpyDeviceToDevice
    STREAMS[stream].enqueue(lambda: ctypes.memmove(target, source, size) and None)
