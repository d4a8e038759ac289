"""`commbench replay`: what a training job communicates, and what that costs."""

from __future__ import annotations

import argparse
import csv
import io
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path

from commbench.cli.options import CommandParser, check_file, write_file
from commbench.core.errors import ConfigError, Unreadable
from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.units import (
    about_bytes,
    format_number,
    format_ranges,
    format_seconds,
    plural,
)

from .analysis import Signature, exposure, late_ranks, signatures
from .generators import GENERATORS
from .named_workload import NamedWorkload, WorkloadOn, generated, is_generator, listed_workloads
from .operations import RecordedCall
from .readers.registry import read_traces, stored_workload
from .training_job import TrainingJob, training_job
from .workload import Workload
from .workload_file import check_exportable, workload_of, workload_text

REPLAY_USAGE = """commbench replay TRACE... [--csv FILE] [--export job.json]
       commbench replay TRACE... | job.json --on "backend=nccl layout=1x8"     measured here
       commbench replay TRACE... | job.json --from results     predicted from what was measured
       commbench replay fsdp params=7e9 layers=32 --from results      a job from a model's numbers
       commbench replay fsdp ranks=64 params=70e9 layers=80 --export job.json"""
TO_STDOUT = "-"
MOST_NAMED_FILES = 3
MOST_NAMED_LIBRARIES = 5
SIGNATURE_COLUMNS = (
    TableColumn("signature"),
    TableColumn("group"),
    TableColumn("calls", right=True),
    TableColumn("bytes", right=True),
    TableColumn("busiest", right=True),
    TableColumn("job us", right=True),
    TableColumn("waiting", right=True),
    TableColumn("share", right=True),
    TableColumn("exposed", right=True),
)
OPERATION_COLUMNS = (
    *("rank", "group_ranks", "group_size", "sequence", "operation", "dtype", "input_bytes"),
    *("output_bytes", "send_counts", "receive_counts", "root", "peer", "start_ns", "end_ns"),
    *("step", "beside_ns"),
)


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
        sys.stdout.write(operations_csv(job))
        return 0
    # refused before anything is printed
    is_asked = any(each is not None for each in (options.export, options.results, overrides))
    workload = (stored or workload_of(job)) if is_asked else None
    print(job_text(job, left_out), end="")
    if options.csv is not None:
        write_file("--csv", options.csv, operations_csv(job), replace=False)
        print(f"{job.operations} operations: {options.csv}")
    if workload is None:
        print("\n".join(_next_lines(options.words, job, stored is not None)))
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
    return _answered(options, generated(text), None, overrides)


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
    return 0 if overrides is None else _measured_on(workload, job, overrides)


def _next_lines(words: Sequence[str], job: TrainingJob, is_stored: bool) -> list[str]:
    """The commands that would not be refused."""
    if not is_stored:
        try:
            check_exportable(job)
        except Unreadable as error:
            reason = f"no --on and no --export: {error}"
            return [paragraphs([reason], Terminal.of(sys.stdout))]
    again = f"next: commbench replay {shlex.join(words)}"
    measured = f'{again} --on "backend=gloo layout=1x{len(job.ranks)}"'
    return [measured] if is_stored else [measured, f"{again} --export job.json"]


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


def _measured_on(workload: Workload, job: TrainingJob | None, overrides: str) -> int:
    """See measured_here; imports Hydra and pandas, which reading traces does not need."""
    from .measurement import measured_here

    return measured_here(workload, job, overrides)


def _predicted(
    results: Sequence[str], workloads: Sequence[WorkloadOn], job: TrainingJob | None = None
) -> int:
    """Print the predictions from results; imports pandas, which reading traces does not need."""
    from commbench.results.load import read_rows

    from .causes import waiting_of
    from .prediction import prediction_text, predictions

    cases = read_rows(results)
    waiting = None if job is None else waiting_of(job)
    print(prediction_text(cases, predictions(cases, workloads, waiting)), end="")
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


def operations_csv(job: TrainingJob) -> str:
    """One line an operation of a rank; what is not known is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(OPERATION_COLUMNS)
    for rank in job.ranks:
        for call in job.calls[rank]:
            writer.writerow(["" if value is None else value for value in _cells(call)])
    return out.getvalue()


def _cells(call: RecordedCall) -> list[object]:
    special: dict[str, object] = {
        "group_ranks": None if call.group.ranks is None else format_ranges(call.group.ranks),
        "group_size": call.group.size,
        "send_counts": _counts_text(call.send_counts),
        "receive_counts": _counts_text(call.receive_counts),
    }
    return [special[name] if name in special else getattr(call, name) for name in OPERATION_COLUMNS]


def _counts_text(counts: Sequence[int] | None) -> str | None:
    return None if counts is None else " ".join(map(str, counts))


def job_text(job: TrainingJob, left_out: Mapping[str, str]) -> str:
    """What the command prints."""
    terminal = Terminal.of(sys.stdout)
    rows = signatures(job)
    total_ns = sum(row.total_ns for row in rows)
    table = _signature_table(job, rows, total_ns, terminal)
    lines = [
        _headline(job, rows),
        *([table, ""] if rows else []),
        *_time_lines(job, rows, total_ns),
        *_late_lines(job),
        *_other_libraries(job),
        *(f"not complete: {text} ({count})" for text, count in job.notes.items()),
        *_left_out_lines(left_out),
    ]
    texts = [line if line == table else paragraphs([line], terminal) for line in lines]
    return "\n".join(texts) + "\n"


def _headline(job: TrainingJob, rows: Sequence[Signature]) -> str:
    of_world = f"{len(job.ranks)} of {job.world_size or 'an unknown number of'} ranks"
    steps = f", {plural(job.steps, 'step', 'steps')} of" if job.steps else ""
    step_text = f"{steps} {format_seconds(job.step_s)}" if job.step_s is not None else ""
    groups = len({collective.group for collective in job.collectives})
    text = (
        f"{of_world}, {', '.join(job.forms)}{step_text};"
        f" {plural(job.operations, 'operation', 'operations')} in"
        f" {plural(len(rows), 'signature', 'signatures')}, {plural(groups, 'group', 'groups')}"
    )
    return f"{text}; not known: {', '.join(job.unknown)}" if job.unknown else text


def _signature_table(
    job: TrainingJob, rows: Sequence[Signature], total_ns: int, terminal: Terminal
) -> str:
    """Without the columns of which nothing is known."""
    known = {
        "waiting": any(row.waiting_ns is not None for row in rows),
        "exposed": any(row.exposed is not None for row in rows),
    }
    shown = [known.get(column.heading, True) for column in SIGNATURE_COLUMNS]
    cells = [list(compress(_signature_cells(row, job, total_ns), shown)) for row in rows]
    return table_text(list(compress(SIGNATURE_COLUMNS, shown)), cells, terminal)


def _signature_cells(row: Signature, job: TrainingJob, total_ns: int) -> list[str]:
    waiting = row.waiting_ns
    share = row.total_ns / total_ns if total_ns else None
    return [
        f"{row.operation} {row.dtype}" if row.dtype is not None else row.operation,
        _group_text(row, job),
        f"{row.calls}",
        about_bytes(row.input_bytes) if row.input_bytes is not None else "-",
        about_bytes(row.busiest_bytes) if row.busiest_bytes is not None else "-",
        _job_time_text(row),
        f"{waiting / row.total_ns:.0%}" if waiting is not None and row.total_ns else "-",
        f"{share:.0%}" if share is not None and row.total_ns else "-",
        f"{row.exposed:.0%}" if row.exposed is not None else "-",
    ]


def _group_text(row: Signature, job: TrainingJob) -> str:
    if row.groups == (None,):
        return "unknown" if row.group_size is None else f"unknown({row.group_size})"
    if row.group_size == job.world_size or row.groups == (job.ranks,):
        return f"world({row.group_size})"
    if len(row.groups) == 1 and row.groups[0] is not None:
        return f"{format_ranges(row.groups[0])}"
    return f"{len(row.groups)} x {row.group_size}"


def _job_time_text(row: Signature) -> str:
    if row.job_ns is None:
        return "-"
    least, most = (format_number(time_ns / 1000) for time_ns in row.job_ns)
    text = least if least == most else f"{least} .. {most}"
    return f"<= {text}" if row.is_bound else text


def _time_lines(job: TrainingJob, rows: Sequence[Signature], total_ns: int) -> list[str]:
    timed = sum(
        call.duration_ns is not None for rank_calls in job.calls.values() for call in rank_calls
    )
    lines = []
    if timed:
        known = "" if timed == job.operations else f" ({timed} of {job.operations} operations)"
        spent_s = total_ns / len(job.ranks) / max(job.steps, 1) / 1e9
        waiting_s = sum(row.waiting_ns or 0 for row in rows) / len(job.ranks) / max(job.steps, 1)
        per = "a step" if job.steps else "in all"
        text = f"communication: {format_seconds(spent_s)} {per} on each rank{known}"
        if any(row.waiting_ns is not None for row in rows):
            text += f", of which {format_seconds(waiting_s / 1e9)} waiting for the last rank"
        lines.append(f"{text}; {_exposure_text(job, timed)}")
    if any(row.is_bound for row in rows):
        lines.append(
            "<=: an upper bound with waiting in it, because not all ranks of the group have traces"
        )
    return lines


def _exposure_text(job: TrainingJob, timed: int) -> str:
    """How much of the time in `timed` operations computation of the same rank hides; waiting is
    hidden or exposed like all of it."""
    known = exposure(job)
    if known is None:
        return "how much of it computation hides is not known"
    step_ranks = len(job.computing) * max(job.steps, 1)
    hidden, exposed, once = (
        format_seconds(total_ns / step_ranks / 1e9)
        for total_ns in (known.hidden_ns, known.exposed_ns, known.exposed_once_ns)
    )
    of = "" if known.operations == timed else f" ({known.operations} of {timed} operations)"
    text = f"{hidden} of it hidden behind computation of the same rank, {exposed} exposed{of}"
    at_once = known.exposed_once_ns < known.exposed_ns
    return f"{text}, {once} if operations at the same time count once" if at_once else text


def _late_lines(job: TrainingJob) -> list[str]:
    late = late_ranks(job)
    if not late:
        return []
    worst = late[0]
    per = "a step" if job.steps else "in all"
    waited_s = worst.waiting_ns / max(job.steps, 1) / 1e9
    return [
        f"late: rank {worst.rank} is last in {worst.last} of {worst.operations} operations; the"
        f" others wait {format_seconds(waited_s)} {per}"
    ]


def _other_libraries(job: TrainingJob) -> list[str]:
    if not job.foreign:
        return []
    count = sum(job.foreign.values())
    most = sorted(job.foreign.items(), key=lambda pair: (-pair[1], pair[0]))
    named = ", ".join(f"{name:.60} ({times})" for name, times in most[:MOST_NAMED_LIBRARIES])
    named += ", ..." if len(most) > MOST_NAMED_LIBRARIES else ""
    return [
        f"other libraries: {count} collectives are not of the process groups, so they are not in"
        f" the table and its sums: {named}"
    ]


def _left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """One for each reason."""
    lines = []
    for reason in dict.fromkeys(left_out.values()):
        names = [name for name, why in left_out.items() if why == reason]
        shown = ", ".join(names[:MOST_NAMED_FILES])
        unnamed = len(names) - MOST_NAMED_FILES
        more = f" and {unnamed} more" if unnamed > 0 else ""
        lines.append(f"not read: {shown}{more}: {reason}")
    return lines
