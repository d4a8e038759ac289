"""The jobs of a command line. An experiment's file lists its worlds, part by part and for each
scale; these become jobs too."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from commbench.core.errors import ConfigError

from .compose import SOAK_KEYS, ConfigComposer, in_run_order
from .settings import Job

ONE_AT_A_TIME = ("experiment", "part", "scale")
WORD = re.compile(r"(?:[^\s']|'[^']*')+")  # of a line of parts: spaces within quotes belong to it
CPU = "cpu"
TIMING = "timing"


@dataclass(frozen=True)
class RequestedJobs:
    """The jobs of a command line. `fresh_worlds`: each job needs its own world.

    `refused`: why parts of `experiment` can't run in this installation; `smaller`: its overrides
    with scale=cpu.
    """

    jobs: tuple[Job, ...]
    fresh_worlds: bool
    experiment: str | None = None
    refused: tuple[str, ...] = ()
    smaller: str | None = None


def requested_jobs(
    composer: ConfigComposer, overrides: Sequence[str], multirun: bool
) -> RequestedJobs:
    """Every job of the command line, checked; raises ConfigError for mistakes of the user."""
    values = {key: value for key, _, value in (word.partition("=") for word in overrides)}
    for key in ONE_AT_A_TIME:
        if "," in values.get(key, ""):
            raise ConfigError(f"{key}={values[key]} names several; run one {key} at a time")
    # before an experiment's parts: the user's mistakes first
    jobs = composer.jobs(composer.of_all_parts(overrides), multirun)
    name = values.get("experiment", "null")
    if name == "null":
        return RequestedJobs(tuple(jobs), multirun)
    part_jobs = list[Job]()
    refused = list[str]()
    for part in experiment_parts(composer, overrides):
        try:
            part_jobs += composer.jobs(part, multirun=True)
        except ConfigError as error:
            refused.append(str(error))
    without_part = {
        json.dumps(
            {key: value for key, value in job.config.items() if key != "part"}, sort_keys=True
        ): job
        for job in part_jobs
    }
    chosen = in_run_order(list(without_part.values()))
    smaller = (f"experiment={name}", f"scale={CPU}")
    shrinks = CPU in jobs[0].config["parts"] and jobs[0].config["scale"] != CPU
    if refused and shrinks:  # what this installation lacks, the smaller one may need as well
        shrinks = not requested_jobs(composer, smaller, False).refused
    return RequestedJobs(
        tuple(chosen),
        multirun or len(chosen) != 1,
        name,
        tuple(dict.fromkeys(refused)),
        " ".join(smaller) if shrinks else None,
    )


def experiment_parts(composer: ConfigComposer, overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each part of the experiment at its scale. The user's overrides replace those
    of the file.

    A group from the user, as timing=quick, also removes the part's keys below it. Where some parts
    are soaks and others not, the soaks keep their timing, and take SOAK_KEYS, which the others do
    not have; with `part`, all words are for that part.
    """
    config = composer.config(composer.plain(overrides))
    lines = [WORD.findall(str(line)) for line in config.parts.get(str(config.scale)) or ()]
    if not lines:
        return [list(overrides)]
    keys_of_lines = [composer.keys_of_file(line) for line in lines]
    keys_of_words = dict(zip(overrides, composer.keys_of(overrides), strict=True))
    of_soaks = [
        word
        for word, key in keys_of_words.items()
        if key in SOAK_KEYS or key.partition(".")[0] != TIMING
    ]
    of_others = composer.of_all_parts(overrides)
    soaks = list[bool]()
    if config.part is None and of_soaks != of_others:
        soaks += map(composer.is_soak, lines)
    parts = []
    for number in range(1, len(lines) + 1) if config.part is None else [config.part]:
        meant = overrides
        if any(soaks) and not all(soaks):
            meant = of_soaks if soaks[number - 1] else of_others
        given = {keys_of_words[word] for word in meant}
        keys = keys_of_lines[number - 1]
        kept = [word for word, key in keys.items() if not given & {key, key.partition(".")[0]}]
        parts.append([f"part={number}", *kept, *meant])
    return parts
