"""Memory in the portions that one system call moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_VIEWS = 1024  # UIO_MAXIOV, of one sendmsg
MOST_BYTES = 1 << 30  # a call moves less than 2 GiB (MAX_RW_COUNT)


@dataclass(frozen=True, eq=False)
class Batch:
    """Memory that one system call moves, in order."""

    views: tuple[memoryview, ...]
    size: int


def batches(views: Sequence[memoryview]) -> tuple[Batch, ...]:
    """Cut into what a call may move; views of more than MOST_BYTES are cut themselves."""
    pieces = [view[at : at + MOST_BYTES] for view in views for at in range(0, len(view), MOST_BYTES)]
    found: list[list[memoryview]] = [[]]
    room = MOST_BYTES
    for piece in pieces:
        if len(found[-1]) == MOST_VIEWS or len(piece) > room:
            found.append([])
            room = MOST_BYTES
        found[-1].append(piece)
        room -= len(piece)
    return tuple(Batch(tuple(one), sum(map(len, one))) for one in found if one)


def after(views: Sequence[memoryview], done: int) -> Iterator[memoryview]:
    """What is left of the views without their first `done` bytes."""
    for view in views:
        if done < len(view):
            yield view[done:]
        done = max(0, done - len(view))
