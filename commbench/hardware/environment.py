"""The environment variables that change how ranks talk. Secrets and the noise of single ranks stay out.

A variable is kept when its name has one of PREFIXES or is one of NAMES, unless
- its last word is one of RANK_WORDS: a launcher sets it differently for every rank or node, on purpose;
- it is one of LAUNCHER_NOTES: what a launcher's daemons tell their own ranks, not what a user sets.
Credentials are masked with ***: the whole value where the name is that of a credential, else what looks like one in
it. A digest follows the masked value, so that ranks can be compared; `without_digests` takes it off for the record.
CUDA_VISIBLE_DEVICES may differ by rank too, and stays: it decides whether CUDA IPC works.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping

from commbench.core.secrets import MASK, is_secret, mask

from .sources import Facts, key_part, one_line

PREFIXES = (
    *("GLOO_", "NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "COMMBENCH_"),
    *("OMPI_", "PMIX_MCA_", "PRTE_MCA_", "MPICH_", "MPIR_", "MV2_", "MPI4PY_", "UCX_", "FI_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "NUMBA_", "SLURM_"),
)
NAMES = frozenset({"MASTER_ADDR", "MASTER_PORT", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LD_PRELOAD"})
RANK_WORDS = frozenset({"RANK", "RANKID", "LOCALRANKID", "PROCID", "LOCALID", "NODEID", "GTIDS", "PID", "VPID", "FD"})
LAUNCHER_NOTES = (
    "OMPI_FILE_LOCATION",
    "OMPI_ARGV",
    "OMPI_COMMAND",
    "OMPI_MCA_orte_",
    "OMPI_MCA_ess",
    "OMPI_FIRST_RANKS",
)
DIGEST = " sha256:"  # after a masked value: ranks are compared, and nobody can read it in the record
DIGEST_DIGITS = 16
DIGESTED = re.compile(rf"{DIGEST}[0-9a-f]{{{DIGEST_DIGITS}}}")


def collect(environ: Mapping[str, str] = os.environ) -> Facts:
    """The facts as `environment.NAME`."""
    return {f"environment.{key_part(name)}": _told(name, environ[name]) for name in sorted(environ) if is_kept(name)}


def is_kept(name: str) -> bool:
    """Whether a variable belongs into the record; see the rule above."""
    if name not in NAMES and (not name.startswith(PREFIXES) or name.startswith(LAUNCHER_NOTES)):
        return False
    return name.upper().rpartition("_")[2] not in RANK_WORDS


def without_digests(value: str) -> str:
    """A text with facts as it may be written down."""
    return DIGESTED.sub("", value)


def _told(name: str, value: str) -> str:
    plain = one_line(value)
    hidden = MASK if is_secret(name) else mask(plain)
    if hidden == plain:
        return plain
    return f"{hidden}{DIGEST}{hashlib.sha256(value.encode(errors='replace')).hexdigest()[:DIGEST_DIGITS]}"
