"""The clocks of a GPU, in worlds of a stand-in device (tests/support/queued): what they time, how
payloads count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from shown_gpus import hgx, shown

import commbench

PLUGIN = ["--config-dir", str(SUPPORT / "queued" / "conf"), "allow=[queued]", "backend=queued"]
SMALL = [
    "layout=1x2",
    "sizes=[8,64KiB]",
    "dtype=float32",
    "timing=fixed",
    "timing.repetitions=5",
    "window=3",
]
MODES = ("host_sync", "device_event", "graph", "throughput")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A machine that shows two GPUs."""
    return shown(tmp_path, hgx(2), SUPPORT / "queued")


@pytest.mark.parametrize(
    ("sizes", "benchmarks"),
    [
        ("[64KiB]", "[p2p_bandwidth,all_reduce]"),
        pytest.param("[8,64KiB]", "[p2p_latency,broadcast]", marks=pytest.mark.long),
        pytest.param("[8]", "[p2p_bandwidth,all_reduce]", marks=pytest.mark.long),
    ],
)
def test_all_clocks_measure_and_check(
    world: Callable[..., Any], env: dict[str, str], sizes: str, benchmarks: str
) -> None:
    run = world(
        "commbench", *PLUGIN, *SMALL, f"sizes={sizes}", f"timer=[{','.join(MODES)}]",
        f"benchmark={benchmarks}", "in_place=auto", "cache=warm", env=env,
    )  # fmt: skip
    cases = run.cases
    samples = run.samples
    assert (
        set(cases.status) == {"ok"}
        and set(cases.device) == {"cuda"}
        and set(cases.timer) == set(MODES)
    )
    assert (cases.median_s > 0).all() and (cases.wrong_elements == 0).all()
    on_device = cases.timer != "host_sync"
    assert set(cases[on_device].clock) == {"device"} and set(cases[~on_device].clock) == {
        "monotonic"
    }
    assert (
        cases.block_k == cases.timer.map(lambda mode: 20 if mode in ("graph", "throughput") else 1)
    ).all()
    joined = samples.merge(cases[["case_id", "timer"]], on="case_id")
    timed_by_host = joined.timer == "host_sync"
    assert (
        joined[timed_by_host].start_ns.notna().all()
        and joined[~timed_by_host].start_ns.isna().all()
    )
    assert (joined.elapsed_ns > 0).all()
    prices = commbench.launch_overhead(run.output)
    assert len(prices) == (cases.timer == "graph").sum()
    assert (prices.overhead_s == prices.host_sync_s - prices.graph_s).all()


@pytest.mark.long
def test_sums_in_place_between_two_stamps_are_checked_separately(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    """20 sums of 2 ranks in place would be 2^19 times the first: 8 bits and half floats can't hold
    it."""
    run = world(
        "commbench", *PLUGIN, *SMALL, "timer=[host_sync,throughput]", "benchmark=all_reduce",
        "dtype=[float16,int8]", env=env,
    )  # fmt: skip
    checked = run.samples.merge(run.cases[["case_id", "timer"]], on="case_id")
    assert set(checked[checked.phase == "check"].timer) == {"throughput"}


@pytest.mark.long
def test_a_wait_that_returns_early_is_caught_by_the_payload(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    """P1: torch's wait on a GPU holds the stream, not the host. A clock stopped there would look
    wonderful."""
    words = (*PLUGIN, *SMALL, "backend.early=true", "benchmark=[all_reduce,p2p_latency]")
    run = world("commbench", *words, env=env, status=1)
    assert set(run.cases.status) == {"invalid"} and run.cases.median_s.isna().all()
    assert (run.cases.wrong_elements > 0).all()


@pytest.mark.long
def test_what_lies_between_two_ranks_on_one_gpu_is_known_and_bounded(
    world: Callable[..., Any], env: dict[str, str], tmp_path: Path
) -> None:
    """The driver shown has no memory calls: the probe says so, and the run goes on."""
    (tmp_path / "machine").write_text(hgx(1))
    run = world(
        "commbench",
        *PLUGIN,
        *SMALL,
        "benchmark=[p2p_latency,p2p_bandwidth]",
        "pairs=[[0,1],[0,2]]",
        env=env,
    )
    measured = run.cases[run.cases.status == "ok"]
    skipped = run.cases[run.cases.status == "skipped"]
    assert set(measured.link) == {"SELF"}
    bandwidth = measured[measured.benchmark == "p2p_bandwidth"]
    # these messages stay in the GPU's cache, where a copy of its memory is no limit
    assert bandwidth.warnings.str.contains("in_cache").all() and bandwidth.limit_name.isna().all()
    assert len(skipped) == len(measured) and skipped.link.isna().all()
    assert [gpu["gpu.own.index"] for gpu in run.record["gpus"]] == [0, 0]
    probe = run.record["ipc_probe"]
    assert set(probe) == {"0-1", "1-0"} and "worked" not in probe.values()


def test_sums_are_compared_eager_and_in_a_graph(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    run = world(
        "commbench", *PLUGIN, *SMALL, "sizes=[8KiB]", "timer=[host_sync,graph]", "in_place=auto",
        "benchmark=[all_reduce,reduce_scatter]", "payload=rounding", env=env,
    )  # fmt: skip
    cases = run.cases
    assert len(cases) == 4 and set(cases.status) == {"ok"}
    assert (cases.error_ulp_max <= 0.5).all() and (cases.other_bits_again == 0).all()
    hashes = cases.groupby("benchmark").result_hash.nunique()
    assert (hashes == 1).all(), "in a graph as without"
