"""`launcher=ssh` on virtual hosts, through their agent and through OpenSSH: a world, the ends of
its processes, and what reaches no shell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from virtual_hosts import Host, VirtualHosts

import commbench
from commbench.results.load import load_run

pytestmark = [pytest.mark.long, pytest.mark.serial]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
COMMBENCH = str(Path(sys.executable).parent / "commbench")
QUICK = ("benchmark=p2p_latency", "sizes=[8]", "timing=quick", "output=results")
PLANTED = "x y;$(touch planted) 'z"
END_S = 20.0
WORLD_S = 90


def words(hosts: VirtualHosts, agent: Path | None, *more: str) -> list[str]:
    """As typed on the first host."""
    names = ",".join(host.name for host in hosts.hosts)
    launcher = ("launcher=ssh", f"launcher.hosts=[{names}]", f"launcher.agent={agent}")
    return hosts.hosts[0].command(
        COMMBENCH, "backend=gloo", f"interface={hosts.network}", *launcher, *QUICK, *more
    )


def measured(hosts: VirtualHosts, agent: Path | None, folder: Path, *more: str) -> str:
    done = subprocess.run(
        words(hosts, agent, *more),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=WORLD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def gone(hosts: VirtualHosts) -> bool:
    until_s = time.monotonic() + END_S
    while hosts.pids() and time.monotonic() < until_s:
        time.sleep(0.1)
    return not hosts.pids()


def test_two_hosts_measure_and_no_shell_reads_a_value(
    cluster: Callable[..., VirtualHosts], tmp_path: Path
) -> None:
    hosts = cluster(2)
    quoted = PLANTED.replace("'", "\\'")
    text = measured(hosts, hosts.agent, tmp_path, "layout=2x2", f"env.PLANTED='{quoted}'")
    assert "2 nodes" in text
    (run,) = (tmp_path / "results").iterdir()
    assert load_run(run)["config"]["env"]["PLANTED"] == PLANTED
    assert (commbench.load(run).status == "ok").all()
    assert not list(tmp_path.rglob("planted"))
    assert gone(hosts)


@pytest.fixture
def openssh(tmp_path: Path) -> Iterator[Callable[[VirtualHosts], Path]]:
    """openssh(HOSTS): starts sshd on each of them, and returns a client that may log in."""
    if not Path(SSHD).exists():
        pytest.skip("no sshd; apt-get install openssh-server")
    with ExitStack() as stack:

        def start(hosts: VirtualHosts) -> Path:
            key = tmp_path / "key"
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
            subprocess.run(command, check=True)
            Path("/run/sshd").mkdir(exist_ok=True)  # of sshd's own privilege separation
            settings = [
                *(f"HostKey={key}", f"AuthorizedKeysFile={key}.pub", "StrictModes=no"),
                *("UsePAM=no", "PidFile=none"),
            ]
            options = [word for setting in settings for word in ("-o", setting)]
            for host in hosts.hosts:
                daemon = host.command(SSHD, "-D", "-e", "-f", "/dev/null", *options)
                process = subprocess.Popen(daemon, stderr=subprocess.DEVNULL)
                stack.callback(process.wait)
                stack.callback(process.terminate)
            client = tmp_path / "client"
            client.write_text(
                "#!/bin/sh\nexec ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
                f' -o LogLevel=ERROR -o ConnectionAttempts=5 -i {key} "$@"\n'
            )
            client.chmod(0o755)
            return client

        yield start


def test_two_hosts_measure_over_openssh(
    cluster: Callable[..., VirtualHosts],
    openssh: Callable[[VirtualHosts], Path],
    tmp_path: Path,
) -> None:
    hosts = cluster(2)
    assert "2 nodes" in measured(hosts, openssh(hosts), tmp_path, "layout=2x1")


def ranks_of(host: Host) -> list[int]:
    """The ranks that run there, once they measure."""
    until_s = time.monotonic() + WORLD_S
    while time.monotonic() < until_s:
        environments = {pid: Path(f"/proc/{pid}/environ") for pid in host.pids()}
        found = [pid for pid, file in environments.items() if b"LOCAL_RANK=" in file.read_bytes()]
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("no rank has started")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_parent_that_ends_takes_the_ranks_of_all_hosts_along(
    cluster: Callable[..., VirtualHosts], tmp_path: Path, number: signal.Signals
) -> None:
    hosts = cluster(2)
    long = ("layout=2x1", "timing=soak", "timing.duration_s=600")
    parent = subprocess.Popen(words(hosts, hosts.agent, *long), cwd=tmp_path)
    ranks_of(hosts.hosts[1])
    parent.send_signal(number)
    parent.wait(END_S)
    assert gone(hosts)


def test_a_rank_that_is_killed_is_named_and_fresh_ranks_measure(
    cluster: Callable[..., VirtualHosts], tmp_path: Path
) -> None:
    hosts = cluster(2)
    command = words(hosts, hosts.agent, "layout=2x1", "timing=soak", "timing.duration_s=6")
    parent = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    victim = ranks_of(hosts.hosts[1])[0]
    while not list(tmp_path.glob("results/*/in_flight")):
        time.sleep(0.05)
    os.kill(victim, signal.SIGKILL)
    errors = parent.communicate(timeout=WORLD_S)[1]
    assert hosts.hosts[1].name in errors and "has ended" in errors, errors
    (run,) = (tmp_path / "results").iterdir()
    assert len(load_run(run)["starts"]) == 1 and (commbench.load(run).status == "ok").all()


def test_a_host_that_refuses_is_named(cluster: Callable[..., VirtualHosts], tmp_path: Path) -> None:
    hosts = cluster(2)
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho Permission denied >&2\nexit 255\n")
    refusing.chmod(0o755)
    done = subprocess.run(
        words(hosts, refusing, "layout=2x1"), capture_output=True, text=True, cwd=tmp_path,
        timeout=WORLD_S, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert hosts.hosts[1].name in done.stderr and "255" in done.stderr, done.stderr
    assert gone(hosts)
