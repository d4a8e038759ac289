"""What is known of the cases of a suite before a turn: their launches in the store and beside it,
and the changes that last."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from commbench.cluster.baseline.healthy_launches import HealthyLaunch, log_ratio
from commbench.cluster.baseline.store import StoredRun, day_of, launches_of
from commbench.cluster.baseline.suite_key import suite_key
from commbench.cluster.watch.state import CaseVerdict, KnownChange, WatchState
from commbench.results.row import Row


@dataclass(frozen=True)
class CaseHistory:
    """What is known of a case before a turn. `healthy`: its launches in the store. `aside`: those
    of runs that were kept out of the store for another case, or until more turns are there."""

    healthy: tuple[HealthyLaunch, ...] = ()
    aside: tuple[HealthyLaunch, ...] = ()
    change: KnownChange | None = None

    @property
    def known(self) -> CaseVerdict:
        return "SAME" if self.change is None else self.change.verdict

    @property
    def series(self) -> list[HealthyLaunch]:
        """All of them, oldest first."""
        return sorted((*self.healthy, *self.aside), key=lambda launch: launch.run_id)

    def shows_change(self, new: Sequence[HealthyLaunch]) -> bool:
        """Whether these launches are nearer to the changed ones than to the healthy ones, and no
        farther beyond."""
        if self.change is None or self.change.ratio is None or not self.healthy:
            return False
        return 0.5 < log_ratio(self.healthy, new) / math.log(self.change.ratio) < 1.5


def case_histories(
    state: WatchState, stored: Sequence[StoredRun], rows_aside: Iterable[Row]
) -> dict[str, CaseHistory]:
    """What is known of each case of the suite. `stored`: the runs of the store on this hardware;
    `rows_aside`: the rows of runs that were kept out of it."""
    healthy = _stored_launches(stored)
    aside = _launches_aside(state, rows_aside, {run.path.name for run in stored})
    return {
        key: CaseHistory(
            tuple(healthy.get(key, ())), tuple(aside.get(key, ())), state.changes.get(key)
        )
        for key in state.cases
    }


def _stored_launches(stored: Iterable[StoredRun]) -> Mapping[str, Sequence[HealthyLaunch]]:
    launches: dict[str, list[HealthyLaunch]] = {}
    for run in stored:
        day = day_of(run.record.get("started_at"))
        for row in run.rows:
            launches.setdefault(suite_key(row), []).extend(launches_of(row, day))
    return launches


def _launches_aside(
    state: WatchState, rows_aside: Iterable[Row], in_store: set[str]
) -> Mapping[str, Sequence[HealthyLaunch]]:
    """Runs that were set aside do not count for a case that has a change, nor for one of which a
    change has ended since; nor those that the user has added to the store."""
    launches: dict[str, list[HealthyLaunch]] = {}
    for row in rows_aside:
        key = suite_key(row)
        is_later = key not in state.changes and row.run_id > state.ended.get(key, "")
        if is_later and row.run_id not in in_store:
            launches.setdefault(key, []).extend(launches_of(row, day_of(row.started_at)))
    return launches
