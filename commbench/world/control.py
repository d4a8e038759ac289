"""The control plane: ranks meet over torch's TCPStore, independently of the library that is measured.

Waiting ranks sleep, every call has a deadline, and ranks that are late can be named.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import Missing

PATIENCE = 1.5  # x deadline: rank 0 has to find out first who is missing, and to record it
REPORTS_PER_WAIT = 8

OnWaiting = Callable[[list[int]], None]  # called with the world ranks that a wait is still for


class GatherDecideControl(ABC):
    """See Control; made of two operations: gather bytes on rank 0, and broadcast what it decides."""

    store: Any
    rank: int
    size: int

    def gather(self, value: Any, deadline_s: float, meeting: str = "gather") -> list[Any]:
        parts = self.meet(json.dumps(value).encode(), deadline_s, meeting)
        values: list[Any] = json.loads(b"[" + b",".join(parts) + b"]")
        return values

    def collect(self, array: NDArray[np.int64], deadline_s: float, meeting: str = "collect") -> list[NDArray[np.int64]]:
        head = np.array([array.ndim, *array.shape], dtype=np.int64)
        parts = self.meet(head.tobytes() + array.tobytes(), deadline_s, meeting)
        return _unpacked_arrays(parts)

    def agree(self, problem: str | None, deadline_s: float, meeting: str = "agree") -> str | None:
        problems = self.gather(problem, deadline_s, meeting)
        first = next((problem for problem in problems if problem is not None), None)
        agreed: str | None = self.decide(first, deadline_s, meeting)
        return agreed

    def farewell(self, deadline_s: float) -> None:
        self.gather(None, deadline_s, "farewell")

    @abstractmethod
    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any: ...

    @abstractmethod
    def subset(self, ranks: Sequence[int]) -> GatherDecideControl: ...

    @abstractmethod
    def meet(self, payload: bytes, deadline_s: float, meeting: str) -> list[bytes]:
        """The payloads of all ranks on rank 0, an empty list elsewhere. Raises Missing."""


class StoreControl(GatherDecideControl):
    """See Control. Every rank makes the same calls in the same order; a sequence number keeps their keys apart.

    `world_ranks` are those of ranks 0 ... size-1; `owner` is the world rank whose process hosts the store.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        scope: str = "control",
        world_ranks: Sequence[int] | None = None,
        owner: int = 0,
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._scope, self._sequence, self._owner = scope, 0, owner
        self._world_ranks = range(size) if world_ranks is None else tuple(world_ranks)
        self._decisions: list[str] = []  # keys that may still be unread, on rank 0
        self._contributions: list[str] = []  # own keys that rank 0 may not have read yet, elsewhere
        self._subsets: dict[tuple[int, ...], StoreControl] = {}

    def decide(
        self, value: Any, deadline_s: float, meeting: str = "decide", on_waiting: OnWaiting | None = None
    ) -> Any:
        key = self._next("decision")
        with self.blames_owner(meeting, deadline_s):
            if self.rank == 0:
                if self.size > 1:
                    self.store.set(key, json.dumps(value))
                    self._decisions.append(key)
                return value
            text = self._take({0: key}, PATIENCE * deadline_s, meeting, on_waiting)[0]
            for contribution in self._contributions:  # rank 0 has read them before it decided
                self.store.delete_key(contribution)
            self._contributions.clear()
            return json.loads(text)

    def subset(self, ranks: Sequence[int]) -> StoreControl:
        key = tuple(ranks)
        if key not in self._subsets:
            digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
            scope, world_ranks = f"{self._scope}/{digest}", [self._world_ranks[rank] for rank in key]
            self._subsets[key] = StoreControl(
                self.store, key.index(self.rank), len(key), scope, world_ranks, self._owner
            )
        return self._subsets[key]

    def meet(self, payload: bytes, deadline_s: float, meeting: str, on_waiting: OnWaiting | None = None) -> list[bytes]:
        base = self._next("gather")
        with self.blames_owner(meeting, deadline_s):
            if self.rank != 0:
                self.store.set(f"{base}/{self.rank}", payload)
                self._contributions.append(f"{base}/{self.rank}")
                return []
            keys = {rank: f"{base}/{rank}" for rank in range(1, self.size)}
            values = self._take(keys, deadline_s, meeting, on_waiting)
            for key in self._decisions:  # all ranks that have arrived have read all earlier decisions
                self.store.delete_key(key)
            self._decisions.clear()
            return [payload, *values]

    def gone(self) -> bool:
        """Whether the store is unreachable, and with it its owner."""
        try:
            self.store.check([self._scope])
        except RuntimeError:
            return True
        return False

    def _take(self, keys: dict[int, str], deadline_s: float, meeting: str, on_waiting: OnWaiting | None) -> list[bytes]:
        """The values of keys as soon as all are there: one request, however many ranks there are. Raises Missing."""
        late: list[int] = []
        cause, waits = None, 1 if on_waiting is None else REPORTS_PER_WAIT
        for _ in range(waits):
            try:
                return self._values(keys, deadline_s / waits)
            except RuntimeError as error:  # a timeout, or the store is gone: then `check` raises it again
                late = [self._world_ranks[rank] for rank, key in keys.items() if not self.store.check([key])]
                cause = error
            if not late:  # the last one arrived between the two requests
                return self._values(keys, deadline_s / waits)
            if on_waiting is not None:
                on_waiting(late)
        raise Missing(late, meeting, deadline_s) from cause

    def _values(self, keys: dict[int, str], deadline_s: float) -> list[bytes]:
        if not keys:
            return []
        self.store.set_timeout(timedelta(seconds=deadline_s))
        values: list[bytes] = self.store.multi_get(list(keys.values()))
        return values

    def _next(self, kind: str) -> str:
        self._sequence += 1
        return f"{self._scope}/{self._sequence}/{kind}"

    @contextmanager
    def blames_owner(self, meeting: str, deadline_s: float) -> Iterator[None]:
        """Where the store is gone, its owner is Missing."""
        try:
            yield
        except RuntimeError as error:
            raise Missing([self._owner], meeting, deadline_s) from error


class SingleProcessControl:
    """See Control, for a world that lives in one process."""

    store: Any = None
    rank, size = 0, 1

    def gather(self, value: Any, deadline_s: float, meeting: str = "gather") -> list[Any]:
        return [value]

    def collect(self, array: NDArray[np.int64], deadline_s: float, meeting: str = "collect") -> list[NDArray[np.int64]]:
        return [array]

    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any:
        return value

    def agree(self, problem: str | None, deadline_s: float, meeting: str = "agree") -> str | None:
        return problem

    def subset(self, ranks: Sequence[int]) -> SingleProcessControl:
        return self

    def farewell(self, deadline_s: float) -> None:
        pass


def _unpacked_arrays(parts: Sequence[bytes]) -> list[NDArray[np.int64]]:
    """The inverse of collect's packing: number of dimensions, shape, elements. Fast where all have the same shape."""
    if not parts:
        return []
    words = np.frombuffer(parts[0], dtype=np.int64)
    dimensions = int(words[0])
    shape, start = tuple(words[1 : 1 + dimensions].tolist()), 8 * (1 + dimensions)
    if len({part[:start] for part in parts}) > 1:
        return [array for part in parts for array in _unpacked_arrays([part])]
    words = np.frombuffer(b"".join(parts), dtype=np.int64).reshape(len(parts), -1)
    return list(words[:, start // 8 :].reshape(len(parts), *shape))
