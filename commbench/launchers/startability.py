"""What can be started from this machine, and what is missing for it: library, device, nodes, GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from commbench.config.compose import CPU, EXPERIMENT, RequestedJobs
from commbench.config.settings import Job, Settings
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.run_folder import check_output
from commbench.hardware import nvml
from commbench.hardware.gpu import VISIBLE_DEVICES, parse_visible, visible_indices

from .registry import launcher_of, manual_commands, mpi_library


def check_startable(job: Job, elsewhere: bool = False) -> None:
    """Raises ConfigError, in one line, for what this machine can't do. `elsewhere`: its ranks will not live here."""
    settings = job.settings
    reason, layout = next(missing_requirements(settings, elsewhere), None), Layout.around(settings.layouts)
    if reason is not None and reason.startswith("layout="):
        commands = manual_commands(layout.nodes, layout.ranks_per_node, job.overrides)
        raise ConfigError(f"{reason}; start its ranks yourself:{commands}")
    if reason is not None:
        raise ConfigError(reason)
    if settings.plan:
        return
    check_output(settings.output)
    if not elsewhere and settings.backend.launchers != "none":
        launcher = launcher_of(settings)
        launcher.command(layout.nodes, layout.ranks_per_node, (), mpi_library(settings.backend, launcher))


def check_experiment(requested: RequestedJobs, elsewhere: bool = False) -> None:
    """Raises ConfigError, in one line with all that an experiment misses on this machine."""
    if requested.experiment is None:
        return
    reasons = list(requested.refused)
    for job in requested.jobs:
        reasons += missing_requirements(job.settings, elsewhere)
    if not reasons:
        return
    listed = "; ".join(f"({number}) {reason}" for number, reason in enumerate(dict.fromkeys(reasons), start=1))
    smaller = f". As far as one machine's CPUs go: commbench {EXPERIMENT}{requested.experiment} scale={CPU}"
    hint = smaller if requested.shrinks else ""
    raise ConfigError(f"{EXPERIMENT}{requested.experiment} can't run here: {listed}{hint}")


def missing_requirements(settings: Settings, elsewhere: bool = False) -> Iterator[str]:
    """What this machine does not have, one line each: the library, the device; unless the ranks live `elsewhere`, also
    nodes and GPUs."""
    backend = settings.backend
    if settings.device not in backend.devices:
        allowed = ", ".join(backend.devices)
        yield f"device={settings.device} can't be used with backend={backend.name}; allowed: {allowed}"
    hosted = backend.launchers == "none"
    reach = 1 if hosted else launcher_of(settings).reach
    on_other_nodes = elsewhere or reach > 1
    unchecked = settings.plan or (on_other_nodes and settings.device == "cuda")  # login nodes have no GPU
    reason = None if unchecked else backend.missing(settings.device)
    if reason is not None:
        yield f"backend={backend.name}: {reason}"
    widest = max(settings.layouts, key=lambda layout: layout.nodes, default=Layout(1, 2))
    if widest.nodes > reach and not hosted and not settings.plan and not elsewhere:
        where = "this is one machine" if reach == 1 else f"the launcher has {reach}"
        yield f"layout={widest} needs {widest.nodes} nodes, {where}"
    if widest.nodes == 1 and reason is None and settings.device == "cuda" and not settings.plan and not on_other_nodes:
        yield from _missing_gpus(settings)


def _missing_gpus(settings: Settings) -> Iterator[str]:
    """One line where the ranks of this node would have to share GPUs, and the backend can't."""
    backend = settings.backend
    if backend.shares_gpu or backend.launchers == "none":
        return
    fullest = max(settings.layouts, key=lambda layout: layout.ranks_per_node, default=Layout(1, 2))
    wanted, visible = fullest.ranks_per_node, visible_gpus(os.environ)
    if visible is not None and wanted > visible:
        hidden = f" with {VISIBLE_DEVICES}={os.environ[VISIBLE_DEVICES]!r}" if VISIBLE_DEVICES in os.environ else ""
        yield (
            f"backend={backend.name} needs a GPU for each rank: layout={fullest} wants {wanted} on this machine, "
            f"it shows {visible}{hidden}; {f'use layout=1x{visible}' if visible else 'make some visible'}"
        )


def visible_gpus(environ: Mapping[str, str]) -> int | None:
    """How many GPUs CUDA shows here; None where only CUDA itself knows."""
    if nvml.reason() is not None:
        return None
    gpus, entries = nvml.gpus(), parse_visible(environ.get(VISIBLE_DEVICES))
    indices = visible_indices(environ, gpus)
    if indices is not None:
        return len(indices)
    return len(entries) if entries is not None else None
