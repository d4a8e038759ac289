"""A rehearsal of `commbench watch`, whose later turns have a planted change."""

from __future__ import annotations

from collections import Counter

from commbench.cluster.baseline.store import launches_of, read_stored_runs
from commbench.cluster.baseline.suite_key import suite_key
from commbench.cluster.watch.state import read_state
from commbench.cluster.watch.suite import WatchOptions
from commbench.core.errors import ConfigError
from commbench.core.units import plural
from commbench.stats.thresholds import DECIDING_LAUNCHES


class YoungStore(ConfigError):
    """Raised for a rehearsal in a store that tells no change yet."""


def check_rehearsal(options: WatchOptions) -> None:
    """Raises YoungStore where no case will have enough healthy launches when a plant begins."""
    if not options.planted:
        return
    state = read_state(options.store)
    taken = 0 if state is None else state.taken
    rows = [row for run in read_stored_runs(options.store) for row in run.rows]
    counts = Counter(suite_key(row) for row in rows for _ in launches_of(row, ""))
    first = max(taken + 1, min(turn for turn, _ in options.planted))
    most = max(counts.values(), default=0) + first - taken - 1  # if all turns before are healthy
    if most < DECIDING_LAUNCHES:
        launches = plural(most, "healthy launch", "healthy launches")
        raise YoungStore(
            f"--plant begins with turn {first}, when the store has at most {launches} of a case; a"
            f" change is told from {DECIDING_LAUNCHES} on: begin with turn"
            f" {first + DECIDING_LAUNCHES - most}"
        )
