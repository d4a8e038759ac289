"""`commbench ab BASE... --vs NEW...`: launches of two settings in turn, each in a fresh world, and the verdict."""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

from commbench.config.compose import ConfigComposer, Job
from commbench.config.experiments import asked, check_experiment
from commbench.core.case import Case
from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.layout import Layout
from commbench.core.run_folder import new_folder, write_json
from commbench.measure.plan import plan
from commbench.report.compare_join import PAYLOAD
from commbench.report.compare_statistics import LEAST_LAUNCHES
from commbench.world.identity import detect, hosted_world

from . import run
from .compare import FAILURES, command
from .doctor import facts_here
from .options import Options

USAGE = """commbench ab KEY=VALUE ... --vs KEY=VALUE ... [--launches 10] [--fail-on slower]
commbench ab backend=mpi sizes=[8,1MiB] --vs engine=python
commbench ab layout=1x4 --vs env.GLOO_SOCKET_IFNAME=eth1 --launches 20 --fail-on slower"""
EPILOGUE = """What stands before --vs is BASE; NEW is the same with what stands behind --vs applied on top.
Each launch of each side is a fresh world; which side begins is drawn for every two launches, then turned round (ABBA).
Exit status: as of `commbench compare`; 1, 3 or more also where a run ended so."""
SIDES = ("base", "new")
OURS = ("launch", "label")  # keys that this command sets
MOST_LAUNCHES = 1000


@dataclass(frozen=True)
class Question:
    """Two sides, checked: their overrides, and the variables in which they differ."""

    overrides: dict[str, list[str]]
    by: tuple[str, ...]
    output: str
    planned_only: bool


def ab(words: Sequence[str]) -> int:
    """The exit status. Raises ConfigError for either side before anything is started."""
    options = _parser().parse_intermixed_args(list(words))
    question = _question(options)
    if question.planned_only:
        return max(run.run(one, config_dir=options.config_dir) for one in question.overrides.values())
    folder = Path(new_folder(question.output))
    order = turns(options.launches, options.seed)
    write_json(folder / "ab.json", {**question.overrides, "by": question.by, "seed": options.seed, "order": order})
    told = _compared(folder, question, options)
    with _kept(folder, told):
        statuses = [_launched(folder, question, options, *turn) for turn in enumerate(order)]
    print(f"{len(order)} runs: {folder}; again: commbench compare {shlex.join(told)}\n", flush=True)
    return max(command(told), *statuses)


def turns(launches: int, seed: int) -> list[tuple[int, str]]:
    """(launch, side) in the order they run: every two launches base new new base, or the other way round."""
    drawn = random.Random(f"ab/{seed}")
    order: list[tuple[int, str]] = []
    for first in range(0, launches, 2):
        pair = SIDES if drawn.random() < 0.5 else SIDES[::-1]
        order += [(first, pair[0]), (first, pair[1])]
        order += [(first + 1, pair[1]), (first + 1, pair[0])] if first + 1 < launches else []
    return order


# ---------------------------------------------------------------- the question


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = Options(prog="commbench ab", usage=USAGE, epilog=EPILOGUE, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add("base", nargs="*", metavar="KEY=VALUE", help="overrides of BASE, and of NEW where it has no other")
    add("--vs", nargs="+", required=True, metavar="KEY=VALUE", help="what NEW has instead or in addition")
    add(
        "--launches",
        type=_count,
        default=10,
        metavar="N",
        help=f"of each side (default 10); {LEAST_LAUNCHES} at least for a verdict",
    )
    add("--seed", type=_natural, default=0, help="of the order and of the bootstrap (default 0)")
    add("--fail-on", default="", metavar="WORD,...", help="exit 1 if a case is slower, undecided, or missing in NEW")
    add("--config-dir", help="a folder with more YAML, e.g. DIR/benchmark/mine.yaml")
    return parser


def _count(word: str) -> int:
    if not word.isdigit() or not 1 <= int(word) <= MOST_LAUNCHES:
        raise argparse.ArgumentTypeError(f"{word} is not a number of launches from 1 to {MOST_LAUNCHES}")
    return int(word)


def _natural(word: str) -> int:
    if not re.fullmatch(r"\d{1,18}", word):
        raise argparse.ArgumentTypeError(f"{word} is not a whole number from 0 on")
    return int(word)


def _question(options: argparse.Namespace) -> Question:
    """Raises ConfigError for what can't be asked, run or compared."""
    if detect(os.environ) is not None:
        raise ConfigError("commbench ab starts its worlds itself; call it outside of torchrun, mpirun and srun")
    asks = {word.strip() for word in options.fail_on.split(",") if word.strip()}
    if asks - set(FAILURES):
        raise ConfigError(f"--fail-on {options.fail_on} is unknown; allowed: {', '.join(FAILURES)}")
    if asks - {"missing"} and options.launches < LEAST_LAUNCHES:
        raise ConfigError(f"--fail-on {options.fail_on} needs a verdict: --launches {LEAST_LAUNCHES} or more")
    with ConfigComposer(options.config_dir) as door:
        overrides = _sides(door, options.base, options.vs)
        jobs = {side: _job(door, side, overrides[side]) for side in SIDES}
    for job in jobs.values():
        run.check_here(job)
    settings = jobs["base"].settings
    return Question(overrides, differing(jobs["base"], jobs["new"]), settings.output, settings.plan)


def _sides(door: ConfigComposer, base: Sequence[str], more: Sequence[str]) -> dict[str, list[str]]:
    """NEW is BASE with other values, each key once; writers that print a table a launch are left out."""
    for key in door.keys_of([*base, *more]):
        if key in OURS:
            raise ConfigError(f"commbench ab sets {key} itself; leave it out")
    replaced = door.keys_of(more)
    for key in ("output", "plan"):
        if key in replaced:
            raise ConfigError(f"{key} belongs to both sides; write it before --vs")
    kept = [word for word, key in zip(base, door.keys_of(base), strict=True) if key not in replaced]
    quiet = [] if "writer" in [*replaced, *door.keys_of(base)] else ["writer=[parquet]"]
    return {"base": [*quiet, *base], "new": [*quiet, *kept, *more]}


def _job(door: ConfigComposer, side: str, overrides: Sequence[str]) -> Job:
    """The one job of a side; raises ConfigError that names the side."""
    try:
        found = asked(door, overrides, multirun=False)
        check_experiment(found)
    except ConfigError as error:
        raise ConfigError(f"{side.upper()}: {error}") from error
    if found.fresh:
        raise ConfigError(f"{side.upper()} asks for {len(found.jobs)} runs, a side is one; name one part=N")
    if "parquet" not in found.jobs[0].config["writers"]:
        raise ConfigError(f"{side.upper()} keeps no results to compare; let writer have parquet")
    return found.jobs[0]


def differing(base: Job, new: Job) -> tuple[str, ...]:
    """The variables of which the sides share no value; raises ConfigError where no case would have a partner."""
    cases = [_cases(job) for job in (base, new)]
    names = [field.name for field in fields(Case) if field.name not in PAYLOAD]
    values = [{name: {getattr(case, name) for case in side} for name in names} for side in cases]
    by = tuple(name for name in names if not values[0][name] & values[1][name])
    kept = [field.name for field in fields(Case) if field.name not in by]
    points = [{tuple(getattr(case, name) for name in kept) for case in side} for side in cases]
    if not points[0] & points[1]:
        raise ConfigError(
            "no case of NEW has a partner in BASE that differs in its setting alone; give both the same benchmark, "
            "sizes and dtype"
        )
    return by


def _cases(job: Job) -> list[Case]:
    """What the side would measure here."""
    around = Layout.around(job.settings.layouts)
    world, _ = hosted_world(around.nodes, around.ranks_per_node)
    planned = plan(replace(job.settings, layouts=job.settings.layouts or (around,)), world, facts_here())
    return [one.case for one in planned if one.skip is None]


# ---------------------------------------------------------------- the launches


def _launched(folder: Path, question: Question, options: argparse.Namespace, index: int, turn: tuple[int, str]) -> int:
    """One run; its exit status. A world that broke costs its launch, as in a sweep; an interruption ends all."""
    launch, side = turn
    print(f"ab: run {index + 1} of {2 * options.launches}: {side}, launch {launch}", file=sys.stderr, flush=True)
    place = str(folder / side).replace("'", r"\'")
    own = [f"launch={launch}", f"label={side}", f"output='{place}'"]
    given = [word for word in question.overrides[side] if not word.startswith("output=")]
    try:
        status = run.run([*given, *own], config_dir=options.config_dir)
    except CommbenchError as error:
        print(f"commbench: {error}", file=sys.stderr)
        return error.exit_status
    if status > 128:  # a signal that a run has answered
        raise SystemExit(status)
    return status


def _compared(folder: Path, question: Question, options: argparse.Namespace) -> list[str]:
    """The words of the comparison."""
    by = [f"--by={','.join(question.by)}"] if question.by else []
    fail_on = [f"--fail-on={options.fail_on}"] if options.fail_on else []
    return [*(str(folder / side) for side in SIDES), "--paired", *by, f"--seed={options.seed}", *fail_on]


@contextmanager
def _kept(folder: Path, told: Sequence[str]) -> Iterator[None]:
    """Where somebody stops us: say what there is and how to compare it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        print(f"\ninterrupted; what was finished: commbench compare {shlex.join(told)}", file=sys.stderr)
        raise
