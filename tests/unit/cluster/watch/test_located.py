"""Where a search for a slow node is made, and what a turn says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_cases import CASE

from commbench.cluster.baseline.fresh_launches import FreshLaunch, SuiteJob
from commbench.cluster.watch.changes import JudgedCase, Outcome
from commbench.cluster.watch.history import CaseHistory
from commbench.cluster.watch.located import Location, located, with_nodes
from commbench.cluster.watch.state import CaseVerdict, KnownChange
from commbench.config.compose import ConfigComposer
from commbench.config.settings import Job
from commbench.core.errors import ConfigError

CHANGE = KnownChange("SLOWER", "20261101T000000.000000-0000", 1.5)
SEARCH = {"answer": ["SLOWER: n5"], "bad": ["n5"], "suspects": []}


def case_of(layout: str, verdict: CaseVerdict = "SLOWER", is_new: bool = True) -> JudgedCase:
    change = replace(CHANGE, verdict=verdict)
    history = CaseHistory((), (), None if is_new else change)
    case = replace(CASE, layout=layout)
    outcome = Outcome("begun" if is_new else "unasked", verdict)
    return JudgedCase(case, None, history, None, None, outcome, change)


def searched(
    words: Sequence[str],
    cases: Mapping[str, JudgedCase],
    planted: Sequence[str] = (),
    search: Any = SEARCH,
) -> tuple[list[Job], Location | None]:
    """The job that is launched, and what is said after it."""
    with ConfigComposer() as composer:
        (job,) = composer.jobs(words, multirun=False)
    suite = SuiteJob(job, {key: each.case for key, each in cases.items()}, frozenset())
    launched: list[Job] = []

    def launch(own: Job) -> FreshLaunch:
        launched.append(own)
        runs = {Path("run"): {"search": search}}
        return FreshLaunch(Path(), {}, runs, 1)

    return launched, located(cases, [suite], planted, None, launch)


SIMULATED = ("backend=simulated", "layout=[2x1,8x2]", "benchmark=[all_reduce]", "preflight=off")


def test_the_largest_slower_layout_is_searched_where_the_suite_ran() -> None:
    cases = {"a": case_of("2x1"), "b": case_of("8x2"), "c": case_of("4x2")}
    planted = ["backend.model.slow_rank=1", "backend.model.slow_factor=2"]
    (job,), location = searched(SIMULATED, cases, planted)
    assert str(job.settings.layouts[0]) == "8x2" and job.settings.pairs == "search"
    assert job.settings.preflight == "off"
    assert location == Location(
        "n5",
        (
            "SLOWER: n5",
            "next: commbench locate backend=simulated preflight=off backend.model.slow_rank=1"
            " backend.model.slow_factor=2 layout=8x2",
        ),
    )


def test_the_backend_of_an_experiment_is_searched() -> None:
    (job,), _ = searched(["experiment=tp_dp", "scale=cpu"], {"a": case_of("1x4")})
    assert job.settings.backend.name == "nccl"
    assert [each.name for each in job.settings.benchmarks] == ["p2p_bandwidth", "p2p_latency"]


@pytest.mark.parametrize(
    "case",
    [
        case_of("1x2"),
        case_of("8x1", "FASTER"),
        case_of("8x1", "FAILED"),
        case_of("8x1", is_new=False),
    ],
    ids=["two ranks", "faster", "failed", "known"],
)
def test_nothing_is_searched(case: JudgedCase) -> None:
    assert searched(SIMULATED, {"a": case}) == ([], None)


def suspect(who: str, decision: CaseVerdict, between: str) -> dict[str, str]:
    return {
        "who": who,
        "decision": decision,
        "what_is_slow": "sends",
        "longer_by": "50 %",
        "between": between,
        "pairs": "7",
    }


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ("SLOWER", "n5: sends take 50 % longer than typical (40 .. 60 %), in 7 measured pairs"),
        ("UNDECIDED", "n6: sends take 50 % longer than typical, in 7 measured pairs"),
    ],
)
def test_the_evidence_is_that_against_slow_nodes_or_the_first_suspect(
    decision: CaseVerdict, text: str
) -> None:
    others = [suspect("n6", "UNDECIDED", "-"), suspect("n7", "UNDECIDED", "-")]
    suspects = [*others, suspect("n5", decision, "40 .. 60 %")]
    search = SEARCH | {"suspects": suspects}
    _, location = searched(SIMULATED, {"a": case_of("8x1")}, search=search)
    assert location is not None and location.lines[1:-1] == (text,)


def test_a_search_that_does_not_end_is_said() -> None:
    _, location = searched(SIMULATED, {"a": case_of("8x1")}, search=None)
    assert location is not None and location.nodes == ""
    assert location.lines[0] == "the search for slow nodes has not ended"


def test_a_search_that_is_refused_is_said() -> None:
    def refuse(job: Job) -> FreshLaunch:
        raise ConfigError("no room")

    with ConfigComposer() as composer:
        (job,) = composer.jobs(SIMULATED, multirun=False)
    case = case_of("8x1")
    location = located(
        {"a": case}, [SuiteJob(job, {"a": case.case}, frozenset())], [], None, refuse
    )
    assert location is not None
    assert location.lines[0] == "no search for slow nodes: no room"


def test_new_changes_to_slower_have_the_nodes() -> None:
    cases = {"a": case_of("8x1"), "b": case_of("8x1", is_new=False), "c": case_of("8x1", "FASTER")}
    named = with_nodes(cases, Location("n5", ()))
    assert [each.change and each.change.nodes for each in named.values()] == ["n5", "", ""]
    assert with_nodes(cases, None) == cases
