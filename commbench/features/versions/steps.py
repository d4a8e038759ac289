"""Steps of many series over the same ordered values: where, by which factor, and how certain.

A series has at most one step: the split whose two sides differ most, by a t that is moderated by
the noise of all series (Tusher, Tibshirani & Chu 2001). Neighbouring series that step at the same
place in the same direction are a cluster, whose mass is the sum of their t. Its p is the share of
permutations of the values within each series in which any cluster has that mass: one correction
for all series (Maris & Oostenveld 2007).

Of few runs so many permutations are a step that p can't be small. Where no value of a series was
measured twice, its noise is not known: its step is compared with those of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import comb

import numpy as np
from numpy.typing import NDArray

from commbench.results.columns import grouped
from commbench.stats.thresholds import FALSE_ALARMS, SMALLEST_CHANGE, SUSPECT_SPREADS

from .splits import Alike, Measurements, alike

PERMUTATIONS = 999  # at most
LEAST_PERMUTATIONS = 199  # of very many series
MOST_WORK = 4_000_000  # series times permutations
LARGEST_P = 2 * FALSE_ALARMS  # of a finding; of one that is certain FALSE_ALARMS
LEAST_T = 3.0  # of a member of a cluster
MOST_T = 12.0  # that one series adds to a mass: several that agree say more than one that is far
SEED = 0
TO_STANDARD_DEVIATION = 1.4826  # of the median absolute deviation of normal values
LEAST_NOISE = 1e-3  # of logs: clocks resolve no less
ROUNDING = 1e-9  # of masses that are equal

Edges = NDArray[np.int64]  # [pairs of series, 2]


@dataclass(frozen=True)
class Step:
    """Of a series: `before` and `after` are the positions of the values between which it lies.

    `medians_s`, `counts`: of the measurements before and after it. `t` is without what the series
    of a run have in common.
    """

    series: int
    before: int
    after: int
    medians_s: tuple[float, float]
    counts: tuple[int, int]
    t: float

    @property
    def ratio(self) -> float:
        return self.medians_s[1] / self.medians_s[0]

    @property
    def is_seen(self) -> bool:
        """Whether its own times show it, with what their runs have in common."""
        return bool(np.log(self.ratio) * np.sign(self.t) > np.log(1 + SMALLEST_CHANGE))


@dataclass(frozen=True)
class TooFew:
    """The fewest and the most runs of a value, and how many of each could make a step certain."""

    fewest: int
    most: int
    needed: int


@dataclass(frozen=True)
class Finding:
    """Steps of neighbouring series at the same place. `p`: that noise alone has any cluster like
    it; None where the noise is not known, and the steps only exceed those of the others.

    `too_few`: p is that of the largest step that so few runs can have.
    """

    steps: tuple[Step, ...]
    p: float | None = None
    too_few: TooFew | None = None

    @property
    def is_noise_known(self) -> bool:
        return self.p is not None and all(min(step.counts) > 1 for step in self.steps)

    @property
    def is_certain(self) -> bool:
        return self.is_noise_known and self.p is not None and self.p <= FALSE_ALARMS

    @property
    def mass(self) -> float:
        return _mass(np.array([step.t for step in self.steps]))


def find_steps(
    every: Sequence[Measurements], neighbours: Iterable[tuple[int, int]], seed: int = SEED
) -> list[Finding]:
    """The findings, those with the largest mass first, and last those of too few runs.

    `neighbours`: pairs of series.
    """
    edges = np.array([*neighbours], dtype=np.int64).reshape(-1, 2)
    found = [*_permuted_findings(every, edges, seed), *_far_findings(every, edges)]
    return sorted(found, key=lambda finding: (finding.too_few is not None, -finding.mass))


def too_few(measured: Measurements, after: int, series: int = 1) -> TooFew | None:
    """Whether no step at this place could be certain, in so many series that are permuted
    independently. Of equally many runs of each value two orders are a step: the later ones on
    either side."""
    places = np.unique(measured.places)
    values = places.size
    later = int(np.sum(places >= after))
    needed = next(
        runs for runs in count(1) if 2 / comb(values * runs, later * runs) ** series <= FALSE_ALARMS
    )
    fewest = min(measured.counts)
    return TooFew(fewest, max(measured.counts), needed) if fewest < needed else None


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


def _step(number: int, measured: Measurements, after: int, t: float) -> Step:
    is_later = measured.places >= after
    sides = (measured.seconds[~is_later], measured.seconds[is_later])
    return Step(
        number,
        int(measured.places[~is_later].max()),
        int(after),
        (float(np.median(sides[0])), float(np.median(sides[1]))),
        (sides[0].size, sides[1].size),
        float(t),
    )


# ---------------------------------------------------------------- series with values that repeat


def _permuted_findings(every: Sequence[Measurements], edges: Edges, seed: int) -> Iterator[Finding]:
    """What is found is taken away, and the rest is searched again: it must not hide behind the
    masses of real steps (Westfall & Young 1993, step down)."""
    repeated = [number for number, each in enumerate(every) if each.is_repeated]
    noise = _noise([every[number] for number in repeated])
    left = alike(every, repeated)
    rng = np.random.default_rng(seed)
    while left:
        findings = _tested(every, left, noise, edges, rng)
        found = [finding for finding in findings if finding.too_few is None]
        yield from found or findings
        if not found:
            return
        stepped = [step.series for finding in found for step in finding.steps]
        left = [rest for group in left if (rest := group.without(stepped)).numbers.size]


def _noise(every: Sequence[Measurements]) -> float:
    """The standard deviation of the logs of a value that was measured several times: the median of
    the series."""
    deviations = [
        np.std(own, ddof=1)
        for each in every
        for place in np.unique(each.places)
        if (own := each.logs[each.places == place]).size > 1
    ]
    return max(float(np.median(deviations)), LEAST_NOISE) if deviations else LEAST_NOISE


def _tested(
    every: Sequence[Measurements],
    groups: Sequence[Alike],
    noise: float,
    edges: Edges,
    rng: np.random.Generator,
) -> list[Finding]:
    """The clusters of which permuted values have none like it, or none that is larger where so
    few runs have no other."""
    splits = _best_splits(groups, len(every), noise)
    clusters = splits.clusters(edges)
    if not clusters:
        return []
    largest = np.array([*_largest_masses(groups, len(every), noise, edges, rng)])
    findings = []
    for own in clusters:
        mass = splits.mass(own)
        steps = (
            _step(number, every[number], splits.after[number], splits.t[number]) for number in own
        )
        seen = tuple(step for step in steps if step.is_seen)
        p = _share(largest >= mass * (1 - ROUNDING))
        if seen and p <= LARGEST_P:
            findings.append(Finding(seen, p))
        elif seen and _share(largest > mass * (1 + ROUNDING)) <= LARGEST_P:
            example = every[own[0]]
            few = too_few(example, splits.after[own[0]], len(own) if example.is_free else 1)
            findings += [Finding(seen, p, few)] if few is not None else []
    return findings


def _share(is_like_it: NDArray[np.bool_]) -> float:
    """Of the permutations and what was measured."""
    return float((is_like_it.sum() + 1) / (is_like_it.size + 1))


def _largest_masses(
    groups: Sequence[Alike], size: int, noise: float, edges: Edges, rng: np.random.Generator
) -> Iterator[float]:
    """Of a cluster, in each permutation."""
    series = sum(group.numbers.size for group in groups)
    units = 1 + max(int(group.units.max()) for group in groups)
    for _ in range(max(LEAST_PERMUTATIONS, min(PERMUTATIONS, MOST_WORK // series))):
        keys = rng.random(units)
        splits = _best_splits([group.permuted(keys) for group in groups], size, noise)
        yield max(map(splits.mass, splits.clusters(edges)), default=0.0)


# ---------------------------------------------------------------- series measured once a value


def _far_findings(every: Sequence[Measurements], edges: Edges) -> Iterator[Finding]:
    """Steps that are far from those that all have at their place."""
    single = [number for number, each in enumerate(every) if not each.is_repeated]
    splits = _best_splits(alike(every, single), len(every), LEAST_NOISE)
    steps = [
        _step(number, every[number], splits.after[number], splits.t[number])
        for number in single
        if splits.t[number] != 0
    ]
    far: dict[int, Step] = {}
    for others in grouped(steps, lambda step: (step.before, step.after)).values():
        logs = np.log([step.ratio for step in others])
        away = np.abs(logs - np.median(logs))
        spread = max(TO_STANDARD_DEVIATION * float(np.median(away)), SMALLEST_CHANGE)
        is_far = away > SUSPECT_SPREADS * spread
        far |= {others[n].series: others[n] for n in np.flatnonzero(is_far)}
    signs = np.zeros(len(every))
    signs[[*far]] = [np.sign(step.ratio - 1) * LEAST_T for step in far.values()]
    for own in _Splits(signs, splits.after).clusters(edges):
        yield Finding(tuple(far[number] for number in own))


# ---------------------------------------------------------------- clusters


@dataclass(frozen=True)
class _Splits:
    """The best split of each of all series: its `t`, 0 of those that are not looked at, and the
    place that is the first `after` it."""

    t: NDArray[np.float64]
    after: NDArray[np.int64]

    def clusters(self, edges: Edges) -> list[list[int]]:
        """Neighbours that step at the same place in the same direction, each beyond LEAST_T."""
        is_far = np.abs(self.t) >= LEAST_T
        kinds = self.after * np.sign(self.t)
        first, second = edges.T
        kept = edges[is_far[first] & is_far[second] & (kinds[first] == kinds[second])]
        cluster_of = {number: [number] for number in np.flatnonzero(is_far).tolist()}
        for one, other in kept.tolist():
            if cluster_of[one] is not cluster_of[other]:
                cluster_of[one] += cluster_of[other]
                cluster_of |= dict.fromkeys(cluster_of[other], cluster_of[one])
        return [*{id(own): own for own in cluster_of.values()}.values()]

    def mass(self, numbers: Sequence[int]) -> float:
        return _mass(self.t[numbers])


def _best_splits(groups: Iterable[Alike], size: int, noise: float) -> _Splits:
    t = np.zeros(size)
    after = np.zeros(size, dtype=np.int64)
    for group in groups:
        t[group.numbers], after[group.numbers] = group.best_splits(noise)
    return _Splits(t, after)


def _mass(t: NDArray[np.float64]) -> float:
    return float(np.minimum(np.abs(t), MOST_T).sum())
