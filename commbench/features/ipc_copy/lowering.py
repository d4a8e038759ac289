"""A program before it runs: what the ranks exchange about it, and its steps as calls of the
progress engine.

Addresses and the messages of a wait are determined in advance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from commbench.backends.buffers.memory import DeviceBuffer
from commbench.core.errors import Unsupported
from commbench.core.program import (
    Barrier,
    Copy,
    Message,
    Program,
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
    operation_of,
)
from commbench.engines.lowered import Call, Rotating, has_collectives

from .protocol import NodeBarrier, ProgressEngine, ReceiveChannel, SendChannel, Transfer

# by peer in this communicator
Channels = tuple[Mapping[int, SendChannel], Mapping[int, ReceiveChannel]]
Direction = tuple[str, int]  # "send" or "receive", and the peer
IPC_NO_COLLECTIVES = "ipc_copy is point to point only: it copies from one process into another"
ONE_NODE_ONLY = "CUDA IPC works only between processes of one node"
# buffer, offset in its first copy, distance of copies, size; all in bytes
Region = tuple[str, int, int, int]


@dataclass
class Offer:
    """What one rank contributes, in JSON: ranks are those of the world, as text. Messages are in
    program order."""

    receives: dict[str, list[Region]] = field(default_factory=dict)  # by source
    sends: dict[str, list[int]] = field(default_factory=dict)  # bytes, by target
    handles: dict[str, str] = field(default_factory=dict)  # hex, by buffer
    # values of those that this rank writes, by index as text
    counters: dict[str, int] = field(default_factory=dict)
    pool: int = 1
    problem: str | None = None  # why this rank can't run its program


def region_of(buffers: Mapping[str, DeviceBuffer], view: View) -> Region:
    buffer = buffers[view.buffer]
    return (
        view.buffer,
        buffer.addresses(view)[0] - buffer.address(),
        buffer.copy_bytes,
        buffer.size_bytes(view),
    )


def check_program(program: Program, ranks: Sequence[int], node_ranks: Sequence[int]) -> None:
    """Raises Unsupported for a program that copies within one node can't run."""
    steps = (*program.reset, *program.from_lead)
    if has_collectives(replace(program, steps=steps)):
        raise Unsupported(IPC_NO_COLLECTIVES)
    if any(isinstance(step, Start) and not isinstance(step.step, Message) for step in steps):
        raise Unsupported("ipc_copy can start messages only")
    if any(not isinstance(step, Copy) for step in program.reset):
        raise Unsupported("ipc_copy can't lower messages in a reset")
    messages = (step for step in map(operation_of, steps) if isinstance(step, Message))
    remote = [step for step in messages if ranks[step.peer] not in node_ranks]
    if remote:
        raise Unsupported(f"{ONE_NODE_ONLY}: rank {ranks[remote[0].peer]} is on another")
    if any(isinstance(step, Barrier) for step in program.from_lead) and not set(ranks) <= set(
        node_ranks
    ):
        raise Unsupported(f"{ONE_NODE_ONLY}, and this barrier is of several")


def offers_mismatch(offers: Mapping[int, Offer]) -> str | None:
    """Why these programs do not fit together, by world rank; the same on all ranks."""
    for rank, offer in offers.items():
        for peer, sizes in offer.sends.items():
            peer_offer = offers[int(peer)]
            expected = [region[3] for region in peer_offer.receives.get(str(rank), [])]
            if sizes != expected:
                sent, received = (
                    f"{len(part)} messages of {sum(part)} B" for part in (sizes, expected)
                )
                return f"rank {rank} sends {sent} to rank {peer}, which receives {received}"
            if offer.pool != peer_offer.pool:
                return (
                    f"ranks {rank} and {peer} rotate through {offer.pool} and {peer_offer.pool}"
                    " copies"
                )
        silent = [peer for peer in offer.receives if str(rank) not in offers[int(peer)].sends]
        if silent:
            return f"rank {rank} receives from rank {silent[0]}, which sends nothing to it"
    return None


class IpcLowering:
    """Lowers one program. `targets`: for each peer the addresses of its messages, one per copy of
    the pool."""

    def __init__(
        self,
        rank: int,
        buffers: Mapping[str, DeviceBuffer],
        engine: ProgressEngine,
        barrier: NodeBarrier,
        channels: Channels,
        targets: Mapping[int, Sequence[Sequence[int]]],
    ) -> None:
        self._rank = rank
        self._buffers = buffers
        self._engine = engine
        self._barrier = barrier
        self._targets = targets
        self._sends, self._receives = channels
        self._count: Counter[Direction] = Counter()  # messages so far
        # request -> its channel and its number there
        self._open: dict[int, tuple[Direction, int]] = {}

    def call(self, step: Step) -> Call:
        engine = self._engine
        pending = self._sends_pending()
        match step:
            case Send(data, peer):
                function = engine.send_while_pending if pending else engine.send
                return Call(function, (self._sends[peer], self._message(data, peer)))
            case Start(Send(data, peer), request):
                call = Call(engine.isend, (self._sends[peer], self._message(data, peer)))
                self._open[request] = ("send", peer), self._count["send", peer] - 1
                return call
            case Recv(_, peer):
                self._count["receive", peer] += 1
                return Call(
                    engine.receive_while_pending if pending else engine.receive,
                    (self._receives[peer],),
                )
            case Start(Recv(_, peer), request):
                self._open[request] = ("receive", peer), self._count["receive", peer]
                self._count["receive", peer] += 1
                return Call(engine.irecv, (self._receives[peer],))
            case WaitAll(requests):
                return self._wait(requests)
            case Barrier():
                return Call(self._barrier.wait)
            case Copy():
                targets = self._buffers[step.target.buffer].addresses(step.target)
                return Call(engine.copy, (self._transfers(step.source, targets),))
            case _:
                raise Unsupported(IPC_NO_COLLECTIVES)

    def _sends_pending(self) -> bool:
        return any(kind == "send" for (kind, _), _ in self._open.values())

    def _wait(self, requests: Sequence[int]) -> Call:
        """Waits for the newest of these messages in each channel: the messages of a channel
        complete in order."""
        pending = self._sends_pending()
        newest: dict[Direction, int] = defaultdict(int)
        for request in requests:
            direction, number = self._open.pop(request)
            newest[direction] = max(newest[direction], number)
        newer = {
            direction: self._count[direction] - 1 - number for direction, number in newest.items()
        }
        sends = tuple(
            (self._sends[peer], count) for (kind, peer), count in newer.items() if kind == "send"
        )
        receives = tuple(
            (self._receives[peer], count)
            for (kind, peer), count in newer.items()
            if kind == "receive"
        )
        return (
            Call(self._engine.wait, (sends, receives))
            if pending
            else Call(self._engine.wait_receives, (receives,))
        )

    def _message(self, data: View, peer: int) -> Rotating:
        """The next message to that peer; counts it."""
        number = self._count["send", peer]
        if peer == self._rank and self._count["receive", peer] <= number:
            raise Unsupported(
                "ipc_copy can't send to its own rank before the receive: post the receive first"
            )
        self._count["send", peer] += 1
        return self._transfers(data, self._targets[peer][number])

    def _transfers(self, source: View, targets: Sequence[int]) -> Rotating:
        """The transfers from the view to an address, one for each copy of the pool."""
        buffer = self._buffers[source.buffer]
        ends = zip(targets, buffer.addresses(source), strict=True)
        return Rotating(
            tuple(Transfer(target, begin, buffer.size_bytes(source)) for target, begin in ends)
        )
