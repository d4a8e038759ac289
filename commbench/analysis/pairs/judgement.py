"""Slow and asymmetric pairs: each pair beside the others of its class, and beside its way back.

A pair is slow if the interval of its median lies above SLOW_FACTOR x the median of the others of
its class, and above that median by more than SLOW_SPREADS of their standard deviations. The factor
leaves out differences that do not matter: a link that is always 4 % slower is significant in any
test and no reason for a repair. The spread (MAD x 1.4826, which is robust: Leys et al. 2013) keeps
the slower pairs of a class that is wide by nature, such as two sockets, from being reported. Both
compare with medians of the others, so pairs are found as long as less than half of a class is slow.
A rank of which each pair is slower by less than that is found by all of them: slow_ranks.py.

A pair is asymmetric if it takes SLOW_FACTOR x the time of its opposite direction, and their
intervals are disjoint.

Where several sizes were measured, a neighbouring size must agree. Rows whose time includes
something other than the link (UNUSABLE) are not compared. Where the time itself is uncertain
(beyond 5 %), the factor is 2 and one size is not enough; where most rows of a class are uncertain,
none of these is slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commbench.core.layout import Pair
from commbench.core.variables import SIZES
from commbench.results.columns import grouped, of_same_run
from commbench.results.row import Row
from commbench.stats.interval import Interval
from commbench.stats.series import MAD_TO_SIGMA
from commbench.stats.thresholds import SLOW_FACTOR, SLOW_SPREADS, UNCERTAIN_SLOW_FACTOR

from .matrix import Matrix, matrices

LEAST_CLASS_PAIRS = 3  # of a class: if two pairs differ, neither is known to be the slow one


class Excess(NamedTuple):
    """The median of a pair, and the shorter time that it is compared with."""

    median_s: float
    reference_s: float

    @property
    def ratio(self) -> float:
        return self.median_s / self.reference_s if self.reference_s else math.inf


Found = Mapping[Pair, Excess]


@dataclass(frozen=True, eq=False)
class JudgedMatrix(Matrix):
    """A matrix and its slow and asymmetric pairs. `sizes` are the matrices that it was judged with:
    of the same run, in the order of their sizes, in which alone they differ."""

    slow: Found
    asymmetric: Found
    sizes: tuple[Matrix, ...]


def judged_matrices(rows: Iterable[Row]) -> list[JudgedMatrix]:
    """In the order of their first rows."""
    found = matrices(rows)
    by_size = sorted(found, key=lambda matrix: matrix.shared.message_bytes)
    answers = dict[Matrix, JudgedMatrix]()
    for sizes in map(tuple, grouped(by_size, _series).values()):
        slow = agreed(sizes, slow_at_size)
        asymmetric = agreed(sizes, asymmetric_at_size)
        for at, matrix in enumerate(sizes):
            answers[matrix] = JudgedMatrix(
                matrix.shared, matrix.rows, matrix.medians, slow[at], asymmetric[at], sizes
            )
    return [answers[matrix] for matrix in found]


def _series(matrix: Matrix) -> Hashable:
    """What it shares with those that differ from it in the size only."""
    return *of_same_run(matrix.shared, ("pair", *SIZES)), matrix.shared.label


def agreed(sizes: Sequence[Matrix], rule: Callable[[Matrix], Found]) -> list[Found]:
    """The pairs that the rule finds at each size, if it finds them at a neighbouring size as well,
    or if they are certain and have one size only."""
    found = [*map(rule, sizes)]

    def is_agreed(place: int, pair: Pair) -> bool:
        usable = [at for at, matrix in enumerate(sizes) if matrix.is_usable(pair)]
        if len(usable) > 1:
            index = usable.index(place)
            beside = usable[max(index - 1, 0) : index + 2]
            return any(pair in found[at] for at in beside if at != place)
        is_only_size = sum(pair in matrix.rows for matrix in sizes) == 1
        return is_only_size and not _is_uncertain(sizes[place].medians[pair])

    return [
        {pair: excess for pair, excess in here.items() if is_agreed(place, pair)}
        for place, here in enumerate(found)
    ]


def slow_at_size(matrix: Matrix) -> Found:
    """By this size alone, beside the typical time of the others of their class."""
    slow = {}
    for medians in matrix.usable.values():
        if len(medians) < LEAST_CLASS_PAIRS:
            continue
        times = np.array([median.value for median in medians.values()])
        # the least that the median of the others can be
        least_s = np.sort(times)[(len(times) - 2) // 2]
        are_most_uncertain = 2 * sum(map(_is_uncertain, medians.values())) > len(medians)
        for index, (pair, median) in enumerate(medians.items()):
            is_spared = are_most_uncertain and _is_uncertain(median)
            if is_spared or median.low <= SLOW_FACTOR * least_s:
                continue
            others_s = np.delete(times, index)
            typical_s = float(np.median(others_s))
            spread_s = MAD_TO_SIGMA * float(np.median(np.abs(others_s - typical_s)))
            if median.low > max(_factor(median) * typical_s, typical_s + SLOW_SPREADS * spread_s):
                slow[pair] = Excess(median.value, typical_s)
    return slow


def asymmetric_at_size(matrix: Matrix) -> Found:
    """By this size alone, beside the time of their opposite direction."""
    asymmetric = {}
    for medians in matrix.usable.values():
        for pair, there in medians.items():
            back = medians.get(pair[::-1])
            if back is not None and there.low > back.high:
                factor = max(_factor(there), _factor(back))
                if there.value > factor * back.value:
                    asymmetric[pair] = Excess(there.value, back.value)
    return asymmetric


def _factor(median: Interval) -> float:
    return UNCERTAIN_SLOW_FACTOR if _is_uncertain(median) else SLOW_FACTOR


def _is_uncertain(median: Interval) -> bool:
    return median.certainty != ""
