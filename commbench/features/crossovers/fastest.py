"""The fastest at each size as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commbench.analysis.best import Best, best_of_each_size, shared_variables
from commbench.results.load import rows_of_frame

from .crossover import shared_values

if TYPE_CHECKING:
    import pandas as pd

BEST_COLUMNS = (
    "message_bytes",
    "best",
    "median_s",
    "ci_low_s",
    "ci_high_s",
    "second",
    "ratio",
    "compared",
    "alike",
    "alike_s",
    "launches",
)


def fastest_by_size(cases: pd.DataFrame, *variables: str) -> pd.DataFrame:
    """The fastest value of a variable (or of several together; default: backend) at each size that
    at least two have.

    One row per size: what they share, message_bytes, best (its name, or "not distinguishable" where
    its interval does not differ from another's), median_s with its interval, second, ratio (the
    second median / the best), compared (how many), alike (names that do not differ from the best,
    itself included), alike_s (their medians), launches (the fewest of those compared; below 5, of
    several sizes more, the best is that of this run). Raises CommbenchError like crossovers.
    """
    import pandas as pd

    variables = variables or ("backend",)
    shared = shared_variables(*variables)
    rows = [
        (*shared_values(best.shared, shared), *_numbers(best))
        for best in best_of_each_size(rows_of_frame(cases), *variables)
    ]
    return pd.DataFrame(rows, columns=[*shared, *BEST_COLUMNS])


def _numbers(best: Best) -> tuple[Any, ...]:
    """By BEST_COLUMNS."""
    return (
        best.message_bytes,
        best.best,
        best.median.value,
        *best.median.ends,
        best.second,
        best.ratio,
        len(best.rivals),
        best.alike,
        tuple(rival.time.median_s for rival in best.undistinguished),
        best.launches,
    )
