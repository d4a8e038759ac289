"""Start a world, watch it, and say how it ended."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from commbench.config.settings import Settings
from commbench.core.errors import WorldBroken
from commbench.core.layout import Layout
from commbench.core.protocols import Launcher
from commbench.core.run_folder import write_json
from commbench.hardware.software import is_recorded

from .supervisor import keep, lost

FOLDER = "COMMBENCH_FOLDER"  # the run's folder, for the world that was started for it
RESUME = "COMMBENCH_RESUME"  # how a world goes on with a run: retry, force, or rest (what a broken world has left)
SWEEP = "COMMBENCH_SWEEP"  # jobs of one command share it
CONFIG_DIR = "COMMBENCH_CONFIG_DIR"  # the user's own YAML, for every world of a command
TERMINAL = "COMMBENCH_TERMINAL"  # a person watches the parent's stderr: mpirun's ranks can't see that
OURS = (SWEEP, CONFIG_DIR, "PYTHONPATH", "LD_LIBRARY_PATH", "PATH")  # as they are here; ranks on other hosts need them
OF_A_LAUNCHER = ("SLURM_", "OMPI_", "PRTE_", "PMIX_", "COMMBENCH_")  # they forward their own; ours say it below
REFUSED = "refused"  # file in the folder: the world's exit status where it did not get as far as a run.json


def start(
    settings: Settings,
    launcher: Launcher,
    library: str | None,
    shape: Layout,
    worker: Sequence[str],
    folder: str,
    resume: str | None = None,
) -> int:
    """Run one world to its end; the exit status of its run. `library` is the MPI that its ranks load, if they do.

    Raises ConfigError or WorldBroken.
    """
    if resume is not None:
        _reopen(Path(folder))
    # a meeting point that somebody exported for another job is not ours
    inherited = {key: value for key, value in os.environ.items() if key not in ("MASTER_ADDR", "MASTER_PORT")}
    exports = {
        "TORCH_CPP_LOG_LEVEL": inherited.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # its warnings would bury our one line
        **launcher.environment(shape.nodes, shape.ranks_per_node, library),
        **_asked(settings),
        **dict(settings.env),
        **{key: value for key, value in inherited.items() if key in OURS or _is_a_setting(key)},
        FOLDER: folder,
        **({RESUME: resume} if resume is not None else {}),
        **({TERMINAL: "1"} if sys.stderr.isatty() else {}),
    }
    command = launcher.command(shape.nodes, shape.ranks_per_node, worker, library, sorted(exports))
    environment = inherited | exports
    status, first = keep(command, environment, Path(folder))
    return _outcome(Path(folder), status, first)


def _asked(settings: Settings) -> dict[str, str]:
    """What the backend exports, where it can see what the user exports: it does not ask for that otherwise."""
    before = dict(os.environ)
    os.environ.update(dict(settings.env))
    try:
        return settings.backend.environment(settings.cuda_ipc, settings.interface)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _is_a_setting(name: str) -> bool:
    """Of a library, and compared before the first case: ranks on other hosts need it, too."""
    return is_recorded(name) and not name.startswith(OF_A_LAUNCHER)


def _outcome(folder: Path, status: int, first: Sequence[str]) -> int:
    """The run's own exit status: launchers turn a worker's status into their own."""
    refused, record = folder / REFUSED, folder / "run.json"
    if refused.exists():
        code = int(refused.read_text() or WorldBroken.exit_status)  # a full disk takes the file, not the number
        with suppress(OSError):
            refused.unlink()
        _remove_if_empty(folder)
        return code
    if not folder.exists():
        raise WorldBroken(f"{folder} is gone; the world ended with status {status}, its own message is above")
    if not record.exists():
        _remove_if_empty(folder)
        raise WorldBroken(f"the world ended with status {status} before it measured anything; its own message is above")
    run = json.loads(record.read_text())
    told = run.get("exit_status") is not None  # by rank 0 of this world
    if not told or run.get("status") in ("broken", "interrupted"):  # not by us: we would not be here
        said = run.get("reason") if told else lost(folder, first)
        reason = said or f"the world ended with status {status} in the middle of the run"
        with suppress(OSError):
            write_json(record, run | {"status": "broken", "exit_status": WorldBroken.exit_status, "reason": reason})
        raise WorldBroken(f"{reason}; finished cases are in {folder}")
    return int(run["exit_status"])


def _reopen(folder: Path) -> None:
    """A run that goes on has no end yet: a world that dies at once must not be taken for the earlier one."""
    run = json.loads((folder / "run.json").read_text())
    write_json(folder / "run.json", run | {"exit_status": None})


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # somebody else has removed it
        if not any(folder.iterdir()):
            folder.rmdir()


def refuse(folder: str | None, status: int) -> None:
    """Inside a world that was started for a folder: tell the parent why there is no run.json."""
    if folder is None or not Path(folder).is_dir():
        return
    goes_on = RESUME in os.environ and status != WorldBroken.exit_status  # a world that broke is for the next one
    if goes_on or not (Path(folder) / "run.json").exists():
        with suppress(OSError):
            (Path(folder) / REFUSED).write_text(str(status))


def leave_status(folder: str, status: int) -> None:
    """Inside such a world, at its end: the run's status, where no writer of ours has left a run.json."""
    if not (Path(folder) / "run.json").exists():
        with suppress(OSError):
            (Path(folder) / REFUSED).write_text(str(status))


def given_lines(overrides: Sequence[str], nodes: int, ranks_per_node: int) -> str:
    """The three commands that make a world this process can't make itself."""
    words = shlex.join(overrides)
    ranks = nodes * ranks_per_node
    return (
        f"\n  torchrun --nnodes {nodes} --nproc-per-node {ranks_per_node} --rdzv-backend c10d"
        f" --rdzv-endpoint HOST:29400 -m commbench {words}     (on each node)"
        f"\n  mpirun -n {ranks} --map-by ppr:{ranks_per_node}:node --hostfile HOSTS commbench {words}"
        f"\n  srun -N {nodes} --ntasks-per-node {ranks_per_node} commbench {words}"
    )
