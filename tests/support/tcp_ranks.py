"""Ranks of the tcp backend as threads with real sockets on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from connected_ranks import connected
from rank_threads import SOON_S, no_error, together

from commbench.core.case import World
from commbench.core.program import Program
from commbench.core.variables import Mode
from commbench.features.tcp.backend import Tcp, TcpCommunicator
from commbench.runtime.control import StoreControl


def enter(backend: Tcp, controls: list[StoreControl]) -> list[TcpCommunicator]:
    everyone = (tuple(range(len(controls))),)

    def enter_rank(control: StoreControl) -> TcpCommunicator:
        return backend.open(World(control.rank, control.size, everyone, (control.rank,)), control)

    return no_error(together(enter_rank, controls))


@contextmanager
def opened(size: int, backend: Tcp | None = None) -> Iterator[list[TcpCommunicator]]:
    controls = connected(size)
    communicators = enter(backend or Tcp(timeout_s=SOON_S), controls)
    try:
        yield communicators
    finally:
        for communicator in communicators:
            communicator.close()


class Rank:
    """A program on one rank, with what its buffers hold."""

    def __init__(
        self,
        communicator: TcpCommunicator,
        program: Program,
        streams: int = 1,
        pool: int = 1,
        **more: Any,
    ) -> None:
        self.rank = communicator.hosted[0]
        self.buffers: dict[str, Any] = {
            spec.name: communicator.allocate(spec, pool) for spec in program.buffers
        }
        for name, buffer in self.buffers.items():
            for copy in range(pool if name == "send" else 0):
                for slot in range(buffer.spec.slots):
                    buffer.words(slot, copy)[:] = content(self.rank, slot, copy, buffer.spec.count)
        mode = Mode("python", "none", streams, **more)
        self.run = communicator.prepare({self.rank: program}, {self.rank: self.buffers}, mode)

    def received(self, sender: int, copies: int = 1, slots: int | None = None) -> bool:
        buffer = self.buffers["recv"]
        wanted = [
            (slot, copy) for slot in range(slots or buffer.spec.slots) for copy in range(copies)
        ]
        return all(
            (buffer.words(slot, copy) == content(sender, slot, copy, buffer.spec.count)).all()
            for slot, copy in wanted
        )


def content(rank: int, slot: int, copy: int, count: int) -> Any:
    period = (np.arange(256) * 7 + 31 * rank + 13 * slot + 5 * copy).astype(np.uint8)
    return np.resize(period, count)
