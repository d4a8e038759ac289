"""The ranks that copy into one another: memory exported and opened before a program, counters in a mailbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from commbench.buffers.cuda_ipc import Exporter
from commbench.buffers.device import DeviceBuffer
from commbench.core.case import Mode
from commbench.core.errors import Unsupported
from commbench.core.program import BufferSpec, Program
from commbench.core.protocols import Buffer, Control
from commbench.engines.loop import PythonRunner
from commbench.hardware.cuda_driver import CudaError

from .allocator import Arena
from .handshake import REFUSED, Offer, check, mismatch, offer, own_counters
from .lowering import IpcLowering, Key
from .mailbox import Mailbox
from .protocol import Gate, Inbox, Outbox, Postman

MEETING_S = 120.0


@dataclass
class Desk:
    """What one process has, whatever the communicator. `here`: the world ranks of its node, `rank` its own."""

    rank: int
    here: tuple[int, ...]
    exporter: Exporter
    mailbox: Mailbox
    told: Mapping[str, Any] = field(default_factory=dict)
    opened: dict[str, int] = field(default_factory=dict)  # addresses by handle; open until the end

    def __post_init__(self) -> None:
        self.arena = Arena(self.exporter)

    def address(self, handle: str) -> int:
        """Raises Unsupported where it can't be opened."""
        if handle not in self.opened:
            try:
                self.opened[handle] = self.exporter.open(bytes.fromhex(handle))
            except CudaError as error:
                raise Unsupported(f"{REFUSED}: rank {self.rank}, {error}") from error
        return self.opened[handle]


class IpcCommunicator:
    """See Communicator; hosts one rank. `ranks` are those of the world, in its own order."""

    def __init__(self, desk: Desk, control: Control, ranks: tuple[int, ...]) -> None:
        self._desk, self._control, self._ranks = desk, control, ranks
        self.size = len(ranks)
        self.hosted = (ranks.index(desk.rank),)

    def subset(self, ranks: Sequence[int]) -> IpcCommunicator | None:
        chosen = tuple(self._ranks[rank] for rank in ranks)
        if self._desk.rank not in chosen:
            return None
        return IpcCommunicator(self._desk, self._control.subset(ranks), chosen)

    def allocate(self, spec: BufferSpec, pool: int) -> Buffer:
        return DeviceBuffer(spec, pool, self._desk.arena.allocate)

    def prepare(
        self,
        programs: Mapping[int, Program],
        buffers: Mapping[int, Mapping[str, Buffer]],
        mode: Mode,
    ) -> PythonRunner:
        """Handles and counters travel through the control plane, so no program of an earlier case runs any more."""
        rank = self.hosted[0]
        program, held = programs[rank], cast(Mapping[str, DeviceBuffer], buffers[rank])
        own = self._offered(program, held, mode)
        gathered = self._control.gather(own.plain(), MEETING_S, "IPC handles")
        told = self._control.decide(gathered or None, MEETING_S, "IPC handles")
        offers = dict(zip(self._ranks, told, strict=True))
        problem = next((one["problem"] for one in told if one["problem"]), None) or mismatch(offers)
        if problem is not None:
            raise Unsupported(problem)
        boxes = self._boxes(own, offers)
        postman = Postman(
            self._desk.exporter, self._desk.mailbox, [box for box in boxes.values() if isinstance(box, Outbox)]
        )
        targets = {self._ranks.index(int(peer)): self._targets(int(peer), offers, held) for peer in own.sends}
        lowering = IpcLowering(rank, held, own.pool, postman, self._gate(offers), boxes, targets)
        return PythonRunner(lowering.lower(program, mode.sync), own.pool)

    def counters(self) -> dict[str, float]:
        return self._desk.exporter.readings()

    def facts(self) -> dict[str, Any]:
        return {"transport": "CUDA IPC", **self._desk.exporter.facts(), **self._desk.told}

    def close(self, abort: bool = False) -> None:
        """The memory itself goes with the process: a peer may still have it open."""
        opened, self._desk.opened = self._desk.opened, {}
        for address in () if abort else opened.values():
            self._desk.exporter.close(address)

    def _offered(self, program: Program, held: Mapping[str, DeviceBuffer], mode: Mode) -> Offer:
        """A rank that can't go on must say so where all meet: the others would wait for it."""
        desk = self._desk
        try:
            if mode.engine != "python":
                raise Unsupported(f"ipc_copy has no {mode.engine} engine")
            check(program, self._ranks, desk.here)
            made = offer(program, held, self._ranks, desk.exporter, desk.rank)
        except Unsupported as error:
            return Offer(problem=str(error))
        places = [desk.here.index(rank) for rank in self._ranks if rank in desk.here]
        made.counters = own_counters(desk.mailbox, desk.here.index(desk.rank), places)
        return made

    def _boxes(self, own: Offer, offers: Mapping[int, Mapping[str, Any]]) -> dict[Key, Outbox | Inbox]:
        desk, boxes = self._desk, dict[Key, Outbox | Inbox]()
        mine = desk.here.index(desk.rank)
        for peer in map(int, own.sends):
            its, there = offers[peer]["counters"], desk.here.index(peer)
            posted, sent = desk.mailbox.posted(mine, there), desk.mailbox.sent(mine, there)
            so_far = own.counters[str(sent)]
            boxes["out", self._ranks.index(peer)] = Outbox(posted, sent, so_far, its[str(posted)] - so_far)
        for peer in map(int, own.receives):
            its, there = offers[peer]["counters"], desk.here.index(peer)
            posted, sent = desk.mailbox.posted(there, mine), desk.mailbox.sent(there, mine)
            so_far = own.counters[str(posted)]
            boxes["in", self._ranks.index(peer)] = Inbox(posted, sent, so_far, its[str(sent)] - so_far)
        return boxes

    def _targets(
        self, peer: int, offers: Mapping[int, Mapping[str, Any]], held: Mapping[str, DeviceBuffer]
    ) -> list[list[int]]:
        """Where this rank's messages go at that peer: its opened memory, or one's own."""
        its = offers[peer]
        found = []
        for name, offset, stride, _ in its["receives"][str(self._desk.rank)]:
            local = peer == self._desk.rank
            base = held[name].allocation.address if local else self._desk.address(its["handles"][name])
            found.append([base + offset + copy * stride for copy in range(its["pool"])])
        return found

    def _gate(self, offers: Mapping[int, Mapping[str, Any]]) -> Gate:
        """Of this communicator's ranks on this node."""
        desk = self._desk
        index = {rank: desk.mailbox.arrived(desk.here.index(rank)) for rank in self._ranks if rank in desk.here}
        come = {rank: int(offers[rank]["counters"][str(index[rank])]) for rank in index}
        mine = come[desk.rank]
        others = [(index[rank], come[rank] - mine) for rank in index if rank != desk.rank]
        return Gate(desk.mailbox, index[desk.rank], mine, others)
