"""The communicators of a GPU on torch's CPU tensors, moved by gloo: all but CUDA itself and NCCL
itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from host_pools import HostPool, HostPools, use_host_pool
from host_process_group import HostProcessGroupNccl

from commbench.backends.nccl_library import NcclLog
from commbench.backends.torch.distributed import CudaCommunicator, start_group
from commbench.backends.torch.gloo import Gloo
from commbench.backends.torch.nccl import Nccl, NcclCommunicator, NcclLowering
from commbench.backends.torch.registered_memory import RegisteredMemory
from commbench.core.case import World
from commbench.core.program import Step
from commbench.core.protocols import Buffer, Control
from commbench.core.variables import Device
from commbench.engines.device import HOST_BOUND
from commbench.engines.lowered import Call, Rotating, now_ns
from commbench.features.cuda_copy.backend import CopyCommunicator, CudaCopy


class HostEvent:
    ns = 0


class HostStream:
    """See SideStream of backends/torch/cuda.py: work is done when it is waited for."""

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []

    def start(self, enqueue: Callable[..., None], *args: Any) -> HostStream:
        self._work.append(partial(enqueue, *args))
        return self

    def wait(self) -> None:
        for work in self._work:
            work()
        self._work.clear()


class HostGpu:
    """See engines.device.GpuStream: nothing is put off, so there is nothing to wait for."""

    name = "host"
    capability = (9, 0)

    def __init__(self) -> None:
        import torch

        self.place = torch.device("cpu")
        self.locked: set[int] = set()
        self.host_bound = 0

    def synchronise(self) -> None: ...

    def event(self) -> HostEvent:
        return HostEvent()

    def record(self, event: HostEvent) -> None:
        event.ns = now_ns()

    def happened(self, event: HostEvent) -> bool:
        return True

    def elapsed_ns(self, begin: HostEvent, end: HostEvent) -> int:
        return end.ns - begin.ns

    def hold(self, seconds: float) -> None:
        time.sleep(seconds)

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        return enqueue

    def side_stream(self) -> HostStream:
        return HostStream()

    def readings(self) -> dict[str, float]:
        return {"gpu.locked_buffers": float(len(self.locked)), HOST_BOUND: float(self.host_bound)}

    def pages(self) -> HostGpu:
        return self

    def lock(self, address: int, size: int) -> None:
        assert address not in self.locked and size > 0
        self.locked.add(address)

    def unlock(self, address: int) -> None:
        self.locked.remove(address)


@dataclass(frozen=True)
class HostGloo(Gloo):
    """See Backend."""

    name: ClassVar[str] = "host_gloo"
    devices: ClassVar[tuple[Device, ...]] = ("cuda",)

    def missing(self, device: Device = "cuda") -> str | None:
        return None

    def open(self, world: World, control: Control, device: Device = "cuda") -> Any:
        gpu: Any = HostGpu()
        return CudaCommunicator("gloo", *start_group("gloo", world, control), gpu)


@dataclass(frozen=True)
class HostCopy(CudaCopy):
    """See Backend."""

    name: ClassVar[str] = "host_copy"

    def missing(self, device: Device = "cuda") -> str | None:
        return None

    def open(self, world: World, control: Control, device: Device = "cuda") -> Any:
        gpu: Any = HostGpu()
        return CopyCommunicator(self.name, *start_group("gloo", world, control), gpu)


def in_float32(function: Callable[..., Any], *args: Any) -> None:
    """gloo can't reduce float8; the sums of its payload are exact in both types."""
    import torch

    wide = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args]
    function(*wide)
    args[0].copy_(wide[0])


class HostNcclLowering(NcclLowering):
    def call(self, step: Step) -> Call:
        call = super().call(step)
        rotating = (arg for arg in call.args if isinstance(arg, Rotating))
        if any("float8" in str(getattr(each.values[0], "dtype", "")) for each in rotating):
            return replace(call, function=partial(in_float32, call.function))
        return call

    def _exchange(self, operations: list[Any]) -> None:
        """gloo refuses messages to oneself; NCCL copies them where both ends are in one batch, in
        their order."""
        to_self = [
            operation for operation in operations if operation.group_peer == self._group.rank()
        ]
        sent = [operation.tensor for operation in to_self if operation.op is self._dist.isend]
        received = [operation.tensor for operation in to_self if operation.op is self._dist.irecv]
        for target, source in zip(received, sent, strict=True):
            target.copy_(source)
        others = [operation for operation in operations if operation not in to_self]
        if others:
            super()._exchange(others)


class HostNcclCommunicator(NcclCommunicator):
    pools = HostPools()

    def registered_memory(self, registration: Any) -> Any:
        import torch

        torch.cuda.MemPool = HostPool  # type: ignore[misc, assignment]
        torch.cuda.use_mem_pool = use_host_pool  # type: ignore[assignment]
        self._memory = RegisteredMemory(self.pools, registration)
        return self._memory.allocating()

    def _lowering(self, buffers: Mapping[str, Buffer]) -> Any:
        return HostNcclLowering(self.group, buffers, self.barrier_tensor, self.gpu)

    def facts(self) -> dict[str, Any]:
        return {**CudaCommunicator.facts(self), "log_file": os.environ.get("NCCL_DEBUG_FILE")}


@dataclass(frozen=True)
class HostNccl(Nccl):
    """See Backend."""

    name: ClassVar[str] = "host_nccl"

    def missing(self, device: Device = "cuda") -> str | None:
        return None

    def open(self, world: World, control: Control, device: Device = "cuda") -> Any:
        import torch.distributed as dist

        dist.ProcessGroupNCCL = HostProcessGroupNccl  # type: ignore[misc, assignment]
        gpu: Any = HostGpu()
        return HostNcclCommunicator(
            "nccl", *start_group("gloo", world, control), gpu, NcclLog(os.environ)
        )
