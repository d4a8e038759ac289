"""Ranks on the nodes of a Slurm allocation, or of one that srun asks for."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.core.case import RankIdentity
from commbench.core.errors import ConfigError
from commbench.core.layout import MAX_RANKS, Layout
from commbench.core.protocols import Backend, Launcher, NamedValues, RankVariables
from commbench.hardware.mpi_library import find
from commbench.runtime.rendezvous import (
    exported_host,
    exported_identity,
    exported_port,
    store_at,
)

from .host_list import hosts_of_word

ALLOCATED = "SLURM_JOB_NUM_NODES"
FLUX_INSTANCE = "FLUX_URI"
TERMINAL = "SLURM_PTY_PORT"  # of a step that was started with srun --pty
PMI = {"openmpi": "pmix", "mpich": "pmi2"}  # how a rank of that library finds its world under srun
PORTS = range(15000, 30000)  # below the ephemeral ports of Linux
STEPS = 97  # keeps the ports of neighbouring jobs and steps apart
# the batch, interactive and extern steps count down from the top (slurm.h)
FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class Srun(Launcher):
    """See Launcher. `options` go to srun as they are: partition, account, container.

    The run's folder must be on a file system that the first node shares with this host.
    """

    name = "srun"
    precedence = 30
    programs = ("srun",)
    needs_scheduler = True
    starts_mpi = True
    variables = RankVariables(
        own=("SLURM_",),
        recorded=("SLURM_",),
        worlds=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        terminals=(TERMINAL,),
    )
    fact_scopes = "environment.SLURM_* | record | any | show | yes"
    mpi_options = "with srun: --mpi=pmi2 for MPICH, --mpi=pmix for Open MPI"
    queue_keys = ("nodes", "tasks_per_node", "partition")
    options: tuple[str, ...] = ()

    @property
    def has_allocation(self) -> bool:
        return ALLOCATED in os.environ

    @property
    def is_local(self) -> bool:
        """False also for the node of this process: tasks descend from Slurm's daemon."""
        return False

    @property
    def reach(self) -> int:
        """The allocation's nodes; without one srun asks for as many as are needed."""
        allocated = os.environ.get(ALLOCATED, "")
        return int(allocated) if allocated.isdigit() else MAX_RANKS

    def detect(self, environ: Mapping[str, str]) -> RankIdentity | None:
        """srun's tasks are ranks; a batch script also has SLURM_PROCID, but is not a rank."""
        if "SLURM_PROCID" not in environ or not is_step(environ):
            return None
        return exported_identity(
            "srun", environ, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"
        )

    def foreign(self, identity: RankIdentity, environ: Mapping[str, str]) -> str | None:
        if FLUX_INSTANCE in environ:
            return "they are of the brokers of the Flux instance that this process is in"
        if TERMINAL in environ and identity.size == 1:
            return "they are of a step of one interactive task (srun --pty)"
        return None

    def address(self, environ: Mapping[str, str]) -> tuple[str, int]:
        return step_address(environ)

    def open_store(
        self,
        identity: RankIdentity,
        environ: Mapping[str, str],
        backend: Backend,
        interface: str | None,
    ) -> Any:
        return store_at(*self.address(environ), identity.rank == 0, backend.needs_torch)

    def command(
        self, layout: Layout, worker: Sequence[str], library: str | None, exports: Sequence[str]
    ) -> list[str]:
        if shutil.which("srun") is None:
            raise ConfigError(
                "launcher=srun: there is no srun here; start it on a host of the Slurm cluster"
            )
        return [
            "srun",
            # the script around this process holds the allocation
            *(["--overlap"] if self.has_allocation else []),
            f"--nodes={layout.nodes}",
            f"--ntasks-per-node={layout.ranks_per_node}",
            f"--ntasks={layout.size}",
            # ranks bind themselves (key `bind`); one that fails ends all
            "--cpu-bind=none",
            "--kill-on-bad-exit=1",
            "--export=ALL",
            f"--mpi={pmi(library)}",
            *self.options,
            sys.executable,
            "-m",
            "commbench",
            *worker,
        ]

    def environment(self, ranks_per_node: int) -> dict[str, str]:
        """A port of its own for each world: an earlier one may not have released its port yet."""
        return {"MASTER_PORT": str(secrets.choice(PORTS)), "OMP_NUM_THREADS": "1"}

    def queued(self, layout: Layout, library: str | None, output: str) -> NamedValues:
        if shutil.which("srun") is None:
            raise ConfigError(
                "hydra/launcher=submitit_slurm: there is no srun here; start on a host of the Slurm"
                " cluster"
            )
        return (
            ("nodes", layout.nodes),
            ("tasks_per_node", layout.ranks_per_node),
            ("submitit_folder", f"{output}/slurm/%j"),
            # where srun reads which PMI the ranks use
            ("setup", (f"export SLURM_MPI_TYPE={pmi(library)}",)),
        )

    def manual_command(self, layout: Layout, worker: Sequence[str]) -> str:
        return (
            f"srun -N {layout.nodes} --ntasks-per-node {layout.ranks_per_node} commbench"
            f" {shlex.join(worker)}"
        )


def pmi(library: str | None) -> str:
    """The value of --mpi for ranks that load this MPI library; `none` if they load none."""
    chosen = None if library is None else find(library)
    return "none" if chosen is None else PMI[chosen.kind]


def is_step(environ: Mapping[str, str]) -> bool:
    """Whether this process is a task of a numbered step, which srun has started."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdigit() and int(step) < FIRST_SPECIAL_STEP


def step_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """The address where the ranks of a step meet: MASTER_ADDR, or the first node; MASTER_PORT, or a
    port computed from the numbers of job and step. Raises ConfigError where Slurm exports no node
    list, or this is rank 0 on another node."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    is_exported = bool(environ.get("MASTER_ADDR"))
    host = exported_host(environ) if is_exported else first_host(nodes)
    here = environ.get("SLURMD_NODENAME", host)
    if not is_exported and environ.get("SLURM_PROCID") == "0" and here != host:
        raise ConfigError(
            f"rank 0 is on {here}, but ranks meet on the first node, {host}: export"
            f" MASTER_ADDR={here}, or start rank 0 there (srun -m arbitrary can place it elsewhere)"
        )
    if environ.get("MASTER_PORT"):
        return host, exported_port(environ)
    numbers = (environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    job, step = (int(number) if number.isdigit() else 0 for number in numbers)
    return host, PORTS[(job * STEPS + step) % len(PORTS)]


def first_host(nodes: str) -> str:
    """`n03` of Slurm's list `n[03-05,9],m1`; raises ConfigError for a text without one."""
    try:
        return next(hosts_of_word(nodes))
    except ConfigError as error:
        raise ConfigError(
            f"Slurm exports no usable node list ({nodes!r}): export MASTER_ADDR (the host of"
            " rank 0)"
        ) from error
