"""`commbench ab BASE... --vs NEW...`: launches of two sides in turn, each in a fresh world, and the
verdict."""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from commbench.analysis.sides import PAYLOAD
from commbench.cli.compare import FAILURES, compare_command, failures_of
from commbench.cli.options import CommandParser, add_delta, whole_number
from commbench.cli.plans import planned_here
from commbench.cli.run import run, run_launch
from commbench.config.compose import ConfigComposer
from commbench.config.experiments import requested_jobs
from commbench.config.overrides import quoted
from commbench.config.settings import Job
from commbench.core.case import Planned
from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.secrets import masked_override
from commbench.core.terminal import print_error
from commbench.core.units import format_seconds, plural
from commbench.core.variables import Case
from commbench.hardware.sources import fact_text, run_command
from commbench.measure.plan import duration_s
from commbench.report.compare_text import launches_text
from commbench.results.run_folder import new_folder, write_json
from commbench.runtime.launchers.registry import refuse_world
from commbench.runtime.launchers.requirements import check_experiment, check_startable
from commbench.runtime.signals import SIGNAL_STATUS
from commbench.stats.difference import launches_needed
from commbench.stats.thresholds import FEW_LAUNCHES

from .ab_results import AB_FILE, AB_SIDES

AB_USAGE = """commbench ab KEY=VALUE ... --vs KEY=VALUE ... [--launches N] [--fail-on slower]
commbench ab backend=mpi sizes=[8,1MiB] --vs engine=python
commbench ab layout=1x4 --vs env.GLOO_SOCKET_IFNAME=eth1 --launches 20 --fail-on slower
commbench ab backend=nccl --vs python=/opt/new/bin/python    # another torch and NCCL"""
AB_EPILOGUE = """\
The overrides before --vs are BASE; NEW is the same with the overrides after --vs applied on top.
Each launch of each side is a fresh world; which side begins is drawn for every two launches, then
reversed (ABBA).
Settings that are alike are SUSPECT in about 1 % of cases (with 3 launches: 3 %).
python=FILE: that Python runs the launches of the side. It must have commbench, unless this command
is commbench.pyz.
Exit status: that of `commbench compare`; also 1, 3 or more where a run ended with it."""
PYTHON_KEY = "python="  # of a side, and no key of the configuration
ASK_S = 60.0
OWN_KEYS = ("trial", "label")  # this command sets them
LAUNCHES = 10  # unless cases need more
MAX_LAUNCHES = 1000


def ab(words: Sequence[str]) -> int:
    """Run and compare both sides; returns the exit status. Raises ConfigError before anything is
    started."""
    options = _ab_parser().parse_intermixed_args(list(words))
    refuse_world("commbench ab")
    failures = failures_of(options.fail_on)
    pythons = _take_pythons(options)
    overrides, jobs = _sides(options)
    planned = {side: planned_here(job.settings) for side, job in jobs.items()}
    by, cases = differing(planned["base"], planned["new"])
    if options.launches is None:
        options.launches = max(LAUNCHES, launches_needed(cases, paired=True))
    _check_launches(options, failures, cases)
    if jobs["base"].settings.plan:
        return max(run(side, config_dir=options.config_dir) for side in overrides.values())
    measuring_s = sum(
        duration_s(jobs[side].settings, entry) for side in AB_SIDES for entry in planned[side]
    )
    _print_estimate(options.launches, cases, measuring_s)
    folder = Path(new_folder(jobs["base"].settings.output))
    return _run_and_compare(folder, overrides, pythons, by, options)


def _run_and_compare(
    folder: Path,
    overrides: Mapping[str, list[str]],
    pythons: Mapping[str, str | None],
    by: Sequence[str],
    options: argparse.Namespace,
) -> int:
    """Run all launches of both sides and print their comparison; returns the worst exit status."""
    order = turns(options.launches, options.seed)
    rules = {"by": by, "delta": options.delta / 100, "seed": options.seed}
    sides = {side: [masked_override(word) for word in overrides[side]] for side in AB_SIDES}
    write_json(folder / AB_FILE, {**sides, **rules, "order": order, "pythons": pythons})
    compare_words = [*(str(folder / side) for side in AB_SIDES), "--paired"]
    compare_words += [f"--by={','.join(by)}"] if by else []
    compare_words += [f"--delta={options.delta:g}", f"--seed={options.seed}"]
    compare_words += [f"--fail-on={options.fail_on}"] if options.fail_on else []
    statuses = []
    try:
        for number, (launch, side) in enumerate(order, start=1):
            print(
                f"ab: run {number} of {len(order)}: {side}, launch {launch}",
                file=sys.stderr,
                flush=True,
            )
            given = [word for word in overrides[side] if not word.startswith("output=")]
            own = [f"trial={launch}", f"label={side}", f"output={quoted(folder / side)}"]
            statuses.append(_launched([*given, *own], options.config_dir, pythons[side]))
    except (KeyboardInterrupt, SystemExit):
        print(
            f"\ninterrupted; what was finished: commbench compare {shlex.join(compare_words)}",
            file=sys.stderr,
        )
        raise
    status = _compared(compare_words)
    print(f"{len(order)} runs: {folder}; again: commbench compare {shlex.join(compare_words)}")
    return max(status, *statuses)


def _compared(compare_words: list[str]) -> int:
    """The exit status of the comparison; where launches were lost, it may be impossible."""
    try:
        return compare_command(compare_words)
    except CommbenchError as error:
        print_error(str(error))
        return error.exit_status


def _check_launches(options: argparse.Namespace, failures: set[str], cases: int) -> None:
    """Raises ConfigError where --fail-on needs verdicts that so few launches can't give."""
    needs = {"slower": launches_needed(cases, paired=True), "suspect": FEW_LAUNCHES}
    needed = min((needs[word] for word in failures & needs.keys()), default=1)
    if options.launches < needed:
        among = plural(cases, "case", "cases")
        raise ConfigError(
            f"--fail-on {options.fail_on} needs a verdict of {among}: --launches {needed} or more"
        )


def _print_estimate(launches: int, case_count: int, measuring_s: float) -> None:
    """Print how long it takes and whether the launches suffice; `measuring_s` is that of one launch
    of each side."""
    time = f"about {format_seconds(launches * measuring_s)} of measuring"
    cases = plural(case_count, "case", "cases")
    of_each = f"{plural(launches, 'launch', 'launches')} of each side"
    print(f"ab: {of_each}, {cases}, {time}, and the start of each world", file=sys.stderr)
    few = launches_text(launches, case_count, paired=True)
    if few:
        print(f"ab: {few}", file=sys.stderr)


def turns(launches: int, seed: int) -> list[tuple[int, str]]:
    """(launch, side) in the order in which they run: every two launches base new new base, or new
    base base new."""
    rng = random.Random(f"ab/{seed}")
    order: list[tuple[int, str]] = []
    for first in range(0, launches, 2):
        pair = AB_SIDES if rng.random() < 0.5 else AB_SIDES[::-1]
        order += [(first, pair[0]), (first, pair[1])]
        order += [(first + 1, pair[1]), (first + 1, pair[0])] if first + 1 < launches else []
    return order


# ---------------------------------------------------------------- the two sides


def _ab_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="commbench ab",
        usage=AB_USAGE,
        epilog=AB_EPILOGUE,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "base",
        nargs="*",
        metavar="KEY=VALUE",
        help="overrides of BASE, and of NEW where it has no other",
    )
    add(
        "--vs",
        nargs="+",
        required=True,
        metavar="KEY=VALUE",
        help="further overrides of NEW, or other values",
    )
    least = launches_needed(1, paired=True)
    launches = (
        f"of each side; SLOWER and FASTER need {least}, and more for several cases (default:"
        f" {LAUNCHES}, or what these need)"
    )
    add("--launches", type=whole_number(1, MAX_LAUNCHES), metavar="N", help=launches)
    add_delta(parser)
    add("--seed", type=whole_number(0), default=0, help="of the order (default 0)")
    add(
        "--fail-on",
        default="",
        metavar="WORD,...",
        help=f"{', '.join(FAILURES)}: exit 1 where a case is one of those given",
    )
    add("--config-dir", help="a folder with more YAML, e.g. DIR/benchmark/mine.yaml")
    return parser


def _take_pythons(options: argparse.Namespace) -> dict[str, str | None]:
    """The Python of each side, whose words are taken from the options; None for this one. Raises
    ConfigError where it can't run commbench."""
    found: dict[str, str | None] = {}
    for side, name in (("base", "base"), ("new", "vs")):
        words = getattr(options, name)
        given = [word.removeprefix(PYTHON_KEY) for word in words if word.startswith(PYTHON_KEY)]
        setattr(options, name, [word for word in words if not word.startswith(PYTHON_KEY)])
        found[side] = given[-1] if given else found.get("base")
    for python in {each for each in found.values() if each is not None}:
        problem = _python_problem(python)
        if problem is not None:
            raise ConfigError(
                f"{PYTHON_KEY}{python} can't run commbench: {problem}; install it there, or use"
                " commbench.pyz"
            )
    return found


def _python_problem(python: str) -> str | None:
    if not python:
        return "it names no file"
    try:
        asked = run_command([python, "-m", "commbench", "--version"], ASK_S)
    except OSError as error:
        return str(error.strerror)
    if asked is None:
        return f"no answer within {ASK_S:g} s"
    return fact_text(asked.stderr.strip().rpartition("\n")[2]) if asked.returncode else None


def _sides(options: argparse.Namespace) -> tuple[dict[str, list[str]], dict[str, Job]]:
    """The overrides and the job of each side. Raises ConfigError for what can't be run or
    compared."""
    with ConfigComposer(options.config_dir) as composer:
        base_keys = composer.keys_of(options.base)
        new_keys = composer.keys_of(options.vs)
        for key in (*base_keys, *new_keys):
            if key in OWN_KEYS:
                raise ConfigError(f"commbench ab sets {key} itself; leave it out")
        for key in ("output", "plan"):
            if key in new_keys:
                raise ConfigError(f"{key} belongs to both sides; write it before --vs")
        kept = [
            word for word, key in zip(options.base, base_keys, strict=True) if key not in new_keys
        ]
        # the launches print no tables, unless writers are given
        quiet = [] if "writer" in (*base_keys, *new_keys) else ["writer=[parquet]"]
        overrides = {"base": [*quiet, *options.base], "new": [*quiet, *kept, *options.vs]}
        jobs = {side: _job_of_side(composer, side, overrides[side]) for side in AB_SIDES}
    for job in jobs.values():
        check_startable(job)
    return overrides, jobs


def _job_of_side(composer: ConfigComposer, side: str, overrides: Sequence[str]) -> Job:
    """The one job of a side; raises ConfigError that names the side."""
    try:
        requested = requested_jobs(composer, overrides, multirun=False)
        check_experiment(requested)
    except ConfigError as error:
        raise ConfigError(f"{side.upper()}: {error}") from error
    if requested.fresh_worlds:
        raise ConfigError(
            f"{side.upper()} has {len(requested.jobs)} runs; a side is one run: choose one with"
            " part=N"
        )
    if "parquet" not in requested.jobs[0].config["writers"]:
        raise ConfigError(f"{side.upper()} stores no results to compare; add parquet to writer")
    return requested.jobs[0]


def differing(base: Sequence[Planned], new: Sequence[Planned]) -> tuple[tuple[str, ...], int]:
    """The variables of which the sides share no value, and how many cases both have.

    Raises ConfigError where a side has no cases or no case has a counterpart.
    """
    cases = [[entry.case for entry in side if entry.skip is None] for side in (base, new)]
    for name, side, measured in zip(AB_SIDES, (base, new), cases, strict=True):
        if not measured:
            reasons = dict.fromkeys(str(entry.skip) for entry in side)
            raise ConfigError(f"{name.upper()} has no case to measure: {'; '.join(reasons)}")
    names = [field.name for field in fields(Case) if field.name not in PAYLOAD]
    values = [{name: {getattr(case, name) for case in side} for name in names} for side in cases]
    by = tuple(name for name in names if not values[0][name] & values[1][name])
    kept = [field.name for field in fields(Case) if field.name not in by]
    points = [{tuple(getattr(case, name) for name in kept) for case in side} for side in cases]
    if not points[0] & points[1]:
        raise ConfigError(
            "no case of NEW has a counterpart in BASE that differs in its setting alone; give both"
            " the same benchmark, sizes and dtype"
        )
    return by, len(points[0] & points[1])


def _launched(overrides: Sequence[str], config_dir: str | None, python: str | None) -> int:
    """The exit status of one launch, by another Python where one is given."""
    if python is None:
        return run_launch(overrides, config_dir)
    words = [*overrides, *(["--config-dir", config_dir] if config_dir is not None else [])]
    with subprocess.Popen([python, "-m", "commbench", "run", *words]) as process:
        try:
            status = process.wait()
        except SystemExit:  # of SIGTERM; Ctrl-C reaches both
            process.terminate()
            raise
    if status < 0:
        status = SIGNAL_STATUS - status
    if status > SIGNAL_STATUS:  # the run was ended by a signal
        raise SystemExit(status)
    return status
