"""Hosts on one machine: network namespaces with a name and an address each, joined by a switch,
links of known rate.

Everything lives in namespaces of its own, the switch too: the machine's network is not touched, and
two test processes never meet.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

NETWORK = "10.78.0"
NAMESPACES = Path("/run/netns")
PROGRAMS = ("ip", "tc", "nsenter", "unshare", "mount", "hostname", "timeout")
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # bits of CapEff, capability.h
MTU = "9000"  # with 1500 B two cores can't pass the packets of 1 Gb/s through both ends' buckets
BURST = "16kb"  # larger buckets let a message pass above the line rate
QUEUE = "50ms"  # a packet waits no longer in a full tbf
COMMAND_S = 10
MADE = "namespaces"  # the file of a folder with the names of those that were made
# of a search for a slow host, one that takes three times as long: all hosts share the cores here
SEARCH_WORDS = (
    "bind=none",
    "window=4",
    "search.slowdown=2",
    "timing=fixed",
    "timing.repetitions=3",
    "timing.warmup_repetitions=1",
    "timing.warmup_s=0",
)
END_S = 1.0  # between asking a process to end and making it
_serial = itertools.count()


@dataclass(frozen=True)
class Link:
    """From each host to the switch, in both directions; None is no bound. `delay_ms` is from host
    to host, one way."""

    rate_mbit: float | None = None
    delay_ms: float | None = None

    def host_end(self) -> list[str]:
        """The queueing discipline for what leaves a host; empty for none."""
        return (
            []
            if self.rate_mbit is None
            else ["tbf", "rate", self._rate, "burst", BURST, "latency", QUEUE]
        )

    def switch_end(self) -> list[str]:
        """The same for what comes to a host: delayed here only, so once on the way."""
        if self.delay_ms is None:
            return self.host_end()
        rate = [] if self.rate_mbit is None else ["rate", self._rate]
        return ["netem", "delay", f"{self.delay_ms * 1000:.0f}us", *rate, "limit", "100000"]

    @property
    def _rate(self) -> str:
        assert self.rate_mbit is not None
        return f"{self.rate_mbit * 1e6:.0f}bit"


@dataclass(frozen=True)
class Host:
    """`name` is the host's name and its namespace's; `enter` runs a command there."""

    name: str
    address: str
    enter: Path

    def command(self, *words: str) -> list[str]:
        """A command line that runs `words` on this host, with its name, network, /sys and
        /etc/hosts."""
        return [str(self.enter), self.name, *words]

    def pids(self) -> list[int]:
        """The processes that live there now."""
        home = _identity(NAMESPACES / self.name)
        pids = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended meanwhile
                if _identity(process / "ns" / "net") == home:
                    pids.append(int(process.name))
        return pids


@dataclass(frozen=True)
class VirtualHosts:
    """`agent HOST WORD...` (or `agent -x HOST WORD...`) is what launchers call instead of ssh."""

    hosts: tuple[Host, ...]
    agent: Path
    interface: str = "eth0"
    network: str = f"{NETWORK}.0/24"

    def slots(self, each: int) -> str:
        """`a:2,b:2`, the host list that Open MPI and MPICH read."""
        return ",".join(f"{host.name}:{each}" for host in self.hosts)

    def pids(self) -> list[int]:
        return [pid for host in self.hosts for pid in host.pids()]


def missing(link: Link = Link()) -> str | None:
    """Why this machine can't make such hosts, found by trying it in namespaces that go at once;
    None if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"virtual hosts need {', '.join(absent)} (apt-get install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "virtual hosts need root"
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    effective = int(next(words[1] for words in lines if words[:1] == ["CapEff:"]), 16)
    lacking = [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]
    if lacking:
        return f"virtual hosts need {', '.join(lacking)}"
    trial = ["ip link add dev end type veth peer name other", "ip link add dev switch type bridge"]
    trial += ["mount -t sysfs sysfs /sys", "hostname trial"]
    ends = [end for end in (link.host_end(), link.switch_end()) if end]
    trial += [f"tc qdisc replace dev end root {' '.join(end)}" for end in ends]
    tried = _run("unshare", "--net", "--mount", "--uts", "sh", "-ec", "\n".join(trial), check=False)
    return (
        f"this kernel refuses virtual hosts: {tried.stderr.strip()}" if tried.returncode else None
    )


@contextmanager
def virtual_hosts(
    count: int,
    folder: Path,
    link: Link = Link(),
    others: Mapping[int, Link] = MappingProxyType({}),
    number: int | None = None,
) -> Iterator[VirtualHosts]:
    """Hosts for as long as the block runs; their processes end with it. See `make_hosts`. With the
    same `number`, hosts that follow one another have the same names, as machines keep theirs."""
    serial = next(_serial) if number is None else number
    hosts = make_hosts(count, folder, link, others, mark=f"-{os.getpid()}-{serial}")
    try:
        yield hosts
    finally:
        remove_hosts(folder)


def make_hosts(
    count: int,
    folder: Path,
    link: Link = Link(),
    others: Mapping[int, Link] = MappingProxyType({}),
    mark: str = "",
) -> VirtualHosts:
    """Hosts that can reach each other by name, until `remove_hosts(folder)`.

    `others` are the links of hosts that have another one than the rest. `folder` gets the scripts
    and the hosts file. `mark` ends the names. Raises CalledProcessError; ask `missing` first.
    """
    names = [f"node{index}{mark}" for index in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    enter, agent = _scripts(folder)
    hosts = tuple(Host(name, f"{NETWORK}.{index + 1}", enter) for index, name in enumerate(names))
    (folder / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in hosts)
    )
    switch = Host(f"switch{mark}", "", enter)
    with ExitStack() as stack:
        for host in (switch, *hosts):
            _run("ip", "netns", "add", host.name)
            stack.callback(_remove, host)
        _run("ip", "-n", switch.name, "link", "add", "bridge", "up", "type", "bridge")
        for index, host in enumerate(hosts):
            _join(host, switch, f"port{index}", others.get(index, link))
        (folder / MADE).write_text(" ".join((*names, switch.name)))
        stack.pop_all()
    return VirtualHosts(hosts, agent)


def remove_hosts(folder: Path) -> None:
    """End what runs on the hosts that `make_hosts` made with this folder, and take them away."""
    made = folder / MADE
    with ExitStack() as stack:
        for name in made.read_text().split():
            if (NAMESPACES / name).exists():  # not after a restart of the machine
                stack.callback(_remove, Host(name, "", folder / "enter"))
    made.unlink()


def _join(host: Host, switch: Host, port: str, link: Link) -> None:
    inside = ("ip", "-n", host.name)
    outside = ("ip", "-n", switch.name)
    wire = [
        "link",
        "add",
        "eth0",
        "netns",
        host.name,
        "type",
        "veth",
        "peer",
        "name",
        port,
        "netns",
        switch.name,
    ]
    _run("ip", *wire)
    _run(*inside, "link", "set", "eth0", "mtu", MTU)
    _run(*outside, "link", "set", port, "mtu", MTU)
    _run(*outside, "link", "set", port, "master", "bridge", "up")
    _run(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
    for interface in ("lo", "eth0"):
        _run(*inside, "link", "set", interface, "up")
    for name, device, discipline in (
        (host, "eth0", link.host_end()),
        (switch, port, link.switch_end()),
    ):
        if discipline:
            _run("tc", "-n", name.name, "qdisc", "add", "dev", device, "root", *discipline)


def _scripts(folder: Path) -> tuple[Path, Path]:
    """`enter HOST WORD...` and the agent.

    /sys is mounted anew, since it shows the interfaces of the namespace that mounted it; the
    cgroups below it stay.
    """
    here = shlex.quote(str(folder))
    (folder / "cgroup").mkdir(exist_ok=True)
    inside = _script(
        folder / "inside",
        'host=$1; shift; hostname "$host"',
        f"mount --bind {here}/hosts /etc/hosts",
        f"mount --rbind /sys/fs/cgroup {here}/cgroup",
        "mount -t sysfs sysfs /sys",
        f"mount --rbind {here}/cgroup /sys/fs/cgroup",
        'exec "$@"',
    )
    enter = _script(
        folder / "enter",
        f'exec nsenter --net={NAMESPACES}/"$1" unshare --uts --mount {shlex.quote(str(inside))}'
        ' "$@"',
    )
    agent = _script(
        folder / "agent",
        'if [ "$1" = -x ]; then shift; fi',
        "host=$1; shift",
        f'exec {shlex.quote(str(enter))} "$host" sh -c "$*"',
    )
    return enter, agent


def _script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh -e", *lines, "")))
    path.chmod(0o755)
    return path


def _remove(host: Host) -> None:
    """End what still runs there, then the namespace; its links go with it."""
    for number, patience_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        for pid in host.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while host.pids() and time.monotonic() < deadline:
            time.sleep(0.02)
    _run("ip", "netns", "del", host.name)


def _identity(namespace: Path) -> tuple[int, int]:
    seen = namespace.stat()
    return seen.st_dev, seen.st_ino


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Bounded in time; a failure carries what the command said."""
    done = subprocess.run(
        ["timeout", "-k", "2", str(COMMAND_S), *words], capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise subprocess.CalledProcessError(done.returncode, [*words, f"({done.stderr.strip()})"])
    return done
