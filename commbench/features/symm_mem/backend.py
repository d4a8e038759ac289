"""torch.distributed._symmetric_memory: buffers that the kernels of all ranks of a group reach."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

from commbench.backends.buffers.memory import DeviceBuffer
from commbench.backends.nccl_library import NcclLog
from commbench.backends.torch.cuda import (
    CudaDevice,
    CudaMemory,
    cuda_missing,
    gpu_runner,
    graph_refusal,
)
from commbench.backends.torch.distributed import start_group
from commbench.backends.torch.nccl import Nccl, NcclCommunicator
from commbench.core.case import World
from commbench.core.errors import ConfigError, Unsupported
from commbench.core.program import BufferSpec, Program, Step
from commbench.core.protocols import Control, Runner
from commbench.core.terminal import first_line
from commbench.core.units import about_bytes
from commbench.core.variables import Case, Device, Ipc, Mode
from commbench.engines.lowered import Call, in_groups
from commbench.hardware.machine_facts import newer_torch_needed

from .lowering import SymmMemLowering
from .operations import refusal

MEMORIES = ("cuda", "nccl", "nvshmem")
SINCE = (2, 9)  # set_backend, which chooses the memory
DEADLINE_S = 120.0
# torch allocates from a pool since 2.11, where a rank that was not in all cases has other offsets
OWN_ALLOCATIONS = {"TORCH_SYMMMEM_IMPLICIT_POOL": "0"}


def symmetric_memory() -> Any:
    return import_module("torch.distributed._symmetric_memory")


@dataclass(frozen=True)
class SymmMem(Nccl):
    """See Backend. Barriers are NCCL's. It opens no communicators: what opens them for NCCL would
    be measured under its name."""

    name = "symm_mem"
    axes = ("algorithm",)
    starts_copies = False  # all its buffers are on the GPU
    memory: str = "cuda"

    def __post_init__(self) -> None:
        if self.memory not in MEMORIES:
            allowed = ", ".join(MEMORIES)
            raise ConfigError(f"backend.memory={self.memory} is unknown; allowed: {allowed}")

    def missing(self, device: Device = "cuda") -> str | None:
        return cuda_missing("take backend=gloo") or newer_torch_needed(SINCE, "symmetric memory")

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        if case.staging != "none":
            return f"kernels reach GPU memory themselves; staging={case.staging} has no effect"
        if case.cuda_ipc == "off":
            return "symmetric memory is mapped into all ranks; cuda_ipc=off has no effect on it"
        return refusal(case, size, program, self.memory) or graph_refusal(case)

    def environment(self, cuda_ipc: Ipc, interface: str | None) -> dict[str, str]:
        given = {name: os.environ[name] for name in OWN_ALLOCATIONS if name in os.environ}
        return super().environment(cuda_ipc, interface) | OWN_ALLOCATIONS | given

    def open(self, world: World, control: Control, device: Device = "cuda") -> NcclCommunicator:
        """Raises ConfigError where this torch can't allocate the memory."""
        problem = control.agree(choose_memory(self.memory), DEADLINE_S, "symmetric memory")
        if problem is not None:
            raise ConfigError(problem, shared=True)
        log = NcclLog(os.environ)
        gpu = CudaDevice.of(world)
        group = start_group(Nccl.name, world, control, gpu.place)
        return SymmMemCommunicator(Nccl.name, *group, gpu, log, self.memory, control)


def choose_memory(memory: str) -> str | None:
    """Before the first allocation of this process, after which torch keeps it. Returns why it
    can't be had."""
    symmetric = symmetric_memory()
    if memory == "nvshmem" and not symmetric.is_nvshmem_available():
        return (
            "backend.memory=nvshmem needs a torch with NVSHMEM, and libnvshmem_host.so.3"
            " (nvidia-nvshmem-cu13); use backend.memory=cuda"
        )
    try:
        symmetric.set_backend(memory.upper())
    except RuntimeError as error:
        return f"backend.memory={memory}: {first_line(error)}"
    return None


class SymmetricAllocation(CudaMemory):
    """See CudaMemory: bytes that the others reach once all have called `join`."""

    def __init__(self, size: int, place: Any) -> None:
        import torch

        try:
            self.tensor = symmetric_memory().empty(size, dtype=torch.uint8, device=place)
        except RuntimeError as error:
            raise MemoryError(f"{about_bytes(size)} on {place}: {first_line(error)}") from error
        self.address = int(self.tensor.data_ptr())

    def join(self, group: Any) -> Any:
        """torch's handle of this memory on all ranks, which all call it. Raises Unsupported."""
        try:
            return symmetric_memory().rendezvous(self.tensor, group)
        except RuntimeError as error:
            reason = first_line(error)
            raise Unsupported(f"the ranks can't reach each other's memory: {reason}") from error


class SymmMemCommunicator(NcclCommunicator):
    """See Communicator. `control` is that of the world."""

    def __init__(
        self,
        name: str,
        group: Any,
        ranks: tuple[int, ...],
        rank: int,
        gpu: CudaDevice,
        log: NcclLog,
        memory: str,
        control: Control,
    ) -> None:
        super().__init__(name, group, ranks, rank, gpu, log)
        self._more = (gpu, log, memory, control)
        self._allocator = memory
        self._control = control

    @property
    def _is_alone(self) -> bool:
        """Whether only some ranks of the run are in the case, though all have to call
        nvshmem_malloc."""
        import torch.distributed as dist

        return self._allocator == "nvshmem" and self.size < dist.get_world_size()

    def allocate(self, spec: BufferSpec, pool: int) -> DeviceBuffer:
        if self._is_alone:
            return DeviceBuffer(spec, pool, partial(CudaMemory, place=self.gpu.place))
        return DeviceBuffer(spec, pool, partial(SymmetricAllocation, place=self.gpu.place))

    def runner(self, program: Program, buffers: Mapping[str, Any], mode: Mode) -> Runner:
        if self._is_alone:
            raise Unsupported(
                "all ranks of a run allocate NVSHMEM's memory together; use a run for each layout:"
                " commbench -m layout=1x2,1x4"
            )
        handles = [buffer.allocation.join(self.group) for buffer in buffers.values()]
        if mode.algorithm == "multimem" and not all(each.multicast_ptr for each in handles):
            raise Unsupported(
                "multimem needs GPUs of compute capability 9.0 that an NVSwitch with multicast"
                " joins; there is no multicast address here"
            )

        def lowering(used: Mapping[str, Any]) -> Callable[[Step], Call]:
            # one for a buffer: the samples between two stamps follow one another, as blocks do
            scratch = cache(partial(self._scratch, used))
            steps = SymmMemLowering(
                self.group, used, self.barrier_tensor, self.gpu, mode.algorithm, scratch
            )
            return in_groups(steps, self, mode)

        return gpu_runner(self.gpu, program, self.hosted[0], buffers, mode, lowering)

    def _scratch(self, buffers: Mapping[str, Any], name: str) -> Any:
        """A buffer of symmetric memory like a slot of this one. Raises Unsupported, on all ranks
        where one has no memory: the others would wait for it in `join`."""
        spec = replace(buffers[name].spec, slots=1)
        control = self._control.subset(self.ranks)
        buffer: Any = None
        problem = None
        try:
            buffer = self.allocate(spec, 1)
        except MemoryError as error:
            problem = f"out of memory on rank {control.rank} at that moment: {error}"
        problem = control.agree(problem, DEADLINE_S, "memory of a one-shot all_reduce")
        if problem is not None:
            raise Unsupported(problem)
        buffer.allocation.join(self.group)
        return buffer

    def facts(self) -> dict[str, Any]:
        """NCCL's log is about the barriers, and says nothing of these paths."""
        import torch

        transport = f"symmetric memory ({self._allocator})"
        library = f"torch {torch.__version__} symm_mem"
        own = {"library": library, "transport": transport, "nccl_log": ""}
        return {**super().facts(), **own}
