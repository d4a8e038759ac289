"""Message sizes of the five cases of a run, in the order in which the plan runs them."""

from __future__ import annotations

from functools import cache

from combination import FINISHED, Combination

from commbench.config.compose import ConfigComposer
from commbench.measure.plan import plan
from commbench.measure.plan_facts import PlanFacts
from commbench.runtime.control import hosted_world

SIZES = (8, 16, 24, 32, 40)
LARGE = 64 * 2**20  # bytes, too large for a rank without memory


def in_order(combination: Combination) -> list[int]:
    """The sizes of three cases that end, the one that breaks, and one more."""
    order = [SIZES[place] for place in _places()]
    return (
        [*order[:FINISHED], LARGE, *order[FINISHED + 1 :]]
        if combination.fault == "no memory"
        else order
    )


def as_given(order: list[int]) -> str:
    """The override that the plan shuffles into this order."""
    given = [size for _, size in sorted(zip(_places(), order, strict=True))]
    return f"sizes=[{','.join(str(size) for size in given)}]"


@cache
def _places() -> tuple[int, ...]:
    """Which of five given sizes comes first, second ...: the shuffle depends on the number of cases
    only."""
    with ConfigComposer() as composer:
        words = [
            "benchmark=[all_reduce]",
            "layout=1x2",
            f"sizes=[{','.join(str(size) for size in SIZES)}]",
        ]
        settings = composer.jobs(words, multirun=False)[0].settings
    world, _ = hosted_world(1, 2)
    return tuple(
        SIZES.index(job.case.message_bytes)
        for job in plan(settings, world, PlanFacts(2**40, 2**20, 2))
    )
