"""Measuring: check every job of the command line, then start their worlds, or run as a rank of an
existing one."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from commbench.config.compose import ConfigComposer, resolved, working_folder
from commbench.config.experiments import RequestedJobs, requested_jobs
from commbench.config.overrides import override_texts
from commbench.config.settings import Job, job_of
from commbench.core.annexes import annex
from commbench.core.case import RankIdentity
from commbench.core.errors import CommbenchError, ConfigError, WorldBroken
from commbench.core.layout import Layout
from commbench.core.states import UNFINISHED, status_of_run
from commbench.core.terminal import Terminal, print_error, printable
from commbench.core.variables import NAMES
from commbench.hardware.host import is_busy, load_facts
from commbench.hardware.resource_limits import cpu_limit_cores
from commbench.hardware.sources import ROOT
from commbench.results.load import load_run, read_rows
from commbench.results.run_folder import (
    RECORD,
    check_readable,
    exists,
    how_to_finish,
    new_folder,
    read_record,
)
from commbench.runtime import launch
from commbench.runtime.folder_lock import locked
from commbench.runtime.launch import CONFIG_DIR, SWEEP, exported
from commbench.runtime.launchers.registry import detect, launcher_of, mpi_library
from commbench.runtime.launchers.requirements import (
    check_experiment,
    check_startable,
    startable_jobs,
)
from commbench.runtime.output import BUSY
from commbench.runtime.printing import print_safely
from commbench.runtime.rank_server import rest_rank_server, stop_rank_server
from commbench.runtime.recovery import FINISHED, Resume, count_suspect
from commbench.runtime.signals import SIGNAL_STATUS
from commbench.runtime.world_end import end_interrupted, has_launches_left

from .jobs import differing_words, interrupted_status, launcher_below, print_answer, swept
from .options import CommandParser
from .plans import print_plan, print_plans
from .rank import identity_here, run_rank, run_session

STAGES = "commbench.cluster.acceptance.stages"  # of an acceptance, in one folder
_RUNNING = threading.Lock()  # a run has the environment and the streams of this process

# ---------------------------------------------------------------- commands


def run(overrides: Sequence[str], multirun: bool = False, config_dir: str | None = None) -> int:
    """Run the jobs of a command line; returns the exit status. Raises ConfigError before anything
    is started."""
    identity = identity_here()
    folder = {} if config_dir is None else {CONFIG_DIR: str(working_folder() / config_dir)}
    with exported(folder), ConfigComposer(os.environ.get(CONFIG_DIR)) as composer:
        requested = requested_jobs(composer, overrides, multirun)
        for line in composer.swept_env(overrides) if multirun else ():
            print_error(line)
        if identity is not None:
            return _run_in_given_world(requested, identity)
        config = composer.hydra_config(overrides) if requested.fresh_worlds else None
        elsewhere = config is not None and launcher_below(config) is not None
        check_experiment(requested, elsewhere)
        stages = None if multirun else annex(STAGES)
        if stages is not None:
            status: int | None = stages.run_stages(composer, overrides, requested, elsewhere)
            if status is not None:
                return status
        needs_all = requested.experiment is not None or any(
            job.settings.on_error == "stop" for job in requested.jobs
        )
        jobs, skipped = startable_jobs(requested.jobs, elsewhere, needs_all)
        if skipped is not None:
            print_error(skipped)
        if any(job.settings.plan for job in jobs):
            return print_plans(jobs, elsewhere, needs_all)
        if config is None:
            run_folder = new_folder(jobs[0].settings.output)
            with exported(_shared_cores(jobs)):
                status = _run_in_worlds(jobs[0], run_folder)
            print_answer(requested.experiment, [Path(run_folder)])
            return status
        with exported(sweep_variables(jobs)):
            keys = composer.keys_of(overrides)
            status = swept(config, keys, jobs, task, requested.experiment)
        if skipped is not None:  # beside the results, which may be in a file
            print(skipped)
        return status


def sweep_variables(jobs: Sequence[Job]) -> dict[str, str]:
    """What the ranks of all these jobs are told."""
    sweep_id = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
    return {SWEEP: sweep_id, **_shared_cores(jobs)}


def run_launch(overrides: Sequence[str], config_dir: str | None) -> int:
    """Run one of several launches; returns its exit status. A broken world loses only its launch,
    an interruption ends all."""
    try:
        status = run(overrides, config_dir=config_dir)
    except CommbenchError as error:
        print_error(str(error))
        return error.exit_status
    if status > SIGNAL_STATUS:
        raise SystemExit(status)
    return status


def _shared_cores(jobs: Sequence[Job]) -> dict[str, str]:
    """What the ranks say before they measure, where they or other processes share cores."""
    every = (job.settings for job in jobs if not job.settings.backend.hosts_ranks)
    here = [settings for settings in every if launcher_of(settings).is_local]
    if not here:
        return {}
    cores = cpu_limit_cores()
    ranks = max(Layout.around(settings.layouts).ranks_per_node for settings in here)
    texts = []
    if ranks > cores:
        one_each = f"one each: layout=1x{max(1, int(cores))}"
        texts.append(f"{ranks} ranks share {cores:g} cores ({one_each})")
    load = load_facts(ROOT)["host.load_1min"]
    if load and is_busy(load, ranks, cores):
        rigorous = any(settings.timing.name == "rigorous" for settings in here)
        advice = "; timing=rigorous needs an idle one" if rigorous else ""
        texts.append(f"on a busy machine (load {load:.3g} on {cores:g} cores{advice})")
    return {BUSY: ", ".join(texts)} if texts else {}


def _run_in_given_world(requested: RequestedJobs, identity: RankIdentity) -> int:
    """Run the one job of a command line as a rank of a world that the user has started."""
    jobs = requested.jobs
    if requested.fresh_worlds and not jobs:
        raise ConfigError("; ".join(requested.refused))
    if requested.fresh_worlds:
        sweep = (
            f"a sweep starts its own ranks, but a launcher has started these {identity.size};"
            " start each with that launcher:"
        )
        commands = [f"commbench {shlex.join(job.overrides)}" for job in jobs]
        raise ConfigError("\n  ".join([sweep, *commands, *_how_to_compare(jobs)]))
    if not jobs[0].settings.plan:
        return run_rank(jobs[0], identity)
    if identity.rank == 0:
        print_plan(jobs[0].settings, identity.size)
    return 0


def _how_to_compare(jobs: Sequence[Job]) -> Iterator[str]:
    """The command that compares the runs of two jobs that differ in one variable."""
    words = differing_words(jobs)
    keys = {word.partition("=")[0] for own in words for word in own}
    if len(jobs) == 2 and len(keys) == 1 and keys <= {*NAMES} and all(map(len, words)):
        base, new = (own[-1].partition("=")[2] for own in words)
        yield f"commbench compare {jobs[0].settings.output} --by {keys.pop()}={base}:{new}"


def run_one(*overrides: str | Mapping[str, Any], **keys: Any) -> Path:
    """Run one job from Python, as `commbench KEY=VALUE...` does; returns the folder with its
    results.

        folder = commbench.run(backend="gloo", layout="1x2", sizes=[8, "1KiB"])
        folder = commbench.run("backend=simulated", {"timing.visits": 2, "env": {"A": "B"}})

    Strings are overrides as on the command line; a mapping may have keys with dots. The last of
    several values of a key counts. Raises ConfigError, WorldBroken; failed cases and missed
    expectations are in the results. It may be called in any thread, in one at a time.
    """
    identity = detect(os.environ)
    if identity is not None and identity.size > 1:
        raise ConfigError(
            f"commbench.run starts its ranks itself, but this process is rank {identity.rank} of"
            f" {identity.size} of {identity.launcher}; start the command commbench instead"
        )
    if not _RUNNING.acquire(blocking=False):
        raise ConfigError("another thread of this process measures; wait for its end")
    try:
        return _run_alone(override_texts(*overrides, keys))
    finally:
        _RUNNING.release()


def _run_alone(overrides: Sequence[str]) -> Path:
    with ConfigComposer() as composer:
        requested = requested_jobs(composer, overrides, multirun=False)
        if requested.fresh_worlds:
            raise ConfigError(
                f"these are {len(requested.jobs)} runs; from Python start one at a time: add"
                " part=N, or give one value"
            )
        job = requested.jobs[0]
        if job.settings.plan:
            raise ConfigError(
                "plan=true measures nothing; leave it out here, or use it on the command line"
            )
        check_startable(job)
        folder = new_folder(job.settings.output)
        try:
            with print_safely():
                status = _run_in_worlds(job, folder)
        finally:
            stop_rank_server()
        if status == WorldBroken.exit_status:
            raise WorldBroken(f"results are not complete in {folder}; stderr says what was lost")
    return Path(folder)


def resume(words: Sequence[str]) -> int:
    """`commbench resume RUN [--force]`: measure what is missing or failed, in the same folder.

    Returns the exit status. Raises ConfigError where RUN can't be resumed.
    """
    parser = CommandParser(
        prog="commbench resume",
        description="Measure what is missing or failed in a run, in its folder.\n\n"
        "  commbench resume results/20261126T133711.603593-2fb6",
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        help="the folder that the run, or the acceptance, printed after `results:`",
    )
    parser.add_argument(
        "--force", action="store_true", help="also where the machine or version has changed"
    )
    options = parser.parse_args(words)
    folder = Path(options.run).absolute()
    check_readable(folder)
    stages = annex(STAGES)
    status: int | None = None if stages is None else stages.resume_stages(folder, options.force)
    if status is not None:
        return status
    if not exists(folder / RECORD):
        raise ConfigError(
            f"{folder} is not a run: it has no run.json; give the folder that the run printed as"
            " results"
        )
    run = load_run(folder)
    overrides = recorded_overrides(run, folder)
    config = run.get("config")
    config_dir = run.get("config_dir")
    if not isinstance(config, dict) or not isinstance(config_dir, str | None):
        raise ConfigError(f"{folder}/run.json is not as commbench writes it: config or config_dir")
    identity = identity_here()
    mode = Resume.FORCE if options.force else Resume.RETRY
    with (
        exported({} if config_dir is None else {CONFIG_DIR: config_dir}),
        ConfigComposer(config_dir) as composer,
    ):
        job = composer.jobs(overrides, multirun=False)[0]
        # some keys are younger than the run
        changed = sorted(
            key
            for key in job.config.keys() & config.keys() - {"layout"}
            if _comparable(job.config[key]) != _comparable(config[key])
        )
        if changed and not options.force:
            raise ConfigError(
                f"{folder} was started with other {', '.join(changed)}; --force resumes it anyway"
            )
        if identity is not None:
            return run_rank(job, identity, str(folder), mode)
        if not is_finished(run, folder):
            check_startable(job)
            return _run_in_worlds(job, str(folder), mode)
    from .show import CONSOLE, rows_of, shown_text

    print(shown_text(folder, rows_of(folder), CONSOLE, Terminal.of(sys.stdout)))
    finished = "is finished: no case is missing or failed, nothing was measured"
    print(printable(f"{folder} {finished}"))
    return int(run["exit_status"])


def is_finished(run: Mapping[str, Any], folder: Path) -> bool:
    """Whether the run reached its end, and none of its cases is failed, invalid or unfinished."""
    if status_of_run(run) != "done":
        return False
    cases = read_rows([folder])
    done = cases.status.isin(FINISHED) & ~cases.stop_reason.isin(UNFINISHED)
    return bool(done.all()) and len(cases) >= run.get("cases", 0)


def task(config: DictConfig, folder: str | None = None) -> int:
    """Run one job of a sweep, wherever Hydra's launcher starts it; returns the exit status."""
    job = job_of(resolved(config), HydraConfig.get().overrides.task)
    identity = identity_here()
    with print_safely():
        try:
            return _run_in_worlds(job, folder) if identity is None else run_rank(job, identity)
        except CommbenchError as error:  # the other jobs of the sweep continue
            print_error(str(error), error.stacks if isinstance(error, WorldBroken) else ())
            return error.exit_status


def recorded_overrides(run: Mapping[str, Any], folder: Path) -> list[str]:
    """The overrides of a run, with the layouts where its world decided these. Raises
    ConfigError."""
    overrides = _recorded_texts(run, "overrides", folder)
    if not any(word.startswith("layout=") for word in overrides):
        overrides.append(f"layout=[{','.join(_recorded_texts(run, 'layouts', folder))}]")
    return overrides


def _recorded_texts(run: Mapping[str, Any], key: str, folder: Path) -> list[str]:
    """A list of texts in a record that was read; raises ConfigError where there is none."""
    if run.get(key) is None:
        raise ConfigError(
            f"{folder}/run.json is not as commbench writes it: {key} is not a list of texts"
        )
    return [*run[key]]


def _comparable(value: Any) -> Any:
    """A value of the configuration with targets as class names only, as modules may move between
    versions."""
    if not isinstance(value, Mapping):
        return value
    target = {"_target_": str(value["_target_"]).rpartition(".")[2]} if "_target_" in value else {}
    return {key: _comparable(entry) for key, entry in value.items()} | target


# ---------------------------------------------------------------- outside of a world


def _run_in_worlds(job: Job, folder: str | None = None, resume: Resume | None = None) -> int:
    """Run one job in its own world, then in fresh ones for the cases that a broken world has left
    and for further launches; returns the exit status of the run."""
    folder = folder or new_folder(job.settings.output)
    with locked(folder):
        return _run_locked(job, folder, resume)


def _run_locked(job: Job, folder: str, resume: Resume | None) -> int:
    settings = job.settings
    if settings.backend.hosts_ranks:
        rest_rank_server()
        with _naming_the_rest(folder):
            status = run_session(job, None, folder, resume)
            while has_launches_left(read_record(folder)):
                status = run_session(job, None, folder, Resume.LAUNCH)
        return status
    launcher = launcher_of(settings)
    layout = Layout.around(settings.layouts)
    job = job.with_layout(layout)
    library = mpi_library(settings.backend, launcher)
    restarts_left = settings.budget.restarts
    while True:
        spec = launch.WorldSpec(job, launcher, library, layout, folder, resume)
        try:
            with _naming_the_rest(folder):
                status = launch.start(spec)
            if not has_launches_left(read_record(folder)):
                return status
            stop_rank_server()  # launches must not be forks of the same process
            resume = Resume.LAUNCH
        except WorldBroken as error:
            suspect = count_suspect(folder)
            if suspect is None or restarts_left == 0 or settings.on_error == "stop":
                if read_record(folder):
                    error.args = (f"{error}; {how_to_finish(folder)}",)
                raise
            print_error(
                f"{error}, in {suspect}; fresh ranks measure the remaining cases",
                error.stacks,
            )
            restarts_left -= 1
            resume = Resume.REST if resume in (None, Resume.LAUNCH) else resume


@contextmanager
def _naming_the_rest(folder: str) -> Iterator[None]:
    """After a signal complete run.json, and print how to finish the run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        text = how_to_finish(folder) or "interrupted before anything was measured"
        end_interrupted(Path(folder), interrupted_status(stop))
        print_error(text)
        raise
