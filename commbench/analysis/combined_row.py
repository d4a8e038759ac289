"""The cases of several runs as one row."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.core.variables import NAMES
from commbench.results.columns import GOOD_LEVEL
from commbench.results.row import Measured


@dataclass(frozen=True, kw_only=True)
class Combined(Measured):
    """A case over its `runs`: the median of them and the widest interval, as in a Family.

    `medians` are those of its launches. `run_id` is empty where there are several runs, and what
    COMBINED does not have is None.
    """

    median_s: float
    runs: int
    medians: tuple[float, ...]

    @property
    def launch_medians(self) -> tuple[float, ...]:
        return self.medians

    @property
    def launches(self) -> int:
        return len(self.medians)

    @classmethod
    def of(cls, rows: Sequence[Measured]) -> Combined:
        """The rows of the same case."""
        values = {
            name: combined([getattr(row, name) for row in rows])
            for combined, names in COMBINED.items()
            for name in names
        }
        values |= {
            "run_id": rows[0].run_id if len(rows) == 1 else "",
            "label": rows[0].label or "",
            "ci_low_s": _least(
                None if row.ci_low_s is None else min(row.ci_low_s, row.median_s) for row in rows
            ),
            "ci_high_s": _most(
                None if row.ci_high_s is None else max(row.ci_high_s, row.median_s) for row in rows
            ),
            "interval_level": min(row.interval_level or GOOD_LEVEL for row in rows),
            "medians": tuple(seconds for row in rows for seconds in row.launch_medians),
        }
        return cls(**values, runs=len(rows))


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _least(values: Iterable[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)


def _most(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _median(values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _all_flags(of_runs: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The flags that the case has in any of its runs."""
    return tuple(sorted({flag for flags in of_runs for flag in flags}))


# how several runs of a case are combined, for these columns; a feature combines its own
COMBINED: Mapping[Callable[[Sequence[Any]], Any], Sequence[str]] = {
    _first: (
        *NAMES,
        *("case_id", "hosts", "status", "world_size", "ranks_per_node", "headline", "median_of"),
        *("interval_of", "visits", "visits_s", "limit_name", "limit_kind", "duration_s"),
    ),
    _least: ("repetitions",),
    _median: (
        *("median_s", "p99_s", "efficiency", "retransmits", "limit_gb_per_s"),
        *("algbw_gb_per_s", "busbw_gb_per_s", "message_rate_per_s"),
    ),
    _all_flags: ("warnings",),
}
