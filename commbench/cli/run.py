"""Measuring. Outside of a world: check every job of the command line, then start their worlds. Inside: one rank."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from commbench.config.compose import ConfigComposer, Job, job_of
from commbench.config.experiments import RequestedJobs, requested_jobs
from commbench.config.settings import Settings
from commbench.core.case import RankIdentity
from commbench.core.errors import CommbenchError, ConfigError, WorldBroken
from commbench.core.layout import Layout
from commbench.core.run_folder import new_folder
from commbench.launchers.registry import allowed, detect, launcher_of, mpi_library, own_variables
from commbench.launchers.startability import check_experiment, check_startable
from commbench.report.load import load, load_run
from commbench.world import launch
from commbench.world.exit_protocol import FOLDER, RESUME, leave_status
from commbench.world.identity import hosted_world
from commbench.world.launch import CONFIG_DIR, SWEEP, exported
from commbench.world.recovery import UNFINISHED, EarlierStarts, count_suspect

from .sweep import composed, starts_ranks, swept

# ---------------------------------------------------------------- commands


def run(overrides: Sequence[str], multirun: bool = False, config_dir: str | None = None) -> int:
    """The run command; the exit status. Raises ConfigError before anything is started."""
    identity, overrides = _identity(), list(overrides)
    folder = config_dir if config_dir is None else str(Path(config_dir).absolute())
    with exported(CONFIG_DIR, folder), ConfigComposer(os.environ.get(CONFIG_DIR)) as composer:
        requested = requested_jobs(composer, overrides, multirun)
        jobs = requested.jobs
        if identity is not None:
            _check_one_world(requested, identity)
            return _run_rank(jobs[0], identity)
        config = composed(composer, overrides) if requested.fresh_worlds else None
        elsewhere = config is not None and starts_ranks(config)
        check_experiment(requested, elsewhere)
        for job in jobs:
            check_startable(job, elsewhere)
        if any(job.settings.plan for job in jobs):
            return _print_plans(jobs)
        if config is None:
            return _run_in_worlds(jobs[0])
        with exported(SWEEP, f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"):
            return max(swept(config, composer.keys_of(overrides), jobs, task))


def run_one(*overrides: str) -> Path:
    """Run one job from Python, as `commbench OVERRIDES` would; the folder with its results.

    Raises ConfigError, WorldBroken; a failed case or a missed `expect` is in the results.
    """
    with ConfigComposer() as composer:
        requested = requested_jobs(composer, overrides, multirun=False)
        if requested.fresh_worlds:
            raise ConfigError(
                f"{len(requested.jobs)} worlds are asked for; from Python one at a time: add part=N, one value"
            )
        job = requested.jobs[0]
        if job.settings.plan:
            raise ConfigError("plan=true measures nothing; leave it out here, or use it on the command line")
        check_startable(job)
        folder = new_folder(job.settings.output)
        if _run_in_worlds(job, folder) == WorldBroken.exit_status:
            raise WorldBroken(f"results are not complete in {folder}; stderr says what was lost")
    return Path(folder)


def resume(words: Sequence[str]) -> int:
    """`commbench resume RUN [--force]`: measure what is missing or failed, in the same folder; the exit status."""
    paths, force = [word for word in words if word != "--force"], "--force" in words
    if len(paths) != 1 or paths[0].startswith("-"):
        raise ConfigError("write: commbench resume RUN [--force], with the folder of one run")
    folder = Path(paths[0]).absolute()
    if not (folder / "run.json").is_file():
        raise ConfigError(f"{folder} is not a run: it has no run.json; give the folder that the run printed as results")
    run = load_run(folder)
    overrides = _recorded_texts(run, "overrides", folder)
    if not any(word.startswith("layout=") for word in overrides):  # the world of that time decided
        overrides.append(f"layout=[{','.join(_recorded_texts(run, 'layouts', folder))}]")
    config, config_dir = run.get("config"), run.get("config_dir")
    if not isinstance(config, dict) or not isinstance(config_dir, str | None):
        raise ConfigError(f"{folder}/run.json is not as commbench writes it: config or config_dir")
    identity, mode = _identity(), "force" if force else "retry"
    with exported(CONFIG_DIR, config_dir), ConfigComposer(config_dir) as composer:
        job = composer.jobs(overrides, multirun=False)[0]
        keys = [key for key in job.config if key != "layout"]
        changed = sorted(key for key in keys if _comparable(job.config[key]) != _comparable(config.get(key)))
        if changed and not force:
            raise ConfigError(f"{folder} was begun with other {', '.join(changed)}; accept it with --force")
        if identity is None:
            check_startable(job)
            return _run_in_worlds(job, str(folder), mode)
        return _run_rank(job, identity, str(folder), mode)


def task(config: DictConfig) -> int:
    """One job of a sweep, wherever Hydra's launcher runs it; the exit status."""
    job = job_of(config, HydraConfig.get().overrides.task)
    identity = _identity()
    try:
        return _run_in_worlds(job) if identity is None else _run_rank(job, identity)
    except CommbenchError as error:  # the other jobs of the sweep continue
        print(f"commbench: {error}", file=sys.stderr)
        return error.exit_status


def _recorded_texts(run: Mapping[str, Any], key: str, folder: Path) -> list[str]:
    """A list of texts in run.json; raises ConfigError where somebody else wrote it."""
    texts = run.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{folder}/run.json is not as commbench writes it: {key} is not a list of texts")
    return texts


def _comparable(value: Any) -> Any:
    """A value of the configuration with targets as class names only: modules may move between versions."""
    if not isinstance(value, Mapping):
        return value
    target = {"_target_": str(value["_target_"]).rpartition(".")[2]} if "_target_" in value else {}
    return {key: _comparable(entry) for key, entry in value.items()} | target


def _print_plans(jobs: Sequence[Job], ranks: int = 2) -> int:
    from .doctor import facts_here, plan_text

    facts = facts_here()
    for job in jobs:
        world = Layout.around(job.settings.layouts, ranks)
        print(plan_text(job.settings, hosted_world(world.nodes, world.ranks_per_node)[0], facts))
    return 0


# ---------------------------------------------------------------- outside of a world


def _run_in_worlds(job: Job, folder: str | None = None, resume: str | None = None) -> int:
    """One job in its own world, and in fresh ones for what a broken one has left; the exit status of its run."""
    settings = job.settings
    folder = folder or new_folder(settings.output)
    if settings.backend.launchers == "none":
        return _run_session(job, None, folder, resume)
    launcher, layout = launcher_of(settings), Layout.around(settings.layouts)
    overrides = [*job.overrides, *([] if settings.layouts else [f"layout={layout}"])]
    library = mpi_library(settings.backend, launcher)
    for restarts_left in range(settings.budget.restarts, -1, -1):
        spec = launch.WorldSpec(settings, launcher, library, layout, overrides, folder, own_variables(), resume)
        try:
            return launch.start(spec)
        except WorldBroken as error:
            suspect = count_suspect(folder)
            if suspect is None or restarts_left == 0 or settings.on_error == "stop":
                raise
            print(
                f"commbench: {error}; it happened in {suspect}; fresh ranks measure the remaining cases",
                file=sys.stderr,
                flush=True,
            )
            resume = resume or "rest"
    raise AssertionError


# ---------------------------------------------------------------- inside of a world


def _identity() -> RankIdentity | None:
    """Raises WorldBroken for a rank that does not know its world: it must never start worlds of its own."""
    identity = detect(os.environ)
    if identity is None and FOLDER in os.environ:
        raise WorldBroken("this process was started as a rank, but its launcher exported no rank that commbench knows")
    return identity


def _check_one_world(requested: RequestedJobs, identity: RankIdentity) -> None:
    """Raises ConfigError for a sweep."""
    if not requested.fresh_worlds:
        return
    if not requested.jobs:
        raise ConfigError("; ".join(requested.refused))
    lines = "".join(f"\n  {shlex.join(job.overrides)}" for job in requested.jobs)
    raise ConfigError(
        f"a sweep needs fresh worlds, this is one world of {identity.size} ranks; run these one by one:{lines}"
    )


def _run_rank(job: Job, identity: RankIdentity, folder: str | None = None, resume: str | None = None) -> int:
    """One rank of a world. `folder` and `resume`: the run that a given world continues, and how."""
    backend = job.settings.backend
    if identity.launcher not in allowed(backend):
        names = ", ".join(allowed(backend)) or "none: it hosts all ranks itself, start it without a launcher"
        raise ConfigError(f"backend={backend.name} can't run under {identity.launcher}; allowed: {names}")
    if job.settings.plan:
        return _print_plans([job], identity.size) if identity.rank == 0 else 0
    reason = backend.missing(job.settings.device)
    if reason is not None:
        raise ConfigError(f"backend={backend.name}: {reason}")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings would bury our one line
    problem = _export(job.settings)
    if FOLDER not in os.environ:
        return _run_session(job, identity, folder, resume, problem)
    folder = os.environ[FOLDER]
    status = _run_session(job, identity, folder, os.environ.get(RESUME), problem)
    if identity.rank == 0:
        leave_status(folder, status)
    return 0  # the parent reads the status in the folder


def _export(settings: Settings) -> str | None:
    """Export what the backend reads on this host; what is wrong with it, for the other ranks to know."""
    given = dict(settings.env)
    os.environ.update(given)  # first: the backend must not contradict what the user exports
    try:
        os.environ.update(settings.backend.environment(settings.cuda_ipc, settings.interface) | given)
    except ConfigError as error:
        return str(error)
    return None


def _run_session(
    job: Job, identity: RankIdentity | None, folder: str | None, resume: str | None, problem: str | None = None
) -> int:
    from commbench.measure.preflight import Request
    from commbench.measure.session import run_in_world

    request = Request(
        job.overrides,
        job.config,
        job.digest,
        os.environ.get(SWEEP) or None,
        folder,
        None if resume is None or folder is None else _earlier_starts(folder, resume, identity),
        os.environ.get(CONFIG_DIR),
        abnormal,
        parent=FOLDER in os.environ,
        problem=problem,
    )
    return run_in_world(job.settings, request, identity)


def _earlier_starts(folder: str, resume: str, identity: RankIdentity | None) -> EarlierStarts:
    """What rank 0 finds in the folder; the other ranks may not even see it."""
    if identity is not None and identity.rank != 0:
        return EarlierStarts()
    run, cases = load_run(folder), load(folder)
    unfinished = cases.stop_reason.isin(UNFINISHED)
    recorded = dict(zip(cases.case_id[~unfinished], cases.status[~unfinished], strict=True))
    failed = cases[cases.status == "failed"]
    reasons = dict(zip(failed.case_id, failed.reason, strict=True))
    retry, force = resume != "rest", resume != "retry"
    return EarlierStarts(recorded, run.get("broken", {}), run, retry=retry, force=force, reasons=reasons)


def abnormal(folder: str) -> list[str]:
    """A line for each case that is slower than the published values of this hardware, by more than half again."""
    from commbench.report.reference import SLOW
    from commbench.report.summary import read_results, summarise_results

    judged = summarise_results(read_results([folder])).judged
    return [
        f"expect normal: {one.case} has {one.measured}, not {one.published} ({one.reference.hardware}); {one.causes}"
        for one in judged
        if one.verdict == SLOW
    ]
