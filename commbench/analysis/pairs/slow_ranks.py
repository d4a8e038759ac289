"""Slow ranks: by all their pairs together, or because most of their links are slow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np

from commbench.core.layout import SELF
from commbench.results.columns import grouped
from commbench.stats.interval import Interval
from commbench.stats.outliers import SlowPart, slow_parts
from commbench.stats.series import Z95, binomial_rank
from commbench.stats.thresholds import SLOWDOWN

from .judgement import LEAST_CLASS_PAIRS, JudgedMatrix


class SlowLinks(NamedTuple):
    """`own` of the `every` slow links are those of a rank; `ratio` is the median of its own."""

    ratio: float
    own: int
    every: int


def by_all_pairs(matrix: JudgedMatrix) -> dict[int, SlowPart]:
    """By the median of all their pairs of a class in one direction: beside the other ranks, and
    beside the pairs of the class."""
    classes = [medians for link, medians in matrix.usable.items() if link != SELF]
    tests = 2 * len(classes) * len(matrix.sizes)
    slow = dict[int, SlowPart]()
    for medians, end in product(classes, (0, 1)):
        of_ranks = {
            rank: _median_of(sorted(medians[pair].value for pair in pairs))
            for rank, pairs in grouped(medians, itemgetter(end)).items()
            if len(pairs) >= LEAST_CLASS_PAIRS
        }
        typical_s = float(np.median([median.value for median in medians.values()]))
        for rank, part in slow_parts(of_ranks, SLOWDOWN, tests).items():
            if of_ranks[rank].low > (1 + SLOWDOWN) * typical_s:
                slow[rank] = max(part, slow.get(rank, part), key=attrgetter("ratio"))
    return slow


def by_slow_links(matrix: JudgedMatrix) -> dict[int, SlowLinks]:
    """More than half of their links are slow, to two peers or more, which one bad link can't
    cause."""
    links = [pair for pair in matrix.medians if pair[0] != pair[1]]
    slow = [pair for pair in links if pair in matrix.slow]
    found = {}
    for rank in {*chain(*slow)}:
        own = [pair for pair in slow if rank in pair]
        has_two_peers = len({*chain(*own)}) > 2
        if has_two_peers and 2 * len(own) > sum(rank in pair for pair in links):
            ratio = float(np.median([matrix.slow[pair].ratio for pair in own]))
            found[rank] = SlowLinks(ratio, len(own), len(slow))
    return found


def _median_of(ordered: Sequence[float]) -> Interval:
    """With the lower end of its interval; the least value where these are few."""
    least = max(binomial_rank(len(ordered), Z95), 1)
    return Interval(float(np.median(ordered)), ordered[least - 1])
