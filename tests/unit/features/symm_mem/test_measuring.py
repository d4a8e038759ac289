"""Which algorithms a run on symmetric memory measures, and that other backends have none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from composed import FACTS, settings_of

from commbench.core.layout import Layout
from commbench.measure.plan import plan
from commbench.runtime.control import hosted_world


def algorithms(*words: str) -> list[str | None]:
    settings = settings_of(*words, "sizes=[64]")
    world, _ = hosted_world(1, 2)
    cases = plan(replace(settings, layouts=(Layout(1, 2),)), world, FACTS)
    return sorted((planned.case.algorithm for planned in cases), key=str)


@pytest.mark.parametrize(
    ("words", "measured"),
    [
        (["benchmark=all_reduce"], ["multimem", "one_shot", "two_shot"]),
        (["benchmark=all_gather"], ["multimem"]),
        (["benchmark=reduce_scatter"], ["two_shot"]),
        (["benchmark=all_to_all"], [None]),
        (["benchmark=p2p_latency", "algorithm=[one_shot,two_shot]"], [None]),
        (["benchmark=all_reduce", "algorithm=[one_shot,two_shot]"], ["one_shot", "two_shot"]),
        (["benchmark=all_gather", "algorithm=one_shot"], ["one_shot"]),  # and skipped
    ],
)
def test_all_algorithms_of_an_operation_are_measured_or_those_that_are_named(
    words: list[str], measured: list[str | None]
) -> None:
    assert algorithms("backend=symm_mem", *words) == measured


def test_other_backends_have_no_algorithms() -> None:
    assert algorithms("backend=gloo", "benchmark=all_reduce", "algorithm=[one_shot,all]") == [None]
