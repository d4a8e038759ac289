"""The split of each series into earlier and later values whose sides differ most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from commbench.results.columns import grouped
from commbench.stats.series import Series

Logs = NDArray[np.float64]
Places = NDArray[np.int64]  # of ordered values
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Measurements:
    """Times of a series in seconds, the position of the ordered value that each belongs to, and its
    run.

    `common`: the logs of the factors that all series of the same run share, as of a busy machine;
    steps are looked for without them.
    """

    seconds: Series
    places: Places
    runs: Sequence[str]
    common: Logs | None = None

    @property
    def logs(self) -> Logs:
        logs: Logs = np.log(self.seconds)
        return logs if self.common is None else logs - self.common

    @property
    def is_repeated(self) -> bool:
        """Whether a value was measured more than once."""
        return len({*self.places.tolist()}) < self.places.size

    @property
    def is_free(self) -> bool:
        """Whether its measurements are permuted independently of those of other series."""
        return self.common is not None

    @property
    def units(self) -> list[tuple[Hashable, int]]:
        """What is permuted as one, and its place: a run, whose series share what a busy machine
        does to them; each measurement where that is known and taken away."""
        names = range(len(self.runs)) if self.is_free else self.runs
        return [*zip(names, self.places.tolist(), strict=True)]

    @property
    def counts(self) -> list[int]:
        """How many units each value has."""
        return [*Counter(place for _, place in set(self.units)).values()]


@dataclass(frozen=True, eq=False)
class Alike:
    """Series with as many measurements at the same places, which are computed at once.

    `numbers`: which of all series they are. `logs`, and the number of the `units` that are permuted
    together: [series, measurements]. `places`: [measurements], in their order.
    """

    numbers: Places
    logs: Logs
    units: Places
    places: Places

    def best_splits(self, noise: float) -> tuple[Logs, Places]:
        """Of each series the t of its best split, and the place that is the first after it.

        `noise`: a standard deviation that moderates that of a series.
        """
        firsts = np.unique(self.places)[1:]
        t = np.array([self._t(int(np.sum(self.places < first)), noise) for first in firsts])
        best = np.abs(t).argmax(axis=0)
        return t[best, np.arange(len(self.logs))], firsts[best]

    def _t(self, earlier: int, noise: float) -> Logs:
        """Of each series the mean of the later measurements less that of the earlier ones, over its
        standard error."""
        before = self.logs[:, :earlier]
        after = self.logs[:, earlier:]
        later = after.shape[1]
        squares = earlier * before.var(axis=1) + later * after.var(axis=1)
        variance = squares / max(earlier + later - 2, 1) + noise**2
        standard_error = np.sqrt(variance * (1 / earlier + 1 / later))
        t: Logs = (after.mean(axis=1) - before.mean(axis=1)) / standard_error
        return t

    def permuted(self, keys: Logs) -> Alike:
        """The logs in the order of the keys of their units."""
        order = keys[self.units].argsort(axis=1)
        return replace(self, logs=np.take_along_axis(self.logs, order, axis=1))

    def without(self, numbers: Iterable[int]) -> Alike:
        kept = ~np.isin(self.numbers, [*numbers])
        return Alike(self.numbers[kept], self.logs[kept], self.units[kept], self.places)


def alike(every: Sequence[Measurements], numbers: Iterable[int]) -> list[Alike]:
    """These of all series, those with several values."""
    units = defaultdict[Hashable, int](count().__next__)
    groups = grouped(numbers, lambda number: tuple(sorted(every[number].places.tolist())))
    return [
        Alike(
            np.array(own),
            np.array([_in_order(every[number], every[number].logs) for number in own]),
            np.array([_in_order(every[number], _units(number, every, units)) for number in own]),
            np.array(places),
        )
        for places, own in groups.items()
        if places[0] != places[-1]
    ]


def _in_order(measured: Measurements, values: NDArray[Number]) -> NDArray[Number]:
    return values[np.argsort(measured.places, kind="stable")]


def _units(number: int, every: Sequence[Measurements], units: Mapping[Hashable, int]) -> Places:
    """The numbers of the units of a series: those of a run are the same in all series."""
    measured = every[number]
    series = number if measured.is_free else None
    return np.array([units[series, unit] for unit in measured.units])
