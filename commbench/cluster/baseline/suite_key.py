"""By what a case of a suite is the same after an update of the library, and what else than its
times has changed."""

from __future__ import annotations

import json
from collections.abc import Iterable

from commbench.core.annexes import registered
from commbench.core.variables import BY_NAME, NAMES, Variables
from commbench.report.showing import Showing
from commbench.results.columns import case_text, grouped
from commbench.results.row import Row

UPGRADED = "library"  # a new version of it is a change of the case, not another case


def suite_key(case: Variables) -> str:
    """The variables of a row, or of a Case, that differ from their default, but for the version of
    the library."""
    own = {name: getattr(case, name) for name in NAMES if name != UPGRADED}
    differing = {name: value for name, value in own.items() if value != BY_NAME[name].default}
    return json.dumps(differing, sort_keys=True)


def changes_beside_times(healthy: Iterable[Row], new: Iterable[Row]) -> dict[str, str]:
    """`all_reduce 1x4 1 KiB: ...` by the key of a case: what features see in cases of both."""
    rows_before = grouped(healthy, suite_key)
    rows_now = grouped(new, suite_key)
    return {
        key: f"{case_text(now[0])}: {text}"
        for key, now in rows_now.items()
        for feature in registered(Showing)
        if key in rows_before and (text := feature.change(rows_before[key], now))
    }
