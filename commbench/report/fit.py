"""Hockney's model, T(m) = alpha + beta m, fitted to the medians of a family; piecewise where the protocol changes.

Each piece minimises the sum of squared relative residuals, (T - fit) / T, so that microseconds count as much as
seconds (method.md 2.11). Neither alpha nor beta is negative. Reference: R. Hockney, Parallel Computing 20 (1994) 389.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from commbench.core.errors import CommbenchError

from .families import SHARED, Family, Times, families

if TYPE_CHECKING:
    import pandas as pd

Sizes = NDArray[np.int64]

MOST_PIECES, LEAST_POINTS = 3, 3
GOOD = 0.01  # a line that misses no size by more needs no pieces
CLEAR_FACTOR = 4.0  # the sum of squares must shrink by as much (residuals halve) ...
CLEAR_F = 10.0  # ... and the F statistic exceed this: by simulation noise alone does in 2 % of series of 6 to 30 sizes
NOTHING = 1e-30  # a sum of squares below which only rounding is left

FITTED = (
    "from_bytes", "to_bytes", "alpha_s", "beta_s_per_byte", "asymptotic_gb_per_s", "n_half_bytes", "largest_residual",
    "points",
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """alpha in seconds and beta in seconds per byte, of sizes[first:last]; relative residuals of these."""

    first: int
    last: int
    alpha_s: float
    beta_s_per_byte: float
    residuals: tuple[float, ...]

    @property
    def squares(self) -> float:
        return math.fsum(one * one for one in self.residuals)

    @property
    def largest_residual(self) -> float:
        return max(abs(one) for one in self.residuals)

    def at(self, size: float) -> float:
        """Seconds for a message of that many bytes."""
        return self.alpha_s + self.beta_s_per_byte * size


def hockney(cases: pd.DataFrame) -> pd.DataFrame:
    """One row a family and piece: its variables, from_bytes, to_bytes (both measured; the protocol changes between one
    piece's last and the next one's first), alpha_s, beta_s_per_byte, asymptotic_gb_per_s = 1 / beta, n_half_bytes =
    alpha / beta, largest_residual (relative), points.

    Bandwidth and n_half are null where beta is 0: these sizes do not show the cost of a byte. A family of one size has
    no row. Raises CommbenchError where no family has two.
    """
    import pandas as pd

    rows = [
        dict(family.variables) | _described(family, piece)
        for family in families(cases)
        if family.sizes.size > 1
        for piece in pieces(family.sizes, family.median_s)
    ]
    if not rows:
        raise CommbenchError("nothing to fit: no case was measured at two sizes; give sizes=octaves or several")
    return pd.DataFrame(rows, columns=[*SHARED, *FITTED])


def residuals(cases: pd.DataFrame) -> pd.DataFrame:
    """One row a family and size: its variables, message_bytes, median_s, fit_s, and residual = (median - fit) / median.

    Raises CommbenchError like hockney.
    """
    import pandas as pd

    rows = [
        dict(family.variables) | {"message_bytes": size, "median_s": time, "fit_s": piece.at(size), "residual": miss}
        for family in families(cases)
        if family.sizes.size > 1
        for piece in pieces(family.sizes, family.median_s)
        for size, time, miss in zip(
            family.sizes[piece.first : piece.last].tolist(),
            family.median_s[piece.first : piece.last].tolist(),
            piece.residuals,
            strict=True,
        )
    ]
    if not rows:
        raise CommbenchError("nothing to fit: no case was measured at two sizes; give sizes=octaves or several")
    return pd.DataFrame(rows)


def _described(family: Family, piece: Piece) -> dict[str, float]:
    beta = piece.beta_s_per_byte
    values = (
        int(family.sizes[piece.first]), int(family.sizes[piece.last - 1]), piece.alpha_s, beta,
        1e-9 / beta if beta else math.nan, piece.alpha_s / beta if beta else math.nan, piece.largest_residual,
        piece.last - piece.first,
    )  # fmt: skip
    return dict(zip(FITTED, values, strict=True))


def pieces(sizes: Sizes, times: Times) -> list[Piece]:
    """One to three lines that cover the sizes [n >= 1, ascending] in order; as few as explain the times [n]."""
    chosen = [_line(sizes, times, 0, sizes.size)]
    if chosen[0].largest_residual <= GOOD or sizes.size < 2 * LEAST_POINTS:
        return chosen
    lines = _lines(sizes, times)
    squares = {ends: line.squares for ends, line in lines.items()}
    for count in range(2, min(MOST_PIECES, sizes.size // LEAST_POINTS) + 1):
        better = min(_splits(sizes.size, count), key=lambda ends: sum(squares[one] for one in ends))
        candidate = [lines[one] for one in better]
        if _clearly_better(candidate, chosen, sizes.size):
            chosen = candidate
    return chosen


def _clearly_better(more: Sequence[Piece], fewer: Sequence[Piece], points: int) -> bool:
    """The F statistic of nested models; a piece costs three parameters, its line and where it begins."""
    before, after = sum(one.squares for one in fewer), max(sum(one.squares for one in more), NOTHING)
    extra, freedom = 3 * (len(more) - len(fewer)), max(points - 3 * len(more) + 1, 1)
    statistic = (before - after) / extra / (after / freedom)
    return before >= CLEAR_FACTOR * after and statistic > CLEAR_F


def _lines(sizes: Sizes, times: Times) -> dict[tuple[int, int], Piece]:
    """The line of every stretch that may be a piece."""
    stops = sizes.size + 1
    return {
        (first, last): _line(sizes, times, first, last)
        for first in range(stops - LEAST_POINTS)
        for last in range(first + LEAST_POINTS, stops)
    }


def _splits(points: int, count: int, first: int = 0) -> list[tuple[tuple[int, int], ...]]:
    """All ways to cut first..points into `count` stretches of at least LEAST_POINTS."""
    if count == 1:
        return [((first, points),)]
    lasts = range(first + LEAST_POINTS, points - LEAST_POINTS * (count - 1) + 1)
    return [((first, last), *rest) for last in lasts for rest in _splits(points, count - 1, last)]


def _line(sizes: Sizes, times: Times, first: int, last: int) -> Piece:
    """The least squares of 1 - alpha / T - beta m / T; where one of the two would be negative, it is 0."""
    time = times[first:last]
    columns = np.stack([1 / time, sizes[first:last] / time], axis=1)
    scale = np.sqrt((columns**2).sum(axis=0))
    unit = columns / scale
    solution = np.linalg.lstsq(unit, np.ones(time.size), rcond=None)[0] if time.size > 1 else np.array([-1.0, 0.0])
    if (solution < 0).any():
        each = np.diag(unit.sum(axis=0))  # alpha alone, beta alone
        solution = min(each, key=lambda one: float(((1 - unit @ one) ** 2).sum()))
    misses = 1 - unit @ solution
    alpha, beta = (solution / scale).tolist()
    return Piece(first, last, alpha, beta, tuple(misses.tolist()))
