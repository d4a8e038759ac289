"""A case of two sides: the launches that each has of it, and what they show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from commbench.core.errors import ConfigError
from commbench.core.texts import sides_text
from commbench.core.variables import NAMES
from commbench.results.columns import case_text
from commbench.results.row import Measured, Row
from commbench.stats.difference import ALPHA
from commbench.stats.interval import Interval
from commbench.stats.launch_groups import launch_groups
from commbench.stats.levels import GroupedLaunches, level_test
from commbench.stats.series import Series
from commbench.stats.verdict import Comparison, Verdict, verdict

from .sides import variable_text

BYTES_TOLERANCE = 1e-6


@dataclass(frozen=True)
class SideOfCase:
    """What one side has of a case: the launches that count, and how many rows do not."""

    launches: tuple[Measured, ...] = ()
    unmeasured: int = 0

    @property
    def has_rows(self) -> bool:
        return bool(self.launches) or self.unmeasured > 0

    @property
    def medians_s(self) -> Series:
        return numbers(row.median_s for row in self.launches)

    @property
    def groups(self) -> str | None:
        """The two groups into which the launches fall; None for one."""
        groups = launch_groups(self.medians_s.tolist())
        return None if groups is None else groups.text

    def gb_per_s(self, median_s: float) -> float | None:
        """The bandwidth at that time; None where the rows have none."""
        sizes = _finite(_gb(self.launches))
        return float(sizes[0]) / median_s if sizes.size else None


@dataclass(frozen=True)
class Judged:
    """What the launches of both sides show. `delta`: the threshold; `p_holm`: corrected for all
    cases; the ratios of percentiles are None where a side has none."""

    comparison: Comparison
    delta: float
    p_holm: float
    verdict: Verdict
    p95_ratio: float | None = None
    p99_ratio: float | None = None
    day_ratio: float | None = None

    @property
    def ratio(self) -> Interval:
        """Time of NEW / time of BASE; without an interval where the launches are too few."""
        return self.comparison.ratio


@dataclass(frozen=True)
class ComparedCase:
    """A case of either side. `rows`: the first of BASE and of NEW, or twice that of the only side;
    `judged` is None where a side has no measured launch."""

    rows: tuple[Row, Row]
    base: SideOfCase
    new: SideOfCase
    judged: Judged | None = None
    reason: str | None = None

    @property
    def sides(self) -> Literal["both", "base", "new"]:
        if self.base.has_rows and self.new.has_rows:
            return "both"
        return "base" if self.base.has_rows else "new"

    @property
    def variables(self) -> Row:
        """Those of BASE, where it has the case."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """`all_reduce 1x2 -> 2x1 8 B`"""
        return case_text(*self.rows)

    @property
    def differing(self) -> list[str]:
        """The variables in which the sides differ."""
        base, new = self.rows
        return [name for name in NAMES if getattr(base, name) != getattr(new, name)]

    def text(self, name: str) -> str:
        """The value of a variable; `BASE -> NEW` where the sides differ."""
        return sides_text(variable_text(getattr(row, name), name) for row in self.rows)

    @property
    def launches(self) -> tuple[int, int]:
        """Of BASE and of NEW."""
        return len(self.base.launches), len(self.new.launches)

    @property
    def verdict(self) -> Verdict | None:
        return None if self.judged is None else self.judged.verdict


def case_of(base: list[Row], new: list[Row], apart: str | None, paired: bool) -> ComparedCase:
    """What both sides have of a case, not yet judged; `apart`: why it is on one side only."""
    rows = [*base, *new]
    _check_alike(rows)
    used = measured(base), measured(new)
    if paired:
        used = _matched(*used)
    # each of timing=rigorous makes several; in pairs only whole runs have a counterpart
    base_launches, new_launches = used if paired else map(by_launch, used)
    reasons = sorted({row.reason for row in rows if row.reason is not None})
    return ComparedCase(
        ((base or new)[0], (new or base)[0]),
        SideOfCase(tuple(base_launches), len(base) - len(used[0])),
        SideOfCase(tuple(new_launches), len(new) - len(used[1])),
        reason="; ".join(filter(None, [*reasons, apart])) or None,
    )


def judged(case: ComparedCase, comparison: Comparison, p_holm: float, delta: float) -> Judged:
    base = case.base.launches
    new = case.new.launches
    return Judged(
        comparison,
        delta,
        p_holm,
        verdict(comparison, p_holm, delta),
        _tail_ratio((row.p95_s for row in base), (row.p95_s for row in new)),
        _tail_ratio((row.p99_s for row in base), (row.p99_s for row in new)),
        _day_ratio(case.base, case.new),
    )


def _tail_ratio(base: Iterable[float | None], new: Iterable[float | None]) -> float | None:
    """Of the launches that have this percentile."""
    base_s = _finite(numbers(base))
    new_s = _finite(numbers(new))
    if not base_s.size or not new_s.size or np.median(base_s) <= 0:
        return None
    return float(np.median(new_s) / np.median(base_s))


def _day_ratio(base: SideOfCase, new: SideOfCase) -> float | None:
    """None where both sides have the same days, or these are unknown."""
    if any(row.started_at is None for row in (*base.launches, *new.launches)):
        return None
    base_launches, new_launches = (
        GroupedLaunches(side.medians_s, [str(row.started_at)[:10] for row in side.launches])
        for side in (base, new)
    )
    test = level_test(base_launches, new_launches)
    return None if test is None else math.exp(test.distance(ALPHA))


def _gb(rows: Sequence[Row]) -> Series:
    """10^9 B of an operation of each row; NaN where unknown."""
    return numbers(row.algbw_gb_per_s for row in rows) * numbers(row.median_s for row in rows)


def numbers(values: Iterable[float | None]) -> Series:
    return np.array(list(values), dtype=np.float64)


def _finite(values: Series) -> Series:
    return values[np.isfinite(values)]


def _check_alike(rows: Sequence[Row]) -> None:
    """Raises ConfigError where rows of one key moved different payloads or were timed by different
    clocks."""
    clocks = {row.clock for row in rows if row.clock is not None}
    if len(clocks) > 1:
        listed = ", ".join(sorted(clocks))
        raise ConfigError(
            f"{case_text(rows[0])}: seconds of different clocks ({listed}) can't be compared"
        )
    known = _finite(1e9 * _gb(rows))
    if known.size and known.max() > known.min() * (1 + BYTES_TOLERANCE):
        seen = f"{known.min():.0f} B and {known.max():.0f} B per operation"
        raise ConfigError(f"{case_text(rows[0])}: different payloads, {seen}, can't be compared")


def measured(rows: Iterable[Row]) -> list[Measured]:
    """Rows that are ok and have a median."""
    return [row for row in rows if isinstance(row, Measured) and 0 < row.median_s < math.inf]


def by_launch(rows: Iterable[Measured]) -> list[Measured]:
    """A row per launch: a run of timing=rigorous has several."""
    return [replace(row, median_s=seconds) for row in rows for seconds in row.launch_medians]


def _matched(base: list[Measured], new: list[Measured]) -> tuple[list[Measured], list[Measured]]:
    """The launches whose number occurs on both sides, by number. Raises ConfigError for a number
    that occurs twice on a side."""
    base_of = _by_trial("BASE", base)
    new_of = _by_trial("NEW", new)
    both = sorted(base_of.keys() & new_of.keys())
    return [base_of[trial] for trial in both], [new_of[trial] for trial in both]


def _by_trial(side: str, rows: Sequence[Measured]) -> dict[int, Measured]:
    numbered = {row.trial: row for row in rows if row.trial is not None}
    if len(numbered) < len(rows):
        raise ConfigError(
            f"--paired: {side} has a trial twice in {case_text(rows[0])}; number them with trial=N"
        )
    return numbered
