"""Copies between a rank's host and GPU memory on torch's streams; gloo lets several ranks begin
together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from commbench.backends.torch.cuda import CudaDevice, cuda_missing, graph_refusal
from commbench.backends.torch.distributed import (
    WITHOUT_WAITING,
    CudaCommunicator,
    TorchLowering,
    start_group,
)
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.core.program import (
    DEVICE,
    Barrier,
    Copy,
    Program,
    Start,
    Step,
    WaitAll,
    operation_of,
)
from commbench.core.protocols import Backend, Buffer, Control, Runner
from commbench.core.variables import EVENT_TIMED, Case, Device, Mode, Staging
from commbench.engines.lowered import NO_CALL, Call, GroupLowering

COPIES = "copy_h2d, copy_d2h, copy_h2d_d2h, copy_d2d"  # its benchmarks


@dataclass(frozen=True)
class CudaCopy(Backend):
    """See Backend."""

    name = "cuda_copy"
    devices = ("cuda",)
    axes = ("staging",)
    library: str = "auto"

    def missing(self, device: Device = "cuda") -> str | None:
        return cuda_missing("take backend=simulated")

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        if program.operation is not Copy:
            return f"cuda_copy copies within a rank only; it has {COPIES}"
        if self.staging(program) == "none":
            return (
                graph_refusal(case)
                if case.staging == "none"
                else f"{case.benchmark} needs no host memory; use staging=auto"
            )
        if case.staging != "pinned" and case.timer in EVENT_TIMED:
            return (
                f"the driver copies pageable memory on the host, so timer={case.timer}"
                " would not time it"
            )
        return graph_refusal(case)

    def staging(self, program: Program) -> Staging:
        within_device = all(spec.memory == DEVICE for spec in program.buffers)
        return "none" if within_device else "pinned"

    def open(self, world: World, control: Control, device: Device = "cuda") -> CopyCommunicator:
        gpu = CudaDevice.of(world)
        return CopyCommunicator(self.name, *start_group("gloo", world, control), gpu)


class CopyCommunicator(CudaCommunicator):
    """See Communicator."""

    def runner(self, program: Program, buffers: Mapping[str, Buffer], mode: Mode) -> Runner:
        # its steps are the copies themselves
        return super().runner(program, buffers, replace(mode, staging="none"))

    def _lowering(self, buffers: Mapping[str, Buffer]) -> GroupLowering[Call]:
        return CopyLowering(self.group, buffers, self.gpu, self.size)

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "transport": "memcpy"}


class CopyLowering:
    """Steps as copies on the stream that is timed, and posted ones on a stream each, which it waits
    for.

    Raises Unsupported for messages and collectives.
    """

    def __init__(
        self, group: Any, buffers: Mapping[str, Buffer], gpu: CudaDevice, size: int
    ) -> None:
        import torch

        self._torch = TorchLowering(group, buffers, gpu)
        self._size = size
        self._copy = torch.Tensor.copy_

    def within(self, communicator: Any) -> CopyLowering:
        """Copies are within a rank: a group changes nothing."""
        return self

    def call(self, step: Step) -> Call:
        match step:
            case Copy(source, target):
                return Call(
                    self._copy,
                    (self._torch.tensors(target), self._torch.tensors(source), WITHOUT_WAITING),
                )
            case Start(Copy()) | WaitAll():
                return self._torch.call(step)
            case Barrier():
                return NO_CALL if self._size == 1 else self._torch.call(step)
            case _:
                operation = operation_of(step)
                raise Unsupported(
                    f"cuda_copy copies within a rank only; it has no {type(operation).__name__}"
                )
