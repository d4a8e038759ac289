"""torch.distributed: process groups, their communicators on host memory and on a GPU, and steps as
its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from commbench.backends.buffers.memory import DeviceBuffer, HostBuffer, rotation_pool
from commbench.backends.buffers.staging import PinnedBuffer
from commbench.core import program as steps
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.core.program import BufferSpec, Program, Step, View
from commbench.core.protocols import GROUP_ORDER, Buffer, Control, RankCommunicator, Runner
from commbench.core.variables import Mode, ReductionName
from commbench.engines.compute import compute_call
from commbench.engines.lowered import (
    Call,
    GroupLowering,
    Lowered,
    PythonRunner,
    Rotating,
    UnsupportedForms,
    check_form,
    in_groups,
)
from commbench.hardware.torch_install import other_torch

from .cuda import CudaDevice, CudaMemory, SideStream, gpu_runner, view_tensors

# a last resort: the deadlines of the control plane are shorter
CALL_TIMEOUT = timedelta(minutes=10)
TORCH_UNSUPPORTED: UnsupportedForms = {
    (steps.AllReduce, False): "torch.distributed reduces in place only",
    (steps.Reduce, False): "torch.distributed reduces in place only",
    (steps.AllToAll, True): "torch.distributed receives into blocks that it has not sent yet",
    (steps.AllToAllV, True): "torch.distributed receives into blocks that it has not sent yet",
}
DEVICE_STREAM_BYTES = 2**28  # beyond any GPU's cache
STARTED = True  # what torch calls async_op
WITHOUT_WAITING = True  # of Tensor.copy_
TORCH_REDUCTIONS = {"sum": "SUM", "avg": "AVG", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def start_group(
    name: str, world: World, control: Control, place: Any = None
) -> tuple[Any, tuple[int, ...], int]:
    """The group of all ranks, over the control plane's store; torch's number of each rank of the
    world; this rank's.

    `place` is a GPU on which to connect at once. A torch whose `new_group` sorts its ranks numbers
    them node after node, so that the ranks of every layout ascend, however the launcher distributed
    them.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    order = range(world.size) if keeps_order() else [rank for node in world.nodes for rank in node]
    numbers = tuple(map(order.index, range(world.size)))
    store = PrefixStore(f"commbench/{name}", control.store)
    dist.init_process_group(
        name,
        store=store,
        rank=numbers[world.rank],
        world_size=world.size,
        timeout=CALL_TIMEOUT,
        device_id=place,
    )
    return dist.group.WORLD, numbers, numbers[world.rank]


def keeps_order() -> bool:
    """Whether torch can make a group in the order in which its ranks are given: older ones sort
    them."""
    import torch.distributed as dist

    return "sort_ranks" in signature(dist.new_group).parameters


class TorchCommunicator(RankCommunicator):
    """See RankCommunicator. `ranks` are torch's numbers of its ranks, in its order; `rank` is its
    own.

    `more` are the further arguments of a subclass, with which it makes communicators of its
    subsets.
    """

    def __init__(
        self, name: str, group: Any, ranks: tuple[int, ...], rank: int, *more: Any
    ) -> None:
        self._name = name
        self.group = group
        self.ranks = ranks
        self._rank = rank
        self._more = more
        self.size = len(ranks)
        self.hosted = (ranks.index(rank),)

    def subset(self, ranks: Sequence[int]) -> TorchCommunicator | None:
        members = tuple(self.ranks[rank] for rank in ranks)
        return self if members == self.ranks else self._new_group(members)

    def _new_group(self, members: tuple[int, ...]) -> TorchCommunicator | None:
        """A communicator of the ranks that torch has these numbers for; None if this is none of
        them."""
        import torch
        import torch.distributed as dist

        if keeps_order():
            group = dist.new_group(list(members), timeout=CALL_TIMEOUT, sort_ranks=False)
        elif list(members) == sorted(members):
            group = dist.new_group(list(members), timeout=CALL_TIMEOUT)
        else:
            raise Unsupported(
                f"torch {torch.__version__} sorts the ranks of a group: {list(members)}"
            )
        if self._rank not in members:
            return None
        return type(self)(self._name, group, members, self._rank, *self._more)

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return HostBuffer(spec, pool)

    def runner(self, program: Program, buffers: Mapping[str, Buffer], mode: Mode) -> Runner:
        lower = in_groups(self._lowering(buffers), self, mode)
        return PythonRunner(Lowered.of(program, mode.sync, lower), rotation_pool(buffers))

    def _lowering(self, buffers: Mapping[str, Buffer]) -> GroupLowering[Call]:
        return TorchLowering(self.group, buffers)

    @contextmanager
    def profiled(self, path: Path | None) -> Iterator[Any]:
        """See Communicator; the block is one step of the profile."""
        from torch.profiler import profile, record_function

        with profile(record_shapes=True) as recorded, record_function("ProfilerStep#0"):
            yield recorded
        if path is not None:
            recorded.export_chrome_trace(str(path))

    def facts(self) -> dict[str, Any]:
        import torch

        own = {"library": f"torch {torch.__version__} {self._name}", "transport": "tcp"}
        other = other_torch()
        own |= {} if other is None else {"torch_of_system": other}
        if keeps_order() or list(self.ranks) == sorted(self.ranks):
            return own
        return {**own, GROUP_ORDER: sorted(range(self.size), key=self.ranks.__getitem__)}

    def close(self, abort: bool = False) -> None:
        """Does nothing in a broken world: destructors and ProcessGroupNCCL's abort wait for lost
        ranks up to their timeout. The process ends instead, and the driver frees what it had on the
        GPU."""
        import torch.distributed as dist

        if not abort:
            dist.destroy_process_group()


class CudaCommunicator(TorchCommunicator):
    """The same with a clock on this rank's GPU, and buffers where their specifications say."""

    def __init__(
        self, name: str, group: Any, ranks: tuple[int, ...], rank: int, gpu: CudaDevice, *more: Any
    ) -> None:
        super().__init__(name, group, ranks, rank, gpu, *more)
        self.gpu = gpu

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        if spec.memory == steps.DEVICE:
            return DeviceBuffer(spec, pool, partial(CudaMemory, place=self.gpu.place))
        is_pinned = spec.memory == steps.PINNED
        return PinnedBuffer(spec, pool, self.gpu.pages()) if is_pinned else HostBuffer(spec, pool)

    def runner(self, program: Program, buffers: Mapping[str, Buffer], mode: Mode) -> Runner:
        return gpu_runner(
            self.gpu,
            program,
            self.hosted[0],
            buffers,
            mode,
            lambda used: in_groups(self._lowering(used), self, mode),
        )

    def _lowering(self, buffers: Mapping[str, Buffer]) -> GroupLowering[Call]:
        return TorchLowering(self.group, buffers, self.gpu)

    def counters(self) -> dict[str, float]:
        return self.gpu.readings()

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "gpu": self.gpu.name}


class TorchLowering:
    """Steps as calls of torch.distributed, on tensors that share the buffers' memory.

    Peers and roots are ranks of the group. Raises Unsupported for a form that torch.distributed
    lacks.
    """

    def __init__(
        self, group: Any, buffers: Mapping[str, Buffer], gpu: CudaDevice | None = None
    ) -> None:
        import torch
        import torch.distributed as dist

        self._dist = dist
        self._group = group
        self._buffers = buffers
        self._copy = torch.Tensor.copy_
        self._gpu = gpu  # that computes and copies; None for the host
        self._streams: dict[int, SideStream] = {}  # of copies, by request
        self._rank = group.rank()
        self._size = group.size()
        self._tensors: dict[tuple[View, bool], Rotating] = {}

    def call(self, step: Step) -> Call:
        dist = self._dist
        match step:
            case steps.Start(steps.Copy(source, target), request):
                if self._gpu is None:
                    raise Unsupported("torch copies on the host, which waits for the end of a copy")
                if request not in self._streams:
                    self._streams[request] = self._gpu.side_stream()
                copied = (self.tensors(target), self.tensors(source), WITHOUT_WAITING)
                return Call(self._streams[request].start, (self._copy, *copied), into=request)
            case steps.Start(steps.Send() | steps.Recv() as message, request):
                function = getattr(dist, f"i{type(message).__name__.lower()}")
                return Call(function, self._message(message), into=request)
            case steps.Start(operation, request):
                return replace(self._collective(operation, STARTED), into=request)
            case steps.Send() | steps.Recv():
                return Call(getattr(dist, type(step).__name__.lower()), self._message(step))
            case steps.WaitAll(requests):
                return Call(_wait_all, requests=requests)
            case _ if isinstance(step, steps.Compute):
                return self._compute(step)
            case steps.Copy(source, target):
                return Call(self._copy, (self.tensors(target), self.tensors(source)))
            case _:
                return self._collective(step, not STARTED)

    def _compute(self, step: steps.Compute) -> Call:
        """On the memory's own device: kernels on the stream of the caller, where it is a GPU."""
        if self._gpu is None:
            return compute_call(step)
        import torch

        place = self._gpu.place

        match step:
            case steps.MemoryStream(size_bytes):
                shape = (2, min(size_bytes, DEVICE_STREAM_BYTES))
                target, source = torch.ones(shape, dtype=torch.uint8, device=place)
                return Call(_device_stream, (target, source, size_bytes))
            case steps.Matmul(size, repetitions):
                factors = torch.ones((3, size, size), dtype=torch.float32, device=place)
                return Call(_device_multiply, (*factors, repetitions))
            case _:
                raise Unsupported(
                    "a GPU's stream can't compute for a given time, nor sleep; use an amount of"
                    " memory or matmul"
                )

    def within(self, communicator: TorchCommunicator) -> TorchLowering:
        inner = copy(self)
        inner._group = communicator.group
        inner._rank = communicator.group.rank()
        inner._size = communicator.group.size()
        return inner

    def _message(self, step: steps.Message) -> tuple[Any, ...]:
        return self.tensors(step.data), None, self._group, 0, step.peer

    def _collective(self, step: Step, started: bool) -> Call:
        dist = self._dist
        group = self._group
        check_form(TORCH_UNSUPPORTED, step)
        match step:
            case steps.Barrier():
                return Call(dist.barrier, (group, started))
            case steps.Broadcast(data, root):
                return Call(dist.broadcast, (self.tensors(data), None, group, started, root))
            case steps.AllGather(send, recv):
                # newer torch renamed its calls on one tensor, and warns about the old names
                all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
                return Call(all_gather, (self.tensors(recv), self.tensors(send), group, started))
            case steps.Gather(send, recv, root):
                return Call(
                    dist.gather,
                    (self.tensors(send), self._blocks(recv, root), None, group, started, root),
                )
            case steps.Scatter(send, recv, root):
                return Call(
                    dist.scatter,
                    (self.tensors(recv), self._blocks(send, root), None, group, started, root),
                )
            case steps.AllToAll(send, recv):
                return Call(
                    dist.all_to_all_single,
                    (self.tensors(recv), self.tensors(send), None, None, group, started),
                )
            case steps.AllToAllV(send, recv, send_counts, recv_counts):
                return Call(
                    dist.all_to_all_single,
                    (
                        self.tensors(_blocks_together(recv, recv_counts)),
                        self.tensors(_blocks_together(send, send_counts)),
                        list(recv_counts),
                        list(send_counts),
                        group,
                        started,
                    ),
                )
            case steps.AllReduce(_, recv, reduction):
                operation = self._operation(reduction)
                return Call(dist.all_reduce, (self.numbers(recv), operation, group, started))
            case steps.Reduce(send, _, reduction, root):
                operation = self._operation(reduction)
                return Call(
                    dist.reduce, (self.numbers(send), None, operation, group, started, root)
                )
            case steps.ReduceScatter(send, recv, reduction):
                reduce_scatter = (
                    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
                )
                operation = self._operation(reduction)
                tensors = (self.numbers(recv), self.numbers(send))
                return Call(reduce_scatter, (*tensors, operation, group, started))
            case _:
                raise Unsupported(f"torch.distributed has no {type(step).__name__}")

    def _operation(self, reduction: ReductionName) -> Any:
        return getattr(self._dist.ReduceOp, TORCH_REDUCTIONS[reduction])

    def tensors(self, view: View, numbers: bool = False) -> Rotating:
        """One tensor per copy of the pool; the same object for the same view. See view_tensors."""
        key = (view, numbers)
        if key not in self._tensors:
            self._tensors[key] = view_tensors(self._buffers[view.buffer], view, numbers)
        return self._tensors[key]

    def numbers(self, view: View) -> Rotating:
        """What is reduced."""
        return self.tensors(view, numbers=True)

    def _blocks(self, view: View, root: int) -> Rotating | None:
        """On the root a list with a tensor per rank, which are parts of the view; None on the other
        ranks."""
        if self._rank != root:
            return None
        return Rotating(
            tuple(list(tensor.chunk(self._size)) for tensor in self.tensors(view).values)
        )


def _device_stream(target: Any, source: Any, size_bytes: int) -> None:
    """Copies all of `source` as often as it fits into `size_bytes`, then the rest."""
    times, rest = divmod(size_bytes, len(source))
    for _ in range(times):
        target.copy_(source)
    target[:rest].copy_(source[:rest])


def _device_multiply(first: Any, second: Any, product: Any, repetitions: int) -> None:
    import torch

    for _ in range(repetitions):
        torch.matmul(first, second, out=product)


def _blocks_together(view: View, counts: Sequence[int]) -> View:
    """The part of the view that these blocks fill: torch takes no more."""
    return replace(view, count=sum(counts))


def _wait_all(works: list[Any]) -> None:
    for work in works:
        work.wait()
