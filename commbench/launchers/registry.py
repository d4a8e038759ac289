"""All launchers: which of them has started this process, which one starts a backend's ranks, and how ranks join."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from commbench.core.case import RankIdentity, World
from commbench.core.errors import ConfigError, WorldBroken
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Control, Launcher
from commbench.world.control import StoreControl
from commbench.world.control_tree import by_node
from commbench.world.rendezvous import assemble, hosted_world

if TYPE_CHECKING:
    from commbench.config.settings import Settings

DEFAULT = "auto"  # conf/launcher/auto.yaml: the default of the backend


@cache
def launchers() -> tuple[Launcher, ...]:
    """One of each file in conf/launcher, by precedence."""
    folder = files("commbench.conf") / "launcher"
    names = [file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")]
    modules = {name: importlib.import_module(f"commbench.launchers.{name}") for name in names if name != DEFAULT}
    found: list[Launcher] = [getattr(module, name.capitalize())() for name, module in modules.items()]
    return tuple(sorted(found, key=lambda launcher: launcher.precedence))


def detect(environ: Mapping[str, str]) -> RankIdentity | None:
    """Which rank of which world this process is; None outside of a world. Raises ConfigError.

    The launcher that is closest to the process wins: torchrun inside of mpirun or srun is torchrun.
    """
    identities = (launcher.detect(environ) for launcher in launchers())
    return next((identity for identity in identities if identity is not None), None)


def allowed(backend: Backend) -> list[str]:
    """The names of the launchers that can start its ranks."""
    if backend.launchers == "none":
        return []
    return [launcher.name for launcher in launchers() if backend.launchers == "any" or launcher.starts_mpi]


def launcher_of(settings: Settings) -> Launcher:
    """The chosen launcher, else for several nodes the one whose allocation this is, else the backend's default.

    Raises ConfigError where it can't start the backend's ranks.
    """
    names = allowed(settings.backend)
    if settings.launcher is not None:
        if settings.launcher.name not in names:
            raise ConfigError(
                f"launcher={settings.launcher.name} can't start {settings.backend.name}; allowed: {', '.join(names)}"
            )
        return settings.launcher
    usable = [launcher for launcher in launchers() if launcher.name in names]
    several_nodes = any(layout.nodes > 1 for layout in settings.layouts)
    return next((launcher for launcher in usable if several_nodes and launcher.has_allocation), usable[0])


def likely_launcher(words: Sequence[str]) -> Launcher | None:
    """The launcher that a command line will probably lead to, before it is composed; None if it starts no ranks."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if given.get("plan") == "true" or any(key.startswith("hydra/launcher") for key in given):
        return None
    name, conf = given.get("launcher", DEFAULT), files("commbench.conf")
    default = re.search(r"- backend: (\w+)", (conf / "config.yaml").read_text())
    file = conf / "backend" / f"{given.get('backend', default[1] if default else '').split(',')[0]}.yaml"
    target = re.search(r"^_target_: (\S+)\.(\w+)", file.read_text(), re.MULTILINE) if file.is_file() else None
    usable = launchers()
    if target is not None:  # else it is in a folder of the user
        names = allowed(getattr(importlib.import_module(target[1]), target[2])())
        usable = tuple(launcher for launcher in usable if launcher.name in names)
    return next((launcher for launcher in usable if name in (DEFAULT, launcher.name)), None)


def mpi_library(backend: Backend, launcher: Launcher) -> str | None:
    """What to load in each rank, as `backend.library`; None where the ranks need no MPI of the launcher."""
    needed = launcher.meets_over_mpi or backend.launchers == "starts_mpi"
    return backend.library if needed else None


def own_variables() -> tuple[str, ...]:
    """Prefixes of the variables that some launcher forwards to its ranks itself."""
    return tuple(prefix for launcher in launchers() for prefix in launcher.own_variables)


def manual_commands(nodes: int, ranks_per_node: int, worker: Sequence[str]) -> str:
    """The lines with which a user starts a world that this process can't start."""
    commands = (launcher.manual_command(nodes, ranks_per_node, worker) for launcher in launchers())
    return "".join(f"\n  {command}" for command in commands if command is not None)


def connect(
    identity: RankIdentity, backend: Backend, interface: str | None = None, environ: Mapping[str, str] = os.environ
) -> StoreControl:
    """The control plane of this rank's world. Raises ConfigError or WorldBroken."""
    launcher = next(launcher for launcher in launchers() if launcher.name == identity.launcher)
    try:
        store = launcher.open_store(identity, environ, backend, interface)
    except (RuntimeError, KeyError, ValueError, OSError, OverflowError) as error:
        raise WorldBroken(f"rank {identity.rank} found no control plane: {error}") from error
    return StoreControl(store, identity.rank, identity.size)


def join_world(settings: Settings, identity: RankIdentity | None) -> tuple[World, Control]:
    """The world and its control plane; `identity` is None where this process hosts all ranks."""
    if identity is None:
        around = Layout.around(settings.layouts)
        return hosted_world(around.nodes, around.ranks_per_node)
    control = connect(identity, settings.backend, settings.interface)
    world = assemble(identity, control)
    return world, by_node(world, control)
