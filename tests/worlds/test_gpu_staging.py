"""Messages of a device that go through host memory, in worlds of a device that is none
(tests/support/queued)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from shown_gpus import hgx, shown

PLUGIN = ["--config-dir", str(SUPPORT / "queued" / "conf"), "allow=[queued]", "backend=queued"]
QUICK = ["timing=fixed", "timing.repetitions=5", "timing.warmup_repetitions=1", "timing.warmup_s=0"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A machine that shows one GPU, for the ranks that look for theirs."""
    return shown(tmp_path, hgx(1), SUPPORT / "queued")


@pytest.mark.long
def test_every_operation_is_exact_through_the_host(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    run = world(
        "commbench",
        *PLUGIN,
        *QUICK,
        "staging=pinned",
        "layout=1x3",
        "benchmark=all",
        "sizes=[120kB]",
        "window=3",
        "root=1",
        "in_place=[true,false]",
        env=env,
    )
    cases = run.cases[~run.cases.benchmark.str.startswith(("copy_", "stream", "communicator_"))]
    measured = cases[cases.status == "ok"]
    assert set(cases.staging) == {"pinned"} and set(measured.benchmark) == set(cases.benchmark)
    assert (measured.wrong_elements == 0).all() and (measured.median_s > 0).all()


@pytest.mark.long
def test_a_library_that_needs_copies_says_so_and_every_clock_times_them(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    run = world(
        "commbench",
        *PLUGIN,
        *QUICK,
        "backend.pinned=true",
        "layout=1x2",
        "benchmark=[p2p_bandwidth,all_reduce]",
        "sizes=[64KiB]",
        "cache=rotate",
        "timer=[host_sync,device_event,graph,throughput]",
        "window=3",
        env=env,
    )
    assert set(run.cases.staging) == {"pinned"} and set(run.cases.status) == {"ok"}
    assert (run.cases.wrong_elements == 0).all()


@pytest.mark.long
def test_a_copy_that_is_not_waited_for_is_caught_by_the_payload(
    world: Callable[..., Any], env: dict[str, str]
) -> None:
    run = world(
        "commbench",
        *PLUGIN,
        *QUICK,
        "backend.early=true",
        "staging=pinned",
        "layout=1x2",
        "benchmark=all_reduce",
        "sizes=[8]",
        env=env,
        status=1,
    )
    assert set(run.cases.status) == {"invalid"} and (run.cases.wrong_elements > 0).all()
