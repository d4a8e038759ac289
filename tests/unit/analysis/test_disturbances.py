"""What made numbers uncertain: each cause once, with its figures, and nothing without a reason."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.analysis.disturbances import causes
from commbench.results.row import Row


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


def row(**values: Any) -> Row:
    return case_row(**{"status": "ok", "engine": "python", "device": "cpu"} | values)


def test_a_quiet_run_has_no_cause() -> None:
    assert causes([run()], [row()]) == []
    assert causes([run(load=9.0)], [row(engine="virtual")]) == [], "a model is not busy"
    assert causes([run(load=9.0)], [row(status="failed")]) == []


def test_a_busy_machine_is_told_with_its_load() -> None:
    assert causes([run(load=4.8)], [row()]) == ["this machine was busy: load 4.80 on 4 cores"]
    busy = causes([run(load=4.8, nodes=5)], [row()])
    assert [text.split()[0] for text in busy] == ["n0", "n1", "n2", "and"]
    assert busy[-1] == "and 2 more nodes"


def test_a_busy_host_is_told_once_for_all_runs_and_by_name_beside_others() -> None:
    loads = [run("mpi", load=4.8), run(load=9.0)]
    assert causes(loads, [row()]) == ["this machine was busy: load 4.80 to 9.00 on 4 cores"]
    elsewhere = run("tcp", nodes=2)
    elsewhere["provenance"]["nodes"].pop(0)
    assert causes([*loads, elsewhere], [row()]) == ["n0 was busy: load 4.80 to 9.00 on 4 cores"]


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


def test_a_clock_that_went_back_is_told_once() -> None:
    early = {"started_at": "2026-01-01T00:00:00+00:00"}
    runs = [run(run_id=f"20260101T0{hour}0000.000000-0000", **early) for hour in (1, 3)]
    (told,) = causes(runs, [row()])
    assert "up to 3.0 h behind" in told


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "gloo has more threads than the 4 cores"),
        ({"device": "cuda"}, "gloo has several ranks on a GPU"),
        ({"layout": "1x8"}, "gloo has 8 ranks on the 4 cores in 1x8"),
    ],
)
def test_threads_that_take_turns_are_told(changed: dict[str, Any], words: str) -> None:
    crowded = row(**{"warnings": ["oversubscribed"]} | changed)
    calm = [row(layout="1x2")] if "layout" in changed else [row(backend="mpi")]
    assert causes([run()], [crowded, *calm]) == [words]


def test_ranks_that_waited_for_a_core_are_told_by_how_long_and_not_guessed() -> None:
    crowded = ["oversubscribed"]
    waited = [row(warnings=[*crowded, "waited"], core_wait_share=share) for share in (0.07, 0.614)]
    calm = row(warnings=crowded, core_wait_share=0.01)
    assert causes([run()], [calm, *waited]) == [
        "ranks of gloo waited for a core, 7 to 61 % of the time"
    ]
    assert causes([run()], [calm]) == []


def test_a_reference_that_moved_is_told_with_its_ends() -> None:
    passes = [{"moved": True, "p2p_latency_s": [at]} for at in (1e-6, 3e-6)]
    sentence = (
        "the machine changed between passes, which the intervals include: the reference case, 8 B"
        " after each pass, took {}"
    )
    took = sentence.format("1.00 us to 3.00 us with gloo")
    assert causes([run(reference=passes)], [row()]) == [took]
    faster = [{"moved": True, "p2p_latency_s": [at]} for at in (5e-7, 2e-6)]
    mpi = run(reference=faster) | {"backend": {"name": "mpi"}}
    both = [run(reference=passes), mpi, run(reference=faster)]
    took = sentence.format("500 ns to 3.00 us with gloo, 500 ns to 2.00 us with mpi")
    assert causes(both, [row()]) == [took], "one sentence for all runs"
    few = [*passes[:1], *({"moved": False, "p2p_latency_s": [1e-6]},) * 3]
    assert causes([run(reference=few)], [row()]) == []


def test_two_typical_times_are_told_with_both() -> None:
    modes = {"fast_mode_s": 35e-6, "slow_mode_s": 2e-3, "slow_share": 0.88}
    case = {"benchmark": "all_reduce", "message_bytes": 8}
    told = "two typical times of {}: 35.0 us, and 2.00 ms in 88 % of the repetitions".format
    case_text = "all_reduce 1x2 8 B"
    assert causes([run()], [row(**case | modes), row(**case)]) == [told(case_text)]
    beside = [row(**case | modes), row(**case, backend="mpi")]
    assert causes([run()], beside) == [told(f"gloo {case_text}")], "backends side by side"
    many = "4 cases have two typical times, both in the interval"
    assert causes([run()], [row(**case | modes)] * 4) == [many]


def test_backends_that_were_bound_differently_are_named() -> None:
    bound = run("mpi", provenance={"differences": {"run.bind": {"core 0": [0]}}, "nodes": []})
    assert causes([run(), bound], [row()]) == ["gloo: ranks not bound to cores, others were"]
    assert causes([run(), run("mpi", 0.4)], [row()]) == []
