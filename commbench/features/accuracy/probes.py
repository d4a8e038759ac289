"""What a case with payload=rounding computes: further calls on buffers of their own, whose results
are compared with the exact sums and with one another.

All ranks make the same calls. Whether a variant can be made at all, they agree before it.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from commbench.backends.buffers.memory import CheckedBuffers
from commbench.core.errors import Unsupported
from commbench.core.payload import concatenated, dtype
from commbench.core.program import PERIOD, AllReduce, Group, In, Pattern, Program, operation_of
from commbench.core.variables import Case
from commbench.measure.features import Call, Findings
from commbench.measure.visit_setup import VisitSetup

from .exact import errors_ulp
from .values import LEAST, SEED, sums_and_bound

SALT = 0  # of all compared results, so that those of other runs can be compared
CALLS = 4  # with the same input
MOST_BYTES = 8 * 2**20  # of each rank's result that are read
HASH_DIGITS = 16
Results = dict[int, NDArray[Any]]  # the words of each hosted rank that has a result


def probe(setup: VisitSetup, call: Call) -> Findings:
    """Of a case with payload=rounding. Empty where no buffers can be had for a further call."""
    return {} if setup.planned.case.payload is None else _Probe(setup, call).findings()


@dataclass(frozen=True, eq=False)
class _Probe:
    setup: VisitSetup
    call: Call

    def findings(self) -> Findings:
        case = self.setup.planned.case
        plain = self._results(case, CALLS)
        if not plain:
            return {}
        first, *others = plain
        other_place = self._results(replace(case, in_place=not case.in_place))
        shares = [
            differing(first, others),
            differing(first, other_place),
            differing(_halves_of(first, case), self._in_halves()),
            self._differing_beside(),
        ]
        errors = [_squared_errors(self.setup, rank, words) for rank, words in first.items()]
        digests = {rank: _digest(words) for rank, words in first.items()}
        on_ranks = self._differing_on_ranks(first, digests)
        value = [shares, on_ranks, errors, list(digests.items())]
        gathered = self.setup.control.gather(value, self.setup.deadline_s, self._meeting)
        if not gathered:
            return {}
        return _found(gathered)

    @property
    def _meeting(self) -> str:
        return f"the comparison of results of {self.setup.planned.case}"

    # ------------------------------------------------------------ calls

    def _results(self, case: Case, calls: int = 1, part: slice | None = None) -> list[Results]:
        """The results of so many calls with the same input; none where this library, or the memory,
        does not allow the case. `part`: the elements of each block of the planned case that are
        this one's."""
        planned = replace(self.setup.planned, case=case, pool=1)
        programs = {rank: planned.program(rank) for rank in self.setup.communicator.hosted}
        return self._called(case, programs, calls, part)

    def _called(
        self,
        case: Case,
        programs: Mapping[int, Program],
        calls: int = 1,
        part: slice | None = None,
    ) -> list[Results]:
        setup = self.setup
        planned = replace(setup.planned, case=case, pool=1)
        steps = planned.program(0)
        if setup.settings.backend.supports(case, planned.size, steps) is not None:
            return []
        checked = CheckedBuffers(planned, setup.communicator, SALT)
        mode = replace(case.mode, connected=True, groups=setup.groups, visit=setup.visit)
        problem = runner = None
        try:
            checked.allocate(programs)
        except MemoryError as error:
            problem = str(error)
        if self._agreed(problem):
            return []
        try:
            runner = checked.prepare(programs, mode)
        except Unsupported as error:
            problem = str(error)
        if self._agreed(problem) or runner is None:
            return []
        self._fill(checked, part)
        results = []
        for _ in range(calls):
            self.call(runner)
            results.append(_read(checked, programs))
        return results

    def _agreed(self, problem: str | None) -> bool:
        """Whether any rank has a problem."""
        deadline_s = self.setup.deadline_s
        return self.setup.control.agree(problem, deadline_s, self._meeting) is not None

    def _fill(self, checked: CheckedBuffers, part: slice | None) -> None:
        if part is None:
            checked.fill()
            return
        whole = CheckedBuffers(self.setup.planned, self.setup.communicator, SALT)
        for rank, buffers in checked.buffers.items():
            for name, buffer in buffers.items():
                pattern = whole.pattern("fill", rank, name)
                buffer.write(None if pattern is None else self._part_of(pattern, part))

    def _part_of(self, pattern: Pattern, part: slice) -> Pattern:
        """The same elements of each block."""
        planned = self.setup.planned
        blocks = range(planned.benchmark.blocks(planned.size))
        begins = [block * planned.case.elements + part.start for block in blocks]
        return concatenated([pattern.part(begin, part.stop - part.start) for begin in begins])

    # ------------------------------------------------------------ variants

    def _in_halves(self) -> list[Results]:
        """The results of two calls, each with half of the elements of every block, as one."""
        case = self.setup.planned.case
        half = case.elements // 2
        if half == 0:
            return []
        bytes_of_half = case.message_bytes // case.elements * half
        half_case = replace(case, elements=half, message_bytes=bytes_of_half)
        parts = [self._results(half_case, part=slice(begin, begin + half)) for begin in (0, half)]
        if not all(parts):
            return []
        (first,), (second,) = parts
        return [{rank: np.concatenate((first[rank], second[rank])) for rank in first}]

    def _differing_beside(self) -> list[int] | None:
        """Of the first of two groups: its result alone, and while the other one reduces."""
        planned = self.setup.planned
        groups = planned.benchmark.groups(planned.case, planned.size)
        if planned.operation is not AllReduce or not groups:
            return None
        alone = self._in_groups(groups[:1])
        beside = self._in_groups(groups)
        return differing(alone[0], beside) if alone and beside else None

    def _in_groups(self, groups: Sequence[Group]) -> list[Results]:
        """The results of the first of these groups, all of which reduce at once."""
        planned = self.setup.planned
        programs = {}
        for rank in self.setup.communicator.hosted:
            own = planned.program(rank)
            (step,) = own.steps
            steps = [In(group, cast(AllReduce, step)) for group in groups if rank in group]
            programs[rank] = replace(own, steps=tuple(steps))
        called = self._called(planned.case, programs)
        return [
            {rank: words for rank, words in results.items() if rank in groups[0]}
            for results in called
        ]

    def _differing_on_ranks(self, results: Results, digests: Mapping[int, str]) -> list[int] | None:
        """Of an operation that gives all ranks the same; the bits of rank 0 travel only where they
        are not those of all."""
        setup = self.setup
        if setup.planned.operation is not AllReduce:
            return None
        meeting = self._meeting
        every = setup.control.exchange(sorted(set(digests.values())), setup.deadline_s, meeting)
        compared = sum(words.size for words in results.values())
        if len({digest for own in every for digest in own}) == 1:
            return [0, compared]
        own = base64.b64encode(results[0].tobytes()).decode() if 0 in results else None
        text = setup.control.decide(own, setup.deadline_s, meeting)
        reference = np.frombuffer(base64.b64decode(text), next(iter(results.values())).dtype)
        return [sum(count_other(words, reference) for words in results.values()), compared]


# ---------------------------------------------------------------- results of this process


def _read(checked: CheckedBuffers, programs: Mapping[int, Program]) -> Results:
    """Of the ranks that receive one: the first MOST_BYTES of what the operation wrote."""
    results = {}
    for rank, program in programs.items():
        if not program.steps or checked.pattern("expected", rank, "data") is None:
            continue
        view = cast(AllReduce, operation_of(program.steps[0])).recv
        buffer = checked.buffers[rank][view.buffer]
        most = MOST_BYTES // dtype(buffer.spec.dtype).itemsize
        results[rank] = buffer.read(replace(view, count=min(view.count_in(buffer.spec), most)))
    return results


def _halves_of(results: Results, case: Case) -> Results:
    """The elements that two equal halves have: all but the last of an odd number."""
    return {rank: words[: case.elements // 2 * 2] for rank, words in results.items()}


def differing(first: Results, others: Sequence[Results]) -> list[int] | None:
    """How many elements have other bits in any of the others, and how many there are; None without
    others."""
    if not others:
        return None
    counts = [0, 0]
    for rank, words in first.items():
        length = min(words.size, *(other[rank].size for other in others))
        changed = np.zeros(length, dtype=bool)
        for other in others:
            changed |= _bits(words[:length]) != _bits(other[rank][:length])
        counts[0] += int(np.count_nonzero(changed))
        counts[1] += length
    return counts


def count_other(words: NDArray[Any], reference: NDArray[Any]) -> int:
    return int(np.count_nonzero(_bits(words) != _bits(reference)))


def _bits(words: NDArray[Any]) -> NDArray[Any]:
    """So that two NaN can be the same, and 0 and -0 differ."""
    return words.view(f"u{words.itemsize}")


def _digest(words: NDArray[Any]) -> str:
    return hashlib.sha256(words.tobytes()).hexdigest()


def _squared_errors(setup: VisitSetup, rank: int, words: NDArray[Any]) -> list[float]:
    """The largest error, the sum of the squares and the number of elements, in units in the last
    place."""
    planned = setup.planned
    kind = dtype(planned.case.dtype)
    pattern = planned.benchmark.expected(planned.case, rank, planned.size, "data", SALT)
    assert pattern is not None
    (segment,) = (each for each in pattern.segments if each.tolerance is not None)
    sums, _ = sums_and_bound(kind.name, planned.size, SALT)
    places = (segment.shift + np.arange(words.size)) % PERIOD
    errors = errors_ulp(kind.decode(words), sums.high[places], sums.low[places], kind.name, LEAST)
    return [float(errors.max(initial=0.0)), float(np.square(errors).sum()), words.size]


# ---------------------------------------------------------------- findings of all ranks, on rank 0


def _found(gathered: Sequence[Any]) -> Findings:
    """`gathered`: shares, differing elements of ranks, errors and digests of each process."""
    shares = zip(*(each[0] for each in gathered), strict=True)
    again, in_place, in_halves, beside = (_share(counts) for counts in shares)
    errors = [own for each in gathered for own in each[2]]
    digests = sorted((rank, digest) for each in gathered for rank, digest in each[3])
    text = " ".join(digest for _, digest in digests)
    result_hash = hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
    squares = sum(square for _, square, _ in errors)
    return {
        "payload_seed": SEED,
        "error_ulp_max": max(largest for largest, _, _ in errors),
        "error_ulp_rms": math.sqrt(squares / sum(count for _, _, count in errors)),
        "other_bits_again": again,
        "other_bits_on_ranks": _share([each[1] for each in gathered]),
        "other_bits_in_place": in_place,
        "other_bits_in_halves": in_halves,
        "other_bits_beside": beside,
        "result_hash": result_hash,
        "launch_hashes": (result_hash,),
    }


def _share(counts: Sequence[Any]) -> float | None:
    """Of the elements of all ranks; None where it was not compared."""
    known = [each for each in counts if each is not None]
    elements = sum(count for _, count in known)
    return sum(changed for changed, _ in known) / elements if elements else None
