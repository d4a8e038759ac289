"""The times of each rank with all its partners, and their order statistics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commbench.cluster.search.pair_times import (
    ASPECTS,
    LATENCY,
    RECEIVES,
    SENDS,
    Cluster,
    Indices,
    Numbers,
    PairTimes,
)
from commbench.cluster.search.search_power import QUARTILE

TYPICAL_SHARE = 0.4  # of the ranks are faster than the typical one


@dataclass(frozen=True, eq=False)
class RankTimes:
    """`table`: logs of times [aspects, ranks, cases], NaN where a rank has none."""

    table: Numbers

    @classmethod
    def of(cls, times: PairTimes, log_s: Numbers, cluster: Cluster) -> RankTimes:
        numbers, case = np.unique(times.case, return_inverse=True)
        table = np.full((len(ASPECTS), cluster.nodes * cluster.ranks, len(numbers)), np.nan)
        one_way = ~times.is_latency
        for aspect, entries, ranks in (
            (SENDS, one_way, times.source),
            (RECEIVES, one_way, times.destination),
            (LATENCY, times.is_latency, times.source),
            (LATENCY, times.is_latency, times.destination),
        ):
            table[aspect, ranks[entries], case[entries]] = log_s[entries]
        return cls(table)

    @cached_property
    def counts(self) -> Indices:
        """How many times each rank has."""
        return np.asarray(np.count_nonzero(~np.isnan(self.table), axis=2))

    @cached_property
    def quartile(self) -> Numbers:
        return self.at_share(QUARTILE)

    def at_share(self, share: float) -> Numbers:
        """The time that so many of a rank's times are not above; NaN without any."""
        return self.picked(np.maximum((share * self.counts).astype(np.int64) - 1, 0))

    def picked(self, places: Indices) -> Numbers:
        """The time of each rank at its place, 0 being the lowest; NaN for a negative one."""
        if not self.table.shape[2]:
            return np.full(places.shape, np.nan)
        at = np.maximum(places, 0)[:, :, None]
        values = np.take_along_axis(self._ordered, at, axis=2)[:, :, 0]
        return np.where(places < 0, np.nan, values)

    @cached_property
    def _ordered(self) -> Numbers:
        return np.sort(self.table, axis=2)  # NaN is last


def explained(times: PairTimes, log_s: Numbers, cluster: Cluster) -> Numbers:
    """The log of each time by the values of its ranks: a pair is as slow as the slower one."""
    value = RankTimes.of(times, log_s, cluster).quartile
    sends = np.where(times.is_latency, LATENCY, SENDS)
    receives = np.where(times.is_latency, LATENCY, RECEIVES)
    return np.maximum(value[sends, times.source], value[receives, times.destination])


def typical(values: Numbers) -> Numbers:
    """That of about the median rank of each aspect; of two, that of the faster one. Of many it is a
    faster one, because half of them may be slow."""
    return among_ranks(values, TYPICAL_SHARE)


def among_ranks(values: Numbers, share: float) -> Numbers:
    """That of the rank of each aspect that so many of the known others are below."""
    ordered = np.sort(values, axis=1)
    known = np.count_nonzero(~np.isnan(values), axis=1)
    place = np.rint(share * np.maximum(known - 1, 0)).astype(np.int64)
    return np.take_along_axis(ordered, place[:, None], axis=1)
