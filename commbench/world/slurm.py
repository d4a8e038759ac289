"""Where the ranks of a Slurm step meet: srun exports no such place, but every rank can work it out alike."""

from __future__ import annotations

import re
from collections.abc import Mapping

from commbench.core.errors import ConfigError

PORTS = range(15000, 30000)  # below the ones that Linux gives to clients
STEPS = 97  # neighbouring jobs and steps get ports that lie apart


def meeting_point(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of rank 0, which lives on the first node of the step; MASTER_ADDR and MASTER_PORT come first.

    Raises ConfigError where Slurm exports no node list.
    """
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    host = environ.get("MASTER_ADDR") or first_host(nodes)
    port = environ.get("MASTER_PORT") or ""
    if port:
        return host, int(port)
    job, step = (
        int(digits) if (digits := environ.get(name, "")).isdigit() else 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    return host, PORTS[(job * STEPS + step) % len(PORTS)]


def first_host(nodes: str) -> str:
    """`n03` of `n[03-05,9],m1`, as Slurm writes lists of hosts; raises ConfigError for a text that is none."""
    match = re.match(r"(?:[A-Za-z0-9_.-]+|\[[0-9][0-9,-]*\])+(?=,|$)", nodes)
    if match is None:
        raise ConfigError(f"Slurm exports no usable node list ({nodes!r}): export MASTER_ADDR (the host of rank 0)")
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", match[0])
