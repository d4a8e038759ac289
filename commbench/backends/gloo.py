"""gloo through torch.distributed: TCP between processes, on CPU tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.backends.torch_distributed import TorchCommunicator, open_group
from commbench.contracts import Case, Control, World


@dataclass(frozen=True)
class Gloo:
    """See contracts.Backend. `library` is the MPI library of its mpirun, where it lives under one."""

    name: ClassVar[str] = "gloo"
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    engines: ClassVar[tuple[str, ...]] = ("python",)
    launchers: ClassVar[tuple[str, ...]] = ("torchrun", "mpirun", "srun")
    axes: ClassVar[tuple[str, ...]] = ()
    threads_per_rank: ClassVar[int] = 4  # the caller, two workers a group, one event loop a device (ProcessGroupGloo)
    library: str = "auto"

    def missing(self) -> str | None:
        return None

    def supports(self, case: Case, size: int) -> str | None:
        if case.in_place is False:
            return "torch.distributed reduces in place only"
        if any(first == second for first, second in case.pairs):
            return "gloo refuses a message to oneself"
        if case.reduction == "avg" and not case.dtype.startswith(("float", "bfloat")):
            return "gloo averages floating types only"
        return None

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}

    def open(self, world: World, control: Control) -> TorchCommunicator:
        return open_group("gloo", world, control)
