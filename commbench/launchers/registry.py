"""All launchers: which one has started this process, which one starts a job, what this machine
lacks for it, and how ranks join their world."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING

from commbench.core.case import RankIdentity, World
from commbench.core.errors import ConfigError, WorldBroken
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Control, Launcher
from commbench.hardware.gpu import VISIBLE_DEVICES, visible_count
from commbench.hardware.network import LOOPBACK, network_advice
from commbench.results.run_folder import check_output
from commbench.world.control import StoreControl, by_node, hosted_world
from commbench.world.exit_protocol import FOLDER
from commbench.world.rendezvous import CONNECT_S, FIRST_MEETING_S, assemble, server_store
from commbench.world.start_limit import MARGIN_S, NO_ANSWER, ends_within, meetings_end

from .given_world import (
    ENV,
    ENV_VARIABLES,
    TORCHRUN_ID,
    env_identity,
    why_foreign,
    world_note,
)

if TYPE_CHECKING:  # a rank and the start of a command don't wait for Hydra
    from commbench.config.compose import RequestedJobs
    from commbench.config.settings import Job, Settings

DEFAULT = "auto"  # conf/launcher/auto.yaml: the default of the backend


@cache
def launchers() -> tuple[Launcher, ...]:
    """An instance for each file in conf/launcher except auto.yaml, by precedence."""
    folder = files("commbench.conf") / "launcher"
    names = [
        file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")
    ]
    modules = {
        name: importlib.import_module(f"commbench.launchers.{name}")
        for name in names
        if name != DEFAULT
    }
    built: list[Launcher] = [
        getattr(module, name.capitalize())() for name, module in modules.items()
    ]
    return tuple(sorted(built, key=lambda launcher: launcher.precedence))


def is_called_per_node(name: str) -> bool:
    """Whether the launcher of this name is called once on each node, see Launcher."""
    return any(each.name == name and each.is_called_per_node for each in launchers())


def detect(environ: Mapping[str, str]) -> RankIdentity | None:
    """Which rank of which world this process is; None outside of a world. Raises ConfigError."""
    identity = _exported(environ)
    return identity if identity is None or _foreign(identity, environ) is None else None


def settle_world(environ: MutableMapping[str, str]) -> str | None:
    """The line about the world that a command finds itself in, None if there is nothing to say.

    Left-over variables by which fresh ranks would take themselves for torchrun's are removed.
    Raises ConfigError.
    """
    identity = _exported(environ)
    foreign = None if identity is None else _foreign(identity, environ)
    note = None if FOLDER in environ else world_note(identity, foreign, environ)
    if foreign is not None and identity is not None and identity.launcher == ENV:
        for name in (*ENV_VARIABLES, TORCHRUN_ID):
            environ.pop(name, None)
    return note


def _exported(environ: Mapping[str, str]) -> RankIdentity | None:
    """What the variables say. The launcher that is closest to the process wins: torchrun inside of
    mpirun or srun is torchrun."""
    identities = (launcher.detect(environ) for launcher in launchers())
    identity = next((identity for identity in identities if identity is not None), None)
    return identity or env_identity(environ)


def _foreign(identity: RankIdentity, environ: Mapping[str, str]) -> str | None:
    """Ranks that a parent has started are in their own world, wherever that parent is."""
    return None if FOLDER in environ else why_foreign(identity, environ)


def allowed(backend: Backend) -> list[str]:
    """The names of the launchers that can start its ranks."""
    if backend.launchers == "none":
        return []
    return [
        launcher.name
        for launcher in launchers()
        if backend.launchers == "any" or launcher.starts_mpi
    ]


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
    usable = [launcher for launcher in launchers() if launcher.name in names]
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
    name = given.get("launcher", DEFAULT)
    conf = files("commbench.conf")
    default = re.search(r"- backend: (\w+)", (conf / "config.yaml").read_text())
    file = (
        conf
        / "backend"
        / f"{given.get('backend', default[1] if default else '').split(',')[0]}.yaml"
    )
    target = (
        re.search(r"^_target_: (\S+)\.(\w+)", file.read_text(), re.MULTILINE)
        if file.is_file()
        else None
    )
    usable = launchers()
    if target is not None:  # else the user's own folder has it
        names = allowed(getattr(importlib.import_module(target[1]), target[2])())
        usable = tuple(launcher for launcher in usable if launcher.name in names)
    fitting = (
        each
        for each in usable
        if (not each.needs_scheduler if name == DEFAULT else each.name == name)
    )
    return next(fitting, None)


def mpi_library(backend: Backend, launcher: Launcher) -> str | None:
    """The MPI library that each rank loads, as in `backend.library`; None if the ranks load
    none."""
    needed = launcher.meets_over_mpi or backend.launchers == "starts_mpi"
    return backend.library if needed else None


def own_variables() -> tuple[str, ...]:
    """Prefixes of the variables that some launcher forwards to its ranks itself."""
    return tuple(prefix for launcher in launchers() for prefix in launcher.own_variables)


def check_startable(job: Job, elsewhere: bool = False) -> None:
    """Raises ConfigError, in one line, for what this machine can't do. `elsewhere`: the ranks will
    run on others."""
    settings = job.settings
    reason = next(missing_requirements(settings, elsewhere), None)
    layout = Layout.around(settings.layouts)
    if reason is not None:
        if reason.startswith("layout="):
            commands = (launcher.manual_command(layout, job.overrides) for launcher in launchers())
            reason += "; start its ranks yourself:" + "".join(
                f"\n  {command}" for command in commands if command
            )
        raise ConfigError(reason)
    if settings.plan:
        return
    check_output(settings.output)
    if not elsewhere and settings.backend.launchers != "none":
        launcher = launcher_of(settings)
        launcher.command(layout, (), mpi_library(settings.backend, launcher), ())


def check_experiment(requested: RequestedJobs, elsewhere: bool = False) -> None:
    """Raises ConfigError, in one line, with everything that this machine lacks for an
    experiment."""
    if requested.experiment is None:
        return
    reasons = list(requested.refused)
    for job in requested.jobs:
        reasons += missing_requirements(job.settings, elsewhere)
    if reasons:
        listed = "; ".join(
            f"({number}) {reason}" for number, reason in enumerate(dict.fromkeys(reasons), start=1)
        )
        hint = (
            f". As far as one machine's CPUs go: commbench {requested.smaller}"
            if requested.smaller
            else ""
        )
        raise ConfigError(f"experiment={requested.experiment} can't run here: {listed}{hint}")


def missing_requirements(settings: Settings, elsewhere: bool = False) -> Iterator[str]:
    """What this machine lacks, a line each: library and device; nodes and GPUs unless the ranks run
    `elsewhere`."""
    backend = settings.backend
    if settings.device not in backend.devices:
        allowed = ", ".join(backend.devices)
        yield (
            f"device={settings.device} can't be used with backend={backend.name}; allowed:"
            f" {allowed}"
        )
    hosted = backend.launchers == "none"
    launcher = None if hosted else launcher_of(settings)
    reach, is_local = (1, True) if launcher is None else (launcher.reach, launcher.is_local)
    if settings.plan:
        return
    gpus_here = settings.device == "cuda" and not elsewhere and is_local  # login nodes have none
    reason = (
        None if settings.device == "cuda" and not gpus_here else backend.missing(settings.device)
    )
    if reason is not None:
        yield f"backend={backend.name}: {reason}"
    widest = max(settings.layouts, key=lambda layout: layout.nodes, default=Layout(1, 2))
    if widest.nodes > reach and not hosted and not elsewhere:
        where = "this is one machine" if is_local else f"the launcher has {reach}"
        yield f"layout={widest} needs {widest.nodes} nodes, {where}"
    if widest.nodes == 1 and reason is None and gpus_here and not hosted and not backend.shares_gpu:
        yield from _missing_gpus(settings)


def _missing_gpus(settings: Settings) -> Iterator[str]:
    """One line where the ranks of this node would have to share GPUs."""
    fullest = max(settings.layouts, key=lambda layout: layout.ranks_per_node, default=Layout(1, 2))
    wanted = fullest.ranks_per_node
    visible = visible_count(os.environ)
    if visible is not None and wanted > visible:
        hidden = (
            f" with {VISIBLE_DEVICES}={os.environ[VISIBLE_DEVICES]!r}"
            if VISIBLE_DEVICES in os.environ
            else ""
        )
        instead = f"use layout=1x{visible}" if visible else "make some visible"
        yield (
            f"backend={settings.backend.name} needs a GPU for each rank: layout={fullest} wants"
            f" {wanted} on this machine, it shows {visible}{hidden}; {instead}"
        )


def connect(
    identity: RankIdentity,
    backend: Backend,
    interface: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> StoreControl:
    """The control plane of this rank's world. Raises ConfigError or WorldBroken."""
    launcher = next(launcher for launcher in launchers() if launcher.name == identity.launcher)
    # MPI_Init and the two exchanges behind it have limits of their own
    waits = 4 if launcher.meets_over_mpi else 1
    limit_s = waits * CONNECT_S + MARGIN_S
    what = "the connection to rank 0's store"
    if backend.needs_torch:  # before the limit begins: slow imports are no fault
        importlib.import_module("torch.distributed")
    try:
        if identity.size == 1:  # the exported port may be in use by an earlier command
            store = server_store(LOOPBACK, 0, LOOPBACK, backend.needs_torch)
        else:
            with ends_within(limit_s, what, partial(network_advice, NO_ANSWER), identity):
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
    with meetings_end(FIRST_MEETING_S, "the first meeting", identity):
        world = assemble(identity, control)
        return world, by_node(world, control)
