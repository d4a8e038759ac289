"""The reference case: in which passes it moved, and what it measures."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from composed import FACTS, settings_of

from commbench.core.case import CaseGroup
from commbench.core.layout import Layout
from commbench.features.simulated.backend import Simulated
from commbench.measure.reference_case import (
    REFERENCE_REPETITIONS,
    PassReading,
    ReferenceCase,
    moved_passes,
)
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress

LAUNCHES = {"planned": 1, "began": [0], "spent_s": 0.0}
STARTED = datetime(2026, 1, 2, tzinfo=timezone.utc)
WORDS = ("backend=simulated", "benchmark=[all_reduce]", "sizes=[60kB]")


def passes(
    *medians: float, width: float = 0.01, name: str = "copy_s"
) -> dict[int, dict[str, PassReading]]:
    return {
        number: {name: PassReading(median, (1 - width / 2) * median, (1 + width / 2) * median)}
        for number, median in enumerate(medians, 1)
    }


@pytest.mark.parametrize(
    ("medians", "width", "expected"),
    [
        ((1.0, 1.0, 1.04), 0.01, set()),
        ((1.0, 1.0, 1.06), 0.01, {3}),
        ((1.0, 0.94, 1.0), 0.01, {2}),
        ((1.0, 1.0, 1.06), 0.20, set()),  # its own interval explains it
        ((1.0, 1.0, 1.30), 0.20, {3}),
        ((1.0, 2.0, 1.0, 2.1, 1.0), 0.01, {2, 4}),
        ((1.0,), 0.01, set()),
        ((), 0.01, set()),
    ],
)
def test_a_pass_is_disturbed_where_a_reading_moved_by_more_than_its_interval(
    medians: tuple[float, ...], width: float, expected: set[int]
) -> None:
    assert moved_passes(passes(*medians, width=width)) == expected


def test_each_kind_of_reading_is_compared_with_itself_only() -> None:
    copies = passes(1.0, 1.0, 1.0)
    messages = passes(5.0, 5.0, 9.0, name="p2p_latency_s")
    both = {number: copies[number] | messages[number] for number in copies}
    assert moved_passes(both) == {3}
    assert moved_passes(both | {1: copies[1], 3: copies[3]}) == set(), "a pass without a ping-pong"


def test_it_measures_a_message_between_the_first_two_ranks_of_the_largest_layout_and_a_copy() -> (
    None
):
    model = (
        "backend.model.latency_s=5e-6",
        "backend.model.call_s=0",
        "backend.model.bandwidth_gb_per_s=1000",
    )
    settings = settings_of(*WORDS, *model, "timing=soak")
    world, control = hosted_world(1, 4)
    settings = replace(
        settings, layouts=(Layout(1, 2), Layout(1, 4)), schedule="rounds", pairs="all"
    )
    reference = ReferenceCase(settings, world, FACTS)
    group = CaseGroup((0, 1, 2, 3))
    assert reference.groups == {group}
    library = settings.backend.open(world, control, "cpu")
    for number in (1, 2):
        reference.measure(number, {group: library}, control, Progress())
    assert reference.passes[2]["p2p_latency_s"].median_s == pytest.approx(5e-6, rel=0.01)
    assert all(
        0 < readings["copy_s"].low_s <= readings["copy_s"].median_s < 0.01
        for readings in reference.passes.values()
    )
    first, second = reference.record()
    assert [first["pass"], second["pass"]] == [1, 2] and len(first["copy_s"]) == 3  # type: ignore[arg-type]
    slow = settings_of(*WORDS, *model, "backend.model.latency_s=5e-5").backend
    assert isinstance(slow, Simulated)
    reference.measure(3, {group: slow.open(world, control, "cpu")}, control, Progress())
    assert 3 in moved_passes(reference.passes) and reference.record()[2]["moved"] is True


def test_one_rank_has_no_messages_and_still_its_copy() -> None:
    settings = settings_of(*WORDS)
    world, control = hosted_world(1, 1)
    reference = ReferenceCase(replace(settings, layouts=(Layout(1, 1),)), world, FACTS)
    reference.measure(1, {}, control, Progress())
    assert reference.groups == set() and set(reference.passes[1]) == {"copy_s"}
    assert REFERENCE_REPETITIONS >= 6
