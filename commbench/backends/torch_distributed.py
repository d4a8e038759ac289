"""What torch.distributed's backends share: process groups and their communicator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from commbench import contracts as c
from commbench.backends.torch_lowering import TorchLowering
from commbench.engines.loop import PythonRunner
from commbench.engines.lowered import Lowered
from commbench.errors import Unsupported
from commbench.memory import HostBuffer

CALL_TIMEOUT = timedelta(minutes=10)  # a last resort; the control plane's deadlines come first


def open_group(name: str, world: c.World, control: c.Control) -> TorchCommunicator:
    """Start torch.distributed over the control plane's store."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    store = PrefixStore(f"commbench/{name}", cast(Any, control).store)
    dist.init_process_group(name, store=store, rank=world.rank, world_size=world.size, timeout=CALL_TIMEOUT)
    return TorchCommunicator(name, dist.group.WORLD, tuple(range(world.size)), world.rank)


class TorchCommunicator:
    """See contracts.Communicator; hosts one rank. `ranks` are those of the world, in group order."""

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
            inside = self._rank in chosen
            self._subsets[chosen] = TorchCommunicator(self._name, group, chosen, self._rank) if inside else None
        return self._subsets[chosen]

    def allocate(self, spec: c.BufferSpec, pool: int) -> c.Buffer:
        return HostBuffer(spec, pool)

    def prepare(
        self,
        programs: Mapping[int, c.Program],
        buffers: Mapping[int, Mapping[str, c.Buffer]],
        mode: c.Mode,
    ) -> PythonRunner:
        if mode.engine != "python":
            raise Unsupported(f"{self._name} has no {mode.engine} engine")
        rank = self.hosted[0]
        held = cast(Mapping[str, HostBuffer], buffers[rank])
        pool = max((buffer.pool for buffer in held.values()), default=1)
        lowering = TorchLowering(self._group, held)
        return PythonRunner(Lowered.of(programs[rank], mode.sync, lowering.call), pool)

    def counters(self) -> dict[str, float]:
        return {}

    def facts(self) -> dict[str, Any]:
        import torch

        return {"library": f"torch {torch.__version__} {self._name}", "transport": "tcp"}

    def close(self, abort: bool = False) -> None:
        import torch.distributed as dist

        if not abort:  # a broken world's destructor waits for the dead; the process ends instead
            dist.destroy_process_group()
