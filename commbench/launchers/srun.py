"""Ranks on the nodes of a Slurm allocation, or of one that srun asks for."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from commbench.core.errors import ConfigError
from commbench.core.layout import MOST_RANKS
from commbench.hardware.mpi_library import find
from commbench.world.slurm import PORTS

ALLOCATED = "SLURM_JOB_NUM_NODES"
PMI = {"openmpi": "pmix", "mpich": "pmi2"}  # how a rank of that library finds its world under srun


@dataclass(frozen=True)
class Srun:
    """See Launcher. `options` go to srun as they are: partition, account, container.

    The run's folder must be on a file system that the first node shares with this host.
    """

    name: ClassVar[str] = "srun"
    meets_over_mpi: ClassVar[bool] = False
    options: tuple[str, ...] = ()

    @property
    def has_allocation(self) -> bool:
        return ALLOCATED in os.environ

    @property
    def reach(self) -> int:
        """The allocation's nodes; without one srun asks for as many as are needed."""
        allocated = os.environ.get(ALLOCATED, "")
        return int(allocated) if allocated.isdigit() else MOST_RANKS

    def command(
        self, nodes: int, ranks_per_node: int, worker: Sequence[str], library: str | None, exports: Sequence[str] = ()
    ) -> list[str]:
        if shutil.which("srun") is None:
            raise ConfigError("launcher=srun: there is no srun here; start it on a host of the Slurm cluster")
        step = ["--overlap"] if self.has_allocation else []  # the script that we are in holds the allocation
        shape = [f"--nodes={nodes}", f"--ntasks-per-node={ranks_per_node}", f"--ntasks={nodes * ranks_per_node}"]
        # a rank binds itself (key `bind`); one that ends early ends all
        rules = ["--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL", f"--mpi={pmi(library)}"]
        return ["srun", *step, *shape, *rules, *self.options, sys.executable, "-m", "commbench", *worker]

    def environment(self, nodes: int, ranks_per_node: int, library: str | None) -> dict[str, str]:
        """A port of its own for each world: an earlier one may not have given up its port yet."""
        return {"MASTER_PORT": str(secrets.choice(PORTS)), "OMP_NUM_THREADS": "1"}


def pmi(library: str | None) -> str:
    """srun's --mpi for ranks that load this MPI library, or none."""
    chosen = None if library is None else find(library)
    return "none" if chosen is None else PMI[chosen.kind]
