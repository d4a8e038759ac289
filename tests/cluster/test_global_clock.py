"""Windows on a global clock: its error holds where the truth is known, and repetitions begin
together by it.

All virtual hosts share one kernel. So clocks differ by exactly what was planted: through the clock
that production code is given, or by a time namespace, whose CLOCK_MONOTONIC really is another.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torchrun_agents import torchrun_agents
from virtual_hosts import VirtualHosts

LONG = pytest.mark.long
PORT = 29541  # in networks of the test's own
SPREAD_US = 50
WITHIN = 19  # the error of a line, and in how many of 20 the truth lies inside
AHEAD_S = 86_400
QUICK = ("timing=quick", "sync=clock", "cache=warm", "bind=none")
RANK = """
import sys, json
import numpy as np
from torch.distributed import TCPStore
from commbench.engines.lowered import now_ns
from commbench.runtime.control import StoreControl
from commbench.measure.global_clock import GlobalClock

rank, size, fits = map(int, sys.argv[1:4])
host = sys.argv[4]
port = int(sys.argv[5])
store = TCPStore(host, port, is_master=rank == 0, wait_for_workers=False)
control = StoreControl(store, rank, size)
began = control.decide(now_ns(), 60)

def planted(seed, one):
    random = np.random.default_rng([seed, one])
    offset, slope = int(random.integers(-10**16, 10**16)), float(random.uniform(-1e-4, 1e-4))
    return lambda: (now := now_ns()) + offset + round(slope * (now - began))

def distance(line, own, reference):
    "The line's error, its bound, and the time that it took to read both clocks together."
    before, middle, after = reference(), own(), reference()
    off = int(line.reference(np.array([middle]))[0]) - (before + after) // 2
    return [off, line.error_at(middle), after - before]

for seed in range(fits):
    clock = GlobalClock(control, [[one] for one in range(size)], None, 30, planted(seed, rank))
    clock.refresh(30)
    found = control.gather(distance(clock.lines[rank], planted(seed, rank), planted(seed, 0)), 30)
    if rank == 0:
        print(json.dumps(found), flush=True)
    clock.close()
control.farewell(30)
"""


@LONG
@pytest.mark.serial
def test_the_true_offset_lies_inside_the_reported_error(
    cluster: Callable[..., VirtualHosts],
) -> None:
    """Four hosts, few enough for all to compare themselves with the first: below 50 us."""
    hosts = cluster(4)

    def rank(index: int) -> subprocess.CompletedProcess[str]:
        words = (
            sys.executable,
            "-c",
            RANK,
            str(index),
            "4",
            "20",
            hosts.hosts[0].address,
            str(PORT),
        )
        command = ["timeout", "-k", "5", "90", *hosts.hosts[index].command(*words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(rank, range(4)))
    assert [end.returncode for end in ends] == [0] * 4, (
        ends[0].stderr[-3000:] + ends[1].stderr[-3000:]
    )
    seen = np.array([json.loads(line) for line in ends[0].stdout.splitlines()])
    assert seen.shape == (20, 4, 3)
    inside = (np.abs(seen[:, :, 0]) <= seen[:, :, 1] + seen[:, :, 2] / 2).sum(axis=0)
    assert (inside >= WITHIN).all(), seen
    error_us = np.median(seen[:, :, 1], axis=0) / 1e3
    assert error_us[0] == 0 and (error_us[1:] > 0).all()
    assert (error_us[1:] < SPREAD_US).all(), error_us


def torchrun(world: Callable[..., Any], hosts: VirtualHosts, *words: str) -> Any:
    """An agent on each of two hosts, the second one a day ahead; the end of the first one."""
    first, second = hosts.hosts
    ahead = partial(
        second.command, "unshare", "--time", "--monotonic", str(AHEAD_S), "--fork", "--kill-child"
    )
    given = (f"interface={hosts.network}", *words)
    return torchrun_agents(world, [first.command, ahead], 1, *given, address=first.address)[0]


def check_case(case: Any, run: Any) -> None:
    """Its statistics are those of the repetitions in time, all others are kept apart."""
    assert case.status == "ok" and case.sync == "clock", run.explain()
    samples = run.samples[run.samples.case_id == case.case_id]
    counted = samples.groupby("phase").repetition.nunique()
    assert counted["measure"] == case.repetitions >= 1
    assert counted.get("late", 0) == case.late_repetitions
    measured = samples[samples.phase == "measure"].groupby(["visit", "repetition"]).elapsed_ns.max()
    median_s = measured.groupby("visit").median().median() * 1e-9
    assert 0 <= case.median_s - median_s <= 2e-6, "from the common start, not from each rank's own"


@LONG
@pytest.mark.serial
def test_repetitions_begin_together_on_hosts_whose_clocks_are_a_day_apart(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    hosts = cluster(2)
    tried = ["unshare", "--time", "--monotonic", "1", "--fork", "true"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(tried, capture_output=True, check=False).returncode
    ):
        pytest.skip("this kernel has no time namespaces")
    run = torchrun(
        world, hosts, "backend=gloo", "benchmark=[all_reduce,p2p_latency]", "sizes=[40]", *QUICK
    )
    cases = run.cases.set_index("benchmark")
    assert cases["sync"].to_dict() == {"all_reduce": "clock", "p2p_latency": "none"}
    assert pd.isna(cases.late_repetitions["p2p_latency"]) and pd.isna(
        cases.clock_error_s["p2p_latency"]
    )
    [case] = run.cases[run.cases.benchmark == "all_reduce"].itertuples()
    check_case(case, run)
    assert 0 < case.clock_error_s < 1e-3
    samples = run.samples[(run.samples.case_id == case.case_id) & (run.samples.phase == "measure")]
    starts = samples.pivot(index="repetition", columns="rank", values="start_ns")
    apart_s = (starts[1] - starts[0]) * 1e-9 - AHEAD_S
    assert apart_s.abs().max() < case.clock_error_s + 3e-6, (
        "in truth, all that count began within the error"
    )


@LONG
@pytest.mark.serial
def test_window_and_barrier_tell_the_same_of_one_host(world: Callable[..., Any]) -> None:
    words = (
        "backend=gloo",
        "benchmark=all_reduce",
        "sizes=[8MiB]",
        "timing=quick",
        "layout=1x2",
        "bind=none",
    )
    for sync in ("clock", "barrier"):
        run = world("commbench", *words, f"sync={sync}")
    cases = run.cases.set_index("sync")
    [case] = run.cases[run.cases["sync"] == "clock"].itertuples()
    check_case(case, run)
    assert case.clock_error_s == 0, "ranks of a node share its clock"
    assert pd.isna(cases.late_repetitions["barrier"])
    assert 1 / 5 < cases.median_s["clock"] / cases.median_s["barrier"] < 5, cases.median_s


@LONG
@pytest.mark.serial
def test_both_engines_of_mpi_wait_for_the_instant(world: Callable[..., Any]) -> None:
    words = (
        "backend=mpi",
        "engine=[native,python]",
        "benchmark=all_reduce",
        "sizes=[40]",
        "layout=1x2",
    )
    run = world("commbench", *words, *QUICK)
    assert set(run.cases.engine) == {"native", "python"}
    for case in run.cases.itertuples():
        check_case(case, run)


@LONG
def test_what_has_one_clock_for_all_ranks_is_skipped_with_the_reason(
    world: Callable[..., Any],
) -> None:
    run = world(
        "commbench", "backend=simulated", "benchmark=[all_reduce,p2p_latency]", "sizes=[40]", *QUICK
    )
    cases = run.cases.set_index("benchmark")
    assert cases.status.to_dict() == {"all_reduce": "skipped", "p2p_latency": "ok"}
    assert "use sync=barrier" in cases.reason["all_reduce"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sync=clocks",), "sync=clocks is unknown"),
        (("sync=clock", "schedule=rounds", "benchmark=p2p_latency"), "schedule=rounds"),
    ],
)
def test_impossible_settings_of_a_window_are_refused_in_one_line(
    world: Callable[..., Any], words: tuple[str, ...], message: str
) -> None:
    run = world("commbench", "backend=gloo", *words, status=2)
    assert message in run.stderr and len(run.stderr.strip().splitlines()) == 1, run.stderr
