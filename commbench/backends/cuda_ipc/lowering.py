"""Steps as calls of the progress engine: addresses and the messages of a wait are determined in advance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from commbench.buffers.device import DeviceBuffer
from commbench.core.errors import Unsupported
from commbench.core.program import Barrier, Copy, Irecv, Isend, Program, Recv, Send, Step, View, WaitAll
from commbench.engines.lowered import Call, Lowered, Rotating

from .handshake import NO_COLLECTIVES, Region, region_of
from .protocol import NodeBarrier, ProgressEngine, ReceiveChannel, SendChannel, Transfer

Channels = tuple[Mapping[int, SendChannel], Mapping[int, ReceiveChannel]]  # by peer in this communicator
Direction = tuple[str, int]  # "send" or "receive", and the peer


class IpcLowering:
    """For one program. `targets`: by peer, the addresses of each of its messages, one per copy of the pool."""

    def __init__(
        self,
        rank: int,
        buffers: Mapping[str, DeviceBuffer],
        pool: int,
        engine: ProgressEngine,
        barrier: NodeBarrier,
        channels: Channels,
        targets: Mapping[int, Sequence[Sequence[int]]],
    ) -> None:
        self._rank, self._buffers, self._pool = rank, buffers, pool
        self._engine, self._barrier, self._targets = engine, barrier, targets
        self._sends, self._receives = channels
        self._count: Counter[Direction] = Counter()  # messages so far
        self._open: dict[int, tuple[Direction, int]] = {}  # request -> its channel and its number there

    def lower(self, program: Program, sync: str) -> Lowered[Call]:
        """Raises Unsupported for messages without a WaitAll."""
        lowered = Lowered.of(program, sync, self._call)
        if self._open:
            raise Unsupported("ipc_copy completes messages in waits: the program ends with messages without a WaitAll")
        return lowered

    def _call(self, step: Step) -> Call:
        engine, pending = self._engine, self._sends_pending()
        match step:
            case Send(data, peer):
                function = engine.send_while_pending if pending else engine.send
                return Call(function, (self._sends[peer], self._transfers(data, peer)))
            case Isend(data, peer, request):
                call = Call(engine.isend, (self._sends[peer], self._transfers(data, peer)))
                self._open[request] = ("send", peer), self._count["send", peer] - 1
                return call
            case Recv(_, peer):
                self._count["receive", peer] += 1
                return Call(engine.receive_while_pending if pending else engine.receive, (self._receives[peer],))
            case Irecv(_, peer, request):
                self._open[request] = ("receive", peer), self._count["receive", peer]
                self._count["receive", peer] += 1
                return Call(engine.irecv, (self._receives[peer],))
            case WaitAll(requests):
                return self._wait(requests)
            case Barrier():
                return Call(self._barrier.wait)
            case Copy(source, target):
                return Call(engine.copy, (self._local_transfers(source, target),))
            case _:
                raise Unsupported(NO_COLLECTIVES)

    def _sends_pending(self) -> bool:
        return any(kind == "send" for (kind, _), _ in self._open.values())

    def _wait(self, requests: Sequence[int]) -> Call:
        """For the newest of these messages in each channel: the messages of a channel complete in order."""
        pending = self._sends_pending()
        newest: dict[Direction, int] = defaultdict(int)
        for request in requests:
            direction, number = self._open.pop(request)
            newest[direction] = max(newest[direction], number)
        newer = {direction: self._count[direction] - 1 - number for direction, number in newest.items()}
        sends = tuple((self._sends[peer], count) for (kind, peer), count in newer.items() if kind == "send")
        receives = tuple((self._receives[peer], count) for (kind, peer), count in newer.items() if kind == "receive")
        return Call(self._engine.wait, (sends, receives)) if pending else Call(self._engine.wait_receives, (receives,))

    def _transfers(self, data: View, peer: int) -> Rotating:
        """The next message to that peer; counts it."""
        number = self._count["send", peer]
        if peer == self._rank and self._count["receive", peer] <= number:
            raise Unsupported("ipc_copy can't send to its own rank before the receive: post the receive first")
        self._count["send", peer] += 1
        source, targets = region_of(self._buffers, data), self._targets[peer][number]
        return self._rotating(lambda copy: Transfer(targets[copy], self._address(source, copy), source[3]))

    def _local_transfers(self, source_view: View, target_view: View) -> Rotating:
        source, target = region_of(self._buffers, source_view), region_of(self._buffers, target_view)
        size = source[3]
        return self._rotating(lambda copy: Transfer(self._address(target, copy), self._address(source, copy), size))

    def _address(self, region: Region, copy: int) -> int:
        name, offset, stride, _ = region
        return self._buffers[name].allocation.address + offset + copy * stride

    def _rotating(self, transfer: Callable[[int], Transfer]) -> Rotating:
        return Rotating(tuple(transfer(copy) for copy in range(self._pool)))
