"""The virtual hosts themselves: who they say they are, how fast their links are, and that nothing
of them stays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from virtual_hosts import NAMESPACES, Link, VirtualHosts, missing, virtual_hosts

RECEIVE = """
import socket, time
with socket.create_server(("", 5000)) as server:
    print("ready", flush=True)
    peer, _ = server.accept()
    begin, seen = None, 0
    while data := peer.recv(1 << 20):
        begin, seen = begin or time.monotonic(), seen + len(data)
    print(seen / (time.monotonic() - begin))
"""
SEND = (
    "import socket, sys; socket.create_connection((sys.argv[1],"
    " 5000)).sendall(bytes(int(sys.argv[2])))"
)


def output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def test_a_host_has_its_own_name_address_and_interfaces(
    cluster: Callable[..., VirtualHosts],
) -> None:
    hosts = cluster(3)
    look = 'hostname; getent hosts "$0"; ls /sys/class/net'
    for host, peer in zip(hosts.hosts, hosts.hosts[1:] + hosts.hosts[:1], strict=True):
        seen = output_of(host.command("sh", "-c", look, peer.name)).split()
        assert seen == [host.name, peer.address, peer.name, hosts.interface, "lo"]
    assert len({host.name for host in hosts.hosts}) == 3


@pytest.mark.parametrize("extra", [[], ["-x"]], ids=["openmpi", "mpich"])
def test_the_agent_runs_a_shell_line_on_the_other_host(
    cluster: Callable[..., VirtualHosts], extra: list[str]
) -> None:
    hosts = cluster(2)
    first, second = hosts.hosts
    line = [str(hosts.agent), *extra, second.name, "hostname;", "echo", "'$HOME'"]
    assert output_of(first.command(*line)).split() == [second.name, "$HOME"]


@pytest.mark.long
@pytest.mark.serial
def test_a_link_is_as_fast_as_it_was_asked_to_be(cluster: Callable[..., VirtualHosts]) -> None:
    first, second = cluster(2, rate_mbit=200).hosts
    seen_mbit = 0.0
    for _ in range(3):  # what disturbs the two ends makes the link slow, never fast
        receive = second.command(sys.executable, "-c", RECEIVE)
        with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
            assert receiver.stdout is not None and receiver.stdout.readline() == "ready\n"
            output_of(first.command(sys.executable, "-c", SEND, second.name, str(10_000_000)))
            seen_mbit = max(seen_mbit, float(receiver.communicate(timeout=20)[0]) * 8e-6)
        if seen_mbit > 160:
            break
    assert 160 < seen_mbit <= 210


def test_nothing_stays_after_a_failure(tmp_path: Path) -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with pytest.raises(ZeroDivisionError), virtual_hosts(2, tmp_path) as hosts:
        stubborn = (
            "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True);"
            " time.sleep(60)"
        )
        command = hosts.hosts[1].command(sys.executable, "-c", stubborn)
        forgotten = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert forgotten.stdout is not None and forgotten.stdout.readline() == b"1\n"
        names = [host.name for host in hosts.hosts]
        assert all((NAMESPACES / name).exists() for name in names) and forgotten.pid in hosts.pids()
        raise ZeroDivisionError
    forgotten.communicate()
    assert forgotten.returncode == -9
    assert not [name.name for name in NAMESPACES.iterdir() if name.name in names]


def test_what_the_kernel_refuses_is_named() -> None:
    if missing() is not None:
        pytest.skip("even plain hosts are refused")
    reason = missing(Link(rate_mbit=0))
    assert reason is not None and "rate" in reason
