"""The environment variables that change how ranks talk. Secrets and the noise of single ranks stay out.

A variable is kept when its name has one of PREFIXES or is one of NAMES, unless
- its last word is one of RANK_WORDS: a launcher sets it differently for every rank or node, on purpose;
- it is one of LAUNCHER_NOTES: what a launcher's daemons tell their own ranks, not what a user sets;
- its name holds one of SECRET_WORDS. Credentials inside other values are masked with ***.
CUDA_VISIBLE_DEVICES may differ by rank too, and stays: it decides whether CUDA IPC works.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from commbench.provenance.sources import Facts, key_part, one_line

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
SECRET_WORDS = re.compile("TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
MASK = "***"
URL = "://"
BEFORE_AT = re.compile(r"(?<![^@/,;])[^@/,;]+@")
NAMED_SECRETS = re.compile(
    r"((?:token|secret|passw(?:or)?d|passphrase|api_?key|credentials?|jwt)\"?\s*[=:]\s*)[^\s,;&]+", re.IGNORECASE
)
JSON_WEB_TOKEN = re.compile(r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?")


def collect(environ: Mapping[str, str] = os.environ) -> Facts:
    """The facts as `environment.NAME`."""
    return {f"environment.{key_part(name)}": mask(environ[name]) for name in sorted(environ) if is_kept(name)}


def is_kept(name: str) -> bool:
    """Whether a variable belongs into the record; see the rule above."""
    if name not in NAMES and (not name.startswith(PREFIXES) or name.startswith(LAUNCHER_NOTES)):
        return False
    return name.upper().rpartition("_")[2] not in RANK_WORDS and not SECRET_WORDS.search(name)


def mask(value: str) -> str:
    """The value as one line, without what looks like credentials."""
    hidden = " ".join(_mask_word(word) for word in one_line(value).split(" "))
    return JSON_WEB_TOKEN.sub(MASK, NAMED_SECRETS.sub(rf"\g<1>{MASK}", hidden))


def _mask_word(word: str) -> str:
    """Rather too much than too little: in a URL a password may itself hold a slash, a comma or an @."""
    scheme, found, rest = word.partition(URL)
    if found and "@" in rest:
        return f"{scheme}{URL}{MASK}@{rest.rpartition('@')[2]}"
    return BEFORE_AT.sub(lambda match: f"{MASK}@" if ":" in match[0] else match[0], word)
