"""mpirun's command lines for other hosts: the libraries' own words, from a list or from a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.hardware.mpi_library import find
from commbench.runtime.launchers.mpirun import YIELDING, Mpirun
from commbench.runtime.launchers.registry import library_settings

DEBIAN = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"
HOSTS = ("node1", "10.0.0.2", "node3")
FILE = "# racks\nnode1 slots=8\n10.0.0.2:4  # one of them\n\nnode3\n"


def words(library: str, launcher: Mpirun, nodes: int = 2, each: int = 4) -> str:
    """The command line up to the ranks' own program."""
    command = launcher.command(Layout(nodes, each), ["label=x"], library, ["A", "B"])
    assert command[-2:] == ["commbench", "label=x"]
    return " ".join(command[1 : command.index("-m")])


@pytest.mark.skipif(not Path(DEBIAN).exists(), reason="no Open MPI of Debian")
def test_open_mpi_4_has_its_own_names() -> None:
    line = words(DEBIAN, Mpirun(hosts=HOSTS, agent="/bin/login"))
    assert (
        "--mca plm_rsh_agent /bin/login --host node1:4,10.0.0.2:4 --map-by ppr:4:node --bind-to"
        " none" in line
    )
    assert line.startswith("--oversubscribe") and "-x A -x B" in line and " -n 8 " in line
    assert "personality" not in line and "--prefix" not in line


@pytest.mark.skipif(find("openmpi") is None, reason="no Open MPI 5")
def test_open_mpi_5_is_told_where_it_lies_on_other_hosts() -> None:
    library = find("openmpi")
    assert library is not None and library.version >= 5
    line = words("openmpi", Mpirun(hosts=HOSTS, agent="/bin/login"))
    assert line.startswith(f"--personality ompi --prefix {Path(library.launcher()).parents[1]} ")
    assert (
        "--prtemca plm_ssh_agent /bin/login --host node1:4,10.0.0.2:4 --map-by"
        " ppr:4:node:OVERSUBSCRIBE" in line
    )


ALIKE = ("node.rack1.example", "10.0.0.1", "10.0.0.2", "node.rack2.example")


@pytest.mark.skipif(find("openmpi") is None, reason="no Open MPI 5")
def test_hosts_that_are_one_to_open_mpi_5_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"node.rack1.example and node.rack2.example are one"):
        words("openmpi", Mpirun(hosts=ALIKE), nodes=4)
    assert "--host 10.0.0.1:4,10.0.0.2:4 " in words("openmpi", Mpirun(hosts=ALIKE[1:]))
    asked = ("--prtemca", "prte_keep_fqdn_hostnames", "1")
    assert "node.rack2.example:4" in words("openmpi", Mpirun(hosts=ALIKE, options=asked), nodes=4)


@pytest.mark.skipif(find("mpich") is None, reason="no MPICH")
def test_hydra_compares_whole_names() -> None:
    line = words("mpich", Mpirun(hosts=ALIKE), nodes=4)
    assert "node.rack1.example,10.0.0.1,10.0.0.2,node.rack2.example" in line


@pytest.mark.skipif(find("mpich") is None, reason="no MPICH")
def test_hydra_takes_hosts_and_ranks_a_host() -> None:
    line = words("mpich", Mpirun(hosts=HOSTS, agent="/bin/login"), nodes=3, each=2)
    assert line.startswith(
        "-launcher rsh -launcher-exec /bin/login -hosts node1,10.0.0.2,node3 -ppn 2 -n 6 "
    )


def test_a_hostfile_says_the_same_as_a_list(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(FILE)
    from_file = Mpirun(hostfile=str(file))
    from_list = Mpirun(hosts=HOSTS)
    assert from_file.reach == from_list.reach == 3
    if find("auto") is not None:
        assert words("auto", from_file, nodes=3) == words("auto", from_list, nodes=3)


@pytest.mark.parametrize(
    ("hosts", "text", "message"),
    [
        (("a",), "a", "say the same; give one of them"),
        ((), None, "is not a file; give a file with one host per line"),
        ((), "a;rm\n", "'a;rm' is not a host; write names or addresses, a line each, with or"),
        ((), "# nothing\n", "names no host; give a file with one host per line"),
        (("fd00:1::1",), "", "launcher.hosts: fd00:1::1 is an IPv6 address"),
        (("a:2",), "", "'a:2' is not a host"),
        (("-x",), "", "'-x' is not a host"),
    ],
)
def test_a_text_that_is_no_host_is_refused(
    tmp_path: Path, hosts: tuple[str, ...], text: str | None, message: str
) -> None:
    file = tmp_path / "hosts"
    if text:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Mpirun(hosts=hosts, hostfile=str(file) if text or text is None else None)


def test_ranks_yield_only_where_there_are_more_than_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    yielding = [
        Mpirun().environment(ranks).items() >= YIELDING.items() for ranks in (1, cores, cores + 1)
    ]
    assert yielding == [False, False, True]
    assert library_settings("mpirun") == tuple(YIELDING)
    assert library_settings("srun") == library_settings("none") == ()
