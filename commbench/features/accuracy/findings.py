"""What the results of further calls say: how far they are from the exact sums, and in how many
elements their bits differ."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from commbench.core.case import Planned
from commbench.core.payload import dtype
from commbench.core.program import PERIOD, AllReduce
from commbench.measure.measuring import Call, Probed
from commbench.measure.visit_setup import VisitSetup

from .calls import SALT, Calls, Results
from .exact import errors_ulp, unit_in_last_place
from .values import LEAST, SEED, sums_and_bound

CALLS = 4  # with the same input
HASH_DIGITS = 16
Counts = tuple[int, int]  # elements with other bits, and all that were compared
NO_COUNTS = (0, 0)
Digest = tuple[int, str]  # of the result of a rank


@dataclass(frozen=True)
class Found:
    """Of the ranks of one process. `squares`: the sum of the squared errors of `elements`."""

    again: Counts
    on_ranks: Counts
    in_place: Counts
    in_halves: Counts
    beside: Counts
    largest_error: float
    squares: float
    elements: int
    digests: list[Digest]


def probe(setup: VisitSetup, call: Call) -> Probed:
    """Of a case with payload=rounding. Empty where no buffers can be had for further calls."""
    if setup.planned.case.payload is None:
        return {}
    calls = Calls(setup, call)
    results = calls.again(CALLS)
    if not results:
        return {}
    found = _found(calls, results)
    gathered = setup.control.gather(vars(found), setup.deadline_s, calls.meeting)
    every = [Found(**each) for each in gathered]
    return {name: column.of(every) for name, column in COLUMNS.items()} if every else {}


def _found(calls: Calls, results: Sequence[Results]) -> Found:
    planned = calls.setup.planned
    first, *others = results
    digests = digests_of(first)
    largest = squares = 0.0
    for errors in chain.from_iterable(_errors(planned, *result) for result in first.items()):
        largest = max(largest, float(errors.max()))
        squares += float(np.square(errors).sum())
    return Found(
        again=differing(first, others),
        on_ranks=_differing_on_ranks(calls, first, {digest for _, digest in digests}),
        in_place=differing(first, calls.in_other_place()),
        in_halves=differing(first, calls.in_halves()),
        beside=_differing_beside(calls),
        largest_error=largest,
        squares=squares,
        elements=sum(words.size for words in first.values()),
        digests=digests,
    )


def differing(first: Results, others: Sequence[Results]) -> Counts:
    """Elements with other bits in any of the others, as far as these go."""
    changed = compared = 0
    for rank, words in first.items() if others else ():
        length = min(other[rank].size for other in others)
        own = bits(words[:length])
        is_other = np.any([own != bits(other[rank][:length]) for other in others], axis=0)
        changed += int(np.count_nonzero(is_other))
        compared += length
    return changed, compared


def _differing_beside(calls: Calls) -> Counts:
    """Of the first of two groups: its result alone, and while the other one reduces."""
    planned = calls.setup.planned
    groups = planned.benchmark.groups(planned.case, planned.size)
    if not groups:
        return NO_COUNTS
    alone = calls.in_groups(groups[:1])
    beside = calls.in_groups(groups)
    return differing(alone[0], beside) if alone and beside else NO_COUNTS


def _differing_on_ranks(calls: Calls, results: Results, digests: set[str]) -> Counts:
    """Of an operation that gives all ranks the same; the bits of rank 0 travel only where they are
    not those of all."""
    setup = calls.setup
    if setup.planned.operation is not AllReduce:
        return NO_COUNTS
    every = setup.control.exchange(sorted(digests), setup.deadline_s, calls.meeting)
    compared = sum(words.size for words in results.values())
    if len({digest for own in every for digest in own}) == 1:
        return 0, compared
    own = base64.b64encode(results[0].tobytes()).decode() if 0 in results else None
    text = setup.control.decide(own, setup.deadline_s, calls.meeting)
    words = np.frombuffer(base64.b64decode(text), next(iter(results.values())).dtype)
    return differing(dict.fromkeys(results, words), [results])


def bits(words: NDArray[Any]) -> NDArray[Any]:
    """So that two NaN can be the same, and 0 and -0 differ."""
    return words.view(f"u{words.itemsize}")


def digests_of(results: Results) -> list[Digest]:
    return [(rank, hashlib.blake2b(words.tobytes()).hexdigest()) for rank, words in results.items()]


def hash_of(digests: Sequence[Digest]) -> str:
    """Of the results of all ranks."""
    text = " ".join(digest for _, digest in sorted(digests))
    return hashlib.blake2b(text.encode()).hexdigest()[:HASH_DIGITS]


def _errors(planned: Planned, rank: int, words: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    """In units in the last place, of the result of a rank, period by period: arrays that fit into
    a cache."""
    kind = dtype(planned.case.dtype)
    pattern = planned.benchmark.expected(planned.case, rank, planned.size, "data", SALT)
    assert pattern is not None  # there is a result
    (shift,) = (each.shift for each in pattern.segments if each.tolerance is not None)
    sums, _ = sums_and_bound(kind.name, planned.size, SALT)
    unit = unit_in_last_place(sums.high, kind.name, LEAST)
    high, low, unit = (np.roll(each, -shift) for each in (sums.high, sums.low, unit))
    for begin in range(0, words.size, PERIOD):
        values = kind.decode(words[begin : begin + PERIOD])
        count = values.size
        yield errors_ulp(values, high[:count], low[:count], unit[:count])


# ---------------------------------------------------------------- of all processes, on rank 0


def _rms(every: Sequence[Found]) -> float:
    elements = sum(each.elements for each in every)
    return math.sqrt(sum(each.squares for each in every) / elements)


def _share(counts: Sequence[Counts]) -> float | None:
    """None where nothing was compared."""
    elements = sum(compared for _, compared in counts)
    return sum(changed for changed, _ in counts) / elements if elements else None


def _result_hash(every: Sequence[Found]) -> str:
    return hash_of([own for each in every for own in each.digests])


def _of_first(launches: Sequence[Any]) -> Any:
    return launches[0]


def _joined(launches: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(launches))


class Column(NamedTuple):
    """`of`: its value, from what each process has found; `merged`: that of several launches."""

    of: Callable[[Sequence[Found]], Any]
    merged: Callable[[Sequence[Any]], Any] = max


COLUMNS: Mapping[str, Column] = {
    "payload_seed": Column(lambda every: SEED, _of_first),
    "error_ulp_max": Column(lambda every: max(each.largest_error for each in every)),
    "error_ulp_rms": Column(_rms),
    "other_bits_again": Column(lambda every: _share([each.again for each in every])),
    "other_bits_on_ranks": Column(lambda every: _share([each.on_ranks for each in every])),
    "other_bits_in_place": Column(lambda every: _share([each.in_place for each in every])),
    "other_bits_in_halves": Column(lambda every: _share([each.in_halves for each in every])),
    "other_bits_beside": Column(lambda every: _share([each.beside for each in every])),
    "result_hash": Column(_result_hash, _of_first),
    "launch_hashes": Column(lambda every: (_result_hash(every),), _joined),
}
