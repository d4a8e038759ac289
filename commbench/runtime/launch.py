"""Start a world that measures into a run's folder, and wait for its end."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from commbench.config.settings import Job
from commbench.core.launchers import rank_variables
from commbench.core.layout import Layout
from commbench.core.protocols import Launcher
from commbench.core.secrets import MASK, masked_override
from commbench.core.terminal import print_error
from commbench.hardware.machine_facts import is_recorded

from .closing import record_closing
from .exit_protocol import ENDS, FOLDER, JOB, RESUME
from .output import BUSY, LOG, Output
from .rank_server import QUIET, ForkedWorld, inherited_environment, rank_server, rest_rank_server
from .recovery import Resume
from .running_world import LaunchedWorld, RunningWorld
from .supervisor import supervise
from .world_end import reopen, run_status

SWEEP = "COMMBENCH_SWEEP"  # shared by the jobs of one command
CONFIG_DIR = "COMMBENCH_CONFIG_DIR"  # the user's own YAML, for every world of a command
LONGEST_VARIABLE = 100_000  # bytes; Linux refuses 128 KiB
# of budget.silence_s: a stopped rank on this host is named before its heartbeats are missed
STOPPED_SHARE = 0.75
# ranks on other hosts need these as they are here
FORWARDED = (
    BUSY,
    SWEEP,
    CONFIG_DIR,
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONSAFEPATH",
)


@dataclass(frozen=True)
class WorldSpec:
    """A world to start. `mpi_library` is the one that its ranks load, None if they load none.

    `resume`: how the world continues the folder's run.
    """

    job: Job
    launcher: Launcher
    mpi_library: str | None
    layout: Layout
    folder: str
    resume: Resume | None = None


def start(spec: WorldSpec) -> int:
    """Run one world to its end; returns the exit status of its run. Raises ConfigError or
    WorldBroken."""
    folder = Path(spec.folder)
    settings = spec.job.settings
    if spec.resume is not None:
        reopen(folder)
    starting = f"starting {spec.layout.size} ranks of {settings.backend.name}"
    output = Output(starting, None if spec.launcher.forks else folder / LOG)
    ends_file = folder / f"ends-{secrets.token_hex(4)}"
    launch = partial(_start_world, spec, output, ends_file)
    stopped_s = STOPPED_SHARE * settings.budget.silence_s
    try:
        end = supervise(launch, output, folder, ends_file, stopped_s, settings.budget.late_s)
        text = record_closing(folder, output.last_lines, spec.launcher.is_local)
        if end.unclosed is not None or text is not None:
            print_error(end.unclosed or str(text))
        return run_status(folder, ends_file, end, settings.verbose)
    finally:  # also after a signal
        with suppress(OSError):
            ends_file.unlink()


def _start_world(spec: WorldSpec, output: Output, ends_file: Path) -> RunningWorld:
    launcher = spec.launcher
    job = spec.job
    exports = _exports(spec) | output.exports() | {ENDS: str(ends_file)}
    ranks_here = spec.layout.ranks_per_node
    environment = inherited_environment() | exports
    if launcher.forks:
        server = rank_server(environment, job.settings.trial)
        return ForkedWorld(
            server, ranks_here, job.overrides, environment, output.write_end, Path(spec.folder)
        )
    rest_rank_server()
    words = _shown_words(job.overrides, are_read=JOB not in exports)
    command = launcher.command(spec.layout, words, spec.mpi_library, sorted(exports))

    def rank_of(environ: Mapping[str, str]) -> int | None:
        identity = launcher.detect(environ) if environ.get(FOLDER) == spec.folder else None
        return None if identity is None else identity.rank

    ranks_here = ranks_here if launcher.is_local else 0
    return LaunchedWorld(launcher.name, command, environment, output.write_end, rank_of, ranks_here)


def _shown_words(overrides: Sequence[str], are_read: bool) -> list[str]:
    """The overrides as the command lines of ranks have them, which all users of a machine can see.

    If ranks read them, only what is exported to the ranks too can be left out.
    """
    masked = list(map(masked_override, overrides))
    if not are_read:
        return masked
    return [
        shown if word.lstrip("+").startswith("env.") and shown.endswith(f"='{MASK}'") else word
        for word, shown in zip(overrides, masked, strict=True)
    ]


def _exports(spec: WorldSpec) -> dict[str, str]:
    """The variables that this command adds, and those that ranks on other hosts need as they are
    here."""
    inherited = inherited_environment()
    settings = spec.job.settings
    own = (*rank_variables().own, "COMMBENCH_")
    # settings of libraries, which are compared before the first case, must reach ranks on other
    # hosts
    forwarded = (
        key
        for key in inherited
        if key in FORWARDED or (is_recorded(key) and not key.startswith(own))
    )
    text = spec.job.text()
    with exported(dict(settings.env)):  # which the backend must not contradict
        by_backend = settings.backend.environment(settings.cuda_ipc, settings.interface)
    return {
        **{key: inherited.get(key, value) for key, value in QUIET.items()},
        **spec.launcher.environment(spec.layout.ranks_per_node),
        **by_backend,
        **{key: inherited[key] for key in forwarded},
        **dict(settings.env),
        FOLDER: spec.folder,
        **({RESUME: spec.resume.value} if spec.resume is not None else {}),
        **({JOB: text} if len(text) < LONGEST_VARIABLE else {}),  # else each rank composes it again
    }


@contextmanager
def exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Export variables to this process and all worlds that it starts, within the `with` block."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)
