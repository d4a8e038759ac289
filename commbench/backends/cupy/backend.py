"""Raw NCCL through CuPy: what remains of backend=nccl when torch is taken away. GPU memory, a GPU for each rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, cast

from commbench.backends.support import case_lacks
from commbench.backends.torch import nccl_log
from commbench.backends.torch.nccl_log import NcclLog
from commbench.buffers.device import DeviceBuffer
from commbench.core.case import Case, Mode, World
from commbench.core.dtypes import DTYPES
from commbench.core.errors import CommunicationError
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Backend, Buffer, Control
from commbench.engines.device import DeviceRunner, device_runner
from commbench.engines.lowered import Call, Lowered
from commbench.hardware.cuda_driver import driver_missing
from commbench.hardware.cuda_ipc_setting import NCCL, translated
from commbench.hardware.network import interface_name

from .cuda import CupyDevice, CupyMemory
from .lowering import LACKING, CupyLowering

MEETING_S = 60.0  # until all ranks know the id of a communicator
SCRATCH_BYTES = 256  # of the barrier's element
LIBRARY = "libnccl.so.2"
PIP = "pip install 'commbench[cuda]'"
REDUCED = {  # reduction -> dtypes; an average of integers is cut to a whole number
    **dict.fromkeys(("sum", "prod", "min", "max"), frozenset(DTYPES)),
    "avg": frozenset(name for name, kind in DTYPES.items() if kind.floating),
}


@dataclass(frozen=True)
class CupyNccl(Backend):
    """See Backend."""

    name: ClassVar[str] = "cupy_nccl"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    launchers: ClassVar[tuple[str, ...]] = ("torchrun", "mpirun", "srun")
    threads_per_rank: ClassVar[int] = 2  # the caller and NCCL's proxy
    shares_gpu: ClassVar[bool] = False
    library: str = "auto"

    def missing(self, device: str = "cuda") -> str | None:
        driver = driver_missing()
        if driver is not None:
            return f"{driver}; use a machine or container with an NVIDIA GPU, or take backend=gloo"
        if find_spec("cupy") is None:
            return f"cupy is not installed; {PIP}"
        return None if _has_nccl() else f"{LIBRARY} is not here, which CuPy does not bring; {PIP}"

    def supports(self, case: Case, size: int) -> str | None:
        """A rank may send to itself: NCCL copies where both ends are in one group of calls."""
        if case.staging != "none":
            return f"NCCL reads and writes GPU memory itself, staging={case.staging} does nothing for it"
        if case.reduction is not None and case.dtype not in REDUCED.get(case.reduction, ()):
            return f"NCCL has no reduction {case.reduction} of {case.dtype}"
        return case_lacks(LACKING, case)

    def environment(self, cuda_ipc: str, interface: str | None) -> dict[str, str]:
        """P7: NCCL reads its variables once in a process, so these and the user's hold for all its cases."""
        exports = {**translated(cuda_ipc, (NCCL,)), **nccl_log.asked(os.environ)}
        return exports if interface is None else exports | {"NCCL_SOCKET_IFNAME": f"={interface_name(interface)}"}

    def open(self, world: World, control: Control, device: str = "cuda") -> CupyCommunicator:
        log = NcclLog(os.environ)
        return CupyCommunicator(CupyDevice.of(world), control, log)


def _has_nccl() -> bool:
    """As a wheel of NVIDIA's, in a conda environment, or where the loader looks."""
    spec = find_spec("nvidia")
    wheels = () if spec is None else (Path(folder) / "nccl" / "lib" for folder in spec.submodule_search_locations or ())
    folders = (*wheels, Path(os.environ.get("CONDA_PREFIX", "/nowhere")) / "lib")
    return any((folder / LIBRARY).exists() for folder in folders) or find_library("nccl") is not None


class CupyCommunicator:
    """See Communicator; hosts one rank. NCCL connects here (P5), peers in the first call of a case."""

    def __init__(self, device: CupyDevice, control: Control, log: NcclLog) -> None:
        from cupy.cuda import nccl

        self._nccl, self._device, self._control, self._log = nccl, device, control, log
        self.size, self.hosted = control.size, (control.rank,)
        self._subsets: dict[tuple[int, ...], CupyCommunicator | None] = {tuple(range(self.size)): self}
        mine = written(nccl.get_unique_id()) if control.rank == 0 else None
        told = control.decide(mine, MEETING_S, "the id of a communicator")
        self._comm = self._joined(read(told))
        self._met = CupyMemory(SCRATCH_BYTES)

    def _joined(self, unique: Any) -> Any:
        try:
            return self._nccl.NcclCommunicator(self.size, unique, self.hosted[0])
        except RuntimeError as error:  # NcclError is one
            raise CommunicationError(f"NCCL can't connect {self.size} ranks: {error}") from error

    def subset(self, ranks: Sequence[int]) -> CupyCommunicator | None:
        key = tuple(ranks)
        if key not in self._subsets:
            inside = self.hosted[0] in key
            group = CupyCommunicator(self._device, self._control.subset(key), self._log) if inside else None
            self._subsets[key] = group
        return self._subsets[key]

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return DeviceBuffer(spec, pool, CupyMemory)

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Mapping[str, Buffer]],
        mode: Mode,
    ) -> DeviceRunner:
        rank = self.hosted[0]
        held = cast(Mapping[str, DeviceBuffer], buffers[rank])
        pool = max((buffer.pool for buffer in held.values()), default=1)
        if mode.timing_mode == "device_event":
            self._device.ready_to_hold()
        lowering = CupyLowering(self._nccl, self._comm, self._device, held, self._met.address)
        calls: Lowered[Call] = Lowered.of(programs[rank], mode.sync, lowering.call)
        lowering.finish()
        return device_runner(self._device, calls, pool, mode)

    def counters(self) -> dict[str, float]:
        return self._device.readings()

    def facts(self) -> dict[str, Any]:
        """`nccl_log` is the text up to now, null where the log is the user's; the transport is to be read there."""
        import cupy

        library = f"cupy {cupy.__version__} nccl {dotted(self._nccl.get_version())}"
        said = {"nccl_log": self._log.text(), "ipc_libraries": [NCCL]}
        return {"library": library, "transport": None, "eager": True, **said}

    def close(self, abort: bool = False) -> None:
        """In a broken world nothing: NCCL's end waits for work that never ends, the end of the process does not."""
        self._log.remove()
        if abort:
            return
        for communicator in self._subsets.values():
            if communicator is not None:
                communicator._comm.destroy()
        self._subsets.clear()


def written(unique: bytes | tuple[int, ...]) -> str | list[int]:
    """A communicator's id as JSON: CuPy 14 has bytes, older ones a tuple of signed chars."""
    return unique.hex() if isinstance(unique, bytes) else list(unique)


def read(told: str | list[int]) -> bytes | tuple[int, ...]:
    return bytes.fromhex(told) if isinstance(told, str) else tuple(told)


def dotted(version: int) -> str:
    """2.27.3 of 22703; 2.8.4 of 2804, as NCCL counted before 2.9."""
    thousand = 10_000 if version >= 10_000 else 1_000
    return f"{version // thousand}.{version % thousand // 100}.{version % 100}"
