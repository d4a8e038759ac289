"""What torch.distributed's backends share: process groups, tensors over host memory, and its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from commbench import contracts as c
from commbench.engines.loop import Call, PythonRunner, Rotating
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


class TorchLowering:
    """Turns steps into calls of torch.distributed on tensors that share the buffers' memory."""

    def __init__(self, group: Any, buffers: Mapping[str, HostBuffer]) -> None:
        import torch.distributed as dist

        self._dist, self._group, self._buffers = dist, group, buffers
        self._tensors: dict[c.View, Rotating] = {}

    def call(self, step: c.Step) -> Call:
        dist, group = self._dist, self._group
        match step:
            case c.Send(data, peer):
                return Call(dist.send, (self._tensor(data), None, group, 0, peer))
            case c.Recv(data, peer):
                return Call(dist.recv, (self._tensor(data), None, group, 0, peer))
            case c.Isend(data, peer, request):
                return Call(dist.isend, (self._tensor(data), None, group, 0, peer), into=request)
            case c.Irecv(data, peer, request):
                return Call(dist.irecv, (self._tensor(data), None, group, 0, peer), into=request)
            case c.WaitAll(requests):
                return Call(_wait_all, requests=requests)
            case c.Barrier():
                return Call(dist.barrier, (group,))
            case c.Copy(source, target):
                return Call(_copy, (self._tensor(target), self._tensor(source)))
            case _:
                return self._collective(step)

    def _collective(self, step: c.Step) -> Call:
        dist, group = self._dist, self._group
        match step:
            case c.AllReduce(send, recv, reduction) if send == recv:
                return Call(dist.all_reduce, (self._tensor(recv), self._operation(reduction), group))
            case _:
                raise Unsupported(f"torch.distributed has no {type(step).__name__} of this form")

    def _operation(self, reduction: str) -> Any:
        names = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
        return getattr(self._dist.ReduceOp, names[reduction])

    def _tensor(self, view: c.View) -> Rotating:
        """One tensor for each copy of the pool; the same object for the same view."""
        if view not in self._tensors:
            import torch

            buffer = self._buffers[view.buffer]
            kind = getattr(torch, buffer.spec.dtype)
            stop = None if view.count is None else view.offset + view.count
            words = (buffer.words(view.slot, copy)[view.offset : stop] for copy in range(buffer.pool))
            self._tensors[view] = Rotating(tuple(torch.from_numpy(one).view(kind) for one in words))
        return self._tensors[view]


def _wait_all(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _copy(target: Any, source: Any) -> None:
    target.copy_(source)
