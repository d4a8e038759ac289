"""Steps of many series over the same ordered values: where, by which factor, and how certain.

A series has at most one step: the split whose two sides differ most, by a t that is moderated by
the noise of all series (Tusher, Tibshirani & Chu 2001). Neighbouring series that step at the same
place in the same direction are one finding, whose mass is the sum of their t. Its p is the share
of permutations of the values within each series in which any finding has that mass: one correction
for all series (Maris & Oostenveld 2007).

Where no value of a series was measured twice, its noise is not known; nor is it where so few runs
were made that chance alone orders them like a step. Then its step is compared with those of the
others at the same place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from math import lgamma, log

import numpy as np
from numpy.typing import NDArray

from commbench.results.columns import grouped
from commbench.stats.series import Series
from commbench.stats.thresholds import FALSE_ALARMS, SMALLEST_CHANGE, SUSPECT_SPREADS

PERMUTATIONS = 999  # at most
LEAST_PERMUTATIONS = 199  # of very many series
MOST_WORK = 4_000_000  # series times permutations
LARGEST_P = 2 * FALSE_ALARMS  # of a finding; of one that is certain FALSE_ALARMS
LEAST_T = 3.0  # of a member of a finding
MOST_T = 12.0  # that one series adds to a mass: several that agree say more than one that is far
SEED = 0
TO_STANDARD_DEVIATION = 1.4826  # of the median absolute deviation of normal values
LEAST_NOISE = 1e-3  # of logs: clocks resolve no less

Logs = NDArray[np.float64]
Places = NDArray[np.int64]  # of ordered values, or of series
Edges = NDArray[np.int64]  # [pairs, 2]


@dataclass(frozen=True)
class Measurements:
    """Times of a series in seconds, the position of the ordered value that each belongs to, and its
    run.

    `common`: the logs of the factors that all series of the same run share, as of a busy machine;
    steps are looked for without them. Where they are not known, a run is permuted as a whole.
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


@dataclass(frozen=True)
class Step:
    """Of a series: `before` and `after` are the positions of the values between which it lies.

    `ratio`: the median after it over that before. `counts`: measurements before and after it.
    """

    series: int
    before: int
    after: int
    ratio: float
    t: float
    counts: tuple[int, int]

    @property
    def is_seen(self) -> bool:
        """Whether its own times show it, with what their runs have in common."""
        away = np.log(self.ratio) * np.sign(self.t)
        return bool(away > np.log(1 + SMALLEST_CHANGE))


@dataclass(frozen=True)
class Finding:
    """Steps of neighbouring series at the same place. `p`: that noise alone has any finding like
    it; None where the noise is not known, and the steps only exceed those of the others."""

    steps: tuple[Step, ...]
    p: float | None

    @property
    def is_noise_known(self) -> bool:
        return self.p is not None and all(min(step.counts) > 1 for step in self.steps)

    @property
    def is_certain(self) -> bool:
        return self.is_noise_known and self.p is not None and self.p <= FALSE_ALARMS


def find_steps(
    every: Sequence[Measurements], neighbours: Iterable[tuple[int, int]], seed: int = SEED
) -> list[Finding]:
    """The findings, those with the largest mass first. `neighbours`: pairs of series."""
    repeated = _alike(every, [n for n, each in enumerate(every) if each.is_repeated])
    single = [n for n, each in enumerate(every) if not each.is_repeated]
    if not _can_be_certain(repeated):
        repeated = []
        single = [*range(len(every))]
    edges = np.array([*neighbours], dtype=np.int64).reshape(-1, 2)
    found = [
        *_certain_findings(len(every), repeated, edges, seed),
        *_far_findings(len(every), _alike(every, single), edges),
    ]
    return sorted(found, key=_mass_of, reverse=True)


def _mass_of(finding: Finding) -> float:
    return sum(min(abs(step.t), MOST_T) for step in finding.steps)


# ---------------------------------------------------------------- a series


@dataclass(frozen=True, eq=False)
class _Alike:
    """Series with as many measurements at the same places, whose splits are computed at once.

    `logs`, `times` (with what runs have in common), `units`: [series, measurements], in the order
    of the places. `units`: the number of what is permuted together.
    """

    numbers: Places
    logs: Logs
    times: Logs
    units: Places
    places: Places

    @cached_property
    def splits(self) -> list[tuple[int, int, int]]:
        """How many measurements are before it, and between which places it lies."""
        return [
            (int(np.sum(self.places <= low)), int(low), int(high))
            for low, high in pairwise(np.unique(self.places))
        ]

    def best(self, logs: Logs, noise: float) -> tuple[Logs, Places]:
        """Of each series the t of its best split, and the position in `splits`."""
        measured = logs.shape[1]
        every = np.empty((len(self.splits), len(logs)))
        for number, (first, _, _) in enumerate(self.splits):
            before = logs[:, :first]
            after = logs[:, first:]
            residuals = np.square(before - before.mean(1, keepdims=True)).sum(1)
            residuals += np.square(after - after.mean(1, keepdims=True)).sum(1)
            variance = residuals / max(measured - 2, 1) + noise**2
            scale = np.sqrt(variance * (1 / first + 1 / (measured - first)))
            every[number] = (after.mean(1) - before.mean(1)) / scale
        chosen = np.abs(every).argmax(0)
        return every[chosen, np.arange(len(logs))], chosen

    def steps(self, noise: float) -> Iterator[Step]:
        """The best split of each series."""
        values, chosen = self.best(self.logs, noise)
        for number, times, t, split in zip(self.numbers, self.times, values, chosen, strict=True):
            first, before, after = self.splits[split]
            ratio = float(np.exp(np.median(times[first:]) - np.median(times[:first])))
            counts = (first, times.size - first)
            yield Step(int(number), before, after, ratio, float(t), counts)

    def without(self, numbers: Iterable[int]) -> _Alike:
        kept = ~np.isin(self.numbers, [*numbers])
        return _Alike(
            self.numbers[kept], self.logs[kept], self.times[kept], self.units[kept], self.places
        )


def _alike(every: Sequence[Measurements], numbers: Sequence[int]) -> list[_Alike]:
    """Series with several values."""
    units = dict(zip(numbers, _units([every[number] for number in numbers]), strict=True))
    ordered = {number: np.argsort(every[number].places, kind="stable") for number in numbers}
    places = {number: every[number].places[order] for number, order in ordered.items()}
    groups = grouped(
        (number for number in numbers if places[number][0] != places[number][-1]),
        lambda number: tuple(places[number].tolist()),
    )
    return [
        _Alike(
            np.array(own),
            np.array([every[number].logs[ordered[number]] for number in own]),
            np.array([np.log(every[number].seconds)[ordered[number]] for number in own]),
            np.array([units[number][ordered[number]] for number in own]),
            places[own[0]],
        )
        for own in groups.values()
    ]


def _units(every: Iterable[Measurements]) -> Iterator[Places]:
    """Of each measurement: those of a run at a value share it, over all series. Where what a run
    has in common is known, each has its own."""
    numbers = count()
    of_run = defaultdict[tuple[str, int], int](numbers.__next__)
    for each in every:
        runs = zip(each.runs, each.places.tolist(), strict=True)
        together = [of_run[run] for run in runs] if each.common is None else []
        yield np.array(together or [next(numbers) for _ in each.runs])


def _can_be_certain(groups: Iterable[_Alike]) -> bool:
    """Whether there are so many ways to permute that a step is rare among them, up or down."""
    places = {
        unit: place
        for group in groups
        for units in group.units.tolist()
        for unit, place in zip(units, group.places.tolist(), strict=True)
    }
    sizes = Counter(places.values()).values()
    ways = lgamma(len(places) + 1) - sum(lgamma(size + 1) for size in sizes)
    return ways >= log(2 / FALSE_ALARMS)


def _noise(groups: Iterable[_Alike]) -> float:
    """The standard deviation of the logs of a value that was measured several times: the median of
    the series."""
    deviations = [
        np.sqrt(np.square(own - own.mean(1, keepdims=True)).sum(1) / (own.shape[1] - 1))
        for group in groups
        for place in np.unique(group.places)
        if (own := group.logs[:, group.places == place]).shape[1] > 1
    ]
    return max(float(np.median(np.concatenate(deviations))), LEAST_NOISE)


# ---------------------------------------------------------------- findings


def _certain_findings(size: int, left: list[_Alike], edges: Edges, seed: int) -> Iterator[Finding]:
    """What is found is taken away, and the rest is searched again: it must not hide behind the
    masses of real steps (Westfall & Young 1993, step down). `size`: of all series."""
    noise = _noise(left) if left else 0.0
    rng = np.random.default_rng(seed)
    while left:
        found = [*_findings(size, left, noise, edges, rng)]
        yield from found
        stepped = [step.series for finding in found for step in finding.steps]
        if not stepped:
            return
        left = [rest for group in left if (rest := group.without(stepped)).numbers.size]


def _findings(
    size: int, groups: Sequence[_Alike], noise: float, edges: Edges, rng: np.random.Generator
) -> Iterator[Finding]:
    """Those of which permuted values have none like it."""

    def clusters(logs: Sequence[Logs]) -> tuple[list[list[int]], list[float]]:
        return _clusters(*_best_splits(size, groups, noise, logs), edges)

    members, masses = clusters([group.logs for group in groups])
    if not members:
        return
    series = sum(group.numbers.size for group in groups)
    permutations = max(LEAST_PERMUTATIONS, min(PERMUTATIONS, MOST_WORK // series))
    units = 1 + max(int(group.units.max()) for group in groups)
    keys = (rng.random(units) for _ in range(permutations))
    permuted = ([_permuted(group, own) for group in groups] for own in keys)
    largest = np.array([max(clusters(logs)[1], default=0.0) for logs in permuted])
    steps = {step.series: step for group in groups for step in group.steps(noise)}
    for own, mass in zip(members, masses, strict=True):
        p = float(((largest >= mass).sum() + 1) / (permutations + 1))
        real = tuple(step for number in own if (step := steps[number]).is_seen)
        if p <= LARGEST_P and real:
            yield Finding(real, p)


def _permuted(group: _Alike, keys: Logs) -> Logs:
    """The logs in the order of the keys of their units."""
    order = keys[group.units].argsort(axis=1)
    return np.take_along_axis(group.logs, order, axis=1)


def _best_splits(
    size: int, groups: Sequence[_Alike], noise: float, logs: Sequence[Logs]
) -> tuple[Logs, Places]:
    """Of all series the absolute t, and a number for the place and the direction of its step."""
    values = np.zeros(size)
    places = np.zeros(size, dtype=np.int64)
    for group, own in zip(groups, logs, strict=True):
        t, splits = group.best(own, noise)
        after = np.array([high for _, _, high in group.splits])
        values[group.numbers] = t
        places[group.numbers] = (after[splits] + 1) * np.sign(t).astype(np.int64)
    return np.abs(values), places


def _clusters(values: Logs, places: Places, edges: Edges) -> tuple[list[list[int]], list[float]]:
    """Neighbours beyond LEAST_T with the same place, and the mass of each cluster."""
    far = values >= LEAST_T
    first, second = edges.T
    kept = edges[far[first] & far[second] & (places[first] == places[second])]
    root = {int(number): int(number) for number in np.flatnonzero(far)}

    def top(number: int) -> int:
        while root[number] != number:
            root[number] = number = root[root[number]]
        return number

    for one, other in kept.tolist():
        root[top(one)] = top(other)
    members = [*grouped(root, top).values()]
    return members, [float(np.minimum(values[own], MOST_T).sum()) for own in members]


def _far_findings(size: int, groups: Iterable[_Alike], edges: Edges) -> list[Finding]:
    """Of series whose noise is not known: steps far from what all have at that place."""
    steps = [step for group in groups for step in group.steps(LEAST_NOISE)]
    far: dict[int, Step] = {}
    for alike in grouped(steps, lambda step: (step.before, step.after)).values():
        logs = np.log([step.ratio for step in alike])
        away = np.abs(logs - np.median(logs))
        spread = max(TO_STANDARD_DEVIATION * float(np.median(away)), SMALLEST_CHANGE)
        far |= {
            step.series: step
            for step, distance in zip(alike, away, strict=True)
            if distance > SUSPECT_SPREADS * spread
        }
    values = np.zeros(size)
    places = np.zeros(size, dtype=np.int64)
    for number, step in far.items():
        values[number] = LEAST_T
        places[number] = (step.after + 1) * (1 if step.ratio > 1 else -1)
    members, _ = _clusters(values, places, edges)
    return [Finding(tuple(far[number] for number in own), None) for own in members]


def without_steps(
    every: Sequence[Measurements], findings: Iterable[Finding]
) -> Mapping[int, float]:
    """Of the series without a step, the median at the last value over that at the first."""
    stepped = {step.series for finding in findings for step in finding.steps}
    ratios = {}
    for number, each in enumerate(every):
        ends = each.places.min(), each.places.max()
        if number not in stepped and ends[0] != ends[1]:
            first, last = (np.median(each.seconds[each.places == end]) for end in ends)
            ratios[number] = float(last / first)
    return ratios
