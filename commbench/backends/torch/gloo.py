"""gloo through torch.distributed: TCP between processes; what lies on a GPU goes through host memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import ClassVar

from commbench.backends.support import case_lacks
from commbench.core.case import Case, World
from commbench.core.dtypes import DTYPES
from commbench.core.protocols import Backend, Control
from commbench.hardware.network import interface_name

from .cuda import CudaDevice, lacks_cuda
from .distributed import CudaCommunicator, TorchCommunicator, open_group, start_group
from .lowering import LACKING

REDUCED = {  # reduction -> dtypes
    **dict.fromkeys(("sum", "prod", "min", "max"), frozenset(DTYPES)),
    "avg": frozenset(name for name, kind in DTYPES.items() if kind.floating),
}
# torch 2.8 brought averages (pull request 149781); until then reduce_scatter summed whatever it was asked (149869)
SINCE_2_8 = {
    ("all_reduce", "avg"),
    ("reduce", "avg"),
    *(("reduce_scatter", reduction) for reduction in ("avg", "prod", "min", "max")),
}


# ProcessGroupGloo copies these between the GPU and pinned memory itself. Its send and recv hand the pointer to the
# socket as it is, so that we have to copy.
COPIED = frozenset(
    ("all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter")
)
WITHOUT_MESSAGE = "barrier"


@dataclass(frozen=True)
class Gloo(Backend):
    """See Backend."""

    name: ClassVar[str] = "gloo"
    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    launchers: ClassVar[tuple[str, ...]] = ("torchrun", "mpirun", "srun")
    threads_per_rank: ClassVar[int] = 4  # the caller, two workers a group, one event loop a device (ProcessGroupGloo)
    library: str = "auto"

    def missing(self, device: str = "cpu") -> str | None:
        return None if device == "cpu" else lacks_cuda("take device=cpu")

    def supports(self, case: Case, size: int) -> str | None:
        if any(first == second for first, second in case.pairs):
            return "gloo refuses a message to oneself"
        on_gpu = _refused_on_gpu(case) if case.device == "cuda" else None
        return on_gpu or case_lacks(LACKING, case) or _unreduced(case)

    def staging(self, benchmark: str) -> str:
        """Operations that we don't know are taken for messages."""
        if benchmark == WITHOUT_MESSAGE:
            return "none"
        return "library" if benchmark in COPIED else "pinned"

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface_name(interface)}

    def open(self, world: World, control: Control, device: str = "cpu") -> TorchCommunicator:
        if device == "cpu":
            return open_group(self.name, world, control)
        gpu = CudaDevice.of(world)
        group = start_group(self.name, world, control)
        return CudaCommunicator(self.name, group, tuple(range(world.size)), world.rank, gpu)


def _refused_on_gpu(case: Case) -> str | None:
    if case.timing_mode != "host_sync":
        return f"gloo copies on the host, which waits for it: timing_mode={case.timing_mode} would not see all of it"
    if case.staging == "none" and case.benchmark != WITHOUT_MESSAGE:
        return "gloo can't send GPU memory as it is; use staging=auto or staging=pinned"
    return None


def _unreduced(case: Case) -> str | None:
    """Why gloo can't reduce what the case asks for."""
    if case.reduction is None:
        return None
    if case.dtype not in REDUCED.get(case.reduction, ()):
        return f"gloo has no reduction {case.reduction} of {case.dtype}"
    release = _installed()
    if (case.benchmark, case.reduction) in SINCE_2_8 and _parts(release) < (2, 8):
        return f"gloo has no {case.benchmark} with {case.reduction} before torch 2.8; this is {release}"
    return None


@cache
def _installed() -> str:
    return version("torch")


def _parts(release: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cpu"."""
    return tuple(int(part) for part in release.split(".")[:2])
