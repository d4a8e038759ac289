"""`commbench predict`: the communication time of one step of a job, from what was measured."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from commbench.analysis.best import THIS_RUN, UNDECIDED
from commbench.analysis.fit import FAMILY_VARIABLES, answerable, families, ignored, varying
from commbench.cli.options import CommandParser
from commbench.core.errors import ConfigError
from commbench.core.payload import DTYPES
from commbench.core.payload import dtype as dtype_of
from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.units import (
    about_bytes,
    format_factor,
    format_number,
    format_seconds,
    natural_key,
    parse_bytes,
    plural,
)
from commbench.replay.named_workload import source_of
from commbench.replay.predicted_job import predict_job
from commbench.replay.predicted_times import EXTRAPOLATED, OPERATION, TrainingStep, predict, step_of
from commbench.results.columns import grouped, interval_meaning
from commbench.results.load import plain, read_rows, row_dicts
from commbench.stats.difference import Measured, differ
from commbench.stats.launches import FEW_LAUNCHES

if TYPE_CHECKING:
    import pandas as pd

Prediction = dict[Any, Any]

PREDICT_USAGE = """commbench predict --params 7e9 --dtype bfloat16 --bucket-mb 25 [PATH ...]
       commbench predict --params 7e9 --bucket-mb 1,25,100      compare bucket sizes
       commbench predict --buckets 1MiB,25MiB,25MiB,7MiB        the buckets of a step by size
       commbench predict --job 'fsdp params=7e9 layers=32'      or job.json: all its operations"""
ALWAYS = ("backend", "engine", "layout", "dtype")  # columns even where all rows share them
STEP_COLUMNS = (
    TableColumn("bucket\nB", right=True),
    TableColumn("buckets", right=True, priority=3),
    TableColumn("step\nms", right=True),
    TableColumn("interval\nms", right=True, priority=1),
    TableColumn("GB/s", right=True, priority=2),
)
BEYOND = "extrapolated beyond the measured sizes by the fit, see the warnings:"
DEFAULT_DTYPE = "float32"
JOB_COLUMNS = (
    TableColumn("backend"),
    TableColumn("layout"),
    TableColumn("calls", right=True),
    TableColumn("step\nms", right=True),
    TableColumn("interval\nms", right=True, priority=1),
    TableColumn("median\nerror", right=True),
    TableColumn("worst\nerror", right=True),
    TableColumn("of\nsizes", right=True, priority=2),
    TableColumn("notes"),
)
JOB_MEANING = (
    "step: the operations of the busiest rank one after another, nothing overlaps; errors: of each"
    " measured size of these operations, predicted from the other sizes"
)
MOST_PARAMS = 10**18  # of --params and --bucket-mb
STEP_MEANING = (
    "step: the buckets one after another, nothing overlaps with computation; GB/s is gradients /"
    " step, 10^9 B/s"
)
BOTH_WAYS = (
    "of the medians of all buckets at once, and both ways between two sizes; stragglers are not"
    " in it"
)


def predict_command(words: list[str]) -> int:
    """Print the table and what follows from it; returns 0. Raises CommbenchError, ConfigError."""
    options = _predict_parser().parse_args(words)
    if options.job is not None:
        _check_job_alone(options)
        print(job_prediction_text(read_rows(options.paths), options.job), end="")
        return 0
    dtype = options.dtype or DEFAULT_DTYPE
    steps = _steps(options, dtype)
    cases = read_rows(options.paths)
    print(prediction_text(cases, steps, dtype, options.params is not None), end="")
    return 0


def _check_job_alone(options: argparse.Namespace) -> None:
    for name in ("params", "dtype", "bucket_mb", "buckets"):
        if getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"--job has all numbers of the job in its text; leave out {option}, or write it"
                " there: --job 'ddp params=7e9 bucket=25MiB dtype=bfloat16'"
            )


def job_prediction_text(cases: pd.DataFrame, job: str) -> str:
    """The text of the command for a job; raises CommbenchError like predict_job."""
    try:
        predictions = predict_job(cases, lambda ranks: source_of(job, ranks).workload)
    except ConfigError as error:
        raise ConfigError(f"--job {str(error).removeprefix('workload=')}") from error
    terminal = Terminal.of(sys.stdout)
    cells = []
    for each in predictions:
        engine = f" ({each.variables['engine']})" if each.variables["engine"] else ""
        seconds = each.seconds
        errors = each.held_out.errors
        cells.append(
            (
                f"{each.variables['backend']}{engine}",
                each.layout,
                str(each.calls),
                "-" if seconds is None else format_number(1e3 * seconds.value),
                "-" if seconds is None else _milliseconds_text(seconds.low, seconds.high),
                f"{each.held_out.median:.0%}" if errors else "-",
                f"{each.held_out.worst:.0%}" if errors else "-",
                str(len(errors)),
                "withheld" if seconds is None else "",
            )
        )
    warned: dict[str, list[str]] = {}
    for each in predictions:
        for warning in each.warnings:
            warned.setdefault(warning, []).append(f"{each.variables['backend']} {each.layout}")
    lines = [
        *(f"warning: {', '.join(dict.fromkeys(of))}: {text}" for text, of in warned.items()),
        JOB_MEANING,
    ]
    table = table_text(JOB_COLUMNS, cells, terminal)
    return f"{job}\n\n{table}\n\n{paragraphs(lines, terminal)}\n"


def _milliseconds_text(low_s: float, high_s: float) -> str:
    if math.isnan(low_s) or math.isnan(high_s):
        return "-"
    return f"{format_number(1e3 * low_s)} .. {format_number(1e3 * high_s)}"


def prediction_text(
    cases: pd.DataFrame, steps: Sequence[TrainingStep], dtype: str, by_params: bool = True
) -> str:
    """The text of the command; raises CommbenchError like predict."""
    rows: list[Prediction] = predict(cases, steps, dtype).to_dict("records")
    for row in rows:  # pandas has NaN where a variable has no value
        row.update({name: plain(row[name]) for name in FAMILY_VARIABLES})
        row["is_extrapolated"] = any(
            warning.startswith(EXTRAPOLATED) for warning in row["warnings"]
        )
    shown = [name for name in varying(rows) if name not in ALWAYS]
    for row in rows:
        more = [str(row["engine"])] if row["engine"] else []
        more += [f"{name} {row[name]}" for name in shown if row[name] is not None]
        row["name"] = f"{row['backend']} ({', '.join(more)})" if more else str(row["backend"])
    rows.sort(
        key=lambda row: (
            row["is_extrapolated"],
            natural_key(row["layout"]),
            row["bucket_bytes"],
            math.isnan(row["step_s"]),
            row["step_s"],
        )
    )
    warned: dict[str, list[str]] = {}
    for row in rows:
        for warning in row["warnings"]:
            warned.setdefault(warning, []).append(f"{row['name']} {row['layout']}")
    warnings = [
        f"warning: {', '.join(dict.fromkeys(who))}: {warning}" for warning, who in warned.items()
    ]
    terminal = Terminal.of(sys.stdout)
    titles = paragraphs([_step_title(step, dtype, by_params) for step in steps], terminal)
    meaning = [*_step_meanings(cases), "", *_answers(rows), *warnings, *_source_notes(cases)]
    tables = []
    for is_extrapolated, alike in grouped(rows, lambda row: bool(row["is_extrapolated"])).items():
        tables += [BEYOND] if is_extrapolated else []
        tables += [_steps_table(alike, shown, terminal), ""]
    text = "\n".join([titles, "", *tables, paragraphs(meaning, terminal)])
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _predict_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="commbench predict", usage=PREDICT_USAGE, description=__doc__, allow_abbrev=False
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help="folders with results; default: results")
    add("--params", type=_params, help="parameters of the model, e.g. 7e9")
    add("--dtype", help=f"of the gradients, default {DEFAULT_DTYPE}: {', '.join(DTYPES)}")
    mebibytes = (
        "bucket size in MiB, as bucket_cap_mb of DistributedDataParallel; default 25; a list"
        " compares them"
    )
    add("--bucket-mb", type=_mebibytes, metavar="MIB", help=mebibytes)
    exact = "sizes of all buckets of a step (25MiB,25MiB,7MB), instead of --params and --bucket-mb"
    add("--buckets", type=_bucket_sizes, metavar="SIZES", help=exact)
    whole = "all operations of a job instead: a generator with its numbers, or a workload file"
    add("--job", metavar="JOB", help=whole)
    return parser


def _steps(options: argparse.Namespace, dtype: str) -> list[TrainingStep]:
    dtype_of(dtype)
    if options.buckets is not None:
        if options.params is not None or options.bucket_mb is not None:
            raise ConfigError("--buckets gives all sizes; leave out --params and --bucket-mb")
        sizes: list[int] = options.buckets
        return [
            TrainingStep({size: sizes.count(size) for size in sorted(set(sizes), reverse=True)})
        ]
    if options.params is None:
        raise ConfigError(
            "how large is the model? give --params 7e9, or --buckets 25MiB,25MiB,7MiB"
        )
    return [
        step_of(options.params, dtype, size)
        for size in dict.fromkeys(options.bucket_mb or [25 * 2**20])
    ]


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.strip().removeprefix("[").removesuffix("]").split(",")]


def _number(text: str) -> Decimal:
    with suppress(InvalidOperation):  # not a number, or NaN
        if 0 < Decimal(text) <= MOST_PARAMS:
            return Decimal(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 1e18")


def _params(text: str) -> int:
    value = _number(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of parameters")
    return int(value)


def _mebibytes(text: str) -> list[int]:
    return [int(_number(word) * 2**20) for word in _listed(text)]


def _bucket_sizes(text: str) -> list[int]:
    try:
        sizes = [parse_bytes(word) for word in _listed(text)]
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has an empty bucket; leave it out")
    return sizes


def _step_title(step: TrainingStep, dtype: str, by_params: bool) -> str:
    each = [f"{count} of {about_bytes(size)}" for size, count in step.buckets.items()]
    buckets = f"{plural(step.count, 'bucket', 'buckets')}: {', '.join(each)}"
    what = (
        f"{dtype} gradients of {step.total_bytes // dtype_of(dtype).itemsize:,} parameters"
        if by_params
        else dtype
    )
    return f"{what}, {step.total_bytes / 1e9:.3g} GB in {buckets}"


def _steps_table(rows: Sequence[Prediction], shown: Sequence[str], terminal: Terminal) -> str:
    texts = (*ALWAYS, *shown)
    columns = [*(TableColumn(name) for name in texts), *STEP_COLUMNS, TableColumn("notes")]
    cells = []
    for row in rows:
        known = not math.isnan(row["step_s"])
        interval = _milliseconds_text(row["low_s"], row["high_s"])
        notes = [] if known else ["unknown"]
        notes += [f"{row['runs']} launches"] if row["runs"] > 1 else []
        cells.append(
            (
                *("" if row[name] is None else str(row[name]) for name in texts),
                str(row["bucket_bytes"]),
                str(row["buckets"]),
                format_number(1e3 * row["step_s"] if known else None),
                interval,
                format_number(row["gb_per_s"] if known else None),
                " ".join(notes),
            )
        )
    return table_text(columns, cells, terminal)


def _groups(rows: Sequence[Prediction], *names: str) -> list[list[Prediction]]:
    """Rows with a time that share these columns, the fastest first."""
    timed = (row for row in rows if not math.isnan(row["step_s"]))
    groups = grouped(timed, lambda row: tuple(row[name] for name in names))
    return [sorted(group, key=lambda row: float(row["step_s"])) for group in groups.values()]


def _answers(rows: Sequence[Prediction]) -> list[str]:
    """The fastest on each layout for each bucket size, then the best bucket size of each backend on
    each layout. What is extrapolated is compared apart."""
    lines = []
    for group in _groups(rows, "is_extrapolated", "layout", "bucket_bytes"):
        names = [row["name"] for row in group]
        answer = (
            _verdict(group, names)
            if len(group) > 1
            else f"{names[0]} takes {format_seconds(group[0]['step_s'])}"
        )
        kind = ", extrapolated" if group[0]["is_extrapolated"] else ""
        buckets = f"buckets of {about_bytes(group[0]['bucket_bytes'])}"
        lines.append(f"{group[0]['layout']}, {buckets}{kind}: {answer}")
    for group in _groups(rows, "is_extrapolated", "layout", "name"):
        if len(group) > 1:
            name = group[0]["name"]
            compared = [f"buckets of {about_bytes(row['bucket_bytes'])}" for row in group]
            kind = ", extrapolated" if group[0]["is_extrapolated"] else ""
            lines.append(f"{name} on {group[0]['layout']}{kind}: {_verdict(group, compared, name)}")
    return lines


def _verdict(
    group: Sequence[Prediction], names: Sequence[str], one_family: str | None = None
) -> str:
    """The first compared with the others; `one_family`: its name, where the same launches measured
    all of them."""
    times = [
        Measured((row["step_s"],), row["low_s"], row["high_s"], row["interval_level"], one_family)
        for row in group
    ]
    few = min(row["runs"] for row in group) < FEW_LAUNCHES
    alike = [
        name
        for measured, name in zip(times, names, strict=True)
        if not (differ(times[0], measured) if few else times[0].high_s < measured.low_s)
    ]
    least = format_seconds(group[0]["step_s"])
    ratio = format_factor(group[1]["step_s"] / group[0]["step_s"])
    if len(alike) > 1:
        return f"{' and '.join(alike)} are {UNDECIDED}, {least}"
    if few:
        return (
            f"{names[0]} takes least by what was measured {THIS_RUN}, {least}; {names[1]} {ratio}"
            " as long"
        )
    return f"{names[0]} is fastest, {least}; {names[1]} takes {ratio} as long"


def _step_meanings(cases: pd.DataFrame) -> list[str]:
    """What the columns step and interval mean."""
    meaning = interval_meaning(row_dicts(answerable(cases[cases["benchmark"] == OPERATION])))
    return [STEP_MEANING, f"interval: {meaning}, {BOTH_WAYS}"] if meaning else [STEP_MEANING]


def _source_notes(cases: pd.DataFrame) -> list[str]:
    """How many rows were left out and why, and whether runs were merged."""
    rows = cases[cases["benchmark"] == OPERATION]
    usable = answerable(rows)
    left = ignored(rows)
    left |= {"on one rank or simulated": len(rows) - len(usable)} if len(usable) < len(rows) else {}
    lines = (
        [f"left out of {OPERATION}: " + ", ".join(f"{count} {why}" for why, count in left.items())]
        if left
        else []
    )
    if any(time.stated_s is None for family in families(usable) for time in family.times):
        lines.append("runs were taken together: the median over them and the widest interval")
    return lines
