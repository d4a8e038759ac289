"""What can be started from this machine: by which launcher, on how many nodes, and what is missing for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from commbench.contracts import Backend, Launcher
from commbench.errors import ConfigError
from commbench.keys import construct
from commbench.launchers.srun import ALLOCATED
from commbench.layout import Layout
from commbench.settings import Settings


def lacks(settings: Settings, elsewhere: bool = False) -> Iterator[str]:
    """What this machine has not, a line each: the library, the device, and the nodes if the ranks shall live here."""
    backend = settings.backend
    reason = backend.missing(settings.device)
    if reason is not None:
        yield f"backend={backend.name}: {reason}"
    if settings.device not in backend.devices:
        allowed = ", ".join(backend.devices)
        yield f"device={settings.device} can't be used with backend={backend.name}; allowed: {allowed}"
    wide = max(settings.layouts, key=lambda one: one.nodes, default=Layout(1, 2))
    if wide.nodes > 1 and backend.launchers and not settings.plan and not elsewhere:
        reach = launcher_of(settings).reach
        if wide.nodes > reach:
            where = "this is one machine" if reach == 1 else f"the launcher has {reach}"
            yield f"layout={wide} needs {wide.nodes} nodes, {where}"


def launcher_of(settings: Settings) -> Launcher:
    """The launcher asked for, else srun for several nodes of an allocation, else the backend's first.

    Raises ConfigError where the backend can't live under it.
    """
    names = settings.backend.launchers
    wide = any(layout.nodes > 1 for layout in settings.layouts)
    usual = "srun" if wide and ALLOCATED in os.environ and "srun" in names else names[0]
    chosen = settings.launcher if settings.launcher is not None else _load(usual)
    if chosen.name not in names:
        allowed = ", ".join(names)
        raise ConfigError(f"launcher={chosen.name} can't start {settings.backend.name}; allowed: {allowed}")
    return chosen


def mpi_library(backend: Backend, launcher: Launcher) -> str | None:
    """What to load in each rank, as `backend.library`; None where the ranks need no MPI of the launcher."""
    needed = launcher.meets_over_mpi or "torchrun" not in backend.launchers
    return getattr(backend, "library", None) if needed else None


def _load(name: str) -> Any:
    return construct({"_target_": f"commbench.launchers.{name}.{name.capitalize()}"}, "launcher", ())
