"""Hockney's model: T(m) = alpha + beta m, piecewise.

Each piece minimises the sum of squared relative residuals, (T - fit) / T, so that microseconds
count as much as seconds. Neither alpha nor beta is negative. A new piece begins where the protocol
changes. Reference: R. Hockney, Parallel Computing 20 (1994) 389.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from commbench.analysis.families import Sizes, Times

MOST_PIECES = 3
MOST_CUTS = 48  # the stretches between them are fitted, each over all of its points
LEAST_POINTS = 3
GOOD_FIT = 0.25  # a piece that misses a size by more answers nothing
GOOD = 0.01  # a line that misses no size by more is not split
CLEAR_FACTOR = 4.0  # the sum of squares must shrink by this factor (residuals halve) ...
# ... and the F statistic exceed this: by simulation noise alone does in 2 % of series of 6 to 30
# sizes
CLEAR_F = 10.0
NOTHING = 1e-30  # a sum of squares below which only rounding errors are left


@dataclass(frozen=True)
class Piece:
    """The line of sizes[first:last]: alpha in seconds, beta in seconds per byte, and the relative
    residual of each."""

    first: int
    last: int
    alpha_s: float
    beta_s_per_byte: float
    residuals: tuple[float, ...]

    @functools.cached_property
    def squares(self) -> float:
        return math.fsum(residual * residual for residual in self.residuals)

    @property
    def largest_residual(self) -> float:
        return max(map(abs, self.residuals))

    @property
    def asymptotic_gb_per_s(self) -> float | None:
        """1 / beta; None where beta is 0, because these sizes do not show the cost of a byte."""
        return 1e-9 / self.beta_s_per_byte if self.beta_s_per_byte else None

    @property
    def n_half_bytes(self) -> float | None:
        """alpha / beta, the size that reaches half of the asymptotic rate; None where beta is 0."""
        return self.alpha_s / self.beta_s_per_byte if self.beta_s_per_byte else None

    def at(self, size: float) -> float:
        """Seconds for a message of that many bytes."""
        return self.alpha_s + self.beta_s_per_byte * size


def pieces(sizes: Sizes, times: Times) -> list[Piece]:
    """One to three lines that cover the sizes [n >= 1, ascending] in order: as few as explain the
    times [n]."""
    chosen = [_fitted_line(sizes, times, 0, sizes.size)]
    if chosen[0].largest_residual <= GOOD or sizes.size < 2 * LEAST_POINTS:
        return chosen
    cuts = _cuts(sizes.size)
    lines = {  # of every stretch that may be a piece
        (first, last): _fitted_line(sizes, times, first, last)
        for first, last in itertools.combinations((0, *cuts, sizes.size), 2)
        if last - first >= LEAST_POINTS
    }
    for count in range(2, min(MOST_PIECES, sizes.size // LEAST_POINTS) + 1):
        splits = ([lines[ends] for ends in split] for split in _splits(sizes.size, cuts, count))
        candidate = min(splits, key=_squares)
        # the F statistic of nested models; a piece costs three parameters, its line and where it
        # begins
        before = _squares(chosen)
        after = max(_squares(candidate), NOTHING)
        extra = 3 * (count - len(chosen))
        freedom = max(sizes.size - 3 * count + 1, 1)
        statistic = (before - after) / extra / (after / freedom)
        if before >= CLEAR_FACTOR * after and statistic > CLEAR_F:
            chosen = candidate
    return chosen


def _squares(lines: Sequence[Piece]) -> float:
    return sum(line.squares for line in lines)


def _cuts(points: int) -> list[int]:
    """Where a piece may begin: anywhere, or at MOST_CUTS places of many points."""
    step = max(1, math.ceil(points / MOST_CUTS))
    return list(range(max(step, LEAST_POINTS), points, step))


def _splits(points: int, cuts: Sequence[int], count: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut 0..points at these places into `count` stretches of at least
    LEAST_POINTS."""
    for chosen in itertools.combinations(cuts, count - 1):
        stretches = list(itertools.pairwise((0, *chosen, points)))
        if all(last - first >= LEAST_POINTS for first, last in stretches):
            yield stretches


def _fitted_line(sizes: Sizes, times: Times, first: int, last: int) -> Piece:
    """The least squares of 1 - alpha / T - beta m / T; where one of the two would be negative, it
    is 0."""
    constant = 1 / times[first:last]
    linear = sizes[first:last] / times[first:last]
    scales = math.sqrt(constant @ constant), math.sqrt(linear @ linear)
    constant = constant / scales[0]
    linear = linear / scales[1]
    # the best alpha without beta, and beta without alpha
    alone = float(constant.sum()), float(linear.sum())
    alpha = beta = -1.0
    # what is orthogonal to alpha's column determines beta; np.linalg.lstsq takes ten times as long
    if last - first > 1:
        common = constant @ linear
        slope = linear - common * constant
        rest = 1 - alone[0] * constant
        beta = float(slope @ rest / (slope @ slope))
        alpha = float(alone[0] - common * beta)
    if alpha < 0 or beta < 0:
        alpha, beta = (alone[0], 0.0) if alone[0] >= alone[1] else (0.0, alone[1])
    misses = 1 - alpha * constant - beta * linear
    return Piece(first, last, alpha / scales[0], beta / scales[1], tuple(misses.tolist()))
