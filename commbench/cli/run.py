"""Commands. Outside a world: check every job of the command line, then start their worlds. Inside one: the session."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from commbench.config.compose import ConfigComposer, Job
from commbench.config.experiments import Asked, asked, check_experiment
from commbench.config.settings import Settings
from commbench.config.startability import lacks, launcher_of, mpi_library
from commbench.core.errors import CommbenchError, ConfigError, WorldBroken
from commbench.core.layout import Layout
from commbench.core.run_folder import check_output, new_folder
from commbench.report.load import load, load_run
from commbench.world import launch
from commbench.world.identity import Place, detect, hosted_world
from commbench.world.recovery import UNFINISHED, EarlierStarts, blame

from .sweep import composed, starts_ranks, swept


def run(overrides: Sequence[str], multirun: bool = False, config_dir: str | None = None) -> int:
    """The run command; the exit status. Raises ConfigError before anything is started."""
    place, overrides = _place(), list(overrides)
    folder = config_dir if config_dir is None else str(Path(config_dir).absolute())
    with _exported(launch.CONFIG_DIR, folder), ConfigComposer(os.environ.get(launch.CONFIG_DIR)) as door:
        found = asked(door, overrides, multirun)
        jobs = found.jobs
        if place is not None and found.fresh:
            raise ConfigError(_refused_multirun(found, place))
        if place is not None:
            return _work(jobs[0], place)
        config = composed(door, overrides) if found.fresh else None
        elsewhere = config is not None and starts_ranks(config)
        check_experiment(found, elsewhere)
        for job in jobs:
            check_here(job, elsewhere)
        if any(job.settings.plan for job in jobs):
            return _print_plans(jobs)
        if config is None:
            return _started(jobs[0])
        with _exported(launch.SWEEP, f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"):
            return max(swept(config, door.keys_of(overrides), jobs, task))


@contextmanager
def _exported(name: str, value: str | None) -> Iterator[None]:
    """What the worlds of one command inherit; gone when the command is."""
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            del os.environ[name]


def run_one(*overrides: str) -> Path:
    """Run one job from Python, as `commbench OVERRIDES` would; the folder with its results.

    Raises ConfigError, WorldBroken; a failed case or a missed `expect` is in the results.
    """
    with ConfigComposer() as door:
        found = asked(door, overrides, multirun=False)
        if found.fresh:
            raise ConfigError(
                f"{len(found.jobs)} worlds are asked for; from Python one at a time: add part=N, one value"
            )
        job = found.jobs[0]
        if job.settings.plan:
            raise ConfigError("plan=true measures nothing; leave it out here, or use it on the command line")
        check_here(job)
        folder = new_folder(job.settings.output)
        if _started(job, folder) == WorldBroken.exit_status:
            raise WorldBroken(f"results are not complete in {folder}; what was lost is said on stderr")
    return Path(folder)


def check_here(job: Job, elsewhere: bool = False) -> None:
    """What this machine can't do, in one line; raises ConfigError. `elsewhere`: the ranks will not live here."""
    settings = job.settings
    reason, wide = next(lacks(settings, elsewhere), None), Layout.around(settings.layouts)
    if reason is not None and reason.startswith("layout="):
        lines = launch.given_lines(job.overrides, wide.nodes, wide.ranks_per_node)
        raise ConfigError(f"{reason}; start its ranks yourself:{lines}")
    if reason is not None:
        raise ConfigError(reason)
    if settings.plan:
        return
    check_output(settings.output)
    if elsewhere or not settings.backend.launchers:
        return
    launcher = launcher_of(settings)
    launcher.command(wide.nodes, wide.ranks_per_node, (), mpi_library(settings.backend, launcher))


def resume(words: Sequence[str]) -> int:
    """`commbench resume RUN [--force]`: measure what is missing or failed, in the same folder; the exit status."""
    folder, force = _resumed(words)
    run = load_run(folder)
    overrides = _words(run, "overrides", folder)
    if not any(word.startswith("layout=") for word in overrides):  # the world of that day decided
        overrides.append(f"layout=[{','.join(_words(run, 'layouts', folder))}]")
    if not isinstance(run.get("config"), dict) or not isinstance(run.get("config_dir", ""), str | None):
        raise ConfigError(f"{folder}/run.json is not as commbench writes it: config or config_dir")
    place, mode = _place(), "force" if force else "retry"
    with _exported(launch.CONFIG_DIR, run.get("config_dir")), ConfigComposer(run.get("config_dir")) as door:
        job = door.jobs(overrides, multirun=False)[0]
        begun = run["config"]
        changed = sorted(
            key for key in job.config if _moved(job.config[key]) != _moved(begun.get(key)) and key != "layout"
        )
        if changed and not force:
            raise ConfigError(f"{folder} was begun with other {', '.join(changed)}; accept it with --force")
        if place is None:
            check_here(job)
            return _started(job, str(folder), mode)
        return _work(job, place, (str(folder), mode))


def _moved(value: Any) -> Any:
    """A value of the configuration with classes by their names only: modules may move between versions."""
    if not isinstance(value, Mapping):
        return value
    target = {"_target_": str(value["_target_"]).rpartition(".")[2]} if "_target_" in value else {}
    return {key: _moved(one) for key, one in value.items()} | target


def _resumed(words: Sequence[str]) -> tuple[Path, bool]:
    paths = [word for word in words if word != "--force"]
    if len(paths) != 1 or paths[0].startswith("-"):
        raise ConfigError("write: commbench resume RUN [--force], with the folder of one run")
    folder = Path(paths[0]).absolute()
    if not (folder / "run.json").is_file():
        raise ConfigError(f"{folder} is no run: it has no run.json; give the folder that the run printed as results")
    return folder, "--force" in words


def _words(run: Mapping[str, Any], key: str, folder: Path) -> list[str]:
    """A list of texts in run.json; raises ConfigError where somebody else wrote it."""
    found = run.get(key)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{folder}/run.json is not as commbench writes it: {key} is no list of texts")
    return found


def _started(job: Job, folder: str | None = None, resume: str | None = None) -> int:
    """One job in its own world, and in fresh ones for what a broken one has left; the exit status of its run."""
    folder = folder or new_folder(job.settings.output)
    if not job.settings.backend.launchers:
        return _session(job, None, folder, resume)
    for left in range(job.settings.budget.restarts, -1, -1):
        try:
            return _start_world(job, folder, resume)
        except WorldBroken as error:
            suspect = blame(folder)
            if suspect is None or left == 0 or job.settings.on_error == "stop":
                raise
            print(f"commbench: {error}; in {suspect}. A fresh world takes what is left", file=sys.stderr, flush=True)
            resume = resume or "rest"
    raise AssertionError


def _start_world(job: Job, folder: str, resume: str | None) -> int:
    settings = job.settings
    launcher, extra = launcher_of(settings), [] if settings.layouts else ["layout=1x2"]
    library, world = mpi_library(settings.backend, launcher), Layout.around(settings.layouts)
    return launch.start(settings, launcher, library, world, [*job.overrides, *extra], folder, resume)


def _place() -> Place | None:
    """Raises WorldBroken for a rank that does not know its world: it must never start worlds of its own."""
    place = detect(os.environ)
    if place is None and launch.FOLDER in os.environ:
        raise WorldBroken("this process was started as a rank, but its launcher exported no rank that commbench knows")
    return place


def _work(job: Job, place: Place, goes_on: tuple[str, str] | None = None) -> int:
    """One rank of a world. `goes_on`: folder and mode of the run that a given world resumes."""
    backend = job.settings.backend
    if place.launcher not in backend.launchers:
        allowed = ", ".join(backend.launchers) or "none: it hosts all ranks itself, start it without a launcher"
        raise ConfigError(f"backend={backend.name} can't run under {place.launcher}; allowed: {allowed}")
    if job.settings.plan:
        return _print_plans([job], place.size) if place.rank == 0 else 0
    reason = backend.missing(job.settings.device)
    if reason is not None:
        raise ConfigError(f"backend={backend.name}: {reason}")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings would bury our one line
    problem = _exports(job.settings)
    folder = os.environ.get(launch.FOLDER)
    if folder is None:
        earlier, mode = goes_on or (None, None)
        return _session(job, place, earlier, mode, problem)
    status = _session(job, place, folder, os.environ.get(launch.RESUME), problem)
    if place.rank == 0:
        launch.leave_status(folder, status)
    return 0  # the parent reads it in the folder; launchers would wrap it in their own words


def _exports(settings: Settings) -> str | None:
    """Export what the backend reads on this host; what is wrong with it, where the other ranks have to hear of it."""
    given = dict(settings.env)
    os.environ.update(given)  # first: a backend does not ask for what the user has asked for otherwise
    try:
        os.environ.update(settings.backend.environment(settings.cuda_ipc, settings.interface) | given)
    except ConfigError as error:
        return str(error)
    return None


def _session(
    job: Job, place: Place | None, folder: str | None, resume: str | None = None, problem: str | None = None
) -> int:
    from commbench.measure.preflight import Request
    from commbench.measure.session import run_in_world

    sweep_id = os.environ.get(launch.SWEEP) or None
    earlier = None if resume is None or folder is None else _earlier(folder, resume, place)
    config_dir = os.environ.get(launch.CONFIG_DIR)
    parent = launch.FOLDER in os.environ
    request = Request(
        job.overrides, job.config, job.digest, sweep_id, folder, earlier, config_dir, abnormal, parent, problem
    )
    return run_in_world(job.settings, request, place)


def abnormal(folder: str) -> list[str]:
    """A line for each case that is slower than the published values of this hardware, by more than half again."""
    from commbench.report.reference import SLOW
    from commbench.report.results import read
    from commbench.report.summary import summary_of

    judged = summary_of(read([folder])).judged
    return [
        f"expect normal: {one.case} has {one.measured}, not {one.published} ({one.reference.hardware}); {one.causes}"
        for one in judged
        if one.verdict == SLOW
    ]


def _earlier(folder: str, resume: str, place: Place | None) -> EarlierStarts:
    """What rank 0 finds in the folder; the other ranks may not even see it."""
    if place is not None and place.rank != 0:
        return EarlierStarts()
    run, cases = load_run(folder), load(folder)
    unfinished = cases.stop_reason.isin(UNFINISHED)
    recorded = dict(zip(cases.case_id[~unfinished], cases.status[~unfinished], strict=True))
    failed = cases[cases.status == "failed"]
    reasons = dict(zip(failed.case_id, failed.reason, strict=True))
    retry, force = resume != "rest", resume != "retry"
    return EarlierStarts(recorded, run.get("broken", {}), run, retry=retry, force=force, reasons=reasons)


def task(config: DictConfig) -> int:
    """One job of a sweep, wherever Hydra's launcher has put it; the exit status."""
    from commbench.config.compose import job_of

    job = job_of(config, HydraConfig.get().overrides.task)
    place = _place()
    try:
        return _started(job) if place is None else _work(job, place)
    except CommbenchError as error:  # the other jobs of the sweep go on
        print(f"commbench: {error}", file=sys.stderr)
        return error.exit_status


def _refused_multirun(found: Asked, place: Place) -> str:
    if not found.jobs:
        return "; ".join(found.refused)
    lines = "".join(f"\n  {shlex.join(job.overrides)}" for job in found.jobs)
    return f"a sweep needs fresh worlds, this is one world of {place.size} ranks; run these one by one:{lines}"


def _print_plans(jobs: Sequence[Job], ranks: int = 2) -> int:
    from .doctor import facts_here, plan_text

    facts = facts_here()
    for job in jobs:
        world = Layout.around(job.settings.layouts, ranks)
        print(plan_text(job.settings, hosted_world(world.nodes, world.ranks_per_node)[0], facts))
    return 0
