"""Buffers of pairs of ranks that do the same at once in one process: they are allocated, filled and
checked together.

A simulated world of 512 ranks has 512 buffers and more in each round of pairs; one call of numpy
for each would take longer than the round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.core.layout import Pair, pairs_by_kind
from commbench.core.program import BufferSpec, Pattern, Program, View
from commbench.core.protocols import PairsCommunicator, Runner
from commbench.core.variables import Mode

from .memory import (
    CHUNK_BYTES,
    GUARD_BYTES,
    SENTINEL,
    CheckedPayload,
    HostBuffer,
    count_different,
    pattern_pieces,
    slot_bytes,
)

SMALL_PATTERN_BYTES = 4096  # words of patterns up to this size are kept
KEPT_PATTERNS = 4096  # two checks of each of 1,024 ranks


class RanksBuffer:
    """The buffers of several ranks that have the same specification. Row r of its words is the
    buffer of the r-th rank, which holds `pool` copies. Raises MemoryError."""

    def __init__(self, spec: BufferSpec, ranks: int, pool: int) -> None:
        self._memory = HostBuffer(spec, ranks * pool)
        self.pool = pool
        self.writes = 0  # how often its contents were set
        self._bytes = self._memory.raw.reshape(ranks, pool, spec.slots, slot_bytes(spec))
        payload = self._bytes[..., : self._memory.payload_bytes]
        self._words = payload.view(self._memory.dtype.word)

    def words(self, view: View, copies: int) -> NDArray[Any]:
        """The elements [ranks, copies, count] of a view, as the dtype's machine words."""
        return self._words[:, :copies, view.slot, view.elements]

    def write(self, patterns: Sequence[Pattern] | None) -> None:
        """Fill every copy with the pattern of its rank, or all with the sentinel."""
        self.writes += 1
        if patterns is None:
            self._bytes.fill(SENTINEL)
            return
        self._bytes[:, 0, :, self._memory.payload_bytes :] = SENTINEL
        for rows, expected in self._parts(patterns):
            self._words[rows, 0] = expected
        self._bytes[:, 1:] = self._bytes[:, :1]

    def count_wrong(self, patterns: Sequence[Pattern], copies: int) -> int:
        """The number of elements, including guard words, that differ from the pattern of their rank
        in the first `copies` copies."""
        copies = min(copies, self.pool)
        end = self._memory.payload_bytes
        guards = self._bytes[:, :copies, :, end : end + GUARD_BYTES]
        wrong = int(np.count_nonzero((guards != SENTINEL).any(axis=3)))
        for rows, expected in self._parts(patterns):
            for copy in range(copies):
                actual = self._words[rows, copy]
                wrong += count_different(actual, expected, self._memory.dtype, patterns[0].ulp)
        return wrong

    def _parts(self, patterns: Sequence[Pattern]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Ranges of ranks with the words [ranks, slots, count] of their patterns, about CHUNK_BYTES
        at a time."""
        spec = self._memory.spec
        step = max(1, CHUNK_BYTES // self._memory.copy_bytes)
        is_small = self._memory.copy_bytes <= SMALL_PATTERN_BYTES
        words_of = _kept_words if is_small else _made_words
        for first in range(0, len(patterns), step):
            part = patterns[first : first + step]
            words = np.concatenate([words_of(spec, pattern) for pattern in part])
            yield slice(first, first + len(part)), words.reshape(-1, spec.slots, spec.count)


def _made_words(spec: BufferSpec, pattern: Pattern) -> NDArray[Any]:
    """The words of a buffer that holds the pattern."""
    return np.concatenate([words for _, _, words in pattern_pieces(spec, pattern)])


_kept_words = lru_cache(maxsize=KEPT_PATTERNS)(_made_words)


class PairBuffers(CheckedPayload):
    """The buffers of all pairs of a case. `of_kinds` has the pairs of each kind, and by position in
    the pair and name the buffers of their ranks."""

    def __init__(self, planned: Planned, communicator: PairsCommunicator, salt: int) -> None:
        super().__init__(planned, salt)
        self._communicator = communicator
        self.of_kinds: list[tuple[tuple[Pair, ...], list[dict[str, RanksBuffer]]]] = []

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those of the first pair of each kind."""
        kinds = pairs_by_kind(self.planned.case.pairs)
        return tuple(dict.fromkeys(rank for pairs in kinds for rank in pairs[0]))

    def allocate(self, programs: Mapping[int, Program]) -> None:
        for pairs in pairs_by_kind(self.planned.case.pairs):
            of_positions = [
                {
                    spec.name: RanksBuffer(spec, len(pairs), self.planned.pool)
                    for spec in programs[rank].buffers
                }
                for rank in dict.fromkeys(pairs[0])
            ]
            self.of_kinds.append((pairs, of_positions))

    def prepare(self, programs: Mapping[int, Program], mode: Mode) -> Runner:
        return self._communicator.prepare_pairs(programs, self, mode)

    @property
    def pool(self) -> int:
        """How many copies a program rotates through."""
        return self.planned.pool

    @property
    def writes(self) -> int:
        """How often contents were set."""
        return sum(buffer.writes for _, _, buffer in self._all_buffers())

    def fill(self) -> None:
        for ranks, name, buffer in self._all_buffers():
            buffer.write(self._patterns("fill", ranks, name))

    def count_wrong(self, copies: int) -> int:
        wrong = 0
        for ranks, name, buffer in self._all_buffers():
            patterns = self._patterns("expected", ranks, name)
            wrong += 0 if patterns is None else buffer.count_wrong(patterns, copies)
        return wrong

    def clear(self) -> None:
        self.of_kinds.clear()

    def _patterns(self, rule: str, ranks: Sequence[int], name: str) -> list[Pattern] | None:
        """Those of all ranks at the same position in their pairs; they have one each, or none."""
        first = self.pattern(rule, ranks[0], name)
        if first is None:
            return None
        others = (self.pattern(rule, rank, name) for rank in ranks[1:])
        return [first, *(pattern for pattern in others if pattern is not None)]

    def _all_buffers(self) -> Iterator[tuple[list[int], str, RanksBuffer]]:
        for pairs, of_positions in self.of_kinds:
            for position, buffers in enumerate(of_positions):
                ranks = [pair[position] for pair in pairs]
                for name, buffer in buffers.items():
                    yield ranks, name, buffer
