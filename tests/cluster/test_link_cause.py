"""A slow link between two virtual hosts is the cause that a replayed job names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_truth import torchrun
from virtual_hosts import VirtualHosts

from commbench.replay.causes import causes
from commbench.replay.replay_times import replay_times
from commbench.replay.scaling import scaled
from commbench.replay.workload import RankOrder, Workload, WorkloadCall, WorkloadOperation
from commbench.replay.workload_file import workload_text
from commbench.results.load import read_rows, row_dicts

pytestmark = [pytest.mark.long, pytest.mark.serial]
RATE_MBIT = 200
SIZE_BYTES = 500_000
CALLS = 4


def test_a_slow_link_is_named_with_what_it_costs(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any], tmp_path: Path
) -> None:
    """The interface says 10 Gb/s, as veth does, and the link carries 200 Mb/s."""
    reduced = WorkloadOperation(0, "all_reduce", "float32", (SIZE_BYTES,), (SIZE_BYTES,))
    order = RankOrder((0, 1), (WorkloadCall(0),) * CALLS)
    workload = Workload(2, ((0, 1),), (reduced,), (order,))
    path = tmp_path / "job.json"
    path.write_text(workload_text(workload))
    hosts = cluster(2, rate_mbit=RATE_MBIT)
    run = torchrun(
        world, hosts, 1, "backend=gloo", "benchmark=replay", f"workload={path}",
        "timing=quick", "bind=none",
    )  # fmt: skip
    rows = row_dicts(read_rows([run.output]))
    found = causes(replay_times(rows, scaled(workload, 2)))
    print(*found, sep="\n")
    (link,) = [cause for cause in found if cause.is_named]
    assert link.name == "link" and link.loss is not None
    assert link.loss.value == pytest.approx(CALLS * SIZE_BYTES * 8 / (RATE_MBIT * 1e6), rel=0.15)
