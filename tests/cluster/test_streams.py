"""Streams over links whose rate is planted: its steps, the time to full speed, the slow
direction, and what iperf3 says."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from planted_rates import set_rate, staircase
from torchrun_agents import torchrun_agents
from virtual_hosts import MTU, Host, VirtualHosts

import commbench

pytestmark = [pytest.mark.long, pytest.mark.serial]
ALIKE = 0.03
IN_TIME = 0.10
ATTEMPTS = 5  # the two cores carry both ends of the link, and whatever else disturbs them
STEPS_MBIT = (160, 360, 470)  # the note's 320, 720, 940 halved: as much as two cores carry
# of a planted rate: without the headers of Ethernet, IP and TCP with timestamps
PAYLOAD_SHARE = (int(MTU) - 20 - 32) / (int(MTU) + 14)
STREAM = ("backend=tcp", "benchmark=stream", "dtype=int8", "bind=none", "timing=soak")


def streamed(world: Callable[..., Any], hosts: VirtualHosts, *words: str) -> Any:
    nodes = [host.command for host in hosts.hosts]
    address = hosts.hosts[0].address
    given = (f"interface={hosts.network}", *STREAM, *words)
    return torchrun_agents(world, nodes, 1, *given, address=address)[0]


def test_the_steps_of_a_staircase_and_the_time_to_full_speed(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    low, middle, high = STEPS_MBIT
    truths = [PAYLOAD_SHARE * rate_mbit for rate_mbit in (*STEPS_MBIT, high)]
    hosts = cluster(2, rate_mbit=high)
    sender = hosts.hosts[0]
    for _ in range(ATTEMPTS):
        set_rate(sender, low)
        with staircase(sender, [(1.0, middle), (2.0, high)]):
            run = streamed(world, hosts, "sizes=[16KiB]", "timing.duration_s=6")
        case = run.cases.iloc[-1]
        rates = commbench.soak_intervals(run.output).groupby("run_id").get_group(case.run_id)
        at_s, mbit = rates.at_s.to_numpy(), rates.rate_gb_per_s.to_numpy() * 8e3
        seen = [
            float(np.median(mbit[(at_s >= begin_s) & (at_s < begin_s + 0.5)]))
            for begin_s in (0.3, 1.3, 4.0)
        ]
        seen.append(case.end_gb_per_s * 8e3)
        is_alike = np.allclose(seen, truths, rtol=ALIKE)
        if is_alike and abs(case.full_speed_s / 2.0 - 1) < IN_TIME:
            break
    assert seen == [pytest.approx(truth, rel=ALIKE) for truth in truths]
    assert case.full_speed_s == pytest.approx(2.0, rel=IN_TIME)


def iperf3_mbit(server: Host, client: Host, seconds: int, *more: str) -> float:
    """The median of the intervals that iperf3's receiver saw, of writes of 16 KiB."""
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed (apt-get install iperf3)")
    listen = server.command("iperf3", "--server", "--one-off", "--json", "--interval", "0.25")
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as serving:
        try:
            time.sleep(0.5)
            words = ("--client", server.address, "--time", str(seconds), "--length", "16K", *more)
            subprocess.run(
                client.command("iperf3", *words), capture_output=True, timeout=30, check=True
            )
            seen = json.loads(serving.communicate(timeout=10)[0])
        finally:
            serving.terminate()
    rates = [float(each["sum"]["bits_per_second"]) for each in seen["intervals"][1:-1]]
    return statistics.median(rates) / 1e6


@pytest.mark.parametrize(("streams", "threads"), [(1, "one"), (4, "one"), (4, "each")])
def test_streams_have_the_rate_that_iperf3_sees(
    streams: int, threads: str, cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    hosts = cluster(2, rate_mbit=STEPS_MBIT[-1])
    for _ in range(ATTEMPTS):
        truth = iperf3_mbit(hosts.hosts[1], hosts.hosts[0], 3, "--parallel", str(streams))
        words = (f"streams={streams}", f"stream_threads={threads}", "timing.duration_s=3")
        run = streamed(world, hosts, "sizes=[16KiB]", *words)
        mbit = 8e3 * run.cases.end_gb_per_s.iloc[-1]
        if abs(mbit / truth - 1) < ALIKE:
            break
    assert mbit == pytest.approx(truth, rel=ALIKE)


def test_the_slow_direction_is_named(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    hosts = cluster(2, rate_mbit=400)
    set_rate(hosts.hosts[1], 200)
    run = streamed(world, hosts, "sizes=[16KiB]", "pairs=all", "timing.duration_s=2")
    mbit = dict(zip(run.cases.pair, 8e3 * run.cases.end_gb_per_s, strict=True))
    assert set(mbit) == {"0-0", "0-1", "1-0", "1-1"}
    assert mbit["0-1"] == pytest.approx(2 * mbit["1-0"], rel=0.1)
    assert "1-0 takes" in run.stdout


def test_a_ramp_that_takes_most_of_a_soak_is_not_taken_for_its_rate(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    """1.5 s of 2 s: the median of all intervals is that of the ramp."""
    low, _, high = STEPS_MBIT
    truth = PAYLOAD_SHARE * high
    hosts = cluster(2, rate_mbit=high)
    sender = hosts.hosts[0]
    for _ in range(ATTEMPTS):
        set_rate(sender, low)
        with staircase(sender, [(1.5, high)]):
            run = streamed(world, hosts, "sizes=[16KiB]", "timing.duration_s=2")
        case = run.cases.iloc[-1]
        is_alike = abs(8e3 * case.end_gb_per_s / truth - 1) < ALIKE
        if is_alike and abs(case.full_speed_s / 1.5 - 1) < IN_TIME:
            break
    assert 8e3 * case.end_gb_per_s == pytest.approx(truth, rel=ALIKE)
    assert case.full_speed_s == pytest.approx(1.5, rel=IN_TIME)
    assert 8e3 * case.first_second_gb_per_s == pytest.approx(low, rel=0.1)
    assert "A fresh connection is slower than a reused one" in run.stdout
