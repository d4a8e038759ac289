"""Layouts inside one torchrun world of several agents on the loopback interface: each agent is a
node."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cpu_watch import CpuWatch, cpu_watch, measured_ns
from processes import until
from subgroups import ASKED, check_layouts
from torchrun_agents import here, torchrun_agents

WORDS = (
    "backend=gloo",
    "interface=lo",
    "cache=warm",
    "timing=fixed",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
)


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.parametrize(("nodes", "each"), [(2, 2), (4, 1)], ids=["2x2", "4x1"])
def test_each_layout_is_a_subgroup_of_the_world(
    world: Callable[..., Any], tmp_path: Path, nodes: int, each: int
) -> None:
    with cpu_watch(tmp_path / "results") as watch:
        amount = ("pairs=neighbours", "sizes=[64KiB]", "timing.repetitions=700")
        runs = torchrun_agents(world, [here] * nodes, each, *WORDS, *ASKED, *amount)
    assert [run.stdout.count("results: ") for run in runs] == [1] + [0] * (nodes - 1), (
        "only rank 0 prints"
    )
    host = socket.gethostname()
    (folder,) = (tmp_path / "results").iterdir()
    for node, own in enumerate(runs):
        last = (node + 1) * each - 1
        named = f"rank {last}" if each == 1 else f"ranks {node * each}-{last}"
        line = f"node {node + 1} of {nodes} ({host}): {named}; rank 0 prints, on {host},"
        assert own.stderr.count(line) == own.stderr.count("rank 0 prints") == 1, own.stderr
        assert f"{line} and stores the results there: {folder}\n" in own.stderr
    run = runs[0]
    ranks = [list(range(node * each, (node + 1) * each)) for node in range(nodes)]
    assert run.record["world"] == {
        "size": nodes * each,
        "nodes": nodes,
        "ranks": ranks,
        "launcher": "torchrun",
    }
    check_layouts(run.cases, nodes, each)
    check_members(run, watch, {ranks[0][0], ranks[1][0]})


@pytest.mark.long
def test_a_rank_without_a_heartbeat_is_reported_by_rank_0_alone(
    world: Callable[..., Any], tmp_path: Path
) -> None:
    """The others read why the world ends before rank 0, and the store with it, is gone."""
    with ThreadPoolExecutor(1) as pool:
        words = (
            "benchmark=all_reduce",
            "sizes=[8]",
            "timing.repetitions=100000000",
            "timing.case_s=60",
        )
        ending = pool.submit(torchrun_agents, world, [here] * 2, 2, *WORDS, *words, status=None)
        until(lambda: any(tmp_path.glob("results/*/in_flight")) or ending.done())
        [record] = tmp_path.glob("results/*/run.json")
        processes = json.loads(record.read_text())["processes"]
        os.kill(
            next(int(pid) for pid, name in processes.items() if "rank 3" in name), signal.SIGSTOP
        )
        runs = ending.result()
    lines = [
        line for run in runs for line in run.stderr.splitlines() if line.startswith("commbench: ")
    ]
    assert len(lines) == 2 and lines[0].startswith(
        "commbench: no heartbeat for 8 s (budget.silence_s): rank 3 on "
    ), lines
    assert "commbench resume" in lines[1]


def check_members(run: Any, watch: CpuWatch, members: set[int]) -> None:
    """The ranks that were busy while layout 2x1 was measured are the first ones of two nodes; all
    others slept."""
    case_ids = run.cases[run.cases.layout == "2x1"].case_id
    shares = watch.shares(measured_ns(run.samples[run.samples.case_id.isin(case_ids)]))
    idle = set(shares) - members
    assert len(shares) == 4
    assert max(shares[rank] for rank in idle) < min(0.2, *(shares[rank] for rank in members)), (
        shares
    )
