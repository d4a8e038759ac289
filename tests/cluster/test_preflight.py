"""Hosts that are not alike: what preflight says of a difference that was planted on the second of
two virtual hosts."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from test_mpi_virtual_hosts import WORKER, hydra, openmpi
from virtual_hosts import VirtualHosts

from commbench.hardware.mpi_library import MpiLibrary, find
from commbench.runtime.launchers.mpirun import YIELDING

pytestmark = pytest.mark.long
VARIABLE = "NCCL_DEBUG"
OTHER_TORCH = "2.99.0+planted"
AHEAD_S = 90
# fact -> what the second host's profile does; {folder} is that of the test
PLANTS = {
    "versions.torch": "export PYTHONPATH={folder}/versions${PYTHONPATH:+:$PYTHONPATH}",
    f"environment.{VARIABLE}": f"unset {VARIABLE}",
    "configuration (digest)": 'set -- "$@" budget.late_s=30',
}
VALUES = {
    "versions.torch": [json.dumps(metadata.version("torch")), json.dumps(OTHER_TORCH)],
    f"environment.{VARIABLE}": ['"WARN"', "missing"],
}
CLOCK = "export PYTHONPATH={folder}/clock${PYTHONPATH:+:$PYTHONPATH}"
ASKED = ("benchmark=barrier", "timing=fixed", "timing.repetitions=5", "timing.warmup_s=0")
ENV = {**YIELDING, VARIABLE: "WARN"}


def installed(kind: str) -> MpiLibrary:
    library = find(kind)
    assert library is not None, f"{kind}: make test installs both wheels"
    return library


@pytest.fixture
def hosts(cluster: Callable[..., VirtualHosts], tmp_path: Path) -> VirtualHosts:
    """Two of them, and in the test's folder what plants put on PYTHONPATH: another torch, and a
    clock that is ahead."""
    path = tmp_path / "versions" / "torch-2.99.0.dist-info" / "METADATA"
    path.parent.mkdir(parents=True)
    path.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {OTHER_TORCH}\n")
    (tmp_path / "clock").mkdir()
    ahead = ("import time", "true = time.time", f"time.time = lambda: true() + {AHEAD_S}")
    (tmp_path / "clock" / "sitecustomize.py").write_text("\n".join(ahead))
    made: VirtualHosts = cluster(2)
    return made


def profile(
    hosts: VirtualHosts, folder: Path, name: str, *lines: str, planted: int = 1, before: str = ""
) -> str:
    """A script that runs its words on any host after the line `before`, and on one of them after
    these lines, too."""
    path = folder / f"profile-{name}"
    body = "\n".join(line.replace("{folder}", shlex.quote(str(folder))) for line in lines)
    there = f'[ "$(hostname)" = {hosts.hosts[planted].name} ]'
    path.write_text(f'#!/bin/sh -e\n{before}\nif {there}; then\n:\n{body}\nfi\nexec "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def start(world: Callable[..., Any], hosts: VirtualHosts, tmp_path: Path) -> Callable[..., Any]:
    """start("openmpi", "a name", "lines", ...): a rank on each host, the planted one after these
    lines; its end."""

    def begun(
        kind: str,
        name: str,
        *lines: str,
        words: tuple[str, ...] = (),
        planted: int = 1,
        before: str = "",
        status: int = 0,
    ) -> Any:
        launcher = (
            hydra(hosts, installed(kind)) if kind == "mpich" else openmpi(hosts, installed(kind), 1)
        )
        script = profile(hosts, tmp_path, name, *lines, planted=planted, before=before)
        command = [*launcher, "-n", "2", script, *WORKER, *ASKED, f"label={name}", *words]
        return world(*hosts.hosts[0].command(*command), env=ENV, status=status)

    return begun


def together(worlds: Sequence[Callable[[], Any]]) -> list[Any]:
    """Their ends. All at once: a rank that is refused mostly waits, for rank 0 to speak first."""
    with ThreadPoolExecutor(len(worlds)) as pool:
        return list(pool.map(lambda begin: begin(), worlds))


def table(stderr: str) -> dict[str, list[list[str]]]:
    """fact -> the other cells of its lines, in the first table of differences that rank 0
    printed."""
    lines = stderr.partition("ranks differ:\n")[2].partition("make them equal")[0].splitlines()
    head, *rows = [re.split(" {2,}", line.strip()) for line in lines]
    assert head == ["fact", "value", "ranks", "hosts"], stderr
    cells: dict[str, list[list[str]]] = {}
    fact = ""
    for row in rows:
        fact = row.pop(0) if len(row) == len(head) else fact
        cells.setdefault(fact, []).append(row)
    return cells


def check_table(facts: Iterable[str], hosts: VirtualHosts, stderr: str) -> None:
    """Nothing but these differs, each with both values, their ranks and their hosts."""
    seen = table(stderr)
    names = [host.name for host in hosts.hosts]
    assert set(seen) == set(facts), stderr
    for fact, rows in seen.items():
        values = [row[0] for row in rows]
        assert rows == [[values[0], "0", names[0]], [values[1], "1", names[1]]], stderr
        assert values == VALUES.get(fact, values) and values[0] != values[1], stderr


def test_strict_refuses_before_anything_is_measured(
    start: Callable[..., Any], hosts: VirtualHosts
) -> None:
    worlds = [
        partial(start, "openmpi", f"plant{number}", plant, status=2)
        for number, plant in enumerate(PLANTS.values())
    ]
    for fact, run in zip(PLANTS, together(worlds), strict=True):
        assert run.stderr.count("ranks differ") == 1, run.explain()
        assert (
            "commbench: ranks differ:" in run.stderr
            and "accept it with preflight=warn" in run.stderr
        )
        check_table([fact], hosts, run.stderr)
        assert run.stdout.strip() == "" and not run.output.exists(), "nothing was measured"


def test_with_preflight_warn_a_difference_is_reported_and_measured(
    start: Callable[..., Any], hosts: VirtualHosts
) -> None:
    run = start("openmpi", "all", *PLANTS.values(), words=("preflight=warn",))
    check_table(PLANTS, hosts, run.stderr)
    assert "ranks differ" not in run.stdout and run.stdout.count("results: ") == 1
    assert run.cases.status.to_list() == ["ok"]


def test_off_is_silent_and_the_record_has_all(
    start: Callable[..., Any], hosts: VirtualHosts
) -> None:
    run = start("openmpi", "all", *PLANTS.values(), CLOCK, words=("preflight=off",))
    assert [
        line
        for line in run.stderr.splitlines()
        if not re.match(r"1 case, (about|at most) |\[1/1\] barrier ", line)
    ] == []
    assert run.cases.status.to_list() == ["ok"]
    differing = run.record["provenance"]["differences"]
    assert {"versions.torch", f"environment.{VARIABLE}", "run.digest"} <= set(differing)
    assert differing["versions.torch"][json.dumps(OTHER_TORCH)] == [1]
    assert abs(run.record["clock_skew_s"] - AHEAD_S) < 1


def test_hosts_whose_clocks_tell_different_times_are_named(
    start: Callable[..., Any], hosts: VirtualHosts
) -> None:
    """No other result comes of it: only log lines of two hosts can't be put in order."""
    run = start("openmpi", "clock", CLOCK)
    first, second = (host.name for host in hosts.hosts)
    seen = re.findall(
        r"the clock of (\S+) \(rank 1\) is ([0-9.]+) s ahead of that of (\S+) \(rank 0\)",
        run.stderr,
    )
    assert [(ahead, behind) for ahead, _, behind in seen] == [(second, first)], run.stderr
    assert abs(float(seen[0][1]) - AHEAD_S) < 1
    assert "ranks differ" not in run.stderr and run.cases.status.to_list() == ["ok"]


def test_interfaces_of_one_network_may_have_other_names_on_other_hosts(
    start: Callable[..., Any], hosts: VirtualHosts
) -> None:
    """gloo measures over eth0 of one host and ens1f0 of the other."""
    change = "link set eth0 down\nlink set eth0 name ens1f0\nlink set ens1f0 up\n"
    subprocess.run(
        ["ip", "-n", hosts.hosts[1].name, "-batch", "-"],
        input=change,
        text=True,
        check=True,
        timeout=10,
    )
    run = start(
        "mpich",
        "gloo",
        "export GLOO_SOCKET_IFNAME=ens1f0",
        words=("backend=gloo",),
        before="export GLOO_SOCKET_IFNAME=eth0",
    )
    assert (
        "GLOO_SOCKET_IFNAME differs between hosts, but names the same network on all: 10.78.0.0/24"
        in run.stderr
    )
    assert run.cases.status.to_list() == ["ok"]
    values = run.record["provenance"]["differences"]["environment.GLOO_SOCKET_IFNAME"]
    assert values == {'"eth0"': [0], '"ens1f0"': [1]}


def test_an_mpi_library_that_does_not_belong_to_the_launcher_is_named(
    start: Callable[..., Any], hosts: VirtualHosts
) -> None:
    """One host has it in its environment, the first or the second; or all were told to take it.
    Nobody hangs."""
    mpich = installed("mpich").path
    first, second, under_hydra, both = together(
        [
            partial(
                start, "openmpi", "first", f"export MPI4PY_LIBMPI={mpich}", planted=0, status=2
            ),
            partial(start, "openmpi", "second", f"export MPI4PY_LIBMPI={mpich}", status=2),
            partial(
                start,
                "mpich",
                "hydra",
                f"export MPI4PY_LIBMPI={installed('openmpi').path}",
                status=2,
            ),
            partial(start, "mpich", "both", words=("backend.library=openmpi",), status=2),
        ]
    )
    check_stranger(first, "", "mpich", "openmpi")
    check_stranger(second, f"rank 1 on {hosts.hosts[1].name} (pid 0): ", "mpich", "openmpi")
    check_stranger(under_hydra, f"rank 1 on {hosts.hosts[1].name} (pid 0): ", "openmpi", "mpich")
    check_stranger(both, "", "openmpi", "mpich")


def check_stranger(run: Any, who: str, library: str, launcher: str) -> None:
    assert run.stdout.strip() == "" and not run.output.exists(), run.explain()
    lines = [line for line in run.stderr.splitlines() if line.startswith("commbench: ")]
    assert re.sub(r"pid \d+", "pid 0", lines[0]).startswith(
        f"commbench: {who}backend.library={installed(library).path} is {library}, "
        f"but {launcher}'s launcher started this rank; start with "
    )
