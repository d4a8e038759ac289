"""NCCL through torch.distributed: GPU memory, a GPU for each rank."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from commbench.backends.support import case_lacks
from commbench.core.case import Case, Mode, World
from commbench.core.dtypes import DTYPES
from commbench.core.program import Program
from commbench.core.protocols import Backend, Control
from commbench.engines.lowered import Call, Lowered
from commbench.hardware.cuda_ipc_setting import NCCL, translated
from commbench.hardware.network import interface_name

from . import nccl_log
from .cuda import CudaDevice, lacks_cuda
from .distributed import CudaCommunicator, Held, start_group
from .lowering import LACKING
from .nccl_log import NcclLog
from .nccl_lowering import NcclLowering, lowered

REDUCED = {  # reduction -> dtypes; ncclRedOp_t has them for all types, but truncates averages of integers
    **dict.fromkeys(("sum", "prod", "min", "max"), frozenset(DTYPES)),
    "avg": frozenset(name for name, kind in DTYPES.items() if kind.floating),
}
ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
EAGER_WARNING = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"  # P4: a blocking message is in order anyway


@dataclass(frozen=True)
class Nccl(Backend):
    """See Backend."""

    name: ClassVar[str] = "nccl"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    launchers: ClassVar[tuple[str, ...]] = ("torchrun", "mpirun", "srun")
    threads_per_rank: ClassVar[int] = 2  # the caller and NCCL's proxy; its service thread and torch's watchdog sleep
    shares_gpu: ClassVar[bool] = False
    library: str = "auto"

    def missing(self, device: str = "cuda") -> str | None:
        return lacks_cuda("take backend=gloo")

    def supports(self, case: Case, size: int) -> str | None:
        """A rank may send to itself: NCCL copies where both ends are in one group of calls."""
        if case.staging != "none":
            return f"nccl reads and writes GPU memory itself, staging={case.staging} does nothing for it"
        if case.reduction is not None and case.dtype not in REDUCED.get(case.reduction, ()):
            return f"nccl has no reduction {case.reduction} of {case.dtype}"
        return case_lacks(LACKING, case)

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        """P7: NCCL reads its variables once in a process, so these and the user's hold for all its cases."""
        exports = {**translated(cuda_ipc, (NCCL,)), **nccl_log.asked(os.environ)}
        if interface is not None:
            exports["NCCL_SOCKET_IFNAME"] = f"={interface_name(interface)}"  # without = it would be a prefix
        # 0: torch's watchdog does not end this process when another rank is lost; we do, after saving
        return exports | {ERRORS: os.environ.get(ERRORS, "0"), EAGER_WARNING: os.environ.get(EAGER_WARNING, "false")}

    def open(self, world: World, control: Control, device: str = "cuda") -> NcclCommunicator:
        """Eagerly (P5): with a device given, NCCL connects here and not in the first call of a case."""
        log, gpu = NcclLog(os.environ), CudaDevice.of(world)
        group = start_group(self.name, world, control, gpu.place)
        return NcclCommunicator(self.name, group, tuple(range(world.size)), world.rank, gpu, log)


class NcclCommunicator(CudaCommunicator):
    """See Communicator. All ranks make it together."""

    def __init__(self, name: str, group: Any, ranks: tuple[int, ...], rank: int, gpu: CudaDevice, log: NcclLog) -> None:
        import torch
        import torch.distributed as dist

        super().__init__(name, group, ranks, rank, gpu)
        self._log = log
        # P4: the first call of a group needs all its ranks, which a batch of messages has not. This one also connects
        # neighbours, so that the log names their transport; pairs connect in the first call of a case.
        self._met = torch.zeros(1, device=gpu.place)
        dist.all_reduce(self._met, group=group)
        gpu.synchronise()
        log.remove()

    def _of(self, group: Any, ranks: tuple[int, ...]) -> NcclCommunicator:
        return type(self)(self._name, group, ranks, self._rank, self._gpu, self._log)

    def _lowered(self, program: Program, held: Held, mode: Mode) -> Lowered[Call]:
        return lowered(program, mode.sync, NcclLowering(self._group, held, self._met))

    def facts(self) -> dict[str, Any]:
        """`nccl_log` is the text up to now, null where the log is the user's; the transport is to be read there."""
        import torch

        nccl: Any = torch.cuda.nccl
        library = f"torch {torch.__version__} nccl {'.'.join(map(str, nccl.version()))}"
        said = {"nccl_log": self._log.text(), "ipc_libraries": [NCCL]}
        return {**super().facts(), "library": library, "transport": None, "eager": True, **said}
