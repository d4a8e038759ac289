"""`commbench import FILE...`: results of other tools as runs like any other."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from commbench.cli.options import RESULTS, CommandParser
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.terminal import Terminal, one_line, paragraphs, print_error, printable
from commbench.core.units import plural
from commbench.results.load import find_runs, ignore
from commbench.results.run_folder import mapping_or_empty, read_record

from .experiment import Experiment, FileContent
from .foreign_readers import left_out_texts, read_files
from .readers.nccl_inspector import joined
from .readers.registry import READERS
from .readers.text_log import NO_FORMAT
from .runs import Imported, Source, Told, imported_runs, write_run

PAGE = "docs/other_tools.md"
LONGEST_MACHINE = 100
MOST_BENCHMARKS = 4


def import_results(words: list[str]) -> int:
    """Store the results in the files as runs; returns 1 where a case is invalid, else 0. Raises
    CommbenchError and ConfigError."""
    options = _parser().parse_args(words)
    told = Told(_machine(options.machine), options.layout and Layout.parse(options.layout))
    contents, left_out = read_files(options.paths, READERS, NO_FORMAT, PAGE)
    runs = [
        *_runs([(file.name, file.sha256.hexdigest(), content) for file, content in contents], told)
    ]
    notes = [f"not read: {text}" for text in left_out_texts(left_out)]
    notes += [
        f"{one_line(file.name)}: {text}"
        for file, content in contents
        for text in content.problems.texts()
    ]
    notes += dict.fromkeys(text for run in runs for text in run.left_out)
    wanted = [run for run in runs if run.rows]
    if not wanted:
        raise ConfigError("; ".join(notes) or "no results in these files")
    known = _imported_before(options.output)
    fresh = [run for run in wanted if _key(run) not in known]
    folders = _written(fresh, options.output)
    terminal = Terminal.of(sys.stdout)
    print(terminal.paragraph(_summary(fresh, folders)))
    for run, folder in zip(fresh, folders, strict=True):
        print(printable(f"  {folder}: {_run_text(run)}"))
        for note in _notes(run):
            print(paragraphs([f"    {note}"], terminal, indent="      "))
    for folder in dict.fromkeys(known[_key(run)] for run in wanted if _key(run) in known):
        print_error(f"imported before, and not again: {folder}; remove it to import it anew")
    for note in notes:
        print_error(note)
    return int(any(row.status != "ok" for run in fresh for row in run.rows))


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="commbench import",
        description="Store results of other tools as runs, which show, report, compare, export,"
        " accept and\nbaseline read: nccl-tests (text, JSON), OSU (text), iperf3 (JSON),"
        " all_reduce_bench.py,\nNCCL Inspector, aiconfigurator (parquet).\n\n"
        "  commbench import all_reduce_perf.log --output results/last-year",
    )
    add = parser.add_argument
    add("paths", nargs="+", metavar="FILE", help="files, packed or plain, or folders of them")
    add("--output", default=RESULTS, metavar="DIR", help=f"where runs are stored ({RESULTS})")
    add("--machine", metavar="NAME", help="what it was measured on, where files do not say it")
    add("--layout", metavar="NxM", help="nodes x ranks per node, where files do not say it")
    return parser


def _machine(name: str | None) -> str | None:
    """Raises ConfigError."""
    if name is None:
        return None
    text = one_line(name).strip()
    if not text or len(text) > LONGEST_MACHINE:
        raise ConfigError(
            f"--machine has {len(text)} characters; write a name of 1 to {LONGEST_MACHINE}, such as"
            " 'NVIDIA H100 80GB HBM3'"
        )
    return text


def _runs(contents: Sequence[tuple[str, str, FileContent]], told: Told) -> Iterator[Imported]:
    """Of all files; those of a communicator have several. Raises ConfigError."""
    sources: dict[int, Source] = {}
    every: list[Experiment] = []
    for name, digest, content in contents:
        source = Source(name, digest, tuple(content.problems.texts()))
        sources |= {id(experiment): source for experiment in content.experiments}
        every += content.experiments
    for experiment, own in joined(every):
        yield from imported_runs(experiment, [sources[id(each)] for each in own], told)


def _key(run: Imported) -> tuple[str, ...]:
    """What a file's results are known by when it is imported again."""
    return tuple(sorted({source.sha256 for source in run.sources}))


def _imported_before(output: str) -> dict[tuple[str, ...], Path]:
    """The folders of earlier imports by the digests of their files."""
    found: dict[tuple[str, ...], Path] = {}
    for folder in find_runs(output, ignore) if Path(output).is_dir() else ():
        imported = mapping_or_empty(read_record(folder).get("imported"))
        files: Any = imported.get("files")
        listed = files if isinstance(files, list) else []
        digests = {str(mapping_or_empty(each).get("sha256")) for each in listed}
        if digests:
            found.setdefault(tuple(sorted(digests)), folder)
    return found


def _written(runs: Sequence[Imported], output: str) -> list[Path]:
    folders: list[Path] = []
    for run in runs:
        after = folders[-1].name if folders else ""
        first = folders[0].name if folders else None
        folders.append(write_run(run, output, after, first))
    return folders


# ---------------------------------------------------------------- what is printed


def _summary(runs: Sequence[Imported], folders: Sequence[Path]) -> str:
    """2 runs, 48 cases, 1 of them invalid; the table: commbench show DIR."""
    rows = [row for run in runs for row in run.rows]
    lost = sum(row.status != "ok" for row in rows)
    invalid = f", {lost} of them invalid" if lost else ""
    counts = f"{plural(len(runs), 'run', 'runs')}, {plural(len(rows), 'case', 'cases')}{invalid}"
    if not folders:
        return f"{counts}: nothing new"
    shown = shlex.join([str(folder) for folder in folders[:1]]) if len(folders) == 1 else "last"
    parent = folders[0].parent
    shown = shown if shown != "last" or parent.name == RESULTS else shlex.quote(str(parent))
    return f"{counts}; the tables: commbench show {shown}"


def _run_text(run: Imported) -> str:
    """nccl-tests 2.13.9, all_reduce, 1x8, 24 cases, 1 invalid."""
    names = list(dict.fromkeys(row.benchmark for row in run.rows))
    more = f" and {len(names) - MOST_BENCHMARKS} more" if len(names) > MOST_BENCHMARKS else ""
    layouts = list(dict.fromkeys(row.layout for row in run.rows))
    place = ", ".join(layout or "" for layout in layouts)
    if layouts == [None]:
        place = (
            f"{plural(run.ranks, 'rank', 'ranks')}, nodes not known"
            if run.ranks
            else "ranks not known"
        )
    lost = sum(row.status != "ok" for row in run.rows)
    parts = [
        run.experiment.tool_text,
        *([run.experiment.library] if run.experiment.library else []),
        f"{', '.join(names[:MOST_BENCHMARKS])}{more}",
        place,
        plural(len(run.rows), "case", "cases"),
        *([f"{lost} invalid"] if lost else []),
    ]
    return ", ".join(parts)


def _notes(run: Imported) -> Iterator[str]:
    for row in run.rows:
        if row.status != "ok":
            yield f"{row.status}: {row.reason}"
            break
    yield from run.experiment.notes
    if run.experiment.is_cut:
        yield "it ended early: the cases before count"
