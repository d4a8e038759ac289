"""What else differed: stable facts are told, those of the moment are not."""

from __future__ import annotations

from typing import Any

from commbench.report.compare_text import differing, facts, ran_separately


def run(started_at: str = "2026-01-01T00:00:00", node: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    nodes = [{"host.hostname": "a", "host.load_1min": hash(started_at), "versions.torch": "2.6"} | (node or {})]
    return {
        "run_id": started_at, "folder": started_at, "started_at": started_at, "label": "", "launch": 0,
        "config": {"seed": 0, "env": {}, "output": started_at, **config}, "provenance": {"nodes": nodes},
    }  # fmt: skip


def test_equal_runs_differ_in_nothing() -> None:
    assert differing([run("1"), run("2")], [run("3")]) == []


def test_versions_environment_and_configuration_are_told() -> None:
    base, new = run(window=64), run(window=1, node={"versions.torch": "2.7", "environment.NCCL_ALGO": "Ring"})
    found = differing([base], [new])
    assert [str(one) for one in found] == [
        "config.window: 64 -> 1", "environment.NCCL_ALGO: missing -> Ring", "versions.torch: 2.6 -> 2.7",
    ]  # fmt: skip
    assert all(one.apart for one in found)


def test_what_varies_within_a_side_is_not_apart() -> None:
    found = differing([run("1", seed=1), run("2", seed=2)], [run("3", seed=2)])
    assert [(one.key, one.apart) for one in found] == [("config.seed", False)]


def test_all_nodes_are_looked_at() -> None:
    two = run()
    two["provenance"]["nodes"].append({"versions.torch": "2.5"})
    assert facts(two)["versions.torch"] == "2.5, 2.6"
    assert [str(one) for one in differing([run()], [two])] == ["versions.torch: 2.6 -> 2.5, 2.6"]


def test_a_broken_record_has_no_facts_of_nodes() -> None:
    assert facts({"provenance": None, "label": "x"}) == {"label": "x", "provenance": "null"}
    assert differing([], [run()]) == []


def test_long_values_are_cut() -> None:
    (one,) = differing([run(name="x" * 500)], [run(name="")])
    assert len(str(one)) < 120 and "..." in str(one)


def test_sides_that_were_not_interleaved_are_found() -> None:
    first, second, third, fourth = (run(f"2026-01-01T0{hour}") for hour in range(4))
    assert ran_separately([first, second], [third, fourth])
    assert ran_separately([third, fourth], [first, second])
    assert not ran_separately([first, third], [second, fourth])
    assert not ran_separately([], [first])
    assert not ran_separately([{}], [first])
