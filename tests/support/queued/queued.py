"""A device that is none: work is put into a queue and done when the host waits for it, as on a GPU.

Its memory is the host's, and gloo moves the bytes: worlds, payloads and clocks of a GPU without
one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import DeviceBuffer, HostBuffer
from commbench.backends.buffers.staging import with_staging
from commbench.backends.torch.distributed import TorchCommunicator, TorchLowering, start_group
from commbench.backends.torch.gloo import Gloo
from commbench.core.case import World
from commbench.core.payload import dtype
from commbench.core.program import BufferSpec, Program, Step
from commbench.core.protocols import Buffer, Control, Runner
from commbench.core.variables import Case, Device, Mode, Staging
from commbench.engines.device import device_runner
from commbench.engines.lowered import Call, Lowered, now_ns

Work = Callable[[], Any]


class Instant:
    ns = -1

    def happen(self) -> None:
        self.ns = now_ns()


class QueuedDevice:
    """See engines.device.GpuStream. `early`: it says that work is done which is not."""

    def __init__(self, early: bool = False) -> None:
        self._early = early
        self._queue = list[Work]()
        self.host_bound = 0

    def enqueue(self, work: Work) -> None:
        self._queue.append(work)

    def synchronise(self) -> None:
        queue = self._queue
        self._queue = []
        for work in () if self._early else queue:
            work()

    def event(self) -> Instant:
        return Instant()

    def record(self, event: Instant) -> None:
        self.enqueue(event.happen)

    def happened(self, event: Instant) -> bool:
        return False  # nothing is done before the host waits

    def elapsed_ns(self, begin: Instant, end: Instant) -> int:
        return end.ns - begin.ns

    def hold(self, seconds: float) -> None:
        self.enqueue(lambda: time.sleep(seconds))

    def capture(self, enqueue: Work) -> Work:
        queue = self._queue
        self._queue = []
        enqueue()
        captured = self._queue
        self._queue = queue
        return lambda: self._queue.extend(captured)


class Memory:
    """See buffers.memory.Allocation."""

    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, dtype=np.uint8)
        self.address = int(self.bytes.ctypes.data)

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        self.bytes[offset : offset + len(data)] = data

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        return self.bytes[offset : offset + size].copy()


class QueuedBuffer(DeviceBuffer):
    """With the words that torch makes tensors of."""

    def words(self, slot: int, copy: int) -> NDArray[Any]:
        kind = dtype(self.spec.dtype)
        start = self.offset(slot, copy)
        data: NDArray[np.uint8] = self.allocation.bytes  # type: ignore[attr-defined]
        return data[start : start + self.spec.count * kind.itemsize].view(kind.word)


@dataclass(frozen=True)
class Queued(Gloo):
    """See Backend. `pinned`: its library can't read the device's memory."""

    name: ClassVar[str] = "queued"
    devices: ClassVar[tuple[Device, ...]] = ("cuda",)
    early: bool = False
    pinned: bool = False

    def missing(self, device: Device = "cuda") -> str | None:
        return None

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        """What gloo can do with host memory, in any timer."""
        return super().supports(
            replace(case, device="cpu", timer="host", staging="none"), size, program
        )

    def staging(self, program: Program) -> Staging:
        return "pinned" if self.pinned else "none"

    def open(self, world: World, control: Control, device: Device = "cuda") -> Any:
        return QueuedCommunicator(
            TorchCommunicator("gloo", *start_group("gloo", world, control)),
            QueuedDevice(self.early),
        )


class QueuedCommunicator:
    """See Communicator."""

    def __init__(self, inner: Any, device: QueuedDevice) -> None:
        self._inner = inner
        self._device = device
        self.size = inner.size
        self.hosted = inner.hosted
        self.deliver = inner.deliver
        self.counters = inner.counters
        self.facts = inner.facts
        self.settings = inner.settings
        self.close = inner.close

    def subset(self, ranks: Sequence[int]) -> QueuedCommunicator | None:
        inner = self._inner.subset(ranks)
        return None if inner is None else QueuedCommunicator(inner, self._device)

    for_graphs = subset

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return QueuedBuffer(spec, pool, Memory)

    def prepare(
        self, programs: Mapping[int, Program], buffers: Mapping[int, Mapping[str, Any]], mode: Mode
    ) -> Runner:
        rank = self.hosted[0]
        program = programs[rank]
        held = dict(buffers[rank])
        if mode.staging == "pinned":
            program, held = with_staging(program, rank, held, HostBuffer)
        lowering = TorchLowering(self._inner.group, held)
        works = dict[int, Any]()

        def call(step: Step) -> Call:
            lowered = lowering.call(step)
            return Call(self._later, (lowered, works, *lowered.args))

        pool = max((buffer.pool for buffer in held.values()), default=1)
        return device_runner(self._device, Lowered.of(program, mode.sync, call), pool, mode)

    def _later(self, call: Call, works: dict[int, Any], *args: Any) -> None:
        self._device.enqueue(lambda: _done(call, works, args))


def _done(call: Call, works: dict[int, Any], args: Sequence[Any]) -> None:
    waited = [] if call.requests is None else [[works.pop(request) for request in call.requests]]
    result = call.function(*args, *waited)
    if call.into is not None:
        works[call.into] = result
