"""`commbench accept RESULTS...`: whether a cluster is as fast as healthy ones, case by case."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from commbench.cli.options import CommandParser, check_file, percent, whole_number, write_file
from commbench.cluster.gate.again import measured_again, open_answers
from commbench.cluster.gate.answers import GateResult
from commbench.cluster.gate.decision import GateRules
from commbench.cluster.gate.text import gate_section, junit_text
from commbench.cluster.gate.with_baseline import judge_with_baseline
from commbench.cluster.gate.without_baseline import judge_without_baseline
from commbench.core.errors import ConfigError
from commbench.core.states import status_of_run
from commbench.core.terminal import Terminal
from commbench.report.section import report_text
from commbench.report.summary import Results, Summary, read_results
from commbench.results.run_folder import resume_command
from commbench.runtime.folder_lock import is_measured_into
from commbench.stats.thresholds import FALSE_ALARMS, TOLERATED_LOSS
from commbench.stats.verdict import Gate, worst

ACCEPT_USAGE = """commbench accept RESULTS... --baseline DIR    against healthy launches
       commbench accept RESULTS...                   guidelines, limits and known values only"""
ACCEPT_EPILOGUE = """\
FAIL: slower for certain, by more than the margin; or missing, skipped, failed, invalid.
SUSPECT: slower, but not for certain. UNDECIDED: launches are too few, or vary too much. Both are
measured again where this machine can. PASS: a loss beyond the margin is excluded.
A baseline is made with: commbench baseline add RUN... --baseline DIR
Exit status: 0 all cases pass, 1 one fails or is suspect, 4 one is undecided, 2 bad input."""
ANSWER_STATUSES: dict[Gate, int] = {"PASS": 0, "FAIL": 1, "SUSPECT": 1, "UNDECIDED": 4}
MOST_ANSWER_ROWS = 30
MOST_LAUNCHES = 100


def accept(words: list[str]) -> int:
    """Print the answers and write the files; returns the exit status. Raises ConfigError."""
    options = _accept_parser().parse_args(words)
    for option, name in (("--junit", options.junit), ("--html", options.html)):
        if name is not None:
            check_file(option, name)
    rules = GateRules(
        options.margin / 100,
        options.false_alarms / 100,
        options.missing == "allow",
        looks=2 if options.again else 1,
    )
    if rules.false_alarms >= 1:
        raise ConfigError(f"--false-alarms {options.false_alarms:g} is not a percentage below 100")
    summary = Summary(_whole_results(options.results))
    if options.baseline is None:
        result = judge_without_baseline(summary)
    else:
        store = Path(options.baseline)
        result = judge_with_baseline(summary, store, rules)
        if options.again and open_answers(result):
            result = measured_again(result, summary, store, rules, options.again)
    allow_suspect = options.suspect == "allow"
    if options.junit is not None:
        write_file("--junit", options.junit, junit_text(result, allow_suspect))
    if options.html is not None:
        write_file("--html", options.html, _page(summary, result))
    terminal = Terminal.of(sys.stdout)
    sys.stdout.write(report_text([gate_section(result)], options.top, terminal))
    return _exit_status(result, allow_suspect)


def _exit_status(result: GateResult, allow_suspect: bool) -> int:
    """That of the worst answer; a suspect case that is allowed counts as one that passes."""
    is_allowed = {"SUSPECT"} if allow_suspect else set()
    answer = worst("PASS" if each.answer in is_allowed else each.answer for each in result.answers)
    return ANSWER_STATUSES[answer]


def _accept_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="commbench accept",
        usage=ACCEPT_USAGE,
        epilog=ACCEPT_EPILOGUE,
    )
    add = parser.add_argument
    add("results", nargs="+", metavar="RESULTS", help="folders with runs, of one suite")
    add("--baseline", metavar="DIR", help="folder made by commbench baseline add")
    add(
        "--margin",
        type=percent,
        default=100 * TOLERATED_LOSS,
        metavar="PERCENT",
        help=f"relative loss that is tolerated (default {100 * TOLERATED_LOSS:g})",
    )
    add(
        "--false-alarms",
        type=percent,
        default=100 * FALSE_ALARMS,
        metavar="PERCENT",
        help=f"of healthy suites, that may have a failing case (default {100 * FALSE_ALARMS:g})",
    )
    add(
        "--missing",
        choices=("fail", "allow"),
        default="fail",
        help="cases that the baseline has and RESULTS have not (default fail)",
    )
    add(
        "--suspect",
        choices=("fail", "allow"),
        default="fail",
        help="cases that are slower, but not for certain (default fail)",
    )
    add(
        "--again",
        type=whole_number(0, MOST_LAUNCHES),
        default=10,
        metavar="N",
        help="most fresh launches of what is open, where this machine can start them (default 10)",
    )
    add("--junit", metavar="FILE", help="write the answers as JUnit XML")
    add("--html", metavar="FILE", help="write one page: the answers, and the report of RESULTS")
    add(
        "--top",
        type=whole_number(1),
        default=MOST_ANSWER_ROWS,
        help=f"rows of the table on the terminal (default {MOST_ANSWER_ROWS})",
    )
    return parser


def _whole_results(paths: list[str]) -> Results:
    """The results; raises ConfigError where a part of them can't be read or is still being
    measured, which must not pass as if it did not exist."""
    results = read_results(paths)
    if results.problems:
        raise ConfigError(f"RESULTS can't be judged: {results.problems[0]}")
    for record in results.records:
        folder = results.folders.get(str(record.get("run_id")))
        if folder is None:
            continue
        if is_measured_into(folder):
            raise ConfigError(f"{folder} is being measured into; judge it when it has ended")
        if status_of_run(record) == "running":
            raise ConfigError(f"{folder} has not ended; finish it with: {resume_command(folder)}")
    return results


def _page(summary: Summary, result: GateResult) -> str:
    from commbench.report.distributions import read_raw_data
    from commbench.report.page import page
    from commbench.report.sections import sections

    raw = read_raw_data(summary.results)
    return page(summary, [gate_section(result), *sections(summary, raw)])
