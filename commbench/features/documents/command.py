"""`commbench reference add RUN...`: reference values of own runs, in a folder that a team reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from commbench.cli.options import CommandParser, with_last_runs, write_file
from commbench.core.errors import ConfigError
from commbench.core.terminal import one_line, print_error, printable
from commbench.core.units import plural
from commbench.report.summary import Summary, read_results

from .derived import hardware_of
from .lines import line_of
from .normal import NORMAL, Judged, judge
from .own_values import file_name, machine_file
from .reference import OWN, own_folder, own_values, read_folder, references

LONGEST_NAME = 80
MOST_CONFLICTS = 10  # that are said


def reference(words: list[str]) -> int:
    """Write the file; returns 0. Raises ConfigError."""
    parser = CommandParser(
        prog="commbench reference",
        description="Make reference values of runs of your own. report, accept and expect=normal"
        f"\ncompare with all files in the folder that the variable {OWN} names.\n\n"
        "  commbench reference add results/RUN --name 'our H200 pods' --folder /shared/reference",
    )
    add = parser.add_argument
    add("action", choices=("add",))
    add("runs", nargs="+", metavar="RUN", help="runs of one kind of machine; last: the newest")
    add("--name", required=True, help="what this kind of machine is called")
    add("--folder", metavar="DIR", help=f"where the file is written (default: that of {OWN})")
    options = parser.parse_intermixed_args(words)
    folder = _folder(options.folder)
    name = one_line(options.name).strip()
    if not name or len(name) > LONGEST_NAME:
        raise ConfigError(
            f"--name has {len(name)} characters; write 1 to {LONGEST_NAME}, such as 'our H200 pods'"
        )
    summary = Summary(read_results(with_last_runs(options.runs)))
    for line in summary.results.problems:
        print_error(f"left out: {line}")
    made = machine_file(name, summary)
    path = folder / file_name(name)
    if path.exists():
        raise ConfigError(
            f"{path} is there already, and values are never merged; take another --name, or move"
            " the file away"
        )
    conflicts = _conflicts(summary, folder)
    write_file("--folder", str(path), made.text, replace=False)
    count = len([each for each in own_values(path, path.stat().st_mtime_ns) for _ in each.points])
    print(printable(f"{path}: {plural(count, 'value', 'values')}; recognised by {made.recognised}"))
    for text in made.left_out:
        print_error(text)
    for each in conflicts[:MOST_CONFLICTS]:
        print_error(f"differs from what is known, and both stay: {line_of(each)}")
    if len(conflicts) > MOST_CONFLICTS:
        print_error(f"{len(conflicts) - MOST_CONFLICTS} more values differ from what is known")
    if own_folder() is None:
        print(printable(f"to compare with them: export {OWN}={folder.absolute()}"))
    return 0


def _folder(given: str | None) -> Path:
    """Where the file goes; raises ConfigError."""
    name = given or os.environ.get(OWN)
    if not name:
        raise ConfigError(f"--folder DIR says where the file is written, or {OWN}=DIR")
    if not Path(name).is_dir():
        raise ConfigError(f"--folder {name} is not a folder; make it, or name another")
    return Path(name)


def _conflicts(summary: Summary, folder: Path) -> Sequence[Judged]:
    """The cases that are far from a known value, also of the folder that they are written to."""
    known = (*references(), *read_folder(folder))
    judged = judge(summary.combined.whole, hardware_of(summary), known=known)
    return [each for each in judged if each.verdict != NORMAL]
