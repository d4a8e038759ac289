"""Copies through CUDA IPC, without a library: a process opens the GPU memory of another and copies
into it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from commbench.backends.buffers.cuda_ipc import WORKED, probe_cuda_ipc
from commbench.backends.buffers.memory import DeviceBuffer, rotation_pool
from commbench.core.case import World
from commbench.core.errors import ConfigError, Unsupported
from commbench.core.program import (
    BufferSpec,
    Program,
    Recv,
    Send,
    operation_of,
)
from commbench.core.protocols import Backend, Buffer, Control, RankCommunicator
from commbench.core.variables import EVENT_TIMED, Case, Device, Ipc, Mode
from commbench.engines.lowered import Lowered, PythonRunner, has_collectives
from commbench.hardware.cuda import CudaError, driver_missing

from .lowering import (
    IPC_NO_COLLECTIVES,
    Channels,
    IpcLowering,
    Offer,
    check_program,
    offers_mismatch,
    region_of,
)
from .memory import CopyingExporter, IpcMemory
from .protocol import (
    Mailbox,
    NodeBarrier,
    ProgressEngine,
    ReceiveChannel,
    SendChannel,
    create_mailbox,
)

DEADLINE_S = 120.0  # of every exchange over the control plane
CONTRADICTION = (
    "cuda_ipc=off contradicts backend=ipc_copy, which copies through CUDA IPC; use cuda_ipc=auto"
    " or on"
)
HOST_CLOCK = "ipc_copy notifies its receiver from the host, so only timer=host_sync times a message"
Offers = Mapping[int, Offer]  # by world rank


@dataclass(frozen=True)
class IpcCopy(Backend):
    """See Backend. A pair of a rank with itself is a copy inside the process: what the same GPU
    does without IPC."""

    name = "ipc_copy"
    devices = ("cuda",)
    library: str = "auto"

    def missing(self, device: Device = "cuda") -> str | None:
        reason = driver_missing()
        return None if reason is None else f"{reason}; CUDA IPC needs an NVIDIA GPU"

    def supports(self, case: Case, size: int, program: Program) -> str | None:
        if has_collectives(program):
            return IPC_NO_COLLECTIVES
        if case.timer in EVENT_TIMED:
            return HOST_CLOCK
        if case.staging != "none":
            return (
                f"ipc_copy copies from GPU memory to GPU memory; staging={case.staging} would be"
                " another transport"
            )
        return CONTRADICTION if case.cuda_ipc == "off" else None

    def environment(self, cuda_ipc: Ipc, interface: str | None) -> dict[str, str]:
        """Exports nothing. Raises ConfigError for cuda_ipc=off."""
        if cuda_ipc == "off":
            raise ConfigError(CONTRADICTION)
        return {}

    def exporter(self, local_rank: int) -> CopyingExporter:
        """The exporter on the GPU of this local rank. Raises CudaError."""
        return CopyingExporter(local_rank)

    def open(self, world: World, control: Control, device: Device = "cuda") -> IpcCommunicator:
        """Every rank creates its exporter, the first of each node its mailbox; then all probe CUDA
        IPC.

        Raises ConfigError where a rank has no GPU or the node no shared memory.
        """
        node_ranks = world.neighbours
        exporter = None
        path = None
        problem = None
        try:
            exporter = self.exporter(world.local_rank)
            path = create_mailbox(len(node_ranks)) if world.local_rank == 0 else None
        except (CudaError, OSError) as error:
            problem = f"rank {world.rank} can't copy through CUDA IPC: {error}"
        states = control.exchange([problem, path and str(path)], DEADLINE_S, "IPC mailbox")
        reason = next((text for text, _ in states if text is not None), None)
        if exporter is None or reason is not None:
            if path is not None:
                path.unlink(missing_ok=True)
            raise ConfigError(str(reason), shared=True)
        mailbox = _open_mailbox(Path(states[node_ranks[0]][1]), world, control)
        created = exporter
        results = probe_cuda_ipc(lambda _: created, world, control, DEADLINE_S)
        facts: dict[str, Any] = {"ipc_probe": results}
        if results:  # none where no rank has a neighbour
            refused = [reason for reason in dict.fromkeys(results.values()) if reason != WORKED]
            facts |= (
                {"cuda_ipc_effective": "off", "ipc_refused": refused}
                if refused
                else {"cuda_ipc_effective": "on"}
            )
        process = IpcProcess(world.rank, node_ranks, IpcMemory(exporter), mailbox, facts)
        return IpcCommunicator(process, control, tuple(range(world.size)))


def _open_mailbox(path: Path, world: World, control: Control) -> Mailbox:
    """The node's mailbox; its file is unlinked once all ranks have it. Raises ConfigError."""
    mailbox = None
    problem = None
    try:
        mailbox = Mailbox(path, world.neighbours)
    except OSError as error:
        owner = world.neighbours[0]
        problem = (
            f"rank {world.rank} does not see the shared memory of rank {owner}, its neighbour:"
            f" {error}"
        )
    problem = control.agree(problem, DEADLINE_S, "IPC mailbox")
    if world.local_rank == 0:
        path.unlink(missing_ok=True)
    if mailbox is None or problem is not None:
        raise ConfigError(str(problem))
    return mailbox


@dataclass(frozen=True)
class IpcProcess:
    """What all communicators of a process share. `node_ranks`: the world ranks of its node, with
    `rank`, its own."""

    rank: int
    node_ranks: tuple[int, ...]
    memory: IpcMemory
    mailbox: Mailbox
    facts: Mapping[str, Any] = field(default_factory=dict)


class IpcCommunicator(RankCommunicator):
    """See RankCommunicator. `ranks` are those of the world, in its own order."""

    def __init__(self, process: IpcProcess, control: Control, ranks: tuple[int, ...]) -> None:
        self._process = process
        self._control = control
        self._ranks = ranks
        self.size = len(ranks)
        self.hosted = (ranks.index(process.rank),)

    def subset(self, ranks: Sequence[int]) -> IpcCommunicator | None:
        members = tuple(self._ranks[rank] for rank in ranks)
        if self._process.rank not in members:
            return None
        return IpcCommunicator(self._process, self._control.subset(ranks), members)

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return DeviceBuffer(spec, pool, self._process.memory.allocate)

    def runner(
        self, program: Program, buffers: Mapping[str, DeviceBuffer], mode: Mode
    ) -> PythonRunner:
        """Handles and counters travel over the control plane, so no program of an earlier case is
        running."""
        process = self._process
        own_offer = self._offer(program, buffers)
        exchanged = self._control.exchange(asdict(own_offer), DEADLINE_S, "IPC handles")
        offers = {
            peer: Offer(**fields) for peer, fields in zip(self._ranks, exchanged, strict=True)
        }
        problem = next(
            (offer.problem for offer in offers.values() if offer.problem), None
        ) or offers_mismatch(offers)
        if problem is not None:
            raise Unsupported(problem)
        channels = self._channels(own_offer, offers)
        engine = ProgressEngine(
            process.memory.exporter, process.mailbox, list(channels[0].values())
        )
        targets = {
            self._ranks.index(int(peer)): self._targets(int(peer), offers, buffers)
            for peer in own_offer.sends
        }
        lowering = IpcLowering(
            self.hosted[0], buffers, engine, self._barrier(offers), channels, targets
        )
        return PythonRunner(Lowered.of(program, mode.sync, lowering.call), own_offer.pool)

    def counters(self) -> dict[str, float]:
        return self._process.memory.exporter.readings()

    def facts(self) -> dict[str, Any]:
        return {
            "transport": "CUDA IPC",
            **self._process.memory.exporter.facts(),
            **self._process.facts,
        }

    def close(self, abort: bool = False) -> None:
        if not abort:
            self._process.memory.close()

    def _offer(self, program: Program, buffers: Mapping[str, DeviceBuffer]) -> Offer:
        """A rank that can't run its program says so in its offer: the others would wait for it."""
        rank = self._process.rank
        process = self._process
        mailbox = self._process.mailbox
        receives = defaultdict(list)
        sends = defaultdict(list)
        try:
            check_program(program, self._ranks, process.node_ranks)
            for step in map(operation_of, program.from_lead):
                if isinstance(step, Recv):
                    receives[str(self._ranks[step.peer])].append(region_of(buffers, step.data))
                elif isinstance(step, Send):
                    sends[str(self._ranks[step.peer])].append(region_of(buffers, step.data)[3])
            shared = {
                name
                for source, regions in receives.items()
                if source != str(rank)
                for name, *_ in regions
            }
            handles = {
                name: process.memory.export(buffers[name].address(), rank)
                for name in sorted(shared)
            }
        except Unsupported as error:
            return Offer(problem=str(error))
        indices = [mailbox.arrived(rank)]
        for peer in (peer for peer in self._ranks if peer in process.node_ranks):
            indices += [mailbox.posted(peer, rank), mailbox.sent(rank, peer)]
        counters = {str(index): mailbox.counters[index] for index in indices}
        return Offer(dict(receives), dict(sends), handles, counters, rotation_pool(buffers))

    def _channels(self, own: Offer, offers: Offers) -> Channels:
        """One per peer and direction, each from the values of its two counters at the handshake."""
        rank = self._process.rank
        mailbox = self._process.mailbox
        sends = dict[int, SendChannel]()
        receives = dict[int, ReceiveChannel]()
        for peer in map(int, own.sends):
            posted = mailbox.posted(rank, peer)
            sent = mailbox.sent(rank, peer)
            own_count = own.counters[str(sent)]
            peer_count = offers[peer].counters[str(posted)]
            sends[self._ranks.index(peer)] = SendChannel(
                posted, sent, own_count, peer_count - own_count
            )
        for peer in map(int, own.receives):
            posted = mailbox.posted(peer, rank)
            sent = mailbox.sent(peer, rank)
            own_count = own.counters[str(posted)]
            peer_count = offers[peer].counters[str(sent)]
            receives[self._ranks.index(peer)] = ReceiveChannel(
                posted, sent, own_count, peer_count - own_count
            )
        return sends, receives

    def _targets(
        self, peer: int, offers: Offers, buffers: Mapping[str, DeviceBuffer]
    ) -> list[list[int]]:
        """The addresses of this rank's messages at that peer, in its opened memory or this rank's
        own."""
        offer = offers[peer]
        rank = self._process.rank
        memory = self._process.memory
        targets = []
        for name, offset, stride, _ in offer.receives[str(rank)]:
            base = (
                buffers[name].address() if peer == rank else memory.open(offer.handles[name], rank)
            )
            targets.append([base + offset + copy * stride for copy in range(offer.pool)])
        return targets

    def _barrier(self, offers: Offers) -> NodeBarrier:
        """The barrier of this communicator's ranks on this node."""
        process = self._process
        mailbox = self._process.mailbox
        here = [rank for rank in self._ranks if rank in process.node_ranks]
        indices = {rank: mailbox.arrived(rank) for rank in here}
        counts = {rank: offers[rank].counters[str(index)] for rank, index in indices.items()}
        own = counts[process.rank]
        others = [(indices[rank], counts[rank] - own) for rank in here if rank != process.rank]
        return NodeBarrier(mailbox, indices[process.rank], own, others)
