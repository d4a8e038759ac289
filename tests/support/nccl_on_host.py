"""NCCL that is none: ranks of one process enqueue its calls, which are matched and done on host
memory afterwards.

What its words mean is from NCCL's user guide; that the real one agrees, only GPUs can show.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.payload import DTYPES, DType

KINDS = {
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "FLOAT16": "float16",
} | {
    "FLOAT32": "float32",
    "FLOAT64": "float64",
    "BFLOAT16": "bfloat16",
}
NUMBERS = {name: 10 + number for number, name in enumerate(KINDS)}
REDUCE: dict[int, Callable[..., NDArray[Any]]] = {
    20: np.sum,
    21: np.prod,
    22: np.min,
    23: np.max,
    24: np.mean,
}
OPERATIONS = dict(zip(("SUM", "PROD", "MIN", "MAX", "AVG"), REDUCE, strict=True))
MESSAGES = ("send", "recv")
COLLECTIVES = ("allReduce", "reduce", "bcast", "allGather", "reduceScatter")

Entry = tuple[str, tuple[int, ...]]


class Nccl:
    """The module as one rank sees it; `log` is what it was asked, in order."""

    def __init__(self, log: list[Entry]) -> None:
        self._log = log
        for names in (NUMBERS, OPERATIONS):
            for name, value in names.items():
                setattr(self, f"NCCL_{name}", value)

    def groupStart(self) -> None:  # noqa: N802
        self._log.append(("groupStart", ()))

    def groupEnd(self) -> None:  # noqa: N802
        self._log.append(("groupEnd", ()))


class Communicator:
    """One rank's."""

    def __init__(self, log: list[Entry], rank: int, size: int) -> None:
        self._log = log
        self._rank = rank
        self._size = size

    def rank_id(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in (*MESSAGES, *COLLECTIVES):
            raise AttributeError(name)
        return lambda *args: self._log.append((name, args))


class Device:
    """The stream of one rank as lowering and engine use it."""

    pointer = 7

    def __init__(self, log: list[Entry]) -> None:
        self._log = log

    def move(self, target: int, source: int, size: int) -> None:
        self._log.append(("move", (target, source, size)))

    def synchronise(self) -> None:
        """Nothing is done before `deliver`."""


def deliver(logs: Sequence[Sequence[Entry]]) -> None:
    """Do all that the ranks have enqueued. Raises AssertionError where they wait for each other for
    ever."""
    queues = [deque(_operations(log)) for log in logs]
    mail: dict[tuple[int, int], deque[bytes]] = {}
    posted = [False] * len(queues)  # the sends of a rank's group are on their way
    while any(queues):
        moved = [_advance(rank, queues, mail, posted) for rank in range(len(queues))]
        assert any(moved), f"deadlock: {[queue[0] if queue else None for queue in queues]}"


def _operations(log: Sequence[Entry]) -> list[list[Entry]]:
    """Groups of calls; a call outside of a group is one of its own."""
    groups: list[list[Entry]] = []
    depth = 0
    for entry in log:
        if entry[0] == "groupStart":
            groups += [[]] if depth == 0 else []
            depth += 1
        elif entry[0] == "groupEnd":
            depth -= 1
        elif depth:
            assert entry[0] in MESSAGES, f"{entry[0]} in a group is not tried here"
            groups[-1].append(entry)
        else:
            groups.append([entry])
    assert depth == 0, "a group that nobody ended"
    return [group for group in groups if group]


def _advance(rank: int, queues: list[deque[list[Entry]]], mail: Any, posted: list[bool]) -> bool:
    """Whether this rank's first operation could be done, or begun."""
    if not queues[rank]:
        return False
    name, args = queues[rank][0][0]
    if name == "move":
        ctypes.memmove(*args)
        queues[rank].popleft()
        return True
    if name in MESSAGES:
        return _exchange(rank, queues[rank], mail, posted)
    if any(not queue or queue[0][0][0] != name for queue in queues):
        return False
    calls = [queue.popleft()[0][1] for queue in queues]
    everything = [given(name, args, len(calls)) for args in calls]
    for receiver, args in enumerate(calls):
        take(name, args, receiver, everything)
    return True


def _exchange(rank: int, queue: deque[list[Entry]], mail: Any, posted: list[bool]) -> bool:
    begins = not posted[rank]
    posted[rank] = True
    sends = [args for name, args in queue[0] if name == "send"]
    receives = [args for name, args in queue[0] if name == "recv"]
    for address, count, kind, peer, _ in sends if begins else ():
        mail.setdefault((rank, peer), deque()).append(words(address, count, kind).tobytes())
    wanted = [peer for *_, peer, _ in receives]
    if any(len(mail.get((peer, rank), ())) < wanted.count(peer) for peer in wanted):
        return begins
    for address, count, kind, peer, _ in receives:
        payload = mail[peer, rank].popleft()
        assert len(payload) == words(address, count, kind).nbytes, (
            "both ends of a message agree on its size"
        )
        ctypes.memmove(address, payload, len(payload))
    queue.popleft()
    posted[rank] = False
    return True


def _kind(number: int) -> DType:
    return DTYPES[KINDS[next(name for name, value in NUMBERS.items() if value == number)]]


def words(address: int, count: int, number: int) -> NDArray[Any]:
    """The elements at an address."""
    kind = _kind(number)
    memory = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype=kind.word)


def given(name: str, args: Sequence[int], size: int) -> NDArray[Any]:
    """What a rank brings to a collective."""
    address, count, number = (args[0], *args[1:3]) if name == "bcast" else (args[0], *args[2:4])
    return words(address, size * count if name == "reduceScatter" else count, number).copy()


def take(name: str, args: Sequence[int], rank: int, everything: Sequence[NDArray[Any]]) -> None:
    """What a rank gets from what all have brought, in rank order."""
    if name == "bcast":
        address, count, number, root, _ = args
        words(address, count, number)[:] = everything[root]
        return
    _, address, count, number, *more = args
    if name == "allGather":
        words(address, count * len(everything), number)[:] = np.concatenate(everything)
    elif name != "reduce" or more[1] == rank:
        result = _reduced(everything, number, more[0])
        own = result[rank * count : (rank + 1) * count] if name == "reduceScatter" else result
        words(address, count, number)[:] = own


def _reduced(everything: Sequence[NDArray[Any]], number: int, operation: int) -> NDArray[Any]:
    kind = _kind(number)
    return kind.encode(
        REDUCE[operation](np.stack([kind.decode(values) for values in everything]), axis=0)
    )
