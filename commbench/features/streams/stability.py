"""Whether the speed of a soak stays as it is: how far it varies, and when it dipped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from commbench.stats.series import MAD_TO_SIGMA
from commbench.stats.thresholds import FALSE_ALARMS, LARGEST_UNSTEADY

from .ramp import END_SHARE, is_whole, ramp_of

LEAST_INTERVALS = 30  # that say something of hours
MOST_RAMP = END_SHARE  # of the time; a longer one is told as a stretch
WITHIN = 0.99  # of the intervals
STILL = 1e-9  # of the usual speed: nothing moved


@dataclass(frozen=True)
class Stretch:
    """Neighbouring intervals with another speed; `share`: that of the farthest one, over the usual
    speed."""

    begin_s: float
    end_s: float
    share: float


@dataclass(frozen=True)
class Stability:
    """Of a soak from `begin_s` (after its ramp) to `end_s`, both since its start.

    `within`: how far 99 % of the intervals outside of the stretches are from the usual speed, their
    median, over that.
    """

    begin_s: float
    end_s: float
    within: float
    slower: tuple[Stretch, ...] = ()
    faster: tuple[Stretch, ...] = ()

    @property
    def is_stable(self) -> bool:
        return not self.slower and not self.faster and self.within <= LARGEST_UNSTEADY


def stability_of(
    begins_s: NDArray[np.float64], moved: NDArray[np.float64], busy_s: NDArray[np.float64]
) -> Stability | None:
    """Of intervals [n] in which so much moved in so many measured seconds; None of fewer than
    LEAST_INTERVALS after the ramp."""
    whole = is_whole(busy_s)
    from_s = begins_s[whole] - begins_s[0]
    steady = from_s >= _ramp_s(begins_s, moved, busy_s)
    if steady.sum() < LEAST_INTERVALS:
        return None
    from_s = from_s[steady]
    speeds = (moved[whole] / busy_s[whole])[steady]
    edges_s = np.append(from_s, from_s[-1] + np.median(np.diff(from_s)))
    middle = np.quantile(speeds, 0.5, method="higher")  # never between two levels
    shares = np.maximum(speeds / middle, STILL)
    runs = list(_far_runs(np.log(shares)))
    stretches = [_stretch(edges_s, shares, first, last) for first, last in runs]
    usual = np.ones(len(shares), dtype=bool)
    for first, last in runs:
        usual[first : last + 1] = False
    return Stability(
        begin_s=float(edges_s[0]),
        end_s=float(edges_s[-1]),
        within=float(np.quantile(np.abs(shares[usual] - 1), WITHIN)),
        slower=tuple(each for each in stretches if each.share < 1),
        faster=tuple(each for each in stretches if each.share > 1),
    )


def _ramp_s(
    begins_s: NDArray[np.float64], moved: NDArray[np.float64], busy_s: NDArray[np.float64]
) -> float:
    """How long it took until full speed; 0 where that is no ramp, but much of the soak."""
    ramp = ramp_of(begins_s, moved, busy_s)
    reached_s = 0.0 if ramp is None else ramp.full_speed_s or 0.0
    return reached_s if reached_s <= MOST_RAMP * (begins_s[-1] - begins_s[0]) else 0.0


def _far_runs(far: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """The first and the last index of each stretch; `far`: logarithms of the speed over the usual.

    A stretch has an interval that is farther away than LARGEST_UNSTEADY, and than noise is in all
    but FALSE_ALARMS of the soaks. It lasts while half of that is left. Noise is what neighbours
    differ by, which a step does not widen.
    """
    noise = MAD_TO_SIGMA * np.median(np.abs(np.diff(far))) / np.sqrt(2)
    normal = NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * len(far)))
    bound = max(-np.log(1 - LARGEST_UNSTEADY), normal * noise)
    signs = np.sign(far) * (np.abs(far) > bound / 2)
    edges = np.flatnonzero(np.diff(signs)) + 1
    for run in np.split(np.arange(len(far)), edges):
        if np.abs(far[run]).max() > bound:
            yield int(run[0]), int(run[-1])


def _stretch(
    edges_s: NDArray[np.float64], shares: NDArray[np.float64], first: int, last: int
) -> Stretch:
    own = shares[first : last + 1]
    farthest = np.abs(np.log(own)).argmax()
    return Stretch(float(edges_s[first]), float(edges_s[last + 1]), float(own[farthest]))
