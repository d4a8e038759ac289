"""NCCL through torch.distributed: GPU memory, one GPU per rank.

All messages posted between two waits are one batch, which is one kernel on the GPU. An isend of its
own would be a kernel of its own, after all others of the communicator, so two ranks that both send
first would wait for each other. A batch has no order inside.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.backends.nccl_library import LoadedNccl, NcclBackend, NcclLog, newer_nccl_needed
from commbench.core.case import World
from commbench.core.errors import Unsupported
from commbench.core.program import (
    Barrier,
    Message,
    Program,
    Recv,
    Send,
    Start,
    Step,
    WaitAll,
)
from commbench.core.protocols import Buffer, Control, Runner
from commbench.core.variables import Case, Device, Ipc, Mode, Registration
from commbench.engines.lowered import (
    NO_CALL,
    Call,
    GroupLowering,
    Posted,
    Rotating,
    reduced_float8,
)
from commbench.hardware.machine_facts import newer_torch_needed
from commbench.hardware.torch_install import place_of, torch_folder
from commbench.runtime.exit_protocol import FOLDER

from .cuda import CudaDevice, cuda_missing, graph_refusal
from .distributed import (
    TORCH_UNSUPPORTED,
    CudaCommunicator,
    TorchCommunicator,
    TorchLowering,
    start_group,
)
from .registered_memory import RegisteredMemory, registration_refusal

ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
TORCHRUN = "TORCHELASTIC_RUN_ID"
# torch 2.6 to 2.7.0 open NCCL's communicators in its non-blocking mode where a device is given, in
# which NCCL 2.26 hangs now and then (pytorch/pytorch#153960); later ones do not
NON_BLOCKING_MODE = "TORCH_NCCL_USE_COMM_NONBLOCKING"
# blocking messages are in order anyway
EAGER_WARNING = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"


# of torch: before, it moves float8 as bytes and refuses to reduce it (pytorch/pytorch#152706)
FLOAT8_SINCE = (2, 8)
FLOAT8_NCCL_SINCE = 22400
FLOAT8_CAPABILITY = (9, 0)


def float8_refusal(program: Program) -> str | None:
    """Why this torch or NCCL can't reduce float8; None if it can, or need not."""
    kind = reduced_float8(program)
    if kind is None:
        return None
    what = f"a reduction of {kind}"
    return newer_torch_needed(FLOAT8_SINCE, what) or newer_nccl_needed(FLOAT8_NCCL_SINCE, what)


@dataclass(frozen=True)
class Nccl(NcclBackend):
    """See Backend."""

    name = "nccl"
    has_profiler = True
    unsupported_forms = TORCH_UNSUPPORTED
    axes = ("registration",)
    starts_copies = True
    library: str = "auto"

    def missing(self, device: Device = "cuda") -> str | None:
        return cuda_missing("take backend=gloo")

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        reason = super().supports(case, size, program) or graph_refusal(case)
        return reason or registration_refusal(case, program) or float8_refusal(program)

    def environment(self, cuda_ipc: Ipc, interface: str | None) -> dict[str, str]:
        # 0: torch's watchdog does not end this process when another rank is lost; commbench does,
        # after saving
        defaults = {ERROR_HANDLING: "0", EAGER_WARNING: "false", NON_BLOCKING_MODE: "0"}
        # torchrun exports 1 to the ranks of a world that the user starts, whether the user wants it
        # or not
        by_torchrun = (
            TORCHRUN in os.environ
            and FOLDER not in os.environ
            and os.environ.get(ERROR_HANDLING) == "1"
        )
        wanted = {name: os.environ[name] for name in defaults if name in os.environ}
        wanted |= {ERROR_HANDLING: "0"} if by_torchrun else {}
        return super().environment(cuda_ipc, interface) | defaults | wanted

    def open(self, world: World, control: Control, device: Device = "cuda") -> NcclCommunicator:
        """Eagerly: with a device given, NCCL connects here and not in the first call of a case.

        torch knows NCCL by this name only, whatever a subclass is called.
        """
        log = NcclLog(os.environ)
        gpu = CudaDevice.of(world)
        return NcclCommunicator(
            Nccl.name, *start_group(Nccl.name, world, control, gpu.place), gpu, log
        )


class NcclCommunicator(CudaCommunicator):
    """See Communicator. All ranks create it together."""

    def __init__(
        self,
        name: str,
        group: Any,
        ranks: tuple[int, ...],
        rank: int,
        gpu: CudaDevice,
        log: NcclLog,
    ) -> None:
        import torch
        import torch.distributed as dist

        super().__init__(name, group, ranks, rank, gpu, log)
        self._log = log
        self._memory: RegisteredMemory | None = None  # of the case that is measured
        # The first call of a group needs all its ranks, which a batch of messages does not involve.
        # This one also connects neighbours, so that the log names their transport; other pairs
        # connect in the first call of a case.
        self.barrier_tensor = torch.zeros(1, device=gpu.place)
        dist.all_reduce(self.barrier_tensor, group=group)
        gpu.synchronise()

    def registered_memory(self, registration: Registration) -> AbstractContextManager[None]:
        backend = self.group._get_backend(self.gpu.place)
        self._memory = RegisteredMemory(backend, registration)
        return self._memory.allocating()

    def release_memory(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            self.gpu.synchronise()
            memory.release()

    @contextmanager
    def profiled(self, path: Path | None) -> Iterator[Any]:
        """See Communicator. The kernels are known where torch's profiler finds CUPTI."""
        with super().profiled(path) as recorded:
            yield recorded
            self.gpu.synchronise()
        self._log.kernels += kernel_names(recorded.events())

    def runner(self, program: Program, buffers: Mapping[str, Buffer], mode: Mode) -> Runner:
        kind = reduced_float8(program)
        if kind is not None and self.gpu.capability < FLOAT8_CAPABILITY:
            capability = "{}.{}".format(*self.gpu.capability)
            raise Unsupported(
                f"NCCL reduces {kind} on GPUs of compute capability 9.0 or newer; this"
                f" {self.gpu.name} has {capability}"
            )
        if self._memory is not None:
            self._memory.register()
        return super().runner(program, buffers, mode)

    def for_graphs(self, ranks: Sequence[int]) -> TorchCommunicator | None:
        return self._new_group(tuple(self.ranks[rank] for rank in ranks))

    def _lowering(self, buffers: Mapping[str, Buffer]) -> GroupLowering[Call]:
        return NcclLowering(self.group, buffers, self.barrier_tensor, self.gpu)

    def facts(self) -> dict[str, Any]:
        import torch

        loaded = LoadedNccl.find()
        version = loaded.version if loaded else built_for()
        name = "RCCL" if torch.version.hip else "NCCL"
        own = f"torch {torch.__version__}"
        folder = torch_folder()
        place = "" if folder is None else f" of {place_of(folder)}"
        return {
            **super().facts(),
            "library": f"{own} {name.lower()} {version}",
            "loaded": f"{own}{place}, {name} {version} {loaded.origin if loaded else 'in torch'}",
            **self._log.facts(),
        }


def kernel_names(events: Iterable[Any]) -> list[str]:
    """Of torch.profiler's events: what ran on a GPU."""
    return [event.name for event in events if event.device_type.name == "CUDA"]


def built_for() -> str:
    """The NCCL that torch was built with, which a torch that is linked with it also runs."""
    import torch

    nccl: Any = torch.cuda.nccl
    return ".".join(map(str, nccl.version()))


class NcclLowering:
    """Steps as torch.distributed's calls on NCCL, for one program. Peers are ranks of the group.

    `barrier_tensor` has one element, which barriers reduce.
    """

    def __init__(
        self,
        group: Any,
        buffers: Mapping[str, Buffer],
        barrier_tensor: Any,
        gpu: CudaDevice | None = None,
    ) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = group
        self._barrier_tensor = barrier_tensor
        self._torch = TorchLowering(group, buffers, gpu)
        self._posted = Posted[Message]("nccl")
        self._is_inner = False
        self._collectives: set[int] = set()  # started and not waited for, copies as well

    def within(self, communicator: NcclCommunicator) -> NcclLowering:
        """What is started there is waited for here, but for messages: a batch is of one group."""
        inner = copy(self)
        inner._group = communicator.group
        inner._barrier_tensor = communicator.barrier_tensor
        inner._torch = self._torch.within(communicator)
        inner._is_inner = True
        return inner

    def call(self, step: Step) -> Call:
        """A message that is posted has no call: it is part of the batch that the wait starts.
        Raises Unsupported."""
        match step:
            case Start(Send() | Recv()) if self._is_inner:
                raise Unsupported("nccl can start messages between all ranks only, not in a group")
            case Start(Send() | Recv() as message, request):
                return self._posted.start(message, request)
            case Start(Barrier()):
                raise Unsupported("nccl has no barrier but a blocking one")
            case Start(_, request):
                self._posted.refuse()
                self._collectives.add(request)
                return self._torch.call(step)
            case Send() | Recv() if self._posted.messages and not self._is_inner:
                # in the same batch, so that a rank can send to itself
                shared = _buffer_names(self._posted.messages, Recv) & _buffer_names([step], Send)
                if shared:
                    raise Unsupported(
                        f"nccl sends from {', '.join(shared)} in the batch that receives into it"
                    )
                self._posted.messages.append(step)
                return NO_CALL
            case WaitAll(requests) if requests and self._collectives.issuperset(requests):
                self._collectives.difference_update(requests)
                return self._torch.call(step)
            case WaitAll(requests):
                return self._batch(self._posted.completed(requests))
            case Barrier():  # dist.barrier would block the host instead of the stream
                self._posted.refuse()
                return Call(
                    self._dist.all_reduce,
                    (self._barrier_tensor, self._dist.ReduceOp.SUM, self._group),
                )
            case _:
                self._posted.refuse()
                return self._torch.call(step)

    def _batch(self, messages: Sequence[Message]) -> Call:
        if not messages:
            return NO_CALL
        rows = []  # of each message one operation per copy of the rotation pool
        for step in messages:
            kind = self._dist.isend if isinstance(step, Send) else self._dist.irecv
            tensors = self._torch.tensors(step.data).values
            rows.append(
                [
                    self._dist.P2POp(kind, tensor, group=self._group, group_peer=step.peer)
                    for tensor in tensors
                ]
            )
        return Call(self._exchange, (Rotating(tuple(map(list, zip(*rows, strict=True)))),))

    def _exchange(self, operations: list[Any]) -> None:
        try:
            works = self._dist.batch_isend_irecv(operations)
        except Exception:
            # torch leaves a batch open in which an operation fails (_coalescing_manager has no
            # `finally`): all later calls of the group would be added to it, in NCCL and in torch's
            # own list, and never run
            from torch.distributed import distributed_c10d

            with suppress(Exception):
                distributed_c10d._world.pg_coalesce_state.pop(self._group, None)
            # what was posted may fail as well; the first error is the one to report
            with suppress(Exception):
                self._group._end_coalescing(operations[0].tensor.device)
            raise
        for work in works:
            work.wait()


def _buffer_names(steps: Iterable[Message], *kinds: type) -> set[str]:
    return {step.data.buffer for step in steps if isinstance(step, kinds)}
