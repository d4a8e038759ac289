"""An experiment's file lists its worlds, part by part and for each scale; here they become jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from commbench.core.errors import ConfigError

from .compose import ConfigComposer, Job, in_run_order
from .targets import check_experiment_overrides

EXPERIMENT = "experiment="
CPU = "cpu"


@dataclass(frozen=True)
class RequestedJobs:
    """What a command line asks for. `fresh_worlds`: each job needs a world of its own. `refused`: why parts of
    `experiment` make no job in this installation. `shrinks`: scale=cpu would make it smaller."""

    jobs: tuple[Job, ...]
    fresh_worlds: bool
    experiment: str | None = None
    refused: tuple[str, ...] = ()
    shrinks: bool = False


def requested_jobs(composer: ConfigComposer, overrides: Sequence[str], multirun: bool) -> RequestedJobs:
    """Every job of the command line, checked; raises ConfigError for what the user wrote."""
    jobs = composer.jobs(overrides, multirun)  # an experiment's own line without its parts: the user's mistakes first
    names = [override.removeprefix(EXPERIMENT) for override in overrides if override.startswith(EXPERIMENT)]
    if not names or names[-1] == "null":
        return RequestedJobs(tuple(jobs), multirun)
    if "," in names[-1]:
        raise ConfigError(f"{EXPERIMENT}{names[-1]} names several; run one experiment at a time")
    sweep = composer.sweep_of(overrides)
    check_experiment_overrides(composer.keys_of(sweep), sweep)
    found: list[Job] = []
    refused: list[str] = []
    for part in experiment_parts(composer, [*sweep, *overrides]):
        try:
            found += composer.jobs(part, multirun=True)
        except ConfigError as error:
            refused.append(str(error))
    without_part = {
        json.dumps({key: value for key, value in job.config.items() if key != "part"}, sort_keys=True): job
        for job in found
    }
    chosen = in_run_order(list(without_part.values()))
    shrinks = CPU in jobs[0].config["parts"] and jobs[0].config["scale"] != CPU
    return RequestedJobs(tuple(chosen), multirun or len(chosen) != 1, names[-1], tuple(dict.fromkeys(refused)), shrinks)


def experiment_parts(composer: ConfigComposer, overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each part of the experiment at its scale; what the user gives overrides what its file says.

    timing=quick from the user also removes the part's own timing.duration_s.
    """
    config = composer.config(composer.plain(overrides))
    lines = [str(line).split() for line in config.parts.get(str(config.scale)) or ()]
    if not lines:
        return [list(overrides)]
    keys = [composer.keys_of(line) for line in lines]
    for line, its_keys in zip(lines, keys, strict=True):
        check_experiment_overrides(its_keys, line)
    given = set(composer.keys_of(overrides))
    parts = []
    for number in range(1, len(lines) + 1) if config.part is None else [config.part]:
        words = zip(lines[number - 1], keys[number - 1], strict=True)
        kept = [word for word, key in words if not given & {key, key.partition(".")[0]}]
        parts.append([f"part={number}", *kept, *overrides])
    return parts
