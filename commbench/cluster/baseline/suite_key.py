"""By what a case of a suite is the same after an update of the library."""

from __future__ import annotations

import json

from commbench.core.variables import BY_NAME, NAMES, Variables

UPGRADED = "library"  # a new version of it is a change of the case, not another case


def suite_key(case: Variables) -> str:
    """The variables of a row, or of a Case, that differ from their default, but for the version of
    the library."""
    own = {name: getattr(case, name) for name in NAMES if name != UPGRADED}
    differing = {name: value for name, value in own.items() if value != BY_NAME[name].default}
    return json.dumps(differing, sort_keys=True)
