"""`commbench compare BASE NEW`: what differs, a table with verdicts, and a summary."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from commbench.analysis.compare import (
    Rules,
    Side,
    compare_sides,
    noise_by_key,
    parse_by,
    read_side,
    save,
    select_rows,
)
from commbench.core.errors import ConfigError
from commbench.core.terminal import Terminal, paragraphs, printable
from commbench.core.units import plural
from commbench.report.compare_text import (
    caption,
    compared_cases,
    comparison_summary,
    comparison_table,
    fewest_launches,
    launches_text,
    provenance_lines,
    side_lines,
    unjoined,
)
from commbench.stats.difference import ALPHA, GOOD_LAUNCHES, launches_needed

from .options import CommandParser, add_delta, check_file, whole_number

if TYPE_CHECKING:
    import pandas as pd

COMPARE_USAGE = """commbench compare BASE NEW      folders with runs, or parquet files of cases
commbench compare NEW --against baseline.parquet    a baseline that was kept with --save
commbench compare RESULTS --by backend=gloo:mpi     two values of a variable in one folder"""
COMPARE_EPILOGUE = f"""\
A launch is a run (one of timing=rigorous is three): repeat both sides with trial=0,1,2,... in
turn.
A verdict needs at least {launches_needed(1)} launches per side \
({launches_needed(1, paired=True)} with --paired), better {GOOD_LAUNCHES}.
--fail-on slower counts only what is certain: p, corrected for the number of cases (Holm), at most
{ALPHA}. That takes at least {launches_needed(2)} launches per side for 2 cases and \
{launches_needed(20)} for 20, with --paired
{launches_needed(2, paired=True)} and {launches_needed(20, paired=True)}.
Exit status: 0 compared, 1 as --fail-on asks, 2 can't be compared (with --fail-on also: too few
launches)."""
FAILURES = ("slower", "undecided", "missing")


def compare_command(words: list[str]) -> int:
    """Print the comparison; returns the exit status. Raises ConfigError for what can't be
    compared."""
    options = _compare_parser().parse_args(words)
    failures = failures_of(options.fail_on)
    differences = parse_by(word for words in options.by for word in words.split(","))
    base_source, new_source = _base_and_new(options)
    if options.save is not None:
        check_file("--save", options.save)
    if base_source is None:
        return _saved(read_side("NEW", new_source), options.save, first=True)
    base = select_rows(read_side("BASE", base_source), differences)
    read_new = read_side("NEW", new_source)
    new = select_rows(read_new, differences)
    equal = [read_side("A/A", options.aa)] if options.aa else []
    known = noise_by_key(equal[0], differences, options.seed) if equal else None
    rules = Rules(differences, options.paired, options.delta / 100, options.seed, known)
    frame = compare_sides(base, new, rules)
    terminal = Terminal.of(sys.stdout)
    print(
        paragraphs(
            [*side_lines(base, new, *equal), *provenance_lines(base, new, rules.by), ""], terminal
        )
    )
    print(comparison_table(frame, rules))
    lines = [*caption(frame, rules), *unjoined(frame), "", comparison_summary(frame, rules)]
    print(paragraphs(lines, terminal))
    if options.save is not None:
        _saved(read_new, options.save)
    status = _status(frame, failures, rules)
    if failures:
        print(terminal.paragraph(_gate_text(frame, failures, status)))
    return status


def _saved(new: Side, target: str, first: bool = False) -> int:
    """Save NEW; a first baseline has nothing to be compared with, so only what was read is
    printed."""
    save(new, target)
    saved = f"saved: {target}: NEW, {plural(len(new.cases), 'row', 'rows')}, without samples"
    print(printable("\n".join([*(side_lines(new) if first else []), saved])))
    return 0


# ---------------------------------------------------------------- options


def _compare_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = CommandParser(
        prog="commbench compare", usage=COMPARE_USAGE, epilog=COMPARE_EPILOGUE, formatter_class=raw
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="BASE and NEW; one where --against or --by NAME=BASE:NEW has the rest",
    )
    add("--against", metavar="BASE", help="folder or parquet file of the base")
    by = "NAME[=BASE:NEW],..."
    add(
        "--by",
        "--ignore",
        action="append",
        default=[],
        metavar=by,
        help="variables that may differ",
    )
    noise = "launches that are all alike: their noise is the least threshold"
    add("--aa", action="append", default=[], metavar="PATH", help=noise)
    add_delta(parser)
    add(
        "--paired", action="store_true", help="launches with the same number ran next to each other"
    )
    add("--seed", type=whole_number(0), default=0, help="of the noise of --aa (default 0)")
    add(
        "--fail-on",
        default="",
        metavar="WORD,...",
        help="slower, undecided, missing: exit 1 for each word given where a case is that",
    )
    add("--save", metavar="FILE", help="keep NEW as a parquet file for a later --against")
    return parser


def failures_of(words: str) -> set[str]:
    """The words of --fail-on; raises ConfigError for unknown ones."""
    failures = {word.strip() for word in words.split(",") if word.strip()}
    if failures - set(FAILURES):
        raise ConfigError(f"--fail-on {words} is unknown; allowed: {', '.join(FAILURES)}")
    return failures


def _base_and_new(options: argparse.Namespace) -> tuple[str | None, str]:
    """BASE and NEW; BASE is None where NEW is only saved."""
    paths = options.paths
    seen = " ".join(options.paths)
    if options.against is not None:
        if len(paths) != 1:
            raise ConfigError(f"--against BASE leaves one path, NEW; seen: {seen}")
        return options.against, paths[0]
    if len(paths) == 1 and options.save is not None and not options.by:
        if options.fail_on:
            raise ConfigError(f"--fail-on needs a BASE; seen: {seen}")
        return None, paths[0]
    selects = any("=" in word for word in options.by)
    if len(paths) != 2 and not (len(paths) == 1 and selects):
        raise ConfigError(f"compare takes BASE and NEW; seen: {seen}; see commbench compare --help")
    return paths[0], paths[-1]


# ---------------------------------------------------------------- exit status


def _gate_text(frame: pd.DataFrame, failures: set[str], status: int) -> str:
    """What --fail-on saw, and what it could not see: `--fail-on slower: exit 0: of 24 cases none is
    SLOWER; 3 are UNDECIDED and may be: add undecided`."""
    both = frame[frame["sides"] == "both"]
    counts = both["verdict"].value_counts()
    slower = int(counts.get("SLOWER", 0))
    undecided = len(both) - int(sum(counts.get(word, 0) for word in ("SLOWER", "FASTER", "SAME")))
    seen = f"{slower or 'none'} {'are' if slower > 1 else 'is'} SLOWER"
    text = f"--fail-on {','.join(sorted(failures))}: exit {status}: of {len(both)} cases {seen}"
    if undecided and "undecided" not in failures:
        text += f"; {undecided} UNDECIDED may be slower, too: --fail-on slower,undecided fails then"
    return text


def _status(frame: pd.DataFrame, failures: set[str], rules: Rules) -> int:
    """The exit status; raises ConfigError where --fail-on needs a verdict that the launches can't
    give."""
    lost = (frame["sides"] != "new") & (frame["new_launches"] == 0)
    if "missing" in failures and lost.any():
        return 1
    given = f"--fail-on {','.join(sorted(failures))}"
    few = launches_text(fewest_launches(frame), compared_cases(frame), rules.paired)
    if failures & {"slower", "undecided"} and frame["verdict"].isna().all():
        why = few if compared_cases(frame) else "none has a number on both sides"
        raise ConfigError(f"{given}: no case has a verdict: {why}")
    slower = (frame["verdict"] == "SLOWER") & (frame["p_holm"] <= ALPHA)
    if "slower" in failures and slower.any():
        return 1
    decided = frame["verdict"].isin(["SLOWER", "FASTER", "SAME"])
    undecided = (frame["sides"] == "both") & ~decided
    if "undecided" in failures and undecided.any():
        return 1
    if "slower" in failures and few:
        raise ConfigError(f"{given} could not fail: {few}")
    return 0
