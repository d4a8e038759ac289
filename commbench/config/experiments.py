"""An experiment's file lists its worlds, part by part and for each scale; here they become jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commbench.core.errors import ConfigError

from .compose import LOADING, ConfigComposer, Job, ordered
from .startability import lacks

KEY = "experiment="
CPU = "cpu"


@dataclass(frozen=True)
class Asked:
    """What a command line asks for. `fresh`: each job needs a world of its own. `refused`: why parts of `experiment`
    make no job in this installation. `shrinks`: scale=cpu would make it smaller."""

    jobs: tuple[Job, ...]
    fresh: bool
    experiment: str | None = None
    refused: tuple[str, ...] = ()
    shrinks: bool = False


def asked(door: ConfigComposer, overrides: Sequence[str], multirun: bool) -> Asked:
    """Every job of the command line, checked; raises ConfigError for what the user wrote."""
    jobs = door.jobs(overrides, multirun)  # an experiment's own line, its parts left out: the user's mistakes first
    names = [one.removeprefix(KEY) for one in overrides if one.startswith(KEY)]
    if not names or names[-1] == "null":
        return Asked(tuple(jobs), multirun)
    if "," in names[-1]:
        raise ConfigError(f"{KEY}{names[-1]} names several; run one experiment at a time")
    sweep = door.sweep_of(overrides)
    _refuse_powers(door, sweep)
    given = [*sweep, *overrides]
    found: list[Job] = []
    refused: list[str] = []
    for part in parts(door, given):
        try:
            found += door.jobs(part, multirun=True)
        except ConfigError as error:
            refused.append(str(error))
    unique = {_meaning(job): job for job in found}
    chosen = ordered(list(unique.values()))
    shrinks = CPU in jobs[0].config["parts"] and jobs[0].config["scale"] != CPU
    return Asked(tuple(chosen), multirun or len(chosen) != 1, names[-1], tuple(dict.fromkeys(refused)), shrinks)


def parts(door: ConfigComposer, overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each part of the experiment at its scale; what the user gives goes before what its file says."""
    config = door.config(door.plain(overrides))
    lines = [str(line) for line in config.parts.get(str(config.scale)) or ()]
    if not lines:
        return [list(overrides)]
    for line in lines:
        _refuse_powers(door, line.split())
    numbers = range(1, len(lines) + 1) if config.part is None else [config.part]
    given = door.keys_of(overrides)
    return [[f"part={number}", *_left(door, lines[number - 1], given), *overrides] for number in numbers]


def _left(door: ConfigComposer, line: str, given: Iterable[str]) -> list[str]:
    """The words of a part that the user leaves alone: timing=quick also ends the part's own timing.duration_s."""
    names = set(given)
    pairs = [(word, *door.keys_of([word])) for word in line.split()]
    return [word for word, key in pairs if not names & {key, key.partition(".")[0]}]


def _refuse_powers(door: ConfigComposer, words: Sequence[str]) -> None:
    """Raises ConfigError where a file's overrides would bring in foreign code: they look as if the user gave them."""
    for word in words:
        (key,), value = door.keys_of([word]), word.partition("=")[2]
        loads = key.startswith("env.") and LOADING.search(key.upper().removeprefix("ENV."))
        if (
            loads
            or key in ("allow", "env")
            or key.startswith(("hydra", "launcher."))
            or (key == "backend.library" and "/" in value)
        ):
            raise ConfigError(f"an experiment's file sets {word}; what loads code is given on the command line only")


def _meaning(job: Job) -> str:
    return json.dumps({key: value for key, value in job.config.items() if key != "part"}, sort_keys=True)


def check_experiment(found: Asked, elsewhere: bool = False) -> None:
    """Raises ConfigError, one line with all that an experiment lacks on this machine."""
    if found.experiment is None:
        return
    reasons = [*found.refused, *(reason for job in found.jobs for reason in lacks(job.settings, elsewhere))]
    if not reasons:
        return
    listed = "; ".join(f"({number}) {reason}" for number, reason in enumerate(dict.fromkeys(reasons), start=1))
    smaller = f". As far as one machine's CPUs go: commbench {KEY}{found.experiment} scale={CPU}"
    hint = smaller if found.shrinks else ""
    raise ConfigError(f"{KEY}{found.experiment} can't run here: {listed}{hint}")
