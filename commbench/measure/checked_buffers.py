"""The buffers of a case: filled with known values, and compared with the expected ones after they were moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commbench.core.case import Planned
from commbench.core.program import PERIOD, Pattern, Program
from commbench.core.protocols import Buffer, Communicator

ZEROS = np.zeros(PERIOD, dtype=np.int64)


class CheckedBuffers:
    """What the buffers of the ranks in this process hold: filled before, checked after.

    `salt` changes what is sent. With `zero` zeros are sent, of which any reduction is zero again, however often.
    """

    def __init__(self, job: Planned, salt: int) -> None:
        self._job, self.salt, self.zero = job, salt, False
        self.buffers: dict[int, dict[str, Buffer]] = {}

    def allocate(self, communicator: Communicator, programs: dict[int, Program]) -> None:
        """Raises MemoryError."""
        for rank, program in programs.items():
            self.buffers[rank] = {spec.name: communicator.allocate(spec, self._job.pool) for spec in program.buffers}

    def fill(self) -> None:
        """Write what is to be sent, and the sentinel where something must arrive."""
        for rank, name, buffer in self._all_buffers():
            buffer.write(self._pattern("fill", rank, name))

    def refill(self) -> None:
        """New values, so that nothing old can pass for new."""
        self.salt += 1
        self.fill()

    def count_wrong(self, copies: int) -> int:
        """Elements of the first `copies` copies that are not what they must be."""
        wrong = 0
        for rank, name, buffer in self._all_buffers():
            pattern = self._pattern("expected", rank, name)
            wrong += 0 if pattern is None else buffer.count_wrong(pattern, copies)
        return wrong

    def _pattern(self, rule: str, rank: int, name: str) -> Pattern | None:
        job = self._job
        pattern: Pattern | None = getattr(job.benchmark, rule)(job.case, rank, job.size, name, self.salt)
        if pattern is None or not self.zero:
            return pattern
        return Pattern(tuple(replace(segment, period=ZEROS) for segment in pattern.segments))

    def _all_buffers(self) -> Iterator[tuple[int, str, Buffer]]:
        for rank, buffers in self.buffers.items():
            yield from ((rank, name, buffer) for name, buffer in buffers.items())
