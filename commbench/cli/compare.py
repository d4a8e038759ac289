"""`commbench compare BASE NEW`: what differs, a table with verdicts, and a summary."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from commbench.analysis.case_names import case_names
from commbench.analysis.compare import Rules, compare_sides, noise_by_key
from commbench.analysis.compared_case import ComparedCase
from commbench.analysis.sides import Side, by_each_value, parse_by, read_side, save, select_rows
from commbench.core.errors import ConfigError
from commbench.core.terminal import Terminal, paragraphs, printable
from commbench.core.texts import sides_text
from commbench.core.units import plural
from commbench.report.compare_text import (
    caption,
    comparison_summary,
    comparison_table,
    could_be,
    on_both,
    quoted_changes,
    undecidable_text,
    unjoined,
)
from commbench.report.compared_sides import drift_text, provenance_lines, side_lines
from commbench.report.junit import JunitCase, junit_xml
from commbench.stats.difference import ALPHA, launches_needed
from commbench.stats.thresholds import FEW_LAUNCHES
from commbench.stats.verdict import Verdict

from .options import CommandParser, add_delta, check_file, whole_number, write_file

COMPARE_USAGE = """commbench compare BASE NEW      folders with runs, or parquet files of cases
commbench compare RESULTS --by label                both from one folder: A and B, A and C
commbench compare RESULTS --by backend=gloo:mpi     of more values these two
commbench compare RESULTS --by env.NAME=1:36        one variable of the environment"""
COMPARE_EPILOGUE = f"""\
A launch is a run (one of timing=rigorous is six): repeat both sides with trial=0,1,2,... in
turn.
SLOWER and FASTER are certain: p, corrected for the number of cases, is at most {ALPHA}. They need
{launches_needed(1)} launches of each side for one case, {launches_needed(20)} for 20 \
({launches_needed(1, paired=True)} and {launches_needed(20, paired=True)} with --paired).
SUSPECT is slower, but not certain; it needs {FEW_LAUNCHES} launches of BASE and one of NEW.
Exit status: 0 compared, 1 as --fail-on asks, 2 can't be compared, or --fail-on slower and too few
launches for it."""
VERDICTS_OF: dict[str, Verdict] = {
    "slower": "SLOWER",
    "suspect": "SUSPECT",
    "undecided": "UNDECIDED",
}
MISSING_CASE = "missing"
FAILURES = (*VERDICTS_OF, MISSING_CASE)


def compare_command(words: list[str]) -> int:
    """Print the comparison; returns the exit status. Raises ConfigError for what can't be
    compared."""
    options = _compare_parser().parse_args(words)
    failures = failures_of(options.fail_on)
    differences = parse_by(word for words in options.by for word in words.split(","))
    base_source, new_source = _base_and_new(options)
    for option, name in (("--save", options.save), ("--junit", options.junit)):
        if name is not None:
            check_file(option, name)
    if not base_source:
        return _saved(read_side("NEW", new_source), options.save, first=True)
    read_base = read_side("BASE", base_source)
    read_new = read_side("NEW", new_source)
    compared = [differences]
    if base_source is new_source and not any(variable.is_given for variable in differences):
        compared = by_each_value(read_new, differences)
    equal = [read_side("A/A", options.aa)] if options.aa else []
    known = noise_by_key(equal[0], differences, options.seed) if equal else None
    delta = options.delta / 100
    answers = []
    for by in compared:
        rules = Rules(by, options.paired, delta, options.seed, known, len(compared))
        base, new = select_rows(read_base, by), select_rows(read_new, by)
        cases = compare_sides(base, new, rules)
        _print_compared(cases, base, new, equal, rules)
        answers.append((cases, rules))
    if options.save is not None:
        _saved(read_new, options.save)
    if options.junit is not None:
        wanted = failures or {"slower"}
        listed = [each for cases, rules in answers for each in _junit_cases(cases, wanted, rules)]
        write_file("--junit", options.junit, junit_xml("commbench compare", listed))
    statuses = [_status(cases, failures, rules) for cases, rules in answers]
    if failures:
        for (cases, rules), status in zip(answers, statuses, strict=True):
            gate = f"{_of_setting(rules)}{_gate_text(cases, failures, status)}"
            print(Terminal.of(sys.stdout).paragraph(gate))
    return max(statuses)


def _print_compared(
    cases: Sequence[ComparedCase], base: Side, new: Side, equal: Sequence[Side], rules: Rules
) -> None:
    """The answers, the table of all cases, and what they rest on."""
    terminal = Terminal.of(sys.stdout)
    answers = [f"{_of_setting(rules)}{comparison_summary(cases)}", drift_text(cases, base, new)]
    answers = [*filter(None, answers), *quoted_changes(cases, rules.by)]
    print(f"{paragraphs(answers, terminal)}\n")
    print(comparison_table(cases).text(terminal))
    lines = [*caption(cases, rules), *unjoined(cases), ""]
    lines += [*side_lines(base, new, *equal), *provenance_lines(base, new, rules.by)]
    lines += [""] if rules.settings > 1 else []
    print(paragraphs(lines, terminal))


def _of_setting(rules: Rules) -> str:
    """`label A -> B: `, where several settings are compared with BASE; else empty."""
    if rules.settings <= 1:
        return ""
    return f"{rules.by[0].name} {' -> '.join(rules.by[0].texts)}: "


def _saved(new: Side, target: str, first: bool = False) -> int:
    """Save NEW; a first baseline has nothing to be compared with, so only what was read is
    printed."""
    save(new, target)
    saved = f"saved: {target}: NEW, {plural(len(new.rows), 'row', 'rows')}, without samples"
    print(printable("\n".join([*(side_lines(new) if first else []), saved])))
    return 0


# ---------------------------------------------------------------- options


def _compare_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="commbench compare", usage=COMPARE_USAGE, epilog=COMPARE_EPILOGUE)
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="BASE and NEW; one, or more than two, where --by selects both from them",
    )
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
        help=f"{', '.join(FAILURES)}: exit 1 where a case is one of those given",
    )
    add("--save", metavar="FILE", help="keep NEW as a parquet file, a later BASE")
    add(
        "--junit",
        metavar="FILE",
        help="write the verdicts as JUnit XML; failures are those of --fail-on, else SLOWER",
    )
    return parser


def failures_of(words: str) -> set[str]:
    """The words of --fail-on; raises ConfigError for unknown ones."""
    failures = {word.strip() for word in words.split(",") if word.strip()}
    if failures - set(FAILURES):
        raise ConfigError(f"--fail-on {words} is unknown; allowed: {', '.join(FAILURES)}")
    return failures


def _base_and_new(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The folders of BASE and NEW, the same where --by selects both; no BASE where NEW is only
    saved."""
    paths = options.paths
    seen = " ".join(options.paths)
    if len(paths) == 1 and options.save is not None and not options.by:
        if options.fail_on:
            raise ConfigError(f"--fail-on needs a BASE; seen: {seen}")
        return [], paths
    if len(paths) != 2 and options.by:
        return paths, paths
    if len(paths) != 2:
        raise ConfigError(f"compare takes BASE and NEW; seen: {seen}; see commbench compare --help")
    return paths[:1], paths[1:]


# ---------------------------------------------------------------- JUnit


def _junit_cases(
    cases: Sequence[ComparedCase], failures: set[str], rules: Rules
) -> list[JunitCase]:
    """A case for each; skipped are those without a verdict, or UNDECIDED, that do not fail."""
    # the first run of a case may have had other hosts: no part of its name
    names = [
        case_names([replace(row, label=None, hosts=None) for row in rows])
        for rows in zip(*(case.rows for case in cases), strict=True)
    ]
    failing = {VERDICTS_OF[word] for word in failures & VERDICTS_OF.keys()}
    lost = MISSING_CASE if MISSING_CASE in failures else ""
    return [
        _junit_case(case, f"{_of_setting(rules)}{sides_text(of_sides)}", failing, lost)
        for case, *of_sides in zip(cases, *names, strict=True)
    ]


def _junit_case(case: ComparedCase, name: str, failing: set[Verdict], lost: str) -> JunitCase:
    """`failing`: the verdicts that fail; `lost`: how a case only in BASE does, or empty."""
    word = _verdict(case)
    if case.sides != "both":
        failure = lost if case.sides == "base" else ""
        reason = f"only in {case.sides.upper()}"
    else:
        failure = word if word in failing else ""
        reason = f"{word}: {case.judged.ratio.value:.3g} x" if case.judged else word
    is_skipped = not failure and (case.sides != "both" or word == "UNDECIDED")
    median_s = case.judged.comparison.new_s if case.judged else None
    return JunitCase(
        case.variables.benchmark, name, median_s, failure, is_skipped, reason, (reason,)
    )


def _verdict(case: ComparedCase) -> Verdict:
    """UNDECIDED also without a number on a side."""
    return case.verdict or "UNDECIDED"


# ---------------------------------------------------------------- exit status


def _gate_text(cases: Sequence[ComparedCase], failures: set[str], status: int) -> str:
    """What --fail-on saw, and what it let pass: `--fail-on slower: exit 0: of 24 cases none is
    SLOWER; 3 UNDECIDED may be: --fail-on slower,undecided fails for these`."""
    verdicts = list(map(_verdict, on_both(cases)))
    counts = {word: verdicts.count(verdict) for word, verdict in VERDICTS_OF.items()}
    seen = f"{counts['slower'] or 'none'} {'are' if counts['slower'] > 1 else 'is'} SLOWER"
    given = ",".join(sorted(failures))
    text = f"--fail-on {given}: exit {status}: of {len(verdicts)} cases {seen}"
    passed = [word for word, count in counts.items() if count and word not in failures]
    if not passed:
        return text
    listed = ", ".join(f"{counts[word]} {VERDICTS_OF[word]}" for word in passed)
    return f"{text}; {listed}: --fail-on {','.join((given, *passed))} fails for these"


def _status(cases: Sequence[ComparedCase], failures: set[str], rules: Rules) -> int:
    """The exit status; raises ConfigError where --fail-on slower could not fail."""
    is_lost = any(case.sides != "new" and not case.new.launches for case in cases)
    if MISSING_CASE in failures and is_lost:
        return 1
    given = f"--fail-on {','.join(sorted(failures))}"
    if failures & VERDICTS_OF.keys() and not any(case.judged for case in cases):
        raise ConfigError(f"{given}: no case has a number on both sides")
    failing = {VERDICTS_OF[word] for word in failures & VERDICTS_OF.keys()}
    if any(_verdict(case) in failing for case in on_both(cases)):
        return 1
    tested = [VERDICTS_OF[word] for word in ("slower", "suspect") if word in failures]
    if tested and not any(could_be(cases, word, rules) for word in tested):
        few = undecidable_text(cases, rules)
        if "suspect" in failures:
            few = f"SUSPECT needs {FEW_LAUNCHES} launches of BASE"
        raise ConfigError(f"{given} could not fail: {few}")
    return 0
