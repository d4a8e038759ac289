"""What listens while a world lives, and to whom: seen from outside, in real runs of two ranks."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
from processes import AS_ROOT, free_port, until

from commbench.core.errors import ConfigError
from commbench.hardware import network
from commbench.hardware.mpi_library import find
from commbench.runtime import rendezvous

LAUNCHERS = ("prterun", "mpirun", "mpiexec", "hydra_pmi_proxy", "orted", "prted")
SOAK = (
    "benchmark=p2p_latency",
    "sizes=[8]",
    "timing=soak",
    "timing.duration_s=60",
    "preflight=warn",
    "bind=none",
)


@contextmanager
def running(tmp_path: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own, until the block ends."""
    environment = {**os.environ, **AS_ROOT, **more, "RES_OPTIONS": "timeout:1 attempts:1"}
    command = ["timeout", "-k", "5", "100", *words, f"output={tmp_path / 'results'}"]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process  # type: ignore[misc]
    finally:
        if process.poll() is None:
            _end(process)
        log.close()


def _end(process: subprocess.Popen[str]) -> None:
    """Ask, then end every process that is left of ours."""
    ours = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    process.terminate()
    _, left = psutil.wait_procs(ours[1:], timeout=15)
    for child in left:
        child.kill()
    process.wait(15)


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that measure: those that run commbench under a launcher."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [
        child
        for child in children
        if "commbench" in " ".join(child.cmdline()) and child.name() not in LAUNCHERS
    ]


def until_measuring(tmp_path: Path) -> None:
    """A soak writes its case every few seconds; its folder says in_flight before."""
    until(
        lambda: any(tmp_path.glob("results/*/in_flight")),
        explain=lambda: (tmp_path / "log").read_text()[-3000:],
    )
    time.sleep(0.5)


def listening(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    return [
        (connection.laddr.ip, connection.laddr.port)
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_in_a_world_of_mpirun_the_meeting_point_and_tcp_listen_on_loopback_only(
    kind: str, tmp_path: Path
) -> None:
    library = find(kind)
    assert library is not None, f"{kind}: make test installs both wheels"
    words = ["--personality", "ompi", "--oversubscribe"] if library.version >= 5 else []
    command = [
        library.launcher(),
        *words,
        "-n",
        "2",
        sys.executable,
        "-m",
        "commbench",
        "backend=tcp",
        *SOAK,
    ]
    with running(
        tmp_path, *command, f"backend.library={kind}", FI_TCP_IFACE="lo", UCX_NET_DEVICES="lo"
    ) as process:
        until_measuring(tmp_path)
        mine = ranks_of(process)
        used = {place for place in listening(mine) if place[1] in connected_to(mine)}
        assert len(mine) >= 2 and len(used) >= 2, (
            "the meeting point, and the listeners of backend=tcp"
        )
        assert all(ipaddress.ip_address(ip).is_loopback for ip, _ in used), used


def connected_to(processes: list[psutil.Process]) -> set[int]:
    """The ports that the ranks have called one another at; a library's own doors that nobody has
    used are not ours."""
    connections = [
        connection for process in processes for connection in process.net_connections("inet")
    ]
    return {
        connection.raddr.port
        for connection in connections
        if connection.status == psutil.CONN_ESTABLISHED
    }


@pytest.mark.long
def test_a_stranger_at_a_tcp_port_of_a_real_run_changes_nothing_and_is_told_once(
    tmp_path: Path,
) -> None:
    words = [
        sys.executable,
        "-m",
        "commbench",
        "backend=tcp",
        *SOAK[:2],
        "timing=soak",
        "timing.duration_s=3",
    ]
    with running(tmp_path, *words, "timing.interval_s=0.5") as process:
        until_measuring(tmp_path)
        places = listening(ranks_of(process))
        # torchrun's agent listens at all addresses for its own store: docs/security.md
        places = [place for place in places if ipaddress.ip_address(place[0]).is_loopback]
        assert len(places) >= 2, "a listener of each rank"
        for _ in range(3):
            for place in places:
                with closing(socket.create_connection(place, timeout=5)) as stranger:
                    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(24))
        assert process.wait(60) == 0, (tmp_path / "log").read_text()[-3000:]
    log = (tmp_path / "log").read_text()
    lines = [line for line in log.splitlines() if "dropped a connection to port" in line]
    assert 1 <= len(lines) <= 2 and len(set(lines)) == len(lines), "once a rank\n" + log


# ---------------------------------------------------------------- which address


def outer() -> list[str]:
    addresses = [
        entry.address
        for many in psutil.net_if_addrs().values()
        for entry in many
        if entry.family == socket.AF_INET
    ]
    return [address for address in addresses if not ipaddress.ip_address(address).is_loopback]


def bound(store: object, port: int) -> set[str]:
    here = psutil.Process()
    return {ip for ip, its in listening([here, *here.children()]) if its == port}


@pytest.mark.parametrize("torch", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", *outer()[:1]])
def test_a_given_meeting_point_is_all_that_rank_0_listens_at(host: str, torch: bool) -> None:
    port = free_port()
    store = rendezvous.store_at(host, port, owner=True, torch=torch)
    assert bound(store, port) == {network.own_address(host)}
    client = rendezvous.store_at(host, port, owner=False, torch=torch)
    client.set("key", "value")
    assert store.get("key") == b"value"


def test_a_name_that_is_loopback_only_here_is_reached_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As /etc/hosts of many systems says of a host's own name; other hosts know its real
    address."""
    monkeypatch.setattr(rendezvous, "own_address", lambda host: "127.0.1.1")
    port = free_port()
    store = rendezvous.store_at(outer()[0] if outer() else "127.0.0.1", port, owner=True)
    assert bound(store, port) & {"::", "0.0.0.0"}


def test_the_meeting_address_of_an_mpi_world() -> None:
    assert rendezvous.rendezvous_address(["a|1|2", "a|1|2"], None) == "127.0.0.1"
    assert rendezvous.rendezvous_address(["a|1|2", "b|1|2"], "lo") == "127.0.0.1"
    with pytest.raises(ConfigError, match="interface=nosuch0 does not exist on this host"):
        rendezvous.rendezvous_address(["a|1|2"], "nosuch0")


@pytest.mark.skipif(not outer(), reason="no address but loopback")
def test_the_meeting_address_of_several_nodes_is_not_loopback() -> None:
    homes = [f"{socket.gethostname()}|1|2", "no-such-host.invalid|1|2"]
    assert rendezvous.rendezvous_address(homes, None) in outer()
    assert network.own_address("no-such-host.invalid") is None


# ---------------------------------------------------------------- what ranks import

RANK = """\
import sys
from commbench.__main__ import main
status = main()
sys.exit(status or f"imported: {loaded}" if (loaded := {"torch"} & {*sys.modules}) else status)
"""


def test_mpi_ranks_do_not_import_torch_and_their_store_ends_with_them(tmp_path: Path) -> None:
    library = find("openmpi")
    assert library is not None
    words = ["--personality", "ompi", "--oversubscribe"] if library.version >= 5 else []
    command = [
        library.launcher(),
        *words,
        "-n",
        "2",
        sys.executable,
        "-c",
        RANK,
        "backend=mpi",
        *SOAK,
    ]
    with running(tmp_path, *command, "timing.duration_s=3", "writer=parquet") as process:
        until_measuring(tmp_path)
        children = psutil.Process(process.pid).children(recursive=True)
        stores = [
            child
            for child in children
            if any("runtime/store.py" in word for word in child.cmdline())
        ]
        assert len(stores) == 1 and {ip for ip, _ in listening(stores)} == {"127.0.0.1"}
        assert process.wait(60) == 0, (tmp_path / "log").read_text()[-3000:]
        assert not psutil.wait_procs(stores, timeout=10)[1]
    (record,) = (tmp_path / "results").glob("*/run.json")
    assert "versions.torch_git_commit" in record.read_text()
