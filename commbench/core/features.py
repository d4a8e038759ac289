"""Features: folders of commbench.features that can be deleted.

What uses a feature asks for one of its modules, by a name that every feature may have: `keys`,
`probes`, `report_part`. So the rest of commbench knows no feature but by FEATURES, and by the
variables that say whose they are.
"""

from __future__ import annotations

from typing import Any

from .annexes import annex, needed_annex
from .variables import TABLE, Variables

FEATURES = ("accuracy",)


def feature_parts(part: str) -> list[Any]:
    """The module of that name of each feature that is there and has it."""
    found = (annex(f"commbench.features.{feature}.{part}") for feature in FEATURES)
    return [module for module in found if module is not None]


def needed_part(variable: str, value: object, part: str) -> Any:
    """That module of the feature of a variable; raises ConfigError where the feature is not
    there."""
    feature = next(each.feature for each in TABLE if each.name == variable)
    return needed_annex(f"commbench.features.{feature}.{part}", f"{variable}={value}")


def parts_of_case(case: Variables, part: str) -> list[Any]:
    """That module of each feature whose variables the case has."""
    values = {each.name: getattr(case, each.name) for each in TABLE if each.feature is not None}
    return [needed_part(name, value, part) for name, value in values.items() if value is not None]
