"""What this machine lacks for a job: a launcher, nodes, GPUs, a backend's library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from commbench.core.errors import ConfigError
from commbench.core.launchers import launchers
from commbench.core.layout import Layout
from commbench.hardware.gpu import VISIBLE_DEVICES, visible_count
from commbench.results.run_folder import check_output
from commbench.runtime.launch import exported

from .registry import launcher_of, mpi_library

if TYPE_CHECKING:  # a rank and the start of a command don't wait for Hydra
    from commbench.config.experiments import RequestedJobs
    from commbench.config.settings import Job, Settings


def check_startable(job: Job, elsewhere: bool = False) -> None:
    """Raises ConfigError, in one line, for what this machine can't do. `elsewhere`: the ranks will
    run on others."""
    settings = job.settings
    reason = next(_refusals(settings, elsewhere), None)
    layout = Layout.around(settings.layouts)
    if reason is not None:
        if reason.startswith("layout="):
            commands = (launcher.manual_command(layout, job.overrides) for launcher in launchers())
            reason += "; start its ranks yourself:" + "".join(
                f"\n  {command}" for command in commands if command
            )
        raise ConfigError(reason)
    if not settings.plan:
        check_output(settings.output)


def startable_jobs(
    jobs: Sequence[Job], elsewhere: bool, needs_all: bool
) -> tuple[list[Job], str | None]:
    """The jobs that this machine can do, and what it lacks for the others. Raises ConfigError where
    it can do none, or not all where all are needed, or where the results can't be written."""
    missing = [next(_refusals(job.settings, elsewhere), None) for job in jobs]
    startable = [job for job, reason in zip(jobs, missing, strict=True) if reason is None]
    for job in jobs if needs_all or not startable else startable:
        check_startable(job, elsewhere)
    return startable, skipped_text(missing)


def skipped_text(missing: Sequence[str | None]) -> str | None:
    """`1 of 2 jobs can't start here and is skipped: (1) REASON`, from a reason or None for each
    job; None without any."""
    reasons = [reason for reason in missing if reason is not None]
    if not reasons:
        return None
    verb = "is" if len(reasons) == 1 else "are"
    listed = _numbered(reasons)
    return f"{len(reasons)} of {len(missing)} jobs can't start here and {verb} skipped: {listed}"


def check_experiment(requested: RequestedJobs, elsewhere: bool = False) -> None:
    """Raises ConfigError, in one line, with everything that this machine lacks for an
    experiment."""
    if requested.experiment is None:
        return
    reasons = list(requested.refused)
    for job in requested.jobs:
        reasons += _refusals(job.settings, elsewhere)
        reasons += [] if elsewhere else _without_device_memory(job.settings)
    if reasons:
        hint = (
            f". As far as one machine's CPUs go: commbench {requested.smaller}"
            if requested.smaller
            else ""
        )
        listed = _numbered(reasons)
        raise ConfigError(f"experiment={requested.experiment} can't run here: {listed}{hint}")


def _numbered(reasons: Iterable[str]) -> str:
    """`(1) REASON; (2) REASON`, each once."""
    each_once = enumerate(dict.fromkeys(reasons), start=1)
    return "; ".join(f"({number}) {reason}" for number, reason in each_once)


def _without_device_memory(settings: Settings) -> Iterator[str]:
    """That the library would not measure what an experiment on GPUs asks for, unless the user has
    chosen who copies."""
    if settings.device == "cuda" and settings.staging == "auto" and not settings.plan:
        with exported(dict(settings.env)):
            remark = settings.backend.remark(settings.device)
        if remark is not None:
            through_host = "device=cuda staging=pinned measures the way through host memory"
            yield f"backend={settings.backend.name}: {remark}; {through_host}"


def _refusals(settings: Settings, elsewhere: bool) -> Iterator[str]:
    """Why a command is refused: a plan only for what no machine can do."""
    if settings.plan:
        return _impossible(settings)
    return missing_requirements(settings, elsewhere)


def _impossible(settings: Settings) -> Iterator[str]:
    """What no machine can do."""
    backend = settings.backend
    if settings.device not in backend.devices:
        allowed = ", ".join(backend.devices)
        yield (
            f"device={settings.device} can't be used with backend={backend.name}; allowed:"
            f" {allowed}"
        )
    if not backend.hosts_ranks:
        try:
            launcher_of(settings)
        except ConfigError as error:
            yield str(error)


def missing_requirements(settings: Settings, elsewhere: bool = False) -> Iterator[str]:
    """What this machine lacks to run the settings, a line each: library and device; nodes, GPUs and
    the launcher's program unless the ranks run `elsewhere`."""
    impossible = [*_impossible(settings)]
    if impossible:
        yield from impossible
        return
    backend = settings.backend
    hosted = backend.hosts_ranks
    launcher = None if hosted else launcher_of(settings)
    reach, is_local = (1, True) if launcher is None else (launcher.reach, launcher.is_local)
    gpus_here = settings.device == "cuda" and not elsewhere and is_local  # login nodes have none
    reason = None
    if gpus_here or settings.device == "cpu":
        with exported(dict(settings.env)):
            reason = backend.missing(settings.device)
    if reason is not None:
        yield f"backend={backend.name}: {reason}"
    widest = max(settings.layouts, key=lambda layout: layout.nodes, default=Layout(1, 2))
    if widest.nodes > reach and not hosted and not elsewhere:
        where = "this is one machine" if is_local else f"the launcher has {reach}"
        yield f"layout={widest} needs {widest.nodes} nodes, {where}"
    if widest.nodes == 1 and reason is None and gpus_here and not hosted:
        yield from _missing_gpus(settings)
    if launcher is not None and reason is None and widest.nodes <= reach and not elsewhere:
        try:
            layout = Layout.around(settings.layouts)
            launcher.command(layout, (), mpi_library(backend, launcher), ())
        except ConfigError as error:
            yield str(error)


def starts_here(settings: Settings) -> bool:
    """Whether all ranks run on this machine."""
    return settings.backend.hosts_ranks or launcher_of(settings).is_local


def _missing_gpus(settings: Settings) -> Iterator[str]:
    """One line where the ranks of this node would have to share GPUs, and can't."""
    refusal = settings.backend.sharing_refusal({**os.environ, **dict(settings.env)})
    if refusal is None:
        return
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
            f"{refusal}: layout={fullest} wants {wanted} on this machine, it shows"
            f" {visible}{hidden}; {instead}"
        )
