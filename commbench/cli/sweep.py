"""The jobs of a sweep, through the chosen Hydra launcher: one after the other here, or as Slurm jobs."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict

from commbench.config.compose import ConfigComposer, Job
from commbench.core.errors import CommbenchError, ConfigError, WorldBroken
from commbench.core.layout import Layout
from commbench.core.text import first_line
from commbench.launchers.registry import mpi_library
from commbench.launchers.srun import Srun, pmi

SHAPE = ("nodes", "tasks_per_node")
SLURM_KEYS = (*SHAPE, "partition")  # of a Hydra launcher whose jobs have a task for each rank


def composed(composer: ConfigComposer, overrides: Sequence[str]) -> DictConfig:
    """The configuration with Hydra's own part, which names the launcher."""
    return composer.config(composer.plain(overrides), hydra=True)


def swept(
    config: DictConfig, given: Collection[str], jobs: Sequence[Job], task: Callable[[DictConfig], int]
) -> list[int]:
    """The exit status of each job. Where the launcher starts the ranks, all jobs of one shape are queued at once, with
    as many nodes and tasks as their layouts need; keys that were `given` stay.

    Raises ConfigError where there is no Slurm, WorldBroken where it refused or lost a job.
    """
    if not starts_ranks(config):
        return _launched(config, [list(job.overrides) for job in jobs], 0, task)
    if shutil.which("srun") is None:
        raise ConfigError("hydra/launcher=submitit_slurm: there is no srun here; start on a host of the Slurm cluster")
    statuses = list[int]()
    groups: dict[tuple[Layout, str], list[list[str]]] = {}
    for job in jobs:
        groups.setdefault(_world(job), []).append(list(job.overrides))
    for world, lines in groups.items():
        _set_job_size(config, *world, given)
        statuses += (ended := _launched(config, lines, len(statuses), task))
        for words, status in zip(lines, ended, strict=True):  # the tables are in the logs of the jobs
            print(f"exit {status}: commbench {shlex.join(words)}", flush=True)
    print(f"results: {config.output}")
    return statuses


def _launched(config: DictConfig, lines: list[list[str]], first: int, task: Callable[[DictConfig], int]) -> list[int]:
    from hydra._internal.callbacks import Callbacks

    context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks())
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    try:
        return [int(result.return_value) for result in launcher.launch(lines, initial_job_idx=first)]
    except CommbenchError:
        raise
    except Exception as error:
        logs = str(config.hydra.launcher.get("submitit_folder", "")).partition("%")[0]
        where = f"; the output of jobs is below {logs}" if Path(logs).is_dir() and any(Path(logs).iterdir()) else ""
        raise WorldBroken(f"a job of the sweep was refused or lost: {first_line(error)}{where}") from error


def starts_ranks(config: DictConfig) -> bool:
    """Whether Hydra's launcher starts the ranks of each job, on nodes that this machine knows nothing about."""
    return all(key in config.hydra.launcher for key in SLURM_KEYS)


def _world(job: Job) -> tuple[Layout, str]:
    return Layout.around(job.settings.layouts), pmi(mpi_library(job.settings.backend, Srun()))


def _set_job_size(config: DictConfig, shape: Layout, kind: str, given: Collection[str]) -> None:
    """Keys that were `given` stay. srun reads from its environment which PMI the ranks use."""
    values = {
        "nodes": shape.nodes,
        "tasks_per_node": shape.ranks_per_node,
        "submitit_folder": f"{config.output}/slurm/%j",
        "setup": [f"export SLURM_MPI_TYPE={kind}"],
    }
    with open_dict(config):
        for key, value in values.items():
            if f"hydra.launcher.{key}" not in given:
                config.hydra.launcher[key] = value
