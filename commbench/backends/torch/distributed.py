"""What torch.distributed's backends share: process groups and their communicators, on host memory and on a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

from commbench.buffers.device import DeviceBuffer
from commbench.buffers.host import HostBuffer
from commbench.buffers.staging import PinnedBuffer, with_staging
from commbench.core.case import Mode, World
from commbench.core.errors import Unsupported
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Buffer, Control, Runner
from commbench.engines.device import device_runner
from commbench.engines.loop import PythonRunner
from commbench.engines.lowered import Call, Lowered

from .cuda import CudaDevice, CudaMemory
from .lowering import TorchLowering

CALL_TIMEOUT = timedelta(minutes=10)  # a last resort; the control plane's deadlines come first
Held = Mapping[str, Buffer]


def start_group(name: str, world: World, control: Control, place: Any = None) -> Any:
    """torch.distributed over the control plane's store; the group of all ranks. `place` is a GPU to open on at once."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    store = PrefixStore(f"commbench/{name}", cast(Any, control).store)
    dist.init_process_group(
        name, store=store, rank=world.rank, world_size=world.size, timeout=CALL_TIMEOUT, device_id=place
    )
    return dist.group.WORLD


def open_group(name: str, world: World, control: Control) -> TorchCommunicator:
    """All ranks, on host memory."""
    group = start_group(name, world, control)
    return TorchCommunicator(name, group, tuple(range(world.size)), world.rank)


class TorchCommunicator:
    """See Communicator; hosts one rank. `ranks` are those of the world, in group order."""

    def __init__(self, name: str, group: Any, ranks: tuple[int, ...], rank: int) -> None:
        self._name, self._group, self._ranks, self._rank = name, group, ranks, rank
        self.size = len(ranks)
        self.hosted = (ranks.index(rank),)
        self._subsets: dict[tuple[int, ...], TorchCommunicator | None] = {ranks: self}

    def subset(self, ranks: Sequence[int]) -> TorchCommunicator | None:
        import torch.distributed as dist

        chosen = tuple(self._ranks[rank] for rank in ranks)
        if chosen not in self._subsets:
            group = dist.new_group(list(chosen), timeout=CALL_TIMEOUT)
            self._subsets[chosen] = self._of(group, chosen) if self._rank in chosen else None
        return self._subsets[chosen]

    def _of(self, group: Any, ranks: tuple[int, ...]) -> TorchCommunicator:
        """One like this for a group that this rank is in."""
        return type(self)(self._name, group, ranks, self._rank)

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return HostBuffer(spec, pool)

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Held],
        mode: Mode,
    ) -> Runner:
        if mode.engine != "python":
            raise Unsupported(f"{self._name} has no {mode.engine} engine")
        rank = self.hosted[0]
        return self._runner(programs[rank], buffers[rank], mode)

    def _runner(self, program: Program, held: Held, mode: Mode) -> Runner:
        return PythonRunner(self._lowered(program, held, mode), _pool(held))

    def _lowered(self, program: Program, held: Held, mode: Mode) -> Lowered[Call]:
        return Lowered.of(program, mode.sync, TorchLowering(self._group, held).call)

    def counters(self) -> dict[str, float]:
        return {}

    def facts(self) -> dict[str, Any]:
        import torch

        return {"library": f"torch {torch.__version__} {self._name}", "transport": "tcp"}

    def close(self, abort: bool = False) -> None:
        """A broken world's destructors wait for the dead, and so does ProcessGroupNCCL's abort, up to its timeout: the
        process ends instead, and the driver takes back what it had on the GPU."""
        import torch.distributed as dist

        if not abort:
            dist.destroy_process_group()


class CudaCommunicator(TorchCommunicator):
    """The same with buffers on this rank's GPU and its clocks."""

    def __init__(self, name: str, group: Any, ranks: tuple[int, ...], rank: int, gpu: CudaDevice) -> None:
        super().__init__(name, group, ranks, rank)
        self._gpu = gpu

    def _of(self, group: Any, ranks: tuple[int, ...]) -> TorchCommunicator:
        return type(self)(self._name, group, ranks, self._rank, self._gpu)

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return DeviceBuffer(spec, pool, partial(CudaMemory, place=self._gpu.place))

    def _runner(self, program: Program, held: Held, mode: Mode) -> Runner:
        every = dict(held)
        if mode.staging == "pinned":
            program, every = with_staging(
                program, self.hosted[0], every, partial(PinnedBuffer, pages=self._gpu.pages())
            )
        runner = device_runner(self._gpu, self._lowered(program, every, mode), _pool(held), mode)
        weakref.finalize(runner, every.clear).atexit = False  # pages stay locked as long as something runs on them
        return runner

    def counters(self) -> dict[str, float]:
        return self._gpu.readings()

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "gpu": self._gpu.name}


def _pool(held: Held) -> int:
    return max((buffer.pool for buffer in held.values()), default=1)
