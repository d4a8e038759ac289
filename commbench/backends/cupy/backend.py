"""NCCL through CuPy: what remains of backend=nccl without torch. GPU memory, one GPU per rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, cast

from commbench.backends.nccl_library import NcclBackend, NcclLog
from commbench.buffers.memory import DeviceBuffer, rotation_pool
from commbench.config.keys import EVENT_TIMED
from commbench.core.case import Mode, World
from commbench.core.errors import CommunicationError
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Buffer, Control
from commbench.engines.device import DeviceRunner, device_runner
from commbench.engines.lowered import Call, Lowered, UnsupportedForms
from commbench.hardware.cuda import driver_missing, driver_too_old
from commbench.hardware.machine_facts import installed_version

from .cuda import CupyDevice, CupyMemory
from .lowering import UNSUPPORTED_FORMS, CupyLowering

ID_DEADLINE_S = 60.0  # until all ranks know the id of a communicator
BARRIER_BYTES = 256  # device memory for the element that barriers reduce
LIBRARY = "libnccl.so.2"
CUDA_OF_WHEELS = ("13", "12", "11")
INSTALL = "pip install 'commbench[cuda]'"


@dataclass(frozen=True)
class CupyNccl(NcclBackend):
    """See Backend."""

    name: ClassVar[str] = "cupy_nccl"
    unsupported_forms: ClassVar[UnsupportedForms] = UNSUPPORTED_FORMS
    library: str = "auto"

    def missing(self, device: str = "cuda") -> str | None:
        driver = driver_missing()
        if driver is not None:
            return f"{driver}; use a machine or container with an NVIDIA GPU, or take backend=gloo"
        if find_spec("cupy") is None:
            return f"cupy is not installed; {INSTALL}"
        if not _has_nccl():
            return f"{LIBRARY} was not found, and CuPy does not include it; {INSTALL}"
        wheels = (major for major in CUDA_OF_WHEELS if installed_version((f"cupy-cuda{major}x",)) is not None)
        older = "pip install 'commbench[cuda12]', or take backend=gloo"
        return next((reason for major in wheels if (reason := driver_too_old("cupy", major, older))), None)

    def open(self, world: World, control: Control, device: str = "cuda") -> CupyCommunicator:
        log = NcclLog(os.environ)
        return CupyCommunicator(CupyDevice.of(world), control, log)


def _has_nccl() -> bool:
    """In NVIDIA's wheel, in a conda environment, or in the loader's path."""
    spec = find_spec("nvidia")
    wheels = () if spec is None else (Path(folder) / "nccl" / "lib" for folder in spec.submodule_search_locations or ())
    folders = (*wheels, Path(os.environ.get("CONDA_PREFIX", "/nowhere")) / "lib")
    return any((folder / LIBRARY).exists() for folder in folders) or find_library("nccl") is not None


class CupyCommunicator:
    """See Communicator; hosts one rank. NCCL connects here, and to other peers in the first call of a case."""

    def __init__(self, device: CupyDevice, control: Control, log: NcclLog) -> None:
        from cupy.cuda import nccl

        self._nccl, self._device, self._control, self._log = nccl, device, control, log
        self.size, self.hosted = control.size, (control.rank,)
        self._subsets: dict[tuple[int, ...], CupyCommunicator | None] = {tuple(range(self.size)): self}
        own_id = id_to_json(nccl.get_unique_id()) if control.rank == 0 else None
        unique_id = id_from_json(control.decide(own_id, ID_DEADLINE_S, "the id of a communicator"))
        try:
            self._comm = nccl.NcclCommunicator(self.size, unique_id, control.rank)
        except RuntimeError as error:  # NcclError is one
            raise CommunicationError(f"NCCL can't connect {self.size} ranks: {error}") from error
        self._barrier_memory = CupyMemory(BARRIER_BYTES)

    def subset(self, ranks: Sequence[int]) -> CupyCommunicator | None:
        members = tuple(ranks)
        if members not in self._subsets:
            inside = self.hosted[0] in members
            group = CupyCommunicator(self._device, self._control.subset(members), self._log) if inside else None
            self._subsets[members] = group
        return self._subsets[members]

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return DeviceBuffer(spec, pool, CupyMemory)

    def prepare(
        self, programs: Mapping[int, Program], buffers: Mapping[int, Mapping[str, Buffer]], mode: Mode
    ) -> DeviceRunner:
        rank = self.hosted[0]
        own = cast(Mapping[str, DeviceBuffer], buffers[rank])
        if mode.timing_mode in EVENT_TIMED:
            self._device.ready_to_hold()
        lowering = CupyLowering(self._nccl, self._comm, self._device, own, self._barrier_memory.address)
        calls: Lowered[Call] = Lowered.of(programs[rank], mode.sync, lowering.call)
        lowering.finish()
        return device_runner(self._device, calls, rotation_pool(own), mode)

    def counters(self) -> dict[str, float]:
        return self._device.readings()

    def facts(self) -> dict[str, Any]:
        import cupy

        library = f"cupy {cupy.__version__} nccl {nccl_version(self._nccl.get_version())}"
        return {"library": library, **self._log.facts()}

    def close(self, abort: bool = False) -> None:
        """Does nothing to NCCL in a broken world: destroying it waits for work that never ends."""
        if abort:
            return
        for communicator in self._subsets.values():
            if communicator is not None:
                communicator._comm.destroy()
        self._subsets.clear()


def id_to_json(unique_id: bytes | tuple[int, ...]) -> str | list[int]:
    """A communicator's id: CuPy 14 has bytes, older ones a tuple of signed chars."""
    return unique_id.hex() if isinstance(unique_id, bytes) else list(unique_id)


def id_from_json(value: str | list[int]) -> bytes | tuple[int, ...]:
    return bytes.fromhex(value) if isinstance(value, str) else tuple(value)


def nccl_version(number: int) -> str:
    """2.27.3 from 22703; 2.8.4 from 2804, the form before NCCL 2.9."""
    thousand = 10_000 if number >= 10_000 else 1_000
    return f"{number // thousand}.{number % thousand // 100}.{number % 100}"
