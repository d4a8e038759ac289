"""Start a world for a run's folder, and wait for its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commbench.config.settings import Settings
from commbench.core.layout import Layout
from commbench.core.protocols import Launcher
from commbench.hardware.software import is_recorded

from .exit_protocol import FOLDER, RESUME, reopen, run_status
from .supervisor import supervise

SWEEP = "COMMBENCH_SWEEP"  # shared by the jobs of one command
CONFIG_DIR = "COMMBENCH_CONFIG_DIR"  # the user's own YAML, for every world of a command
TERMINAL = "COMMBENCH_TERMINAL"  # a person watches the parent's stderr: mpirun's ranks can't see that
# ranks on other hosts need these as they are here
FORWARDED = (SWEEP, CONFIG_DIR, "PYTHONPATH", "LD_LIBRARY_PATH", "PATH")


@dataclass(frozen=True)
class WorldSpec:
    """A world to start. `mpi_library` is what its ranks load, if they do; `overrides` are their command line.

    `own_variables`: prefixes of what launchers forward themselves. `resume`: how the world continues the folder's run.
    """

    settings: Settings
    launcher: Launcher
    mpi_library: str | None
    layout: Layout
    overrides: Sequence[str]
    folder: str
    own_variables: tuple[str, ...] = ()
    resume: str | None = None


def start(spec: WorldSpec) -> int:
    """Run one world to its end; the exit status of its run. Raises ConfigError or WorldBroken."""
    if spec.resume is not None:
        reopen(Path(spec.folder))
    nodes, ranks_per_node = spec.layout.nodes, spec.layout.ranks_per_node
    # an address that somebody exported for another job is not ours
    inherited = {key: value for key, value in os.environ.items() if key not in ("MASTER_ADDR", "MASTER_PORT")}
    own = (*spec.own_variables, "COMMBENCH_")
    # settings of libraries are compared before the first case, and ranks on other hosts need them, too
    forwarded = (key for key in inherited if key in FORWARDED or (is_recorded(key) and not key.startswith(own)))
    exports = {
        "TORCH_CPP_LOG_LEVEL": inherited.get("TORCH_CPP_LOG_LEVEL", "ERROR"),  # its warnings would bury our one line
        **spec.launcher.environment(nodes, ranks_per_node, spec.mpi_library),
        **_backend_exports(spec.settings),
        **dict(spec.settings.env),
        **{key: inherited[key] for key in forwarded},
        FOLDER: spec.folder,
        **({RESUME: spec.resume} if spec.resume is not None else {}),
        **({TERMINAL: "1"} if sys.stderr.isatty() else {}),
    }
    command = spec.launcher.command(nodes, ranks_per_node, spec.overrides, spec.mpi_library, sorted(exports))
    launcher_status, first_ended = supervise(command, inherited | exports, Path(spec.folder))
    return run_status(Path(spec.folder), launcher_status, first_ended)


def _backend_exports(settings: Settings) -> dict[str, str]:
    """What the backend exports; it sees the user's `env`, so that it does not contradict it."""
    before = dict(os.environ)
    os.environ.update(dict(settings.env))
    try:
        return settings.backend.environment(settings.cuda_ipc, settings.interface)
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def exported(name: str, value: str | None) -> Iterator[None]:
    """Export a variable to all worlds that are started meanwhile; None exports nothing."""
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            del os.environ[name]
