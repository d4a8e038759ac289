"""What can be started from this machine: by which launcher, on how many nodes, and what is missing for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.protocols import Backend, Launcher
from commbench.hardware import nvml
from commbench.hardware.gpu import VISIBLE_DEVICES, parse_visible, visible_indices

from .keys import construct
from .settings import Settings


def lacks(settings: Settings, elsewhere: bool = False) -> Iterator[str]:
    """What this machine has not, a line each: the library, the device; if the ranks shall live here, nodes and GPUs."""
    backend = settings.backend
    if settings.device not in backend.devices:
        allowed = ", ".join(backend.devices)
        yield f"device={settings.device} can't be used with backend={backend.name}; allowed: {allowed}"
    away = elsewhere or (bool(backend.launchers) and launcher_of(settings).reach > 1)
    unasked = settings.plan or (away and settings.device == "cuda")  # login nodes have no GPU
    reason = None if unasked else backend.missing(settings.device)
    if reason is not None:
        yield f"backend={backend.name}: {reason}"
    wide = max(settings.layouts, key=lambda one: one.nodes, default=Layout(1, 2))
    if wide.nodes > 1 and backend.launchers and not settings.plan and not elsewhere:
        reach = launcher_of(settings).reach
        if wide.nodes > reach:
            where = "this is one machine" if reach == 1 else f"the launcher has {reach}"
            yield f"layout={wide} needs {wide.nodes} nodes, {where}"
    if wide.nodes == 1 and reason is None and settings.device == "cuda" and not settings.plan and not away:
        yield from _lacking_gpus(settings)


def _lacking_gpus(settings: Settings) -> Iterator[str]:
    """One line where the ranks of this node would have to share GPUs, and the backend can't."""
    backend = settings.backend
    if backend.shares_gpu or not backend.launchers:
        return
    fullest = max(settings.layouts, key=lambda one: one.ranks_per_node, default=Layout(1, 2))
    wanted, seen = fullest.ranks_per_node, visible_gpus(os.environ)
    if seen is not None and wanted > seen:
        hidden = f" with {VISIBLE_DEVICES}={os.environ[VISIBLE_DEVICES]!r}" if VISIBLE_DEVICES in os.environ else ""
        yield (
            f"backend={backend.name} needs a GPU for each rank: layout={fullest} wants {wanted} on this machine, "
            f"it shows {seen}{hidden}; {f'use layout=1x{seen}' if seen else 'make some visible'}"
        )


def visible_gpus(environ: Mapping[str, str]) -> int | None:
    """How many GPUs CUDA shows here; None where only CUDA itself knows."""
    if nvml.reason() is not None:
        return None
    gpus, entries = nvml.gpus(), parse_visible(environ.get(VISIBLE_DEVICES))
    known = visible_indices(environ, gpus)
    if known is not None:
        return len(known)
    return len(entries) if entries is not None else None


def launcher_of(settings: Settings) -> Launcher:
    """The launcher asked for, else the one of the allocation for several nodes, else the backend's first.

    Raises ConfigError where the backend can't live under it.
    """
    names = settings.backend.launchers
    wide = any(layout.nodes > 1 for layout in settings.layouts)
    chosen = settings.launcher if settings.launcher is not None else _usual(names, wide)
    if chosen.name not in names:
        allowed = ", ".join(names)
        raise ConfigError(f"launcher={chosen.name} can't start {settings.backend.name}; allowed: {allowed}")
    return chosen


def mpi_library(backend: Backend, launcher: Launcher) -> str | None:
    """What to load in each rank, as `backend.library`; None where the ranks need no MPI of the launcher."""
    needed = launcher.meets_over_mpi or "torchrun" not in backend.launchers
    return backend.library if needed else None


def _usual(names: Sequence[str], wide: bool) -> Launcher:
    launchers = (_load(name) for name in names)
    return next((one for one in launchers if wide and one.has_allocation), _load(names[0]))


def _load(name: str) -> Launcher:
    launcher: Launcher = construct({"_target_": f"commbench.launchers.{name}.{name.capitalize()}"}, "launcher", ())
    return launcher
