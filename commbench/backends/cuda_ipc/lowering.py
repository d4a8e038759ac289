"""Steps as calls of a postman: addresses are known before, and which messages a wait is for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from commbench.buffers.device import DeviceBuffer
from commbench.core.errors import Unsupported
from commbench.core.program import Barrier, Copy, Irecv, Isend, Program, Recv, Send, Step, View, WaitAll
from commbench.engines.lowered import Call, Lowered, Rotating

from .handshake import NO_COLLECTIVES, Place, place
from .protocol import Gate, Inbox, Move, Outbox, Postman

Key = tuple[str, int]  # "out" or "in", and the peer in this communicator


class IpcLowering:
    """For one program. `targets`: by peer the addresses of each of its messages, one a copy of the pool."""

    def __init__(
        self,
        rank: int,
        buffers: Mapping[str, DeviceBuffer],
        pool: int,
        postman: Postman,
        gate: Gate,
        boxes: Mapping[Key, Outbox | Inbox],
        targets: Mapping[int, Sequence[Sequence[int]]],
    ) -> None:
        self._rank, self._buffers, self._pool = rank, buffers, pool
        self._postman, self._gate, self._boxes, self._targets = postman, gate, boxes, targets
        self._count: Counter[Key] = Counter()  # messages so far
        self._open: dict[int, tuple[Key, int]] = {}  # request -> its message, and how many were before it

    def lower(self, program: Program, sync: str) -> Lowered[Call]:
        """Raises Unsupported for messages that nobody waits for."""
        lowered = Lowered.of(program, sync, self.call)
        if self._open:
            raise Unsupported("ipc_copy ends messages at waits: the program ends with messages that nobody waits for")
        return lowered

    def call(self, step: Step) -> Call:
        postman, sending = self._postman, any(key[0] == "out" for key, _ in self._open.values())
        match step:
            case Send(data, peer) if not sending:
                return Call(postman.send, (self._out(peer), self._moves(data, peer)))
            case Send(data, peer):
                return Call(_both, (postman, self._out(peer), self._moves(data, peer)))
            case Isend(data, peer, request):
                made = Call(postman.issue, (self._out(peer), self._moves(data, peer)))
                self._open[request] = ("out", peer), self._count["out", peer] - 1
                return made
            case Recv(_, peer) if not sending:
                self._count["in", peer] += 1
                return Call(postman.receive, (self._in(peer),))
            case Recv(_, peer):
                self._count["in", peer] += 1
                return Call(_received, (postman, self._in(peer)))
            case Irecv(_, peer, request):
                self._open[request] = ("in", peer), self._count["in", peer]
                self._count["in", peer] += 1
                return Call(postman.post, (self._in(peer),))
            case WaitAll(requests):
                return self._wait(requests)
            case Barrier():
                return Call(self._gate.meet)
            case Copy(source, target):
                return Call(postman.local, (self._copies(source, target),))
            case _:
                raise Unsupported(NO_COLLECTIVES)

    def _wait(self, requests: Sequence[int]) -> Call:
        """For the newest message named of each box: messages of a box end in order."""
        sending = any(key[0] == "out" for key, _ in self._open.values())
        newest: dict[Key, int] = defaultdict(int)
        for request in requests:
            key, before = self._open.pop(request)
            newest[key] = max(newest[key], before)
        later = [(key, self._count[key] - 1 - last) for key, last in newest.items()]
        left = tuple((self._boxes[key], more) for key, more in later if key[0] == "out")
        due = tuple((self._boxes[key], more) for key, more in later if key[0] == "in")
        return Call(self._postman.finish, (left, due)) if sending else Call(self._postman.arrive, (due,))

    def _moves(self, data: View, peer: int) -> Rotating:
        """Of the next message to that peer; counts it."""
        number = self._count["out", peer]
        if peer == self._rank and self._count["in", peer] <= number:
            raise Unsupported("ipc_copy sends to the same rank only what it has made room for: post the receive first")
        self._count["out", peer] += 1
        source, targets = place(self._buffers, data), self._targets[peer][number]
        return self._rotating(lambda copy: Move(targets[copy], self._address(source, copy), source[3]))

    def _copies(self, source: View, target: View) -> Rotating:
        here, there = place(self._buffers, source), place(self._buffers, target)
        return self._rotating(lambda copy: Move(self._address(there, copy), self._address(here, copy), here[3]))

    def _address(self, where: Place, copy: int) -> int:
        name, offset, stride, _ = where
        return self._buffers[name].allocation.address + offset + copy * stride

    def _rotating(self, move: Callable[[int], Move]) -> Rotating:
        return Rotating(tuple(move(copy) for copy in range(self._pool)))

    def _out(self, peer: int) -> Outbox | Inbox:
        return self._boxes["out", peer]

    def _in(self, peer: int) -> Outbox | Inbox:
        return self._boxes["in", peer]


def _both(postman: Postman, box: Outbox, move: Move) -> None:
    """A blocking send behind others that are still under way."""
    postman.issue(box, move)
    postman.finish(((box, 0),), ())


def _received(postman: Postman, box: Inbox) -> None:
    """A blocking receive while sends are under way."""
    postman.post(box)
    postman.finish((), ((box, 0),))
