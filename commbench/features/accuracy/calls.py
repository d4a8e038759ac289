"""Further calls of a case with payload=rounding, on buffers of their own: the same again, and
variants that must give the same sums.

All ranks make the same calls. Whether a variant can be made at all, they agree before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import CheckedBuffers
from commbench.core.errors import Unsupported
from commbench.core.payload import concatenated, dtype
from commbench.core.program import (
    AllReduce,
    Group,
    In,
    Pattern,
    Program,
    Reduce,
    ReduceScatter,
    operation_of,
)
from commbench.core.protocols import Runner
from commbench.core.variables import Case, Mode
from commbench.measure.measuring import Call
from commbench.measure.visit_setup import VisitSetup

SALT = 0  # of all compared results, so that those of other runs can be compared
MOST_BYTES = 8 * 2**20  # of each rank's result that are read
SMALL_BYTES = 2**20  # messages whose buffers a rank has several times

Reduction = AllReduce | Reduce | ReduceScatter
Results = dict[int, NDArray[Any]]  # the words of each rank of this process that has a result


@dataclass(frozen=True, eq=False)
class Calls:
    """`call` runs repetitions on all ranks."""

    setup: VisitSetup
    call: Call

    @property
    def meeting(self) -> str:
        return f"the comparison of results of {self.setup.planned.case}"

    def again(self, calls: int) -> list[Results]:
        """The case itself, as often with the same input: of small messages in one block of
        repetitions, each in a copy of the buffers."""
        case = self.setup.planned.case
        copies = calls if case.message_bytes <= SMALL_BYTES else 1
        return self._results(case, [0] * (calls // copies), copies)

    def in_other_place(self) -> list[Results]:
        """Out of place if the case is in place, or the other way round."""
        case = self.setup.planned.case
        return self._results(replace(case, in_place=not case.in_place), [0])

    def in_halves(self) -> list[Results]:
        """Two calls, each with half of the elements of every block, as one result; without the last
        element of an odd number."""
        case = self.setup.planned.case
        half = case.elements // 2
        if half == 0:
            return []
        bytes_of_half = case.message_bytes // case.elements * half
        half_case = replace(case, elements=half, message_bytes=bytes_of_half)
        parts = self._results(half_case, [0, half])
        if not parts:
            return []
        return [{rank: np.concatenate([part[rank] for part in parts]) for rank in parts[0]}]

    def in_groups(self, groups: Sequence[Group]) -> list[Results]:
        """The result of the first of these groups, all of which reduce at once."""
        planned = self.setup.planned
        programs = {}
        for rank in self.setup.communicator.hosted:
            own = planned.program(rank)
            operation = operation_of(own.steps[0])
            steps = [In(group, cast(AllReduce, operation)) for group in groups if rank in group]
            programs[rank] = replace(own, steps=tuple(steps))
        # uncaptured: a group's first call connects it
        mode = replace(self._mode, connected=False)
        return [
            {rank: words for rank, words in results.items() if rank in groups[0]}
            for results in self._called(planned.case, programs, mode, [0])
        ]

    # ------------------------------------------------------------ one variant

    @property
    def _mode(self) -> Mode:
        setup = self.setup
        mode = setup.planned.case.mode
        return replace(mode, connected=True, groups=setup.groups, visit=setup.visit)

    def _results(self, case: Case, begins: Sequence[int], copies: int = 1) -> list[Results]:
        planned = replace(self.setup.planned, case=case)
        programs = {rank: planned.program(rank) for rank in self.setup.communicator.hosted}
        return self._called(case, programs, self._mode, begins, copies)

    def _called(
        self,
        case: Case,
        programs: Mapping[int, Program],
        mode: Mode,
        begins: Sequence[int],
        copies: int = 1,
    ) -> list[Results]:
        """A result for each call; none where the library, or the memory, does not allow the case.
        `begins`: the element of each block of the planned case with which the calls in all copies
        begin."""
        planned = replace(self.setup.planned, case=case, pool=copies)
        if self.setup.settings.backend.supports(case, planned.size, planned.program(0)) is not None:
            return []
        buffers = CheckedBuffers(planned, self.setup.communicator, SALT)
        try:
            runner = self._prepared(buffers, programs, mode)
            if runner is None:
                return []
            results = []
            for begin in begins:
                self._fill(buffers, slice(begin, begin + case.elements))
                self.call(runner, copies)
                results += [_read(buffers, programs, copy) for copy in range(copies)]
            return results
        finally:
            buffers.clear()

    def _prepared(
        self, buffers: CheckedBuffers, programs: Mapping[int, Program], mode: Mode
    ) -> Runner | None:
        """None on all ranks if any of them has a problem."""
        problem = runner = None
        try:
            buffers.allocate(programs)
        except MemoryError as error:
            problem = str(error)
        if self._is_refused(problem):
            return None
        try:
            runner = buffers.prepare(programs, mode)
        except Unsupported as error:
            problem = str(error)
        return None if self._is_refused(problem) else runner

    def _is_refused(self, problem: str | None) -> bool:
        setup = self.setup
        return setup.control.agree(problem, setup.deadline_s, self.meeting) is not None

    def _fill(self, buffers: CheckedBuffers, part: slice) -> None:
        """With the elements of each block of the planned case that this part has."""
        whole = CheckedBuffers(self.setup.planned, self.setup.communicator, SALT)
        for rank, own in buffers.buffers.items():
            for name, buffer in own.items():
                pattern = whole.pattern("fill", rank, name)
                buffer.write(None if pattern is None else self._part_of(pattern, part))

    def _part_of(self, pattern: Pattern, part: slice) -> Pattern:
        planned = self.setup.planned
        blocks = range(planned.benchmark.blocks(planned.size))
        begins = [block * planned.case.elements + part.start for block in blocks]
        return concatenated([pattern.part(begin, part.stop - part.start) for begin in begins])


def _read(checked: CheckedBuffers, programs: Mapping[int, Program], copy: int) -> Results:
    """Of the ranks that have a result: the first MOST_BYTES of what the operation wrote."""
    results = {}
    for rank, program in programs.items():
        if not program.steps or checked.pattern("expected", rank, "data") is None:
            continue
        view = cast(Reduction, operation_of(program.steps[0])).recv
        buffer = checked.buffers[rank][view.buffer]
        most = MOST_BYTES // dtype(buffer.spec.dtype).itemsize
        part = replace(view, count=min(view.count_in(buffer.spec), most))
        results[rank] = buffer.read(part, copy)
    return results
