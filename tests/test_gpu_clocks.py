"""The clocks of a GPU, in worlds of a device that is none (tests/queued): what they time, and that payloads count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PLUGIN = ["--config-dir", str(HERE / "queued" / "conf"), "allow=[queued]", "backend=queued"]
SMALL = ["layout=1x2", "sizes=[8,64KiB]", "dtype=float32", "timing=fixed", "timing.repetitions=5", "window=3"]
MODES = ("host_sync", "device_event", "graph", "throughput")
ENV = {"PYTHONPATH": str(HERE / "queued")}


def test_all_clocks_measure_and_check(world: Callable[..., Any]) -> None:
    run = world(
        "commbench", *PLUGIN, *SMALL, f"timing_mode=[{','.join(MODES)}]",
        "benchmark=[p2p_latency,p2p_bandwidth,all_reduce,broadcast]", "in_place=auto", env=ENV,
    )  # fmt: skip
    assert run.status == 0, run.explain()
    cases, samples = run.cases, run.samples
    assert set(cases.status) == {"ok"} and set(cases.device) == {"cuda"} and set(cases.timing_mode) == set(MODES)
    assert (cases.median_s > 0).all() and (cases.wrong_elements == 0).all()
    on_device = cases.timing_mode != "host_sync"
    assert set(cases[on_device].clock) == {"device"} and set(cases[~on_device].clock) == {"monotonic"}
    assert (cases.block_k == cases.timing_mode.map(lambda mode: 20 if mode in ("graph", "throughput") else 1)).all()
    joined = samples.merge(cases[["case_id", "timing_mode"]], on="case_id")
    timed_by_host = joined.timing_mode == "host_sync"
    assert joined[timed_by_host].start_ns.notna().all() and joined[~timed_by_host].start_ns.isna().all()
    assert (joined.elapsed_ns > 0).all()


def test_sums_in_place_between_two_stamps_move_zeros_and_say_so(world: Callable[..., Any]) -> None:
    """20 sums of 2 ranks in place would be 2^19 times the first: 8 bits and half floats can't hold it."""
    run = world(
        "commbench", *PLUGIN, *SMALL, "timing_mode=[host_sync,throughput]", "benchmark=all_reduce",
        "dtype=[float16,int8]", env=ENV,
    )  # fmt: skip
    assert run.status == 0, run.explain()
    zeros = {(row.timing_mode, "zero_payload" in row.flags) for row in run.cases.itertuples()}
    assert zeros == {("host_sync", False), ("throughput", True)}
    checked = run.samples.merge(run.cases[["case_id", "timing_mode"]], on="case_id")
    assert set(checked[checked.phase == "check"].timing_mode) == {"throughput"}


def test_a_wait_that_returns_early_is_caught_by_the_payload(world: Callable[..., Any]) -> None:
    """P1: torch's wait on a GPU holds the stream, not the host. A clock stopped there would look wonderful."""
    run = world("commbench", *PLUGIN, *SMALL, "backend.early=true", "benchmark=[all_reduce,p2p_latency]", env=ENV)
    assert run.status == 1, run.explain()
    assert set(run.cases.status) == {"invalid"} and run.cases.median_s.isna().all()
    assert (run.cases.wrong_elements > 0).all()
