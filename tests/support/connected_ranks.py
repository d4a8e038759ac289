"""Control planes of all ranks of a world in one process, over a real store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rank_threads import SOON_S, no_error, together
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from commbench.runtime.control import StoreControl


def open_store() -> TCPStore:
    """The server of a store, which lives as long as this object."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def client_of(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=SOON_S))


def connected(size: int) -> list[StoreControl]:
    """The control planes of that many ranks, each with a connection of its own to one store."""
    server = open_store()

    def connect(rank: int) -> StoreControl:
        control = StoreControl(client_of(server.port), rank, size)
        control.server = server  # type: ignore[attr-defined]  # alive as long as a rank is
        return control

    return no_error(together(connect, range(size)))


def on_ranks(size: int, work: Callable[[StoreControl], Any]) -> list[Any]:
    """What work(control) returns on each of `size` connected ranks; raises what any of them
    raised."""
    return no_error(together(work, connected(size)))
