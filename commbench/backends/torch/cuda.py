"""A GPU through torch.cuda: which one a rank uses, its stream and clock for the engines, its memory for the buffers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.buffers.staging import CudaPageLock
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.hardware.cuda_driver import driver_missing
from commbench.hardware.nvml import Monitor

VISIBLE = "CUDA_VISIBLE_DEVICES"
BUILT_FOR = re.compile(r"^cuda\b[^=\n]*=\s*['\"]?([^'\"\s]+)", re.MULTILINE)  # in torch/version.py
USUAL_HZ = 2e9  # of an SM: what a hold is made of where the GPU does not tell its rate
NS_PER_MS = 1e6


def lacks_cuda(instead: str) -> str | None:
    """Why torch can't use a GPU here, found without importing it and without a context; None if it may."""
    driver = driver_missing()
    if driver is not None:
        return f"{driver}; use a machine or container with an NVIDIA GPU, or {instead}"
    spec = find_spec("torch")
    if spec is None or spec.origin is None or _built_without_cuda(Path(spec.origin).with_name("version.py")):
        return f"torch is built without CUDA; install a CUDA build (pytorch.org/get-started/locally), or {instead}"
    visible = os.environ.get(VISIBLE)
    if visible is not None and (not visible.strip() or visible.lstrip().startswith("-")):
        return f"{VISIBLE}={visible!r} hides every GPU; unset it or name some, or {instead}"
    return None


def _built_without_cuda(version: Path) -> bool:
    match = BUILT_FOR.search(version.read_text()) if version.exists() else None
    return match is not None and match[1] == "None"


def own_index(world: World, count: int) -> int:
    """The n-th rank of a node takes the n-th of the GPUs that it sees, from the first one again where they are few."""
    return world.nodes[world.node_of(world.rank)].index(world.rank) % count


def clock_hz(properties: Any) -> float:
    """Of the SMs, from torch's device properties, which have it in kHz or not at all."""
    return float(getattr(properties, "clock_rate", 0) or 0) * 1e3 or USUAL_HZ


class CudaEvent:
    """See engines.device.Event."""

    def __init__(self, stream: Any) -> None:
        import torch

        cuda: Any = torch.cuda
        self._stream, self._event = stream, cuda.Event(enable_timing=True)

    def record(self) -> None:
        self._event.record(self._stream)

    def elapsed_ns(self, since: Any) -> int:
        """Of another CudaEvent."""
        return int(since._event.elapsed_time(self._event) * NS_PER_MS)


class CudaDevice:
    """See engines.device.Device. The stream is the one that is current here, which torch lets wait for its libraries.

    `synchronise` is the stream's own: a call that returns has only been enqueued (P1), and so has a wait for it (P3).
    """

    def __init__(self, index: int) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._cuda.set_device(index)
        self.place = torch.device("cuda", index)
        properties = self._cuda.get_device_properties(index)
        self.name: str = properties.name
        self._hz = clock_hz(properties)
        self._stream: Any = self._cuda.current_stream(index)
        self.synchronise: Callable[[], None] = self._stream.synchronize
        self._failed: list[Any] = []
        self._monitor = Monitor(f"GPU-{str(getattr(properties, 'uuid', '')).removeprefix('GPU-')}")

    @classmethod
    def of(cls, world: World) -> CudaDevice:
        """This rank's. Raises RuntimeError where CUDA can't start."""
        import torch

        return cls(own_index(world, max(torch.cuda.device_count(), 1)))

    def event(self) -> CudaEvent:
        return CudaEvent(self._stream)

    def hold(self, seconds: float) -> None:
        """A kernel that counts clock ticks: it ends by itself, whatever the host does."""
        self._cuda._sleep(int(seconds * self._hz))

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """On a stream of its own, as CUDA asks; work forked to a library's stream joins it by the wait for that work.

        P23: torch's watchdog looks at events all the time, which a "global" capture forbids to every thread, and NCCL
        allocates in a first use, so the steps have run before. A case uses one communicator, so a graph does, too.
        """
        if self._failed:
            raise Unsupported("torch's allocator is not usable for graphs after a capture that failed in this process")
        graph = self._cuda.CUDAGraph()
        try:
            with self._cuda.graph(graph, capture_error_mode="thread_local"):
                enqueue()
        except RuntimeError as error:
            self._failed.append(graph)  # the allocator still points at it
            raise Unsupported(f"CUDA can't capture these calls in a graph: {_first_line(error)}") from error
        finally:
            self._cuda.set_stream(self._stream)  # a capture that fails at its end leaves the other one current
        replay: Callable[[], None] = graph.replay
        return replay

    def pages(self) -> CudaPageLock:
        """What locks host memory for this GPU."""
        return CudaPageLock()

    def readings(self) -> dict[str, float]:
        """Clocks, temperature, throttle reasons and byte counters, as far as NVML tells them."""
        return self._monitor.readings()


class CudaMemory:
    """See device_memory.Allocation: bytes of torch's allocator. Raises MemoryError."""

    def __init__(self, size: int, place: Any) -> None:
        import torch

        try:
            self.tensor = torch.empty(size, dtype=torch.uint8, device=place)
        except torch.OutOfMemoryError as error:
            raise MemoryError(f"{size} B on {place}: {_first_line(error)}") from error
        self.address = int(self.tensor.data_ptr())

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        import torch

        self.tensor[offset : offset + len(data)].copy_(torch.from_numpy(data))  # waits, as the source is pageable

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        data: NDArray[np.uint8] = self.tensor[offset : offset + size].cpu().numpy()
        return data


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
