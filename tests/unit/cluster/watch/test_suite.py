"""What `commbench watch` measures again: no more than what is suspected, where settings can say
that."""

from __future__ import annotations

import pytest

from commbench.cluster.watch.command import watch_options
from commbench.cluster.watch.suite import WatchedSuite, narrowed_jobs, watched_suite
from commbench.core.variables import Case

pytestmark = pytest.mark.usefixtures("outside_any_world")


def narrowed(*words: str, benchmark: str, message_bytes: int) -> tuple[WatchedSuite, set[Case]]:
    """A suite, and the cases of the jobs that measure these of it again."""
    options = watch_options([*words, "backend=simulated", "--baseline", "store", "--once"])
    suite = watched_suite(options)
    wanted = {
        key
        for key, case in suite.cases.items()
        if (case.benchmark, case.message_bytes) == (benchmark, message_bytes)
    }
    assert wanted
    again = [
        watched_suite(watch_options([*job.overrides, "--baseline", "store", "--once"]))
        for job in narrowed_jobs(suite, wanted, options)
    ]
    cases = {key: case for each in again for key, case in each.cases.items()}
    assert wanted <= cases.keys()
    return suite, set(cases.values())


def test_one_case_of_a_suite_is_measured_alone() -> None:
    suite, again = narrowed(
        "benchmark=[all_reduce,broadcast]", "sizes=[8,64]", benchmark="broadcast", message_bytes=64
    )
    assert len(suite.cases) == 4
    assert {(case.benchmark, case.message_bytes) for case in again} == {("broadcast", 64)}


def test_sizes_that_count_otherwise_stay_as_they_are() -> None:
    """sizes_per=rank: 8 B of each of 4 ranks are a message of 32 B, and sizes=[32] would be
    another."""
    _, again = narrowed(
        "benchmark=[all_gather,barrier]",
        "sizes=[8,64]",
        "sizes_per=rank",
        "layout=1x4",
        benchmark="all_gather",
        message_bytes=32,
    )
    assert {(case.benchmark, case.message_bytes) for case in again} == {
        ("all_gather", 32),
        ("all_gather", 256),
    }


def test_only_the_worlds_that_have_the_case_are_started_again() -> None:
    suite, again = narrowed(
        "-m", "benchmark=all_reduce,barrier", "sizes=[8]", benchmark="barrier", message_bytes=0
    )
    assert len(suite.jobs) == 2
    assert {case.benchmark for case in again} == {"barrier"}


def test_a_part_of_an_experiment_stays_one() -> None:
    _, again = narrowed("experiment=guidelines", "scale=cpu", benchmark="barrier", message_bytes=0)
    assert {case.benchmark for case in again} == {"barrier"}


def test_the_suite_has_the_name_of_its_label_or_experiment() -> None:
    own = ["--baseline", "store", "--once", "backend=simulated"]
    assert watched_suite(watch_options([*own, "label=daily"])).name == "daily"
    assert watched_suite(watch_options([*own, "experiment=tp_dp", "scale=cpu"])).name == "tp_dp"
    assert watched_suite(watch_options([*own, "sizes=[8]"])).name == "suite"
