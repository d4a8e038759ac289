"""A Slurm of its own on virtual hosts: munge, a controller and a daemon a node, nothing outside the
test's folder."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import virtual_hosts
from processes import until
from virtual_hosts import Host, Link, VirtualHosts

PROGRAMS = (
    "munged",
    "slurmctld",
    "slurmd",
    "srun",
    "sbatch",
    "salloc",
    "scancel",
    "sinfo",
    "setpriv",
)
CPUS = 4  # of each node, however many there are: ranks share them
START_S = 30.0
CLIENT_S = 20
LOG_CHARACTERS = 2000
UNBOUND = Link()

CONFIGURATION = """
ClusterName=virtual
SlurmctldHost={first}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={spool}/%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
FirstJobId={first_job}
KillWait=10
SchedulerParameters=batch_sched_delay=0,sched_interval=1
"""


@dataclass(frozen=True)
class SlurmCluster:
    """`names` are Slurm's for the nodes (n01, n02, ...), each an alias of its host in
    /etc/hosts."""

    hosts: VirtualHosts
    names: tuple[str, ...]
    folder: Path

    def command(self, *words: str) -> list[str]:
        """A command line that runs `words` on the first node, as a client of this cluster."""
        return self.hosts.hosts[0].command("env", f"SLURM_CONF={self.folder}/slurm.conf", *words)

    def client_output(self, *words: str) -> str:
        """What a client printed, in an activated environment: jobs inherit it. Raises
        CalledProcessError."""
        bounded = self.command("timeout", "-k", "2", str(CLIENT_S), *words)
        activated = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return subprocess.run(
            bounded, capture_output=True, text=True, check=True, env=activated
        ).stdout

    def speaks(self, plugin: str) -> bool:
        """Whether `srun --mpi=PLUGIN` works: its library may be absent though the plugin is
        listed."""
        trial = ("timeout", "-k", "2", str(CLIENT_S), "srun", f"--mpi={plugin}", "true")
        return (
            subprocess.run(self.command(*trial), capture_output=True, check=False).returncode == 0
        )

    def explain(self) -> str:
        """The ends of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-LOG_CHARACTERS:]}" for log in logs
        )


def missing() -> str | None:
    """Why this machine can't have such a cluster; None if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"a Slurm cluster needs {', '.join(absent)} (apt-get install slurm-wlm munge)"
    return virtual_hosts.missing()


@contextmanager
def slurm_cluster(
    count: int,
    folder: Path,
    link: Link = UNBOUND,
    others: Mapping[int, Link] = MappingProxyType({}),
) -> Iterator[SlurmCluster]:
    """`count` idle nodes for as long as the block runs; daemons and jobs end with it. `others` are
    the links of nodes that have another one than the rest.

    The daemons end with this process, too, however it dies. Raises CalledProcessError, or
    AssertionError with the daemons' logs; ask `missing` first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # sockets of job steps lie there, whose paths have 107 characters at most; a test's folder
        # alone has 80
        spool = stack.enter_context(TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True))
        hosts = stack.enter_context(
            virtual_hosts.virtual_hosts(count, folder / "hosts", link, others)
        )
        names = tuple(f"n{index + 1:02}" for index in range(count))
        cluster = SlurmCluster(hosts, names, folder)
        _configure(cluster, spool)
        _start(cluster, stack)
        until(lambda: _idle(cluster), START_S, cluster.explain)
        yield cluster


def _configure(cluster: SlurmCluster, spool: str) -> None:
    pairs = list(zip(cluster.names, cluster.hosts.hosts, strict=True))
    with (cluster.folder / "hosts" / "hosts").open("a") as file:
        file.writelines(f"{host.address} {name}\n" for name, host in pairs)
    first = cluster.hosts.hosts[0]
    # MPICH names its shared memory by the job's number: what a killed world of another cluster has
    # left must not match of few digits: pmi2 reads 1024 bytes of a request, which has it, too
    first_job = 1 + secrets.randbelow(99_000)
    folders = {"folder": cluster.folder, "spool": spool}
    text = CONFIGURATION.format(
        first=first.name, address=first.address, first_job=first_job, **folders
    )
    where = [
        f"NodeName={name} NodeHostname={host.name} NodeAddr={host.address}" for name, host in pairs
    ]
    text += "".join(f"{line} CPUS={CPUS} RealMemory=1000 State=UNKNOWN\n" for line in where)
    text += "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    (cluster.folder / "slurm.conf").write_text(text)
    (cluster.folder / "state").mkdir()
    for name in cluster.names:
        own = cluster.folder / name
        own.mkdir()
        (own / "slurm.conf").symlink_to(cluster.folder / "slurm.conf")
        # in /tmp the nodes would meet each other's files
        (own / "mpi.conf").write_text(f"PMIxCliTmpDirBase={own}\n")
    key = cluster.folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def _start(cluster: SlurmCluster, stack: ExitStack) -> None:
    """Each daemon in the foreground, ended by the stack."""
    folder = cluster.folder
    first = cluster.hosts.hosts[0]
    own = [f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"]
    own += [f"--{word}-file={folder}/munge.{word}" for word in ("pid", "log", "seed")]
    # a test's folder is root's alone
    _daemon(cluster, stack, first, "munged", "--foreground", "--force", *own)
    until((folder / "munge.socket").exists, START_S, cluster.explain)
    _daemon(cluster, stack, first, "slurmctld", "-D", "-f", f"{folder}/slurm.conf")
    for name, host in zip(cluster.names, cluster.hosts.hosts, strict=True):
        _daemon(
            cluster, stack, host, "slurmd", "-D", "-f", f"{folder}/{name}/slurm.conf", "-N", name
        )


def _daemon(cluster: SlurmCluster, stack: ExitStack, host: Host, program: str, *words: str) -> None:
    path = shutil.which(program)
    assert path is not None
    output = stack.enter_context((cluster.folder / f"{program}-{host.name}.output.log").open("wb"))
    command = host.command("setpriv", "--pdeathsig", "KILL", path, *words)
    daemon = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cluster.folder
    )
    stack.callback(_end, daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """At once: nobody reads the state that it would save."""
    daemon.kill()
    daemon.wait()


def _idle(cluster: SlurmCluster) -> bool:
    command = cluster.command(
        "timeout", "-k", "2", str(CLIENT_S), "sinfo", "--noheader", "--Node", "--format=%T"
    )
    states = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return states == ["idle"] * len(cluster.names)
