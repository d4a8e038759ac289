"""The verdict by node: what fails a node, what leaves it unmeasured, and that nothing else
passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_cases import case_row

from commbench.cluster.acceptance.machine_facts import gpu_problems
from commbench.cluster.acceptance.node_verdicts import Acceptance, newest_runs, stage_of
from commbench.cluster.acceptance.verdict import NodeVerdict, StageName
from commbench.cluster.acceptance.verdict_text import acceptance_section
from commbench.core.terminal import Terminal
from commbench.results.row import Row

NODES = 6
FACTS = {
    "host.cpu_model": "EPYC",
    "host.kernel": "6.1",
    "host.memory_total_bytes": 2**40,
    "network.interface.eth0.state": "up",
    "network.interface.eth0.speed_mbit_per_s": 100_000,
    "network.interface.eth0.network": "10.0.0.0/24",
}
SLOW_SEARCH: dict[str, Any] = {
    "nodes": ["SAME"] * 5 + ["SLOWER"],
    "suspects": [
        {
            "nodes": [5],
            "who": "n5",
            "decision": "SLOWER",
            "what_is_slow": "sends",
            "longer_by": "30 %",
            "between": "28 .. 32 %",
            "pairs": "24",
        }
    ],
}


def record(stage: str, layout: str = f"{NODES}x2", **more: Any) -> dict[str, Any]:
    facts = [{**FACTS, "host.hostname": f"n{node}"} for node in range(NODES)]
    search = {"nodes": ["SAME"] * NODES, "suspects": []}
    return {
        "run_id": stage,
        "started_at": "2026-01-01",
        "sweep_id": "s",
        "status": "done",
        "layouts": [layout],
        "config": {"stage": stage, "search": {"slowdown": 0.1}},
        "provenance": {"nodes": facts, "differences": {}},
        **({"search": search} if stage in ("pairs", "rails") else {}),
        **more,
    }


def row(stage: str, node: int | None = None, median_s: float = 1e-3, **more: Any) -> Row:
    values = {
        "run_id": stage,
        "case_id": f"{stage}{node}",
        "benchmark": "all_reduce",
        "layout": f"{NODES}x2",
        "message_bytes": 1024,
        "node": None if node is None else str(node),
        "status": "ok",
        "reason": None,
        "median_s": median_s,
        "ci_low_s": median_s,
        "busbw_gb_per_s": 1.0,
    }
    return case_row(**values | more)


def healthy() -> Acceptance:
    times_s = [1e-3 * (1 + 0.01 * node) for node in range(NODES)]
    rows = {
        "alone": [row("alone", node, times_s[node]) for node in range(NODES)],
        "scaling": [row("scaling", layout=f"{nodes}x2") for nodes in (1, 2, 4, NODES)],
        "soak": [row("soak")],
    }
    runs = {stage: [record(stage)] for stage in ("alone", "pairs", "scaling", "soak")}
    return Acceptance(runs, rows)  # type: ignore[arg-type]


def with_run(stage: str, **more: Any) -> Acceptance:
    whole = healthy()
    return replace(whole, runs={**whole.runs, stage: [record(stage, **more)]})


def with_rows(stage: str, rows: list[Row]) -> Acceptance:
    whole = healthy()
    return replace(whole, rows={**whole.rows, stage: rows})


def outcomes(acceptance: Acceptance, stage: StageName) -> list[str]:
    return [verdict.stages[stage].answer or "-" for verdict in acceptance.verdicts]


def text_of(acceptance: Acceptance) -> str:
    return acceptance_section(acceptance).text(30, Terminal())


def lines(verdict: NodeVerdict, stage: StageName) -> str:
    return "\n".join(verdict.stages[stage].lines)


def test_healthy_nodes_pass_and_one_network_card_needs_no_comparison() -> None:
    acceptance = healthy()
    assert {verdict.answer for verdict in acceptance.verdicts} == {"PASS"}
    assert outcomes(acceptance, "rails") == ["-"] * NODES
    assert acceptance.exit_status == 0
    text = text_of(acceptance)
    assert "Acceptance of 6 nodes: 6 PASS, 0 FAIL, 0 UNDECIDED" in text
    assert "\nn0-5: PASS  PASS " in text, "nodes that are alike in one line"
    assert "rails does not apply on all nodes: each node has one network card (eth0)" in text


def test_a_node_that_is_slower_alone_fails_with_its_evidence() -> None:
    rows = [row("alone", node, 1e-3 * (1 + 0.001 * node)) for node in range(NODES)]
    rows[2] = row("alone", 2, 5e-3)
    acceptance = with_rows("alone", rows)
    assert outcomes(acceptance, "alone") == ["PASS", "PASS", "FAIL", "PASS", "PASS", "PASS"]
    assert acceptance.exit_status == 1
    text = text_of(acceptance)
    assert "n2 fails alone: all_reduce 6x2 1 KiB within the node takes 39" in text
    assert "Slurm: --exclude=n2" in text
    lines_of_nodes = text.splitlines()[2:4]
    assert [line.split()[:2] for line in lines_of_nodes] == [["n2:", "FAIL"], ["n0-1,3-5:", "PASS"]]


def test_a_node_with_wrong_data_fails() -> None:
    rows = list(healthy().rows["alone"])
    rows[4] = row("alone", 4, status="invalid", reason="3 elements are wrong")
    acceptance = with_rows("alone", rows)
    assert outcomes(acceptance, "alone")[4] == "FAIL"
    assert "3 elements are wrong" in lines(acceptance.verdicts[4], "alone")


def test_a_node_whose_pairs_are_slow_fails_with_the_evidence() -> None:
    acceptance = with_run("pairs", search=SLOW_SEARCH)
    assert outcomes(acceptance, "pairs") == ["PASS"] * 5 + ["FAIL"]
    assert lines(acceptance.verdicts[5], "pairs") == (
        "n5: sends take 30 % longer than typical (28 .. 32 %), in 24 measured pairs"
    )


def test_a_search_with_the_words_of_earlier_versions_is_read() -> None:
    (suspect,) = SLOW_SEARCH["suspects"]
    suspects = [suspect | {"decision": "bad"}, suspect | {"nodes": [0], "decision": "undecided"}]
    nodes = ["undecided", *["good"] * 4, "bad"]
    acceptance = with_run("pairs", search={"nodes": nodes, "suspects": suspects})
    assert outcomes(acceptance, "pairs") == ["UNDECIDED", *["PASS"] * 4, "FAIL"]
    assert lines(acceptance.verdicts[5], "pairs").startswith("n5: sends take 30 % longer")


def test_a_node_that_is_slow_on_one_network_card_names_the_card() -> None:
    whole = healthy()
    config = {"stage": "rails", "search": {"slowdown": 0.1}}
    rails = [
        record("rails", config={**config, "interface": "eth0"}),
        record("rails", config={**config, "interface": "eth1"}, search=SLOW_SEARCH),
    ]
    acceptance = replace(whole, runs={**whole.runs, "rails": rails})
    assert outcomes(acceptance, "rails") == ["PASS"] * 5 + ["FAIL"]
    assert lines(acceptance.verdicts[5], "rails").startswith("eth1: n5: sends take")


def test_several_network_cards_that_were_not_compared_are_undecided() -> None:
    whole = healthy()
    facts = [dict(node) for node in record("alone")["provenance"]["nodes"]]
    for node in facts:
        for fact in ("state", "speed_mbit_per_s", "network"):
            node[f"network.interface.eth1.{fact}"] = node[f"network.interface.eth0.{fact}"]
    runs = {
        stage: [record(stage, provenance={"nodes": facts, "differences": {}})]
        for stage in whole.runs
    }
    acceptance = replace(whole, runs=runs)
    assert outcomes(acceptance, "rails") == ["UNDECIDED"] * NODES
    assert acceptance.exit_status == 1


@pytest.mark.parametrize(
    ("fact", "value", "outcome"),
    [
        ("host.cpu_model", "Xeon", "FAIL"),
        ("network.interface.eth0.speed_mbit_per_s", 10_000, "FAIL"),
        ("network.interface.eth0.state", "down", "FAIL"),
        ("host.memory_total_bytes", 2**39, "FAIL"),
        ("host.memory_total_bytes", 2**40 - 2**20, "PASS"),
        ("host.kernel", "6.2", "PASS"),
    ],
)
def test_a_machine_that_differs_from_the_others_fails_if_that_matters(
    fact: str, value: Any, outcome: str
) -> None:
    facts = [{**FACTS, "host.hostname": f"n{node}"} for node in range(NODES)]
    facts[1][fact] = value
    acceptance = with_run("alone", provenance={"nodes": facts, "differences": {}})
    assert outcomes(acceptance, "machine") == ["PASS", outcome, *["PASS"] * 4]


def test_machines_without_a_majority_are_not_measured() -> None:
    facts = [{**FACTS, "host.hostname": f"n{n}", "host.cpu_model": n % 3} for n in range(NODES)]
    acceptance = with_run("alone", provenance={"nodes": facts, "differences": {}})
    assert set(outcomes(acceptance, "machine")) == {"UNDECIDED"}


@pytest.mark.parametrize("stage", ["alone", "pairs", "scaling", "soak"])
def test_a_stage_that_was_not_run_is_never_passed(stage: Any) -> None:
    whole = healthy()
    runs = {name: records for name, records in whole.runs.items() if name != stage}
    acceptance = replace(whole, runs=runs)
    assert outcomes(acceptance, stage) == ["UNDECIDED"] * NODES
    assert {verdict.answer for verdict in acceptance.verdicts} == {"UNDECIDED"}
    assert acceptance.exit_status == 1
    assert f"{stage} UNDECIDED on all nodes: the stage was not run" in text_of(acceptance)


@pytest.mark.parametrize("status", ["skipped", "failed", "invalid"])
def test_a_case_without_a_number_is_not_passed(status: str) -> None:
    acceptance = with_rows("soak", [row("soak"), row("soak", status=status, reason="too large")])
    assert set(outcomes(acceptance, "soak")) == {"UNDECIDED"}
    assert f"all_reduce 6x2 1 KiB {status}: too large" in text_of(acceptance)


def test_a_throttled_node_is_not_left_out_of_the_comparison() -> None:
    rows = list(healthy().rows["alone"])
    rows[2] = row("alone", 2, 5e-3, warnings=["throttled"])
    acceptance = with_rows("alone", rows)
    assert outcomes(acceptance, "alone")[2] == "FAIL"
    assert "(flags: throttled)" in lines(acceptance.verdicts[2], "alone")


def test_an_operation_of_few_nodes_says_nothing_about_the_others() -> None:
    acceptance = with_rows("scaling", [row("scaling", layout="2x2")])
    assert outcomes(acceptance, "scaling") == ["PASS"] * 2 + ["UNDECIDED"] * 4


def test_a_lost_node_fails_the_stage_and_leaves_the_others_unmeasured() -> None:
    reason = "rank 6 on n3 ended by signal 9"
    acceptance = with_run("soak", status="broken", reason=reason)
    assert outcomes(acceptance, "soak").count("FAIL") == 1
    assert outcomes(acceptance, "soak")[3] == "FAIL"
    assert outcomes(acceptance, "soak")[0] == "UNDECIDED"


def test_too_few_nodes_are_not_ranked() -> None:
    whole = healthy()
    runs = {stage: [record(stage, layout="3x2")] for stage in ("alone", "scaling", "soak")}
    rows = {**whole.rows, "alone": [row("alone", node) for node in range(3)]}
    acceptance = replace(whole, runs=runs, rows=rows)
    assert outcomes(acceptance, "alone") == ["UNDECIDED"] * 3
    assert "3 nodes can't be ranked: at least 5" in text_of(acceptance)


def test_the_newest_acceptance_counts_and_other_runs_do_not() -> None:
    old = record("alone", sweep_id="old")
    new = record("pairs", sweep_id="new", started_at="2025-12-31")  # the clock went back
    other = {"run_id": "x", "config": {"stage": "none"}, "started_at": "2026-03-01"}
    assert newest_runs([old, new, other]) == {"pairs": [new]}
    assert newest_runs([other, {"run_id": "y"}]) == {}
    assert stage_of(other) is None


def test_a_node_with_a_failed_gpu_is_named_with_the_fact() -> None:
    facts = {
        "gpu.0.remapping_failed": False,
        "gpu.1.remapping_failed": True,
        "gpu.0.fabric_state": "completed",
        "gpu.1.fabric_state": "in progress",
        "gpu.1.fabric_health": "degraded bandwidth",
        "gpu.0.fabric_health": "healthy",
        "gpu.0.remapped_rows": 7,
    }
    assert gpu_problems(facts) == [
        "gpu.1.remapping_failed is True, and must be False",
        "gpu.1.fabric_state is in progress, and must be completed",
        "gpu.1.fabric_health is degraded bandwidth, and must be healthy",
    ]
