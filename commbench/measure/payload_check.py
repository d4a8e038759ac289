"""What the buffers of a case hold: filled before, looked at after, on the ranks that live in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commbench.core.case import Planned
from commbench.core.program import PERIOD, Pattern, Program
from commbench.core.protocols import Buffer, Communicator

NOTHING = np.zeros(PERIOD, dtype=np.int64)


class Contents:
    """`salt` changes what is sent; `zero` sends zeros, of which any reduction is zero again, however often."""

    def __init__(self, job: Planned) -> None:
        self._job, self.salt, self.zero = job, 0, False
        self.buffers: dict[int, dict[str, Buffer]] = {}

    def allocate(self, communicator: Communicator, programs: dict[int, Program]) -> None:
        """Raises MemoryError."""
        for rank, program in programs.items():
            self.buffers[rank] = {spec.name: communicator.allocate(spec, self._job.pool) for spec in program.buffers}

    def fill(self) -> None:
        """What is to be sent, and the sentinel where something must arrive: nothing old can pass for new."""
        for rank, name, buffer in self._held():
            buffer.write(self._pattern("fill", rank, name))

    def count_wrong(self, copies: int) -> int:
        """Elements that are not what they must be."""
        wrong = 0
        for rank, name, buffer in self._held():
            pattern = self._pattern("expected", rank, name)
            wrong += 0 if pattern is None else buffer.count_wrong(pattern, copies)
        return wrong

    def _pattern(self, which: str, rank: int, name: str) -> Pattern | None:
        rule = getattr(self._job.benchmark, which)
        pattern: Pattern | None = rule(self._job.case, rank, self._job.size, name, self.salt)
        if pattern is None or not self.zero:
            return pattern
        return Pattern(tuple(replace(segment, period=NOTHING) for segment in pattern.segments))

    def _held(self) -> Iterator[tuple[int, str, Buffer]]:
        for rank, held in self.buffers.items():
            yield from ((rank, name, buffer) for name, buffer in held.items())
