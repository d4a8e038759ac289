"""The control plane: meeting points over torch's TCPStore, apart from the library that is measured.

Waiting ranks sleep, every call has a deadline, and whoever is late can be named.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.errors import Missing

PATIENCE = 1.5  # rank 0 has to find out first who is missing, and to record it


class StoreControl:
    """See contracts.Control. Every rank makes the same calls in the same order; a turn number keeps them apart."""

    def __init__(
        self, store: Any, rank: int, size: int, scope: str = "control", names: Sequence[int] | None = None
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._scope, self._turn = scope, 0
        self._names = tuple(range(size)) if names is None else tuple(names)  # world ranks, for messages
        self._read: list[str] = []  # decisions that may still be unread, on rank 0
        self._sent: list[str] = []  # own keys that rank 0 may not have read yet, elsewhere
        self._subsets: dict[tuple[int, ...], StoreControl] = {}

    def gather(self, value: Any, deadline_s: float, meeting: str = "gather") -> list[Any]:
        return [json.loads(one) for one in self._meet(json.dumps(value).encode(), deadline_s, meeting)]

    def collect(self, array: NDArray[np.int64], deadline_s: float, meeting: str = "collect") -> list[NDArray[np.int64]]:
        head = np.array([array.ndim, *array.shape], dtype=np.int64)
        parts = self._meet(head.tobytes() + array.tobytes(), deadline_s, meeting)
        return [_array(part) for part in parts]

    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any:
        key = self._next("decision")
        with _store_alive(meeting, deadline_s):
            if self.rank == 0:
                self.store.set(key, json.dumps(value))
                self._read.append(key)
                return value
            text = self._take({0: key}, PATIENCE * deadline_s, meeting)[0]
            for old in self._sent:  # who decided has read them
                self.store.delete_key(old)
            self._sent.clear()
            return json.loads(text)

    def agree(self, problem: str | None, deadline_s: float, meeting: str = "agree") -> str | None:
        problems = self.gather(problem, deadline_s, meeting)
        first = next((one for one in problems if one is not None), None)
        verdict: str | None = self.decide(first, deadline_s, meeting)
        return verdict

    def subset(self, ranks: Sequence[int]) -> StoreControl:
        key = tuple(ranks)
        if key not in self._subsets:
            name = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
            scope, names = f"{self._scope}/{name}", [self._names[rank] for rank in key]
            self._subsets[key] = StoreControl(self.store, key.index(self.rank), len(key), scope, names)
        return self._subsets[key]

    def farewell(self, deadline_s: float) -> None:
        self.gather(None, deadline_s, "farewell")

    def _meet(self, payload: bytes, deadline_s: float, meeting: str) -> list[bytes]:
        base = self._next("gather")
        with _store_alive(meeting, deadline_s):
            if self.rank != 0:
                self.store.set(f"{base}/{self.rank}", payload)
                self._sent.append(f"{base}/{self.rank}")
                return []
            keys = {rank: f"{base}/{rank}" for rank in range(1, self.size)}
            values = self._take(keys, deadline_s, meeting)
            for key in self._read:  # whoever came here has read all earlier decisions
                self.store.delete_key(key)
            self._read.clear()
            return [payload, *values]

    def _take(self, keys: dict[int, str], deadline_s: float, meeting: str) -> list[bytes]:
        """The values of keys as soon as all are there: one request, however many ranks there are."""
        if not keys:
            return []
        try:
            self.store.set_timeout(timedelta(seconds=deadline_s))
            values: list[bytes] = self.store.multi_get(list(keys.values()))
            return values
        except RuntimeError as error:
            raise Missing([self._names[rank] for rank in self._late(keys)], meeting, deadline_s) from error

    def _late(self, keys: dict[int, str]) -> list[int]:
        try:
            return [rank for rank, key in keys.items() if not self.store.check([key])]
        except RuntimeError:  # the store went with its owner
            return [0]

    def _next(self, kind: str) -> str:
        self._turn += 1
        return f"{self._scope}/{self._turn}/{kind}"


@contextmanager
def _store_alive(meeting: str, deadline_s: float) -> Iterator[None]:
    """A store that is gone went with its owner."""
    try:
        yield
    except RuntimeError as error:
        raise Missing([0], meeting, deadline_s) from error


class Alone:
    """See contracts.Control, for one process: the simulated world, and a world of one rank."""

    rank, size = 0, 1

    def gather(self, value: Any, deadline_s: float, meeting: str = "gather") -> list[Any]:
        return [value]

    def collect(self, array: NDArray[np.int64], deadline_s: float, meeting: str = "collect") -> list[NDArray[np.int64]]:
        return [array]

    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any:
        return value

    def agree(self, problem: str | None, deadline_s: float, meeting: str = "agree") -> str | None:
        return problem

    def subset(self, ranks: Sequence[int]) -> Alone:
        return self

    def farewell(self, deadline_s: float) -> None:
        pass


def _array(part: bytes) -> NDArray[np.int64]:
    """The inverse of collect's packing: number of dimensions, shape, elements."""
    words = np.frombuffer(part, dtype=np.int64)
    dimensions = int(words[0])
    return words[1 + dimensions :].reshape(tuple(words[1 : 1 + dimensions]))
