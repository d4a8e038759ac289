"""The control plane: meeting points over torch's TCPStore, apart from the library that is measured.

Waiting ranks sleep, every call has a deadline, and whoever is late can be named.
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

PATIENCE = 1.5  # rank 0 has to find out first who is missing, and to record it
LOOKS = 8  # how often in its deadline a wait that is watched says for whom it waits

Watch = Callable[[list[int]], None]  # told the world ranks that a wait is still for


class Meetings(ABC):
    """contracts.Control, made of two things: bytes can be brought to rank 0, and what it decides is told to all."""

    rank: int
    size: int

    def gather(self, value: Any, deadline_s: float, meeting: str = "gather") -> list[Any]:
        parts = self.meet(json.dumps(value).encode(), deadline_s, meeting)
        values: list[Any] = json.loads(b"[" + b",".join(parts) + b"]")
        return values

    def collect(self, array: NDArray[np.int64], deadline_s: float, meeting: str = "collect") -> list[NDArray[np.int64]]:
        head = np.array([array.ndim, *array.shape], dtype=np.int64)
        parts = self.meet(head.tobytes() + array.tobytes(), deadline_s, meeting)
        return _arrays(parts)

    def agree(self, problem: str | None, deadline_s: float, meeting: str = "agree") -> str | None:
        problems = self.gather(problem, deadline_s, meeting)
        first = next((one for one in problems if one is not None), None)
        verdict: str | None = self.decide(first, deadline_s, meeting)
        return verdict

    def farewell(self, deadline_s: float) -> None:
        self.gather(None, deadline_s, "farewell")

    @abstractmethod
    def decide(self, value: Any, deadline_s: float, meeting: str = "decide") -> Any: ...

    @abstractmethod
    def subset(self, ranks: Sequence[int]) -> Meetings: ...

    @abstractmethod
    def meet(self, payload: bytes, deadline_s: float, meeting: str) -> list[bytes]:
        """The payloads of all ranks on rank 0, an empty list elsewhere. Raises Missing."""


class StoreControl(Meetings):
    """See Control. Every rank makes the same calls in the same order; a turn number keeps them apart.

    `names` are the world ranks of ranks 0 ... size-1; `owner` is the world rank that a store which is gone went with.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        scope: str = "control",
        names: Sequence[int] | None = None,
        owner: int = 0,
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._scope, self._turn, self._owner = scope, 0, owner
        self._names = range(size) if names is None else tuple(names)
        self._read: list[str] = []  # decisions that may still be unread, on rank 0
        self._sent: list[str] = []  # own keys that rank 0 may not have read yet, elsewhere
        self._subsets: dict[tuple[int, ...], StoreControl] = {}

    def decide(self, value: Any, deadline_s: float, meeting: str = "decide", watch: Watch | None = None) -> Any:
        key = self._next("decision")
        with self.alive(meeting, deadline_s):
            if self.rank == 0:
                if self.size > 1:
                    self.store.set(key, json.dumps(value))
                    self._read.append(key)
                return value
            text = self._take({0: key}, PATIENCE * deadline_s, meeting, watch)[0]
            for old in self._sent:  # who decided has read them
                self.store.delete_key(old)
            self._sent.clear()
            return json.loads(text)

    def subset(self, ranks: Sequence[int]) -> StoreControl:
        key = tuple(ranks)
        if key not in self._subsets:
            name = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
            scope, names = f"{self._scope}/{name}", [self._names[rank] for rank in key]
            inner = StoreControl(self.store, key.index(self.rank), len(key), scope, names, self._owner)
            self._subsets[key] = inner
        return self._subsets[key]

    def meet(self, payload: bytes, deadline_s: float, meeting: str, watch: Watch | None = None) -> list[bytes]:
        base = self._next("gather")
        with self.alive(meeting, deadline_s):
            if self.rank != 0:
                self.store.set(f"{base}/{self.rank}", payload)
                self._sent.append(f"{base}/{self.rank}")
                return []
            keys = {rank: f"{base}/{rank}" for rank in range(1, self.size)}
            values = self._take(keys, deadline_s, meeting, watch)
            for key in self._read:  # whoever came here has read all earlier decisions
                self.store.delete_key(key)
            self._read.clear()
            return [payload, *values]

    def gone(self) -> bool:
        """Whether the store is, and with it its owner."""
        try:
            self.store.check([self._scope])
        except RuntimeError:
            return True
        return False

    def _take(self, keys: dict[int, str], deadline_s: float, meeting: str, watch: Watch | None) -> list[bytes]:
        """The values of keys as soon as all are there: one request, however many ranks there are."""
        late: list[int] = []
        cause, looks = None, 1 if watch is None else LOOKS
        for _ in range(looks):
            try:
                return self._values(keys, deadline_s / looks)
            except RuntimeError as error:
                late, cause = self._late(keys), error
            if not late:  # the last one came between the two requests
                return self._values(keys, deadline_s / looks)
            if watch is not None:
                watch(late)
        raise Missing(late, meeting, deadline_s) from cause

    def _values(self, keys: dict[int, str], deadline_s: float) -> list[bytes]:
        if not keys:
            return []
        self.store.set_timeout(timedelta(seconds=deadline_s))
        values: list[bytes] = self.store.multi_get(list(keys.values()))
        return values

    def _late(self, keys: dict[int, str]) -> list[int]:
        """World ranks. Raises RuntimeError where the store is gone."""
        return [self._names[rank] for rank, key in keys.items() if not self.store.check([key])]

    def _next(self, kind: str) -> str:
        self._turn += 1
        return f"{self._scope}/{self._turn}/{kind}"

    @contextmanager
    def alive(self, meeting: str, deadline_s: float) -> Iterator[None]:
        """A store that is gone went with its owner."""
        try:
            yield
        except RuntimeError as error:
            raise Missing([self._owner], meeting, deadline_s) from error


class Alone:
    """See Control, for one process: the simulated world, and a world of one rank."""

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


def _arrays(parts: Sequence[bytes]) -> list[NDArray[np.int64]]:
    """The inverse of collect's packing: number of dimensions, shape, elements. At once where all have one shape."""
    if not parts:
        return []
    shape, start = _shape(parts[0])
    if len({part[:start] for part in parts}) > 1:
        return [array for part in parts for array in _arrays([part])]
    words = np.frombuffer(b"".join(parts), dtype=np.int64).reshape(len(parts), -1)
    return list(words[:, start // 8 :].reshape(len(parts), *shape))


def _shape(part: bytes) -> tuple[tuple[int, ...], int]:
    """The shape, and the byte where the elements begin."""
    words = np.frombuffer(part, dtype=np.int64)
    dimensions = int(words[0])
    return tuple(words[1 : 1 + dimensions].tolist()), 8 * (1 + dimensions)
