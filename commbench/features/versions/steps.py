"""Steps of many series over the same ordered values: where, by which factor, and how certain.

A series has at most one step: the split whose two sides differ most, by a t that is moderated by
the noise of all series (Tusher, Tibshirani & Chu 2001). Neighbouring series that step at the same
place in the same direction are one finding, whose mass is the sum of their t. Its p is the share
of permutations of the values within each series in which any finding has that mass: one correction
for all series (Maris & Oostenveld 2007).

Where no value of a series was measured twice, its noise is not known. Then its step is compared
with those of the others at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from commbench.results.columns import grouped
from commbench.stats.series import Series
from commbench.stats.thresholds import FALSE_ALARMS, SMALLEST_CHANGE, SUSPECT_SPREADS

PERMUTATIONS = 999  # at most
LEAST_PERMUTATIONS = 199  # of very many series
MOST_WORK = 4_000_000  # series times permutations
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
    """Times of a series in seconds, and the position of the ordered value that each belongs to.

    `common`: the logs of the factors that all series of the same run share, as of a busy machine;
    steps are looked for without them.
    """

    seconds: Series
    places: Places
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
    def is_certain(self) -> bool:
        return self.p is not None and all(min(step.counts) > 1 for step in self.steps)


def find_steps(
    every: Sequence[Measurements], neighbours: Iterable[tuple[int, int]], seed: int = SEED
) -> list[Finding]:
    """The findings, those with the largest mass first. `neighbours`: pairs of series."""
    repeated = [number for number, each in enumerate(every) if each.is_repeated]
    single = [number for number, each in enumerate(every) if not each.is_repeated]
    edges = np.array([*neighbours], dtype=np.int64).reshape(-1, 2)
    found = [
        *_certain_findings(every, repeated, edges, seed),
        *_far_findings(every, single, edges),
    ]
    return sorted(found, key=_mass_of, reverse=True)


def _mass_of(finding: Finding) -> float:
    return sum(min(abs(step.t), MOST_T) for step in finding.steps)


# ---------------------------------------------------------------- a series


class _Alike:
    """Series with as many measurements at the same places, whose splits are computed at once."""

    def __init__(self, numbers: Places, logs: Logs, times: Logs, places: Places) -> None:
        self.numbers = numbers
        self.logs = logs  # [series, measurements], in the order of the places
        self.times = times  # logs with what runs have in common
        self.places = places
        kinds = np.unique(places)
        self.splits = [
            (int(np.sum(places <= low)), int(low), int(high)) for low, high in pairwise(kinds)
        ]

    def best(self, logs: Logs, noise: float) -> tuple[Logs, Places]:
        """Of each series the t of its best split, and the position in `splits`."""
        count = logs.shape[1]
        every = np.empty((len(self.splits), len(logs)))
        for number, (first, _, _) in enumerate(self.splits):
            before, after = logs[:, :first], logs[:, first:]
            residuals = np.square(before - before.mean(1, keepdims=True)).sum(1)
            residuals += np.square(after - after.mean(1, keepdims=True)).sum(1)
            variance = residuals / max(count - 2, 1) + noise**2
            scale = np.sqrt(variance * (1 / first + 1 / (count - first)))
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
        return _Alike(self.numbers[kept], self.logs[kept], self.times[kept], self.places)


def _alike(every: Sequence[Measurements], numbers: Iterable[int]) -> list[_Alike]:
    """Series with several values."""
    ordered = {number: np.argsort(every[number].places, kind="stable") for number in numbers}
    places = {number: every[number].places[order] for number, order in ordered.items()}
    groups = grouped(
        (number for number in ordered if places[number][0] != places[number][-1]),
        lambda number: tuple(places[number].tolist()),
    )

    def stacked(own: Sequence[int], of: Callable[[Measurements], Logs]) -> Logs:
        return np.array([of(every[number])[ordered[number]] for number in own])

    return [
        _Alike(
            np.array(own),
            stacked(own, lambda each: each.logs),
            stacked(own, lambda each: np.log(each.seconds)),
            places[own[0]],
        )
        for own in groups.values()
    ]


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


def _certain_findings(
    every: Sequence[Measurements], numbers: Sequence[int], edges: Edges, seed: int
) -> Iterator[Finding]:
    """What is found is taken away, and the rest is searched again: it must not hide behind the
    masses of real steps (Westfall & Young 1993, step down)."""
    left = _alike(every, numbers)
    noise = _noise(left) if left else 0.0
    rng = np.random.default_rng(seed)
    while left:
        found = [*_findings(len(every), left, noise, edges, rng)]
        yield from found
        stepped = [step.series for finding in found for step in finding.steps]
        if not stepped:
            return
        left = [rest for group in left if (rest := group.without(stepped)).numbers.size]


def _findings(
    size: int, groups: Sequence[_Alike], noise: float, edges: Edges, rng: np.random.Generator
) -> Iterator[Finding]:
    """Those of which permuted values have none like it. `size`: of all series."""

    def clusters(logs: Sequence[Logs]) -> tuple[list[list[int]], list[float]]:
        return _clusters(*_best_splits(size, groups, noise, logs), edges)

    members, masses = clusters([group.logs for group in groups])
    if not members:
        return
    series = sum(group.numbers.size for group in groups)
    count = max(LEAST_PERMUTATIONS, min(PERMUTATIONS, MOST_WORK // series))
    permuted = ([rng.permuted(group.logs, axis=1) for group in groups] for _ in range(count))
    largest = np.array([max(clusters(logs)[1], default=0.0) for logs in permuted])
    steps = {step.series: step for group in groups for step in group.steps(noise)}
    for own, mass in zip(members, masses, strict=True):
        p = float(((largest >= mass).sum() + 1) / (count + 1))
        real = tuple(step for number in own if (step := steps[number]).is_seen)
        if p <= FALSE_ALARMS and real:
            yield Finding(real, p)


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
    first, second = edges[:, 0], edges[:, 1]
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


def _far_findings(
    every: Sequence[Measurements], numbers: Sequence[int], edges: Edges
) -> list[Finding]:
    """Of series with one measurement a value: steps far from what all have at that place."""
    steps = [step for group in _alike(every, numbers) for step in group.steps(LEAST_NOISE)]
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
    values = np.zeros(len(every))
    places = np.zeros(len(every), dtype=np.int64)
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
