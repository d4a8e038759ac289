"""Compare two sides of launches case by case: which belong together, and the verdict of each."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from commbench.core.errors import ConfigError
from commbench.core.units import natural_key
from commbench.core.variables import BY_NAME, NAMES, SIZES, is_number
from commbench.results.load import plain
from commbench.stats import difference
from commbench.stats.difference import NOISE_LAUNCHES
from commbench.stats.thresholds import SMALLEST_CHANGE
from commbench.stats.verdict import adjusted_p, compare_launches

from .compared_case import ComparedCase, by_launch, case_of, judged, measured, numbers
from .joined_rows import Key, joined_rows, key_of, reasons_apart, rows_by_key
from .sides import (
    ComparedVariable,
    Side,
    parse_by,
    read_side,
    select_rows,
    sources_of,
    variable_text,
)

if TYPE_CHECKING:
    import pandas as pd

    from .sides import Source

COMPARISON_COLUMNS = (
    *NAMES,
    "sides",
    "base_launches",
    "new_launches",
    "base_unmeasured",
    "new_unmeasured",
    "base_median_s",
    "new_median_s",
    "base_gb_per_s",
    "new_gb_per_s",
    "ratio",
    "ratio_low",
    "ratio_high",
    "delta",
    "verdict",
    "p_value",
    "p_holm",
    "p95_ratio",
    "p99_ratio",
    "base_groups",
    "new_groups",
    "day_ratio",
    "reason",
)
NUMBER_TYPES = {  # of the columns that are numbers
    name: "Int64" if name.endswith(("_launches", "_unmeasured")) else "float64"
    for name in COMPARISON_COLUMNS[len(NAMES) :]
    if name not in ("sides", "verdict", "base_groups", "new_groups", "reason")
}


@dataclass(frozen=True)
class Rules:
    """How two sides are compared. `delta` is the smallest threshold; `noise`: key -> relative noise
    of A/A launches; `settings`: how many are compared with BASE, one after the other."""

    by: tuple[ComparedVariable, ...] = ()
    paired: bool = False
    delta: float = SMALLEST_CHANGE
    seed: int = 0
    noise: Mapping[Key, float] | None = None
    settings: int = 1

    def tests(self, cases: int) -> int:
        """For how many p is corrected, where each setting has so many cases."""
        return self.settings * cases

    def threshold(self, key: Key) -> float:
        """The threshold of a case: its own noise, else the largest of all A/A cases; at least
        delta."""
        noise = self.noise or {}
        return max(self.delta, noise.get(key, max(noise.values(), default=0.0)))


def compare(
    base: Source | Sequence[Source],
    new: Source | Sequence[Source],
    *,
    by: str | Iterable[str] = (),
    aa: Source | Sequence[Source] = (),
    delta: float = SMALLEST_CHANGE,
    paired: bool = False,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per case of either side: both medians, their ratio with its 95 % interval, and a
    verdict.

        commbench.compare("results/before", "results/after").query("verdict == 'SLOWER'")

    base, new, aa: folders with runs, parquet files of cases, or data frames from `commbench.load`.
    Each run is one launch, except that timing=rigorous makes several (paired: one). by: variables
    that may differ, `backend` or `backend=gloo:mpi`. aa: launches under identical conditions, whose
    noise raises the threshold `delta` (0.02 is 2 %). paired: launches with the same number ran next
    to each other. seed: for the random halves of `aa`.

    ratio: time of NEW / time of BASE, above 1 is slower. verdict: SLOWER, FASTER, SUSPECT (slower,
    but not for certain), SAME or UNDECIDED; the rule is in commbench/stats/verdict.py.
    p_value: Mann-Whitney on launch medians, paired the signed-rank test; null with too few
    launches. p_holm: the same, corrected for all cases. p95_ratio, p99_ratio: median over launches.
    day_ratio: up to which days alone may differ (95 %), where both sides are of other days.
    sides: both, base, new. Raises ConfigError for sides that can't be compared.
    """
    variables = parse_by(by.split(",") if isinstance(by, str) else by)
    sides = (
        select_rows(read_side("BASE", base), variables),
        select_rows(read_side("NEW", new), variables),
    )
    noise_of = noise_by_key(read_side("A/A", aa), variables, seed) if sources_of(aa) else None
    for problem in (line for side in sides for line in side.problems):
        warnings.warn(problem, stacklevel=2)
    return _frame(compare_sides(*sides, Rules(variables, paired, delta, seed, noise_of)))


def compare_sides(base: Side, new: Side, rules: Rules) -> list[ComparedCase]:
    """The cases of either side in the order of tables, of the rows that `select_rows` has
    chosen."""
    joined = joined_rows(base, new, rules.by)
    apart = reasons_apart(joined.base, joined.new, "NEW")
    apart |= reasons_apart(joined.new, joined.base, "BASE")
    cases = {
        key: case_of(
            joined.base.get(key, []), joined.new.get(key, []), apart.get(key), rules.paired
        )
        for key in {**joined.base, **joined.new}
    }
    comparisons = {
        key: compare_launches(
            case.base.medians_s, case.new.medians_s, rules.threshold(key), rules.paired
        )
        for key, case in cases.items()
        if all(case.launches)
    }
    adjusted = adjusted_p(list(comparisons.values()))
    for (key, comparison), p_holm in zip(comparisons.items(), adjusted, strict=True):
        case = cases[key]
        p_adjusted = min(1.0, rules.settings * p_holm)
        shown = judged(case, comparison, p_adjusted, rules.threshold(key))
        cases[key] = replace(case, judged=shown)
    return sorted(cases.values(), key=_place_in_table)


def _place_in_table(case: ComparedCase) -> list[tuple[Any, ...]]:
    """The values of the variables, the size last."""
    order = sorted(NAMES, key=lambda name: name in SIZES)
    return [natural_key(getattr(case.variables, name)) for name in order]


def noise_by_key(aa: Side, by: Sequence[ComparedVariable], seed: int) -> dict[Key, float]:
    """Key -> relative noise of launches under identical conditions; raises ConfigError if no case
    has NOISE_LAUNCHES of them."""
    noise_of = dict[Key, float]()
    for rows in rows_by_key(aa, ()).values():
        launches = by_launch(measured(rows))
        key = key_of(rows[0], (variable.name for variable in by))
        if len(launches) >= NOISE_LAUNCHES:
            # no case depends on the others
            generator = np.random.default_rng([seed, _seed_of(key)])
            medians_s = numbers(row.median_s for row in launches)
            level = math.expm1(difference.noise(medians_s, generator))
            noise_of[key] = max(noise_of.get(key, 0.0), level)
    if not noise_of:
        raise ConfigError(
            f"--aa {aa.label} has no case with {NOISE_LAUNCHES} measured launches: its noise is"
            " unknown"
        )
    return noise_of


def _seed_of(key: Key) -> int:
    """Of the variables that differ from their default, so that a new variable changes no seed."""
    own = {
        name: dict(value) if isinstance(value, tuple) else plain(value)
        for name, value in zip(NAMES, key, strict=True)
        if value != BY_NAME[name].default
    }
    text = json.dumps(own, sort_keys=True)
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


# ---------------------------------------------------------------- the data frame


def _frame(cases: Sequence[ComparedCase]) -> pd.DataFrame:
    """The columns COMPARISON_COLUMNS of the cases; a variable in which the sides differ is text:
    BASE -> NEW."""
    import pandas as pd

    frame = pd.DataFrame(map(_columns, cases), columns=list(COMPARISON_COLUMNS))
    differing = {name for case in cases for name in case.differing}
    whole = [name for name in NAMES if is_number(name) and name not in differing]
    return frame.astype(NUMBER_TYPES | dict.fromkeys(whole, "Int64"))


def _columns(case: ComparedCase) -> dict[str, Any]:
    values = {name: _table_value(getattr(case.variables, name)) for name in NAMES}
    values |= {name: case.text(name) for name in case.differing}
    values |= {
        "sides": case.sides,
        "base_launches": len(case.base.launches),
        "new_launches": len(case.new.launches),
        "base_unmeasured": case.base.unmeasured,
        "new_unmeasured": case.new.unmeasured,
        "reason": case.reason,
    }
    judged = case.judged
    if judged is None:
        return values
    comparison = judged.comparison
    values |= {
        "base_median_s": comparison.base_s,
        "new_median_s": comparison.new_s,
        "base_gb_per_s": case.base.gb_per_s(comparison.base_s),
        "new_gb_per_s": case.new.gb_per_s(comparison.new_s),
        "ratio": judged.ratio.value,
        "delta": judged.delta,
        "verdict": judged.verdict,
        "p95_ratio": judged.p95_ratio,
        "p99_ratio": judged.p99_ratio,
        "base_groups": case.base.groups,
        "new_groups": case.new.groups,
        "day_ratio": judged.day_ratio,
    }
    if comparison.is_decidable:
        values |= {"ratio_low": judged.ratio.low, "ratio_high": judged.ratio.high}
        values |= {"p_value": comparison.p_value, "p_holm": judged.p_holm}
    return values


def _table_value(value: Any) -> Any:
    """The value of a variable in a table: a map as text."""
    return variable_text(value) if isinstance(value, tuple) else plain(value)
