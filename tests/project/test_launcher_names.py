"""Launchers are named by their own classes alone: what others write of them is derived."""

from __future__ import annotations

import re
from pathlib import Path

from places import LAUNCHERS
from source_texts import texts

import commbench
from commbench.core.launchers import launchers
from commbench.runtime.launchers.mpirun import Mpirun

PACKAGE = Path(commbench.__file__).parent
OWN = {PACKAGE / "runtime" / "launchers", *(file.parents[1] for file in LAUNCHERS.values())}
# files whose texts mean something else than a launcher of commbench
OTHERWISE = {
    "cli/options.py": "torch's own launcher of earlier versions, and its successor",
    "core/variables.py": "registration=local, which is of buffers",
    "hardware/mpi_library.py": "the programs of the MPI libraries",
    "runtime/supervisor.py": "a launcher's login, which may wait for a password",
    "cluster/search/slurm_switches.py": "the topology that Slurm knows, whatever starts ranks",
    "cluster/watch/slurm_queue.py": "the queue of Slurm, whatever starts ranks",
    "features/doctor/command.py": "a program on PATH, and what Python's -m imports",
}


def named() -> re.Pattern[str]:
    """A launcher's name, or a variable of one. Those of Open MPI are settings of the library, too;
    `local` is a name where it stands alone."""
    words = [launcher.name for launcher in launchers() if launcher.name != "local"]
    prefixes = {name for launcher in launchers() for name in launcher.variables.own}
    variables = "|".join(prefixes - {*Mpirun.variables.own})
    return re.compile(rf"\b({'|'.join(words)})\b|\b({variables})|^local$")


def test_no_launcher_is_named_outside_of_its_file() -> None:
    name = named()
    files = (file for file in sorted(PACKAGE.rglob("*.py")) if not OWN & {*file.parents})
    found = {
        str(file.relative_to(PACKAGE))
        for file in files
        if any(name.search(text) for text in texts(file.read_text()))
    }
    assert found == {*OTHERWISE}, "let the class say it: Launcher in core/protocols.py"
