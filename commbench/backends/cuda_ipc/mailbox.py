"""Counters in memory that the ranks of a node share: who has posted, who has sent, who has come.

Each counter has one writer and a cache line of its own, and only grows. An aligned store of 8 bytes is seen whole; what
it announces was synchronised before, so no order beyond x86's is needed (on other processors the copy is the GPU's).
"""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path

from commbench.buffers.host import LINE_BYTES

FOLDER = Path("/dev/shm")
WORDS = LINE_BYTES // 8
EAGER_LOOKS = 200  # before the core is offered to others


class Mailbox:
    """`counters[index]`, indices from `posted`, `sent` and `arrived` of places in the node."""

    def __init__(self, path: Path, ranks: int) -> None:
        self._ranks = ranks
        with path.open("r+b") as file:
            self._pages = mmap.mmap(file.fileno(), mailbox_bytes(ranks))
        self.counters = memoryview(self._pages).cast("q")

    def posted(self, source: int, target: int) -> int:
        """Written by the target: how many of the source's messages it has made room for."""
        return WORDS * (source * self._ranks + target)

    def sent(self, source: int, target: int) -> int:
        """Written by the source: how many have arrived."""
        return WORDS * (self._ranks**2 + source * self._ranks + target)

    def arrived(self, rank: int) -> int:
        """Written by the rank: how many barriers it has come to."""
        return WORDS * (2 * self._ranks**2 + rank)

    def wait(self, index: int, wanted: int) -> None:
        """Until the counter is there: looking, and from some looks on with the core offered to others each time.

        There is no deadline of its own: a peer that is gone ends the world by its pulse.
        """
        counters = self.counters
        for _ in range(EAGER_LOOKS):
            if counters[index] >= wanted:
                return
        while counters[index] < wanted:
            os.sched_yield()


def mailbox_bytes(ranks: int) -> int:
    return LINE_BYTES * (2 * ranks**2 + ranks)


def create(ranks: int) -> Path:
    """An empty mailbox, to be opened by all and then unlinked. Raises OSError."""
    path = FOLDER / f"commbench-ipc-{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, mailbox_bytes(ranks))  # full now, or a later store kills the process
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)
    return path
