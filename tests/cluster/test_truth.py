"""Links of known rate: every backend must say that rate, and the slow host must be named."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchrun_agents import torchrun_agents
from virtual_hosts import Host, VirtualHosts

pytestmark = pytest.mark.long
FIXED = (
    "timing=fixed",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
    "cache=warm",
    "bind=none",
)
MIB = 2**20
RATE_MBIT = 500  # as much as two busy cores carry over plain sockets
ALIKE = 0.03
ATTEMPTS = 3  # both ends of a link share two cores: what disturbs one makes it slow, never fast
# all ends of all links are on the same two cores: spinning ranks yield to those that have something
# to do
YIELDING = ("env.OMPI_MCA_mpi_yield_when_idle=1", "env.MPIR_CVAR_CH4_PROGRESS_THROTTLE=1")
WIRES = ("env.OMPI_MCA_pml=ob1", "env.OMPI_MCA_btl='tcp,self'", "env.UCX_TLS='tcp,self'")


def torchrun(
    world: Callable[..., Any], hosts: VirtualHosts, each: int, *words: str, status: int | None = 0
) -> Any:
    """An agent on every host; the end of the first one."""
    nodes = [host.command for host in hosts.hosts]
    address = hosts.hosts[0].address
    given = (f"interface={hosts.network}", *FIXED, *words)
    return torchrun_agents(world, nodes, each, *given, address=address, status=status)[0]


def mpirun(world: Callable[..., Any], hosts: VirtualHosts, kind: str, *words: str) -> Any:
    """commbench itself starts the ranks, through its launcher, from the first host."""
    names = ",".join(host.name for host in hosts.hosts)
    launcher = ("launcher=mpirun", f"launcher.hosts=[{names}]", f"launcher.agent={hosts.agent}")
    where = (
        *launcher,
        f"backend.library={kind}",
        f"layout={len(hosts.hosts)}x1",
        f"interface={hosts.network}",
    )
    given = ("commbench", "backend=mpi", *where, *WIRES, *YIELDING, *FIXED, *words)
    return world(*hosts.hosts[0].command(*given))


def started(world: Callable[..., Any], hosts: VirtualHosts, backend: str, *words: str) -> Any:
    if backend in ("openmpi", "mpich"):
        return mpirun(world, hosts, backend, *words)
    return torchrun(world, hosts, 1, f"backend={backend}", *words)


def iperf3_mbit(server: Host, client: Host, seconds: int) -> float:
    """The fastest half second that iperf3's receiver saw, as ours is the fastest window: both share
    busy cores."""
    listen = server.command("iperf3", "--server", "--one-off", "--json", "--interval", "0.5")
    with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as serving:
        try:
            time.sleep(0.5)
            send = (
                "iperf3",
                "--client",
                server.address,
                "--time",
                str(seconds),
                "--interval",
                "0.5",
            )
            subprocess.run(client.command(*send), capture_output=True, timeout=30, check=True)
            seen = json.loads(serving.communicate(timeout=10)[0])
        finally:
            serving.terminate()
    return (
        max(float(interval["sum"]["bits_per_second"]) for interval in seen["intervals"][:-1]) / 1e6
    )


@pytest.mark.serial
def test_every_backend_says_how_fast_the_link_is(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed (apt-get install iperf3)")
    hosts = cluster(2, rate_mbit=RATE_MBIT)
    amount = (
        "benchmark=p2p_bandwidth",
        f"sizes=[{RATE_MBIT * 5000}]",
        "window=4",
        "timing.repetitions=12",
    )
    seen = dict.fromkeys(("gloo", "tcp", "openmpi", "mpich"), 0.0)
    truth = 0.0
    for _ in range(ATTEMPTS):
        if truth and all(abs(mbit / truth - 1) < ALIKE for mbit in seen.values()):
            break
        truth = max(truth, iperf3_mbit(hosts.hosts[1], hosts.hosts[0], 5))
        for backend in [name for name, mbit in seen.items() if abs(mbit / truth - 1) >= ALIKE]:
            run = started(world, hosts, backend, *amount)
            # of all worlds of this test the last one
            case = run.cases.sort_values("started_at").iloc[-1]
            seen[backend] = max(seen[backend], case.message_bytes * 8e-6 / case.min_s)
    for backend, mbit in seen.items():
        assert 0.9 * RATE_MBIT <= mbit <= RATE_MBIT, f"{backend}: {seen}, iperf3 {truth}"
        assert abs(mbit / truth - 1) < ALIKE, f"{backend}: {seen}, iperf3 {truth}"


@pytest.mark.serial
def test_a_rate_that_the_user_tells_gives_the_share_of_the_line(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    """A veth says 10 Gb/s, whatever it carries. What disturbs makes a share smaller, so the largest
    of several is compared, and is below 1."""
    hosts = cluster(2, rate_mbit=RATE_MBIT)
    amount = (
        "benchmark=p2p_bandwidth",
        f"sizes=[{RATE_MBIT * 5000}]",
        "window=4",
        "timing.repetitions=12",
    )
    told = {"gloo": f"{RATE_MBIT}Mb/s", "tcp": f"eth0:{RATE_MBIT}Mb/s", "openmpi": "0.5Gb/s"}
    shares = dict.fromkeys(told, 0.0)
    for _ in range(ATTEMPTS):
        for backend in [name for name, share in shares.items() if share < 1 - ALIKE]:
            run = started(world, hosts, backend, *amount, f"limit={told[backend]}")
            case = run.cases.sort_values("started_at").iloc[-1]
            assert case.limit_gb_per_s == pytest.approx(RATE_MBIT / 8e3)
            assert case.limit_name.endswith("0.5 Gb/s by limit=")
            fastest = case.efficiency * case.median_s / case.min_s  # as in the test above
            shares[backend] = max(shares[backend], fastest)
    assert all(1 - ALIKE <= share <= 1 for share in shares.values()), shares


@pytest.mark.serial
def test_the_one_slow_host_is_named(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    hosts = cluster(4, rate_mbit=200, slow={2: 100})
    words = (
        "backend=tcp",
        "benchmark=p2p_bandwidth",
        "pairs=all",
        "sizes=[500kB]",
        "window=2",
        "timing.repetitions=7",
    )
    run = torchrun(world, hosts, 1, *words)
    print(run.stdout)
    [line] = [line for line in run.stdout.splitlines() if "slow" in line and "rank" in line][:1]
    assert "rank 2" in line and hosts.hosts[2].name in line, run.stdout


@pytest.mark.serial
def test_a_ring_takes_as_long_on_two_hosts_as_on_four(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    """Both are bound by the same link: each one carries 2 (n - 1) / n of the message in either
    direction."""
    fastest_s = {}
    for count, each in ((2, 2), (4, 1)):
        words = (
            "backend=gloo",
            "benchmark=all_reduce",
            f"sizes=[{16 * MIB}]",
            "timing.repetitions=3",
        )
        run = torchrun(world, cluster(count, rate_mbit=400), each, *words)
        fastest_s[f"{count}x{each}"] = run.cases.set_index("layout").min_s[f"{count}x{each}"]
    assert abs(fastest_s["2x2"] / fastest_s["4x1"] - 1) < 0.1, fastest_s


def test_the_limit_is_that_of_the_interface(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    """A veth says 10 Gb/s of itself, whatever tc makes of it."""
    hosts = cluster(2)
    run = torchrun(
        world,
        hosts,
        1,
        "backend=tcp",
        "benchmark=p2p_bandwidth",
        "sizes=[1MB]",
        "timing.repetitions=5",
    )
    [case] = run.cases.itertuples()
    assert (case.limit_gb_per_s, case.limit_name) == (1.25, f"{hosts.interface} 10 Gb/s")
    assert case.efficiency == pytest.approx(case.busbw_gb_per_s / 1.25)
    used = [node["network.used.address"] for node in run.record["provenance"]["nodes"]]
    assert used == [host.address for host in hosts.hosts]


def test_an_interface_that_one_host_lacks_is_told_by_all(
    cluster: Callable[..., VirtualHosts], world: Callable[..., Any]
) -> None:
    hosts = cluster(2)
    address = ["addr", "add", "10.79.0.1/24", "dev", hosts.interface]
    subprocess.run(["ip", "-n", hosts.hosts[0].name, *address], check=True, timeout=10)
    run = torchrun(
        world, hosts, 1, "backend=gloo", "benchmark=barrier", "interface=10.79.0.0/24", status=None
    )
    assert run.status != 0
    assert (
        f"rank 1 on {hosts.hosts[1].name}: interface=10.79.0.0/24: no address of this host is in"
        " that network" in run.stderr
    )
    assert not list(Path(run.output).glob("*/cases.parquet"))
