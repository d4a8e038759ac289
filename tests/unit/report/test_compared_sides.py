"""What else differs in the run records of two sides, and whether they ran in turn."""

from __future__ import annotations

from typing import Any

from judged_cases import compared

from commbench.analysis.sides import Side
from commbench.report.compared_sides import (
    compared_facts,
    differing_facts,
    drift_text,
    ran_separately,
)


def run(
    started_at: str = "2026-01-01T00:00:00", node: dict[str, Any] | None = None, **config: Any
) -> dict[str, Any]:
    nodes = [
        {"host.hostname": "a", "host.load_1min": hash(started_at), "versions.torch": "2.6"}
        | (node or {})
    ]
    return {
        "run_id": started_at,
        "folder": started_at,
        "started_at": started_at,
        "label": "",
        "trial": 0,
        "config": {"seed": 0, "env": {}, "output": started_at, **config},
        "provenance": {"nodes": nodes},
    }


def test_equal_runs_differ_in_nothing() -> None:
    assert differing_facts([run("1"), run("2")], [run("3")]) == []


def test_versions_environment_and_configuration_are_told() -> None:
    base = run(window=64)
    new = run(window=1, node={"versions.torch": "2.7", "environment.NCCL_ALGO": "Ring"})
    facts = differing_facts([base], [new])
    assert [str(fact) for fact in facts] == [
        "config.window: 64 -> 1",
        "environment.NCCL_ALGO: missing -> Ring",
        "versions.torch: 2.6 -> 2.7",
    ]
    assert all(fact.apart for fact in facts)


def test_what_a_side_could_not_read_does_not_differ() -> None:
    unread = run(node={"versions.error": "git status did not answer", "a.b": None})
    read = run(node={"versions.git_dirty": False, "host.numa_nodes": 2, "a.b": 1})
    assert differing_facts([unread], [read]) == []
    changed = run(node={"versions.git_dirty": True, "a.b": 1})
    assert [str(fact) for fact in differing_facts([unread, read], [changed])] == [
        "versions.git_dirty: false -> true"
    ]


def test_what_varies_within_a_side_is_not_apart() -> None:
    facts = differing_facts([run("1", seed=1), run("2", seed=2)], [run("3", seed=2)])
    assert [(fact.key, fact.apart) for fact in facts] == [("config.seed", False)]


def test_all_nodes_are_looked_at() -> None:
    two = run()
    two["provenance"]["nodes"].append({"versions.torch": "2.5"})
    assert compared_facts(two)["versions.torch"] == "2.5, 2.6"
    assert [str(fact) for fact in differing_facts([run()], [two])] == [
        "versions.torch: 2.6 -> 2.5, 2.6"
    ]


def test_a_broken_record_has_no_facts_of_nodes() -> None:
    assert compared_facts({"provenance": None, "label": "x"}) == {
        "label": "x",
        "provenance": "null",
    }


def test_long_values_are_cut() -> None:
    (fact,) = differing_facts([run(name="x" * 500)], [run(name="")])
    assert len(str(fact)) < 120 and "..." in str(fact)


def test_a_difference_of_launches_that_were_not_taken_in_turn_says_so() -> None:
    hours = [run(f"2026-01-01T0{hour}") for hour in range(4)]
    slower, same = compared({}), compared({"verdict": "SAME"})
    first, last, even, odd = (
        Side(name, (), tuple(runs))
        for name, runs in (
            ("a", hours[:2]),
            ("b", hours[2:]),
            ("c", hours[::2]),
            ("d", hours[1::2]),
        )
    )
    assert drift_text(slower, first, last).startswith("not taken in turn: ")
    assert drift_text(same, first, last) == "" and drift_text(slower, even, odd) == ""


def test_sides_that_were_not_interleaved_are_found() -> None:
    first, second, third, fourth = (run(f"2026-01-01T0{hour}") for hour in range(4))
    assert ran_separately([first, second], [third, fourth])
    assert ran_separately([third, fourth], [first, second])
    assert not ran_separately([first, third], [second, fourth])
    assert not ran_separately([{}], [first])
    late = first | {"started_at": fourth["started_at"]}  # the clock went back after it
    assert not ran_separately([late, third], [second, fourth])
