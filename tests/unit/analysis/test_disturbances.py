"""What made numbers uncertain: each cause once, with its figures, and nothing without a reason."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.analysis.disturbances import causes


def run(backend: str = "gloo", load: float = 0.5, nodes: int = 1, **more: Any) -> dict[str, Any]:
    facts = {"host.load_1min": load, "host.cpu_logical_cores": 4, "run.bind": "none"}
    return {
        "run_id": f"{backend}{load}",
        "started_at": "2026-01-01",
        "backend": {"name": backend},
        "world": {"ranks": [[2 * node, 2 * node + 1] for node in range(nodes)]},
        "provenance": {"nodes": [facts | {"host.hostname": f"n{node}"} for node in range(nodes)]},
        **more,
    }


def row(**values: Any) -> dict[str, Any]:
    return case_row(status="ok", engine="python", device="cpu", **values)


def test_a_quiet_run_has_no_cause() -> None:
    assert causes([run()], [row()]) == []
    assert causes([run(load=9.0)], [row() | {"engine": "virtual"}]) == [], "a model is not busy"
    assert causes([run(load=9.0)], [row() | {"status": "failed"}]) == []


def test_a_busy_machine_is_told_with_its_load() -> None:
    assert causes([run(load=4.8)], [row()]) == ["this machine was busy: load 4.80 on 4 cores"]
    busy = causes([run(load=4.8, nodes=5)], [row()])
    assert [text.split()[0] for text in busy] == ["n0", "n1", "n2", "and"]
    assert busy[-1] == "and 2 more nodes"


def test_cores_are_those_of_the_node_where_the_launcher_gave_each_rank_one() -> None:
    bare = run(load=4.8)
    (node,) = bare["provenance"]["nodes"]
    node["limits.cpu_cores"] = 1.0
    assert causes([bare], [row()]) == ["this machine was busy: load 4.80 on 1 cores"]
    bare["provenance"]["differences"] = {"host.cpu_affinity": {'"0"': [0], '"1"': [1]}}
    assert causes([bare], [row()]) == ["this machine was busy: load 4.80 on 4 cores"]


def test_of_a_sweep_the_first_run_tells_the_load() -> None:
    """In that of the others are the runs before them."""
    first = run(sweep_id="s")
    second = run(load=9.0, sweep_id="s", started_at="2026-01-02")
    assert causes([second, first], [row()]) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "gloo has more threads than the 4 cores"),
        ({"device": "cuda"}, "gloo has several ranks on a GPU"),
        ({"layout": "1x8"}, "gloo has 8 ranks on the 4 cores in 1x8"),
    ],
)
def test_threads_that_take_turns_are_told(changed: dict[str, Any], words: str) -> None:
    crowded = row(warnings=["oversubscribed"]) | changed
    calm = [row(layout="1x2")] if "layout" in changed else [row(backend="mpi")]
    assert causes([run()], [crowded, *calm]) == [words]


def test_a_reference_that_moved_is_told_with_its_ends() -> None:
    passes = [{"moved": True, "p2p_latency_s": [at]} for at in (1e-6, 3e-6)]
    assert causes([run(reference=passes)], [row()]) == [
        "gloo at 8 B moved between passes: 1.00 us to 3.00 us"
    ]
    few = [*passes[:1], *({"moved": False, "p2p_latency_s": [1e-6]},) * 3]
    assert causes([run(reference=few)], [row()]) == []


def test_a_soak_with_holes_is_told() -> None:
    soak = {"benchmark": "all_reduce", "message_bytes": 8, "visits_s": 60.0}
    holes = "all_reduce 1x2 8 B: 700 ms passed between its repetitions"
    assert causes([run()], [case_row() | row(unmeasured_s=0.7) | soak]) == [holes]
    assert causes([run()], [row(unmeasured_s=0.5) | soak]) == []


def test_backends_that_were_bound_differently_are_named() -> None:
    bound = run("mpi", provenance={"differences": {"run.bind": {"core 0": [0]}}, "nodes": []})
    assert causes([run(), bound], [row()]) == ["gloo: ranks not bound to cores, others were"]
    assert causes([run(), run("mpi", 0.4)], [row()]) == []
