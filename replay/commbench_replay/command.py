"""`commbench replay`: what a training job communicates, and what that costs."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from commbench.cli.options import CommandParser, check_file, write_file
from commbench.core.annexes import needed_annex
from commbench.core.errors import ConfigError, Unreadable
from commbench.core.layout import Layout
from commbench.core.terminal import Terminal, paragraphs
from commbench.runtime.printing import print_data

from .analysis_text import job_text, operations_csv
from .generators import GENERATORS
from .named_workload import NamedWorkload, WorkloadOn, generated, is_generator, listed_workloads
from .readers.registry import read_traces, stored_workload
from .recorded_workload import workload_of
from .scaling import scaled
from .training_job import TrainingJob, training_job
from .workload import Workload
from .workload_file import parse_workload, workload_text

REPLAY_USAGE = """commbench replay TRACE... [--csv FILE] [--export job.json]
       commbench replay TRACE... | job.json --on "backend=nccl layout=1x8"     measured here
       commbench replay TRACE... | job.json --from results     predicted from what was measured
       commbench replay fsdp params=7e9 layers=32 --from results      a job from a model's numbers
       commbench replay fsdp ranks=64 params=70e9 layers=80 --export job.json"""
TO_STDOUT = "-"


def replay(words: list[str]) -> int:
    """Print the analysis of traces; returns 0. Raises CommbenchError."""
    options = _replay_parser().parse_args(words)
    for option in ("csv", "export"):
        _check_output(f"--{option}", getattr(options, option))
    if not options.words:
        raise ConfigError(
            f"which job? name files, archives or folders with traces, or {', '.join(GENERATORS)}"
            " with its numbers"
        )
    overrides = _overrides(options)
    if is_generator(options.words[0]):
        return _generated(options, overrides)
    stored = workload_here(options.words)
    traces, left_out = read_traces(options.words)
    job = training_job(traces)
    if options.csv == TO_STDOUT:
        print_data(operations_csv(job))
        return 0
    # refused before anything is printed
    is_asked = any(each is not None for each in (options.export, options.results, overrides))
    workload = (stored or workload_of(job)) if is_asked else None
    if stored is not None and stored.times_text:
        print(f"{stored.unit}: {stored.times_text}")
    print(job_text(job, left_out), end="")
    if options.csv is not None:
        write_file("--csv", options.csv, operations_csv(job), replace=False)
        print(f"{job.operations} operations: {options.csv}")
    if workload is None:
        print("\n".join(_next_lines(options.words, job, stored)))
        return 0
    return _answered(options, workload, job if stored is None else None, overrides)


def _generated(options: argparse.Namespace, overrides: str | None) -> int:
    """A job from the numbers of a model. One without ranks can only be predicted, for each
    layout."""
    text = " ".join(options.words)
    if options.csv is not None:
        raise ConfigError(f"--csv writes the operations of traces, and {text} has none")
    if options.results is not None and options.export is None:
        return _predicted(options.results, listed_workloads(text))
    if options.export is None and overrides is None:
        raise ConfigError(
            f"what of {text}? predict it with --from RESULTS, measure it with --on OVERRIDES, or"
            " write it with --export job.json"
        )
    return _answered(options, generated(text, _layout_ranks(overrides)), None, overrides)


def _layout_ranks(overrides: str | None) -> int | None:
    """The ranks of the one layout in the overrides; None where there are none or several."""
    layouts = [
        word.partition("=")[2]
        for word in shlex.split(overrides or "")
        if word.startswith("layout=")
    ]
    try:
        return Layout.parse(layouts[0]).size if len(layouts) == 1 else None
    except ConfigError:
        return None


def _answered(
    options: argparse.Namespace, workload: Workload, job: TrainingJob | None, overrides: str | None
) -> int:
    """What was asked of a workload; `job`: its traces, where they are at hand."""
    if options.export is not None:
        write_file("--export", options.export, workload_text(workload), replace=False)
        print(f"workload: {options.export}")
    if options.results is not None:
        named = NamedWorkload(" ".join(options.words), workload)
        return _predicted(options.results, [lambda _: named], job)
    if overrides is None:
        return 0
    # Hydra and pandas, which reading traces does not need
    from .measurement import measured_here

    return measured_here(workload, job, overrides)


def _next_lines(words: Sequence[str], job: TrainingJob, stored: Workload | None) -> list[str]:
    """The commands that would not be refused."""
    again = f"next: commbench replay {shlex.join(words)}"
    exported = [] if stored is not None else [f"{again} --export job.json"]
    try:
        # as a run reads it
        workload = stored or parse_workload(workload_text(workload_of(job)), words[0])
    except Unreadable as error:
        reason = f"no --on, --from or --export: {error}"
        return [paragraphs([reason], Terminal.of(sys.stdout))]
    part = scaled(workload, workload.ranks)
    if workload.ranks == 1 or not part.operations:
        reason = "; ".join(part.dropped) or "a job of one rank has nothing to replay"
        return [f"no --on: {reason}", *exported]
    return [f'{again} --on "backend=gloo layout=1x{workload.ranks}"', *exported]


def _overrides(options: argparse.Namespace) -> str | None:
    """Those of --on, with the late rank of --inject; None where nothing is measured."""
    overrides: str | None = options.on
    if overrides is not None and options.results is not None:
        raise ConfigError("--from predicts what --on measures; leave one out")
    answer = "--on" if options.results is None else "--from"
    if options.csv == TO_STDOUT and (overrides is not None or options.results is not None):
        raise ConfigError(
            f"--csv - writes the operations to stdout and nothing else; name a file beside {answer}"
        )
    if options.inject is None:
        return overrides
    key, _, late = options.inject.partition("=")
    if key != "rank" or late == "":
        raise ConfigError(f"--inject {options.inject} is no late rank; write it like rank=3:400us")
    if overrides is None:
        raise ConfigError("--inject plants a late rank in what --on measures; add --on OVERRIDES")
    if any(word.startswith("late=") for word in shlex.split(overrides)):
        raise ConfigError("--inject and late= in --on name a late rank each; leave one out")
    return f"{overrides} late=[null,{late}]"


def workload_here(words: Sequence[str]) -> Workload | None:
    """The workload of the only word, where that is a workload file; None for traces."""
    is_single_file = len(words) == 1 and Path(words[0]).is_file()
    return stored_workload(words[0]) if is_single_file else None


def _predicted(
    results: Sequence[str], workloads: Sequence[WorkloadOn], job: TrainingJob | None = None
) -> int:
    """Print the predictions from results; imports pandas, which reading traces does not need."""
    from commbench.results.load import read_case_rows

    from .waiting import waiting_of

    prediction = needed_annex("commbench_replay.prediction", "commbench replay --from")
    cases = read_case_rows(results)
    waiting = None if job is None else waiting_of(job)
    predicted = prediction.predictions(cases, workloads, waiting)
    print(prediction.prediction_text(cases, predicted), end="")
    return 0


def _replay_parser() -> CommandParser:
    parser = CommandParser(
        prog="commbench replay",
        usage=REPLAY_USAGE,
        description="Where a job's communication time goes, from the traces of its ranks"
        " (docs/workloads.md says how to record them), and what it would cost here.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="JOB",
        help="its traces: files, archives, or a folder with one a rank; or a generator with"
        f" KEY=VALUE for each of its numbers: {', '.join(GENERATORS)}",
    )
    add("--csv", metavar="FILE", help="write every operation of every rank; - is stdout")
    add("--export", metavar="FILE", help="write the job's communication, without any names")
    add("--on", metavar="OVERRIDES", help="measure it here: --on 'backend=gloo layout=1x4'")
    add(
        "--from",
        action="append",
        dest="results",
        metavar="RESULTS",
        help="predict it from a folder with results; may be given several times",
    )
    add(
        "--inject",
        metavar="rank=R:TIME",
        help="with --on: also with a late rank, as rank=3:400us, to see what it costs",
    )
    return parser


def _check_output(option: str, name: str | None) -> None:
    if name is None or (name == TO_STDOUT and option == "--csv"):
        return
    check_file(option, name)
    if Path(name).exists():
        raise ConfigError(f"{option} {name} exists; choose another file")
