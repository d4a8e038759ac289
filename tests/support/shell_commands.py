"""The installed command in a process of its own, and what it imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(sys.executable).parent / "commbench")
HEAVY = {"torch", "numba", "mpi4py.MPI", "pandas", "pyarrow"}
LISTED = "import time:"  # begins a line of the listing


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables
    return subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def listing_command(*words: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """`commbench WORDS`, without the listing on its stderr; the modules that it imported."""
    done = command(SCRIPT, *words, PYTHONPROFILEIMPORTTIME="1")
    lines = done.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith(LISTED)}
    done.stderr = "\n".join(line for line in lines if not line.startswith(LISTED))
    return done, imported
