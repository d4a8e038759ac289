"""The protocol of a message: the receiver posts room for it, the sender copies it there, waits, and says so.

Messages between two ranks have numbers, not names: the n-th that one posts is the n-th that the other copies.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from commbench.buffers.cuda_ipc import Exporter

from .mailbox import Mailbox


class Move(NamedTuple):
    """A copy into an opened address, from an own one."""

    target: int
    source: int
    size: int


class Outbox:
    """Messages to one rank. `issued`, `pushed` (to the stream) and `told` are numbers of messages since ever.

    `ahead`: what the receiver had posted more than this rank had sent, when both stood still.
    """

    def __init__(self, posted: int, sent: int, told: int, ahead: int) -> None:
        self.posted, self.sent, self.ahead = posted, sent, ahead  # counters' indices
        self.issued = self.pushed = self.told = told
        self.queue: deque[Move] = deque()


class Inbox:
    """Messages from one rank. `ahead`: what it had sent more than this rank had posted, when both stood still."""

    def __init__(self, posted: int, sent: int, made: int, ahead: int) -> None:
        self.posted, self.sent, self.made, self.ahead = posted, sent, made, ahead


Left = tuple[tuple[Outbox, int], ...]  # with how many of the newest messages need not be complete
Due = tuple[tuple[Inbox, int], ...]


class Postman:
    """Of one rank, for one program. Whoever waits carries on with all that this rank has issued."""

    def __init__(self, exporter: Exporter, mailbox: Mailbox, outboxes: Sequence[Outbox]) -> None:
        self._mailbox, self._counters, self._outboxes = mailbox, mailbox.counters, outboxes
        self._copy, self._synchronise = exporter.copy, exporter.synchronise

    def send(self, box: Outbox, move: Move) -> None:
        """Blocking, where nothing else is under way."""
        box.issued = number = box.issued + 1
        self._mailbox.wait(box.posted, number + box.ahead)
        self._copy(*move)
        self._synchronise()
        box.pushed = box.told = number
        self._counters[box.sent] = number

    def receive(self, box: Inbox) -> None:
        """Blocking, where nothing else is under way."""
        box.made = number = box.made + 1
        self._counters[box.posted] = number
        self._mailbox.wait(box.sent, number + box.ahead)

    def issue(self, box: Outbox, move: Move) -> None:
        """Copied now if there is room, else when somebody waits."""
        box.issued += 1
        box.queue.append(move)
        self._push(box)

    def post(self, box: Inbox) -> None:
        box.made += 1
        self._counters[box.posted] = box.made

    def arrive(self, due: Due) -> None:
        """Until these are complete, where no sends are under way."""
        for box, newest in due:
            self._mailbox.wait(box.sent, box.made + box.ahead - newest)

    def finish(self, left: Left, due: Due) -> None:
        """Until these are complete. No order of waits can deadlock that would not in MPI."""
        counters = self._counters
        while True:
            pushed = [self._push(box) for box in self._outboxes if box.queue]
            if not any(pushed):
                told = self._tell()
                if all(box.told >= box.issued - newest for box, newest in left) and all(
                    counters[box.sent] >= box.made + box.ahead - newest for box, newest in due
                ):
                    return
                if not told:
                    os.sched_yield()

    def local(self, move: Move) -> None:
        """A copy between own buffers."""
        self._copy(*move)
        self._synchronise()

    def _push(self, box: Outbox) -> bool:
        """Enqueue what there is room for; whether there was any."""
        room = self._counters[box.posted] - box.ahead
        before = box.pushed
        while box.queue and box.pushed < room:
            self._copy(*box.queue.popleft())
            box.pushed += 1
        return box.pushed > before

    def _tell(self) -> bool:
        """Wait for the stream and say what has arrived; whether there was any."""
        news = [box for box in self._outboxes if box.pushed > box.told]
        if news:
            self._synchronise()
        for box in news:
            box.told = box.pushed
            self._counters[box.sent] = box.told
        return bool(news)


class Gate:
    """The barrier of the ranks of one node: each says that it has come, and looks at all others."""

    def __init__(self, mailbox: Mailbox, own: int, come: int, others: Sequence[tuple[int, int]]) -> None:
        """`others`: index of a rank's counter, and how far it was ahead of ours."""
        self._mailbox, self._own, self._come, self._others = mailbox, own, come, others

    def meet(self) -> None:
        self._come += 1
        self._mailbox.counters[self._own] = self._come
        for index, ahead in self._others:
            self._mailbox.wait(index, self._come + ahead)
