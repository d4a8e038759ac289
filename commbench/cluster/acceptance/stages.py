"""An acceptance (`experiment=acceptance`): which of its stages can run, the folder that they share,
and the verdict by node."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from commbench.cli.jobs import swept
from commbench.cli.plans import print_plans
from commbench.cli.run import is_finished, resume, sweep_variables, task
from commbench.cluster.acceptance.node_verdicts import read_acceptance
from commbench.cluster.acceptance.verdict_text import MOST_LINES, acceptance_section
from commbench.cluster.search.node_rounds import search_refusal
from commbench.config.compose import ConfigComposer
from commbench.config.experiments import RequestedJobs, requested_jobs
from commbench.config.keys import NO_STAGE
from commbench.config.overrides import quoted
from commbench.config.settings import SEARCH, Job
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.secrets import masked_override
from commbench.core.states import Stage
from commbench.core.terminal import Terminal, first_line, print_error
from commbench.hardware import network
from commbench.report.section import report_text
from commbench.results.load import find_runs
from commbench.results.run_folder import (
    RECORD,
    exists,
    file_bytes,
    new_folder,
    read_record,
    resume_command,
    write_json,
)
from commbench.runtime.launch import CONFIG_DIR, SWEEP, exported
from commbench.runtime.launchers.requirements import startable_jobs

ACCEPTANCE_FILE = "acceptance.json"
RAILS: Stage = "rails"
OUTPUT = "output="
STAGE_KEYS = ("stage", "nodes", "pairs", "schedule")  # they make a stage what it is


def is_acceptance(requested: RequestedJobs) -> bool:
    """Whether these are the stages of an acceptance, and not one of them alone."""
    return requested.fresh_worlds and any(job.settings.stage != NO_STAGE for job in requested.jobs)


def check_words(composer: ConfigComposer, overrides: Sequence[str]) -> None:
    """Raises ConfigError where the user's words would make something else of the stages."""
    own = [key for key in composer.keys_of(overrides) if key in STAGE_KEYS]
    if own:
        raise ConfigError(
            f"the stages of an acceptance set {own[0]} themselves; leave it out, or measure one"
            " stage alone: part=N"
        )


def stage_jobs(composer: ConfigComposer, jobs: Sequence[Job]) -> tuple[tuple[Job, ...], list[str]]:
    """The jobs of the stages that can run, that of the rails once for each network card; and a line
    for each that can't."""
    chosen: list[Job] = []
    left_out = []
    for job in jobs:
        settings = job.settings
        layout = Layout.around(settings.layouts)
        if settings.pairs == SEARCH and (refusal := search_refusal(layout)):
            left_out.append(f"stage {settings.stage} is left out: {refusal}")
        elif settings.stage == RAILS:
            cards = settings.backend.rails(network.collect())
            if len(cards) > 1 and settings.interface is None:
                chosen += [
                    each
                    for card in cards
                    for each in composer.jobs([*job.overrides, card], multirun=False)
                ]
            else:
                left_out.append(f"stage rails is left out: {_why_no_rails(job, cards)}")
        else:
            chosen.append(job)
    return tuple(chosen), left_out


def _why_no_rails(job: Job, cards: Sequence[str]) -> str:
    if job.settings.interface is not None:
        return f"all stages use interface={job.settings.interface}"
    if not cards:
        return f"{job.settings.backend.name} uses no network card of this machine"
    return f"this machine has one network card for it ({cards[0]})"


def new_acceptance(
    overrides: Sequence[str], output: str, environment: Mapping[str, str]
) -> tuple[Path, list[str]]:
    """A new folder for all stages, and the overrides with it as their output; `environment` holds
    CONFIG_DIR and SWEEP. Raises ConfigError if it can't be written to."""
    folder = Path(new_folder(output))
    words = [word for word in overrides if not word.startswith(OUTPUT)]
    words.append(f"{OUTPUT}{quoted(folder)}")
    record = {
        "overrides": [masked_override(word) for word in words],
        "config_dir": environment.get(CONFIG_DIR),
        "sweep_id": environment.get(SWEEP),
    }
    write_json(folder / ACCEPTANCE_FILE, record)
    return folder, words


def read_acceptance_file(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The overrides of an acceptance, and the environment in which it began. Raises ConfigError for
    a file that commbench did not write."""
    file = folder / ACCEPTANCE_FILE
    try:
        record = json.loads(file_bytes(file))
        words = [str(word) for word in record["overrides"]]
        kept = {CONFIG_DIR: record["config_dir"], SWEEP: record["sweep_id"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} can't be read: {first_line(error)}; begin the acceptance anew"
        ) from error
    return words, {name: str(value) for name, value in kept.items() if value is not None}


def recorded_words(job: Job) -> tuple[str, ...]:
    """The overrides of a job, as run.json has them."""
    return tuple(masked_override(word) for word in job.overrides)


def begun_runs(folder: Path) -> dict[tuple[str, ...], Path]:
    """The runs in the folder, by the overrides of their jobs."""
    return {tuple(read_record(run).get("overrides") or ()): run for run in find_runs(folder)}


def print_verdict(folder: Path) -> int:
    """Print which nodes pass, and return the exit status; 1 also where no stage left results."""
    acceptance = read_acceptance([folder])
    if acceptance is None:
        print_error(f"no stage of the acceptance in {folder} has results")
        return 1
    text = report_text([acceptance_section(acceptance)], MOST_LINES, Terminal.of(sys.stdout))
    print(f"{text}one page to send: commbench report {folder} --html acceptance.html")
    print(f"results: {folder}", flush=True)
    return acceptance.exit_status


def run_stages(
    composer: ConfigComposer, overrides: Sequence[str], requested: RequestedJobs, elsewhere: bool
) -> int | None:
    """Measure the stages of an acceptance in a new folder, or plan them; returns the worst exit
    status, or None where the jobs are no stages. Raises ConfigError."""
    if not is_acceptance(requested):
        return None
    check_words(composer, overrides)
    chosen, left_out = stage_jobs(composer, requested.jobs)
    for line in left_out:
        print(line, flush=True)
    startable_jobs(chosen, elsewhere, needs_all=True)
    if any(job.settings.plan for job in chosen):
        return print_plans(chosen, elsewhere, needs_all=True)
    output = chosen[0].settings.output
    with exported(sweep_variables(chosen)):
        folder, words = new_acceptance(overrides, output, os.environ)
        with _naming_the_rest(folder):
            jobs = _jobs_of(composer, words)
            status = swept(composer.hydra_config(words), composer.keys_of(words), jobs, task)
    return max(status, print_verdict(folder))


def resume_stages(folder: Path, force: bool) -> int | None:
    """Measure what the acceptance in a folder lacks; returns the worst exit status, or None where
    it has none. `force`: also on a machine that has changed."""
    if not exists(folder / ACCEPTANCE_FILE) or exists(folder / RECORD):
        return None
    words, environment = read_acceptance_file(folder)
    config_dir = environment.get(CONFIG_DIR)
    with ConfigComposer(config_dir) as composer:
        jobs = _jobs_of(composer, words)
    begun = begun_runs(folder)
    missing = [job for job in jobs if recorded_words(job) not in begun]
    statuses = [0]
    with _naming_the_rest(folder):
        for run_folder in begun.values():
            if not is_finished(read_record(run_folder), run_folder):
                statuses.append(resume([str(run_folder), *(["--force"] if force else [])]))
        if missing:
            with exported(environment), ConfigComposer(config_dir) as composer:
                config = composer.hydra_config(words)
                statuses.append(swept(config, composer.keys_of(words), missing, task))
    return max(*statuses, print_verdict(folder))


def _jobs_of(composer: ConfigComposer, words: Sequence[str]) -> tuple[Job, ...]:
    jobs, _ = stage_jobs(composer, requested_jobs(composer, words, multirun=False).jobs)
    return jobs


@contextmanager
def _naming_the_rest(folder: Path) -> Iterator[None]:
    """After a signal print how to finish the acceptance."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        print_error(f"the rest of the acceptance: {resume_command(folder)}")
        raise
