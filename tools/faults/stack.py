"""The command lines of worlds of two ranks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from combination import GIVEN, HOSTS, OWN

from commbench.core.layout import Layout
from commbench.hardware.mpi_library import find
from commbench.runtime.launchers.mpirun import Mpirun
from commbench.runtime.launchers.torchrun import Torchrun

# the virtual hosts of the tests
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from virtual_hosts import VirtualHosts

CONF = Path(__file__).parent / "conf"
DEBIAN = Path("/usr/lib") / "x86_64-linux-gnu" / "libmpi.so.40"
PORT = 29511  # in a network of its own
REDUCE = "planted_reduce"
LATENCY = "planted_latency"


@dataclass(frozen=True)
class Stack:
    """`library` is an MPI library by kind or path; None for torchrun."""

    backend: str
    library: str | None

    @property
    def words(self) -> list[str]:
        """The arguments of commbench."""
        benchmark = LATENCY if self.backend == "tcp" else REDUCE
        words = ["--config-dir", str(CONF), "allow=[planted]", f"backend=planted_{self.backend}"]
        words += [f"benchmark=[{benchmark}]"]
        return [*words, f"backend.library={self.library}"] if self.backend == "mpi" else words


STACKS = {
    "gloo": Stack("gloo", None),
    "openmpi": Stack("mpi", "openmpi"),
    "mpich": Stack("mpi", "mpich"),
    "tcp": Stack("tcp", None),
    "own torchrun": Stack("gloo", None),
    "torchrun": Stack("gloo", None),
    "mpirun openmpi": Stack("mpi", "openmpi"),
    "mpirun openmpi 4": Stack("mpi", str(DEBIAN)),
    "mpirun mpich": Stack("mpi", "mpich"),
    "torchrun, 2 hosts": Stack("gloo", None),
    "openmpi, 2 hosts": Stack("mpi", "openmpi"),
    "mpich, 2 hosts": Stack("mpi", "mpich"),
}
assert set(STACKS) == {*OWN, *GIVEN, *HOSTS}


def lacking(world: str) -> str | None:
    """Why this machine cannot start such a world; None if it can."""
    library = STACKS[world].library
    if library is None:
        return None
    if library.startswith("/"):
        return (
            None
            if Path(library).exists()
            else f"{library} is not installed (apt-get install openmpi-bin)"
        )
    return (
        None if find(library) is not None else f"{library} is not installed; make test installs it"
    )


def command(world: str, extra: list[str]) -> list[str]:
    """The command on this machine, with the launcher if the world is started by hand."""
    stack = STACKS[world]
    words = [*stack.words, *extra]
    if world in OWN:
        launcher_word = ["launcher=torchrun"] if world == "own torchrun" else []
        return [sys.executable, "-m", "commbench", *words, *launcher_word, "layout=1x2"]
    launcher = Torchrun() if stack.library is None else Mpirun()
    return launcher.command(Layout(1, 2), words, stack.library, ())


def commands_on_hosts(world: str, hosts: VirtualHosts, extra: list[str]) -> list[list[str]]:
    """A command for each agent, the one with rank 0 first."""
    stack = STACKS[world]
    words = ["-m", "commbench", *stack.words, *extra, "bind=none", f"interface={hosts.interface}"]
    if stack.library is None:
        meeting = ["--master-addr", hosts.hosts[0].address, "--master-port", str(PORT)]
        agent = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            *meeting,
        ]
        return [
            host.command(*agent, "--node-rank", str(rank), *words)
            for rank, host in enumerate(hosts.hosts)
        ]
    return [hosts.hosts[0].command(*_mpirun(stack.library, hosts), sys.executable, *words)]


def _mpirun(kind: str, hosts: VirtualHosts) -> list[str]:
    library = find(kind)
    assert library is not None, lacking(kind)
    # UCX would use shared memory, as the virtual hosts share one kernel
    if library.kind == "mpich":
        rsh = ["-launcher", "rsh", "-launcher-exec", str(hosts.agent)]
        return [
            library.launcher(),
            *rsh,
            "-hosts",
            hosts.slots(1),
            "-genv",
            "UCX_TLS",
            "tcp,self",
            "-n",
            "2",
        ]
    prefix = str(Path(library.path).parents[1])
    words = [
        "--personality",
        "ompi",
        "--prefix",
        prefix,
        "--prtemca",
        "plm_ssh_agent",
        str(hosts.agent),
    ]
    wires = ["--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", hosts.network]
    where = ["--host", hosts.slots(1), "--map-by", "node", "--bind-to", "none"]
    return [library.launcher(), *words, *where, *wires, "-n", "2"]
