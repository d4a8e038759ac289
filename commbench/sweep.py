"""The jobs of a sweep, through whatever Hydra launcher was chosen: one after the other here, or as Slurm jobs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from itertools import groupby

from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict

from commbench.errors import CommbenchError, ConfigError, WorldBroken
from commbench.jobs import Door, Job
from commbench.keys import first_line
from commbench.launchers.srun import Srun, pmi
from commbench.layout import Layout
from commbench.machine import mpi_library, widest

SHAPE = ("nodes", "tasks_per_node")
SLURMS = (*SHAPE, "partition")  # keys of a Hydra launcher whose jobs have a task for each rank


def swept(door: Door, overrides: Sequence[str], jobs: Sequence[Job], task: Callable[[DictConfig], int]) -> list[int]:
    """The exit status of each job. Where the launcher starts the ranks, neighbouring jobs of one shape are queued at
    once, with as many nodes and tasks as their layouts need.

    Raises ConfigError where there is no Slurm, WorldBroken where it lost a job.
    """
    config, starts = _composed(door, overrides), starts_ranks(door, overrides)
    if starts and shutil.which("srun") is None:
        raise ConfigError(
            "hydra/launcher=submitit_slurm: there is no srun here; start on a host of the Slurm cluster"
        )
    statuses, given = list[int](), set(door.keys_of(overrides))
    for world, group in groupby(jobs, lambda job: _world(job) if starts else None):
        if world is not None:
            _fit(config, *world, given)
        statuses += _launched(config, [list(job.overrides) for job in group], len(statuses), task)
    return statuses


def _launched(config: DictConfig, lines: list[list[str]], first: int, task: Callable[[DictConfig], int]) -> list[int]:
    from hydra._internal.callbacks import Callbacks

    context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks())
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    try:
        return [int(one.return_value) for one in launcher.launch(lines, initial_job_idx=first)]
    except CommbenchError:
        raise
    except Exception as error:
        where = config.hydra.launcher.get("submitit_folder")
        said = f"; what its tasks printed is in {where}" if where else ""
        raise WorldBroken(f"a job of the sweep was lost: {first_line(error)}{said}") from error


def starts_ranks(door: Door, overrides: Sequence[str]) -> bool:
    """Whether Hydra's launcher starts the ranks of each job, on nodes that this machine knows nothing of."""
    return all(key in _composed(door, overrides).hydra.launcher for key in SLURMS)


def _composed(door: Door, overrides: Sequence[str]) -> DictConfig:
    return door.config(door.plain(overrides), hydra=True)


def _world(job: Job) -> tuple[Layout, str]:
    return widest(job.settings), pmi(mpi_library(job.settings.backend, Srun()))


def _fit(config: DictConfig, shape: Layout, kind: str, given: Collection[str]) -> None:
    """What the user gave stays. srun reads from its environment which PMI the ranks speak."""
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
