"""Which launcher has started this process, and which one starts a job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from commbench.core.annexes import parts
from commbench.core.case import RankIdentity
from commbench.core.errors import ConfigError
from commbench.core.launchers import launcher_named, launchers, target_of, usual_programs
from commbench.core.protocols import Backend, Launcher
from commbench.core.units import word_list
from commbench.runtime.exit_protocol import FOLDER

from .given_world import (
    ENV,
    ENV_VARIABLES,
    TORCHRUN_ID,
    env_identity,
    refuse_unread_rank,
    why_foreign,
    world_note,
)

if TYPE_CHECKING:  # a rank and the start of a command don't wait for Hydra
    from commbench.config.settings import Settings

DEFAULT = "auto"  # conf/launcher/auto.yaml: the default of the backend


def is_called_per_node(name: str) -> bool:
    """Whether the launcher of this name is called once on each node, see Launcher."""
    return any(each.name == name and each.is_called_per_node for each in launchers())


def library_settings(name: str) -> tuple[str, ...]:
    """Those that the launcher of this name may export, see Launcher."""
    return next((each.library_settings for each in launchers() if each.name == name), ())


def detect(environ: Mapping[str, str]) -> RankIdentity | None:
    """Which rank of which world this process is; None outside of a world. Raises ConfigError."""
    identity = _exported(environ)
    return identity if identity is None or _foreign(identity, environ) is None else None


def refuse_world(command: str) -> None:
    """Raises ConfigError where this process is a rank, for a command that starts its own."""
    if detect(os.environ) is not None:
        raise ConfigError(
            f"{command} starts its worlds itself; call it outside of"
            f" {word_list(usual_programs(), 'and')}"
        )


def settle_world(environ: MutableMapping[str, str]) -> str | None:
    """The line about the world that a command finds itself in, None if there is nothing to say.

    Left-over variables by which fresh ranks would take themselves for torchrun's are removed.
    Raises ConfigError.
    """
    identity = _exported(environ)
    foreign = None if identity is None else _foreign(identity, environ)
    if identity is not None and foreign is None and identity.size > 1:
        launcher_named(identity.launcher).address(environ)  # raises where they could not meet
    note = None if FOLDER in environ else world_note(identity, foreign, environ)
    if foreign is not None and identity is not None and identity.launcher == ENV:
        for name in (*ENV_VARIABLES, TORCHRUN_ID):
            environ.pop(name, None)
    return note


def _exported(environ: Mapping[str, str]) -> RankIdentity | None:
    """What the variables say. The launcher that is closest to the process wins: torchrun inside of
    mpirun or srun is torchrun. Raises ConfigError for a rank that is not told of how many."""
    identities = (launcher.detect(environ) for launcher in launchers())
    identity = next(filter(None, identities), None) or env_identity(environ)
    if identity is None and FOLDER not in environ:
        refuse_unread_rank(environ)
    return identity


def _foreign(identity: RankIdentity, environ: Mapping[str, str]) -> str | None:
    """Ranks that a parent has started are in their own world, wherever that parent is."""
    return None if FOLDER in environ else why_foreign(identity, environ)


def allowed(backend: Backend) -> list[str]:
    """The names of the launchers that can start its ranks."""
    return [launcher.name for launcher in _usable(backend)]


def _usable(backend: Backend) -> list[Launcher]:
    if backend.hosts_ranks:
        return []
    return [each for each in launchers() if backend.launchers == "any" or each.starts_mpi]


def launcher_of(settings: Settings) -> Launcher:
    """The chosen launcher; else, for several nodes, the one whose allocation this is; else the
    backend's default.

    Raises ConfigError where it can't start the backend's ranks.
    """
    names = allowed(settings.backend)
    if settings.launcher is not None:
        if settings.launcher.name not in names:
            raise ConfigError(
                f"launcher={settings.launcher.name} can't start {settings.backend.name}; allowed:"
                f" {', '.join(names)}"
            )
        return settings.launcher
    usable = _usable(settings.backend)
    several_nodes = any(layout.nodes > 1 for layout in settings.layouts)
    default = next(launcher for launcher in usable if not launcher.needs_scheduler)
    return next(
        (launcher for launcher in usable if several_nodes and launcher.has_allocation), default
    )


def likely_launcher(words: Sequence[str]) -> Launcher | None:
    """The launcher that a command line will probably lead to, before it is composed; None if it
    starts no ranks."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if given.get("plan") == "true" or any(key.startswith("hydra/launcher") for key in given):
        return None
    usable = _launchers_of(given.get("backend", "").split(",")[0])
    name = given.get("launcher", DEFAULT)
    is_default = name == DEFAULT
    return next(
        (each for each in usable if each.name == name or (is_default and not each.needs_scheduler)),
        None,
    )


def _launchers_of(backend_name: str) -> Sequence[Launcher]:
    """The launchers that can start a backend, without composing it; an empty name is the default
    backend. All of them for a backend whose file is in the user's own folder."""
    conf = files("commbench.conf")
    if not backend_name:
        default = re.search(r"- backend: (\w+)", (conf / "config.yaml").read_text())
        backend_name = default[1] if default else ""
    places = (place / "backend" / f"{backend_name}.yaml" for place in (conf, *map(files, parts())))
    file = next((file for file in places if file.is_file()), None)
    target = None if file is None else target_of(file.read_text())
    return launchers() if target is None else _usable(target())


def mpi_library(backend: Backend, launcher: Launcher) -> str | None:
    """The MPI library that each rank loads, as in `backend.library`; None if the ranks load
    none."""
    needed = launcher.meets_over_mpi or backend.launchers == "starts_mpi"
    return backend.library if needed else None
