"""`commbench watch`: a suite again and again; which case has changed, since when, and what else
changed then."""

from __future__ import annotations

import argparse
import math
import re
import time
from pathlib import Path

from commbench.cli.options import CommandParser, add_delta, check_file, whole_number
from commbench.cluster.baseline.writer import make_store
from commbench.cluster.watch.rehearsal import YoungStore, check_rehearsal
from commbench.cluster.watch.slurm_queue import jobs_in_the_way
from commbench.cluster.watch.state import MOST_TURNS, WATCH_FOLDER
from commbench.cluster.watch.suite import WatchOptions, watched_suite
from commbench.cluster.watch.turn import UNDECIDED_STATUS, watch_turn
from commbench.core.errors import CommbenchError, ConfigError
from commbench.core.terminal import print_error
from commbench.core.units import about_duration
from commbench.runtime.folder_lock import FolderUse, locked
from commbench.runtime.launchers.registry import refuse_world

WATCH_USAGE = """commbench watch KEY=VALUE ... --baseline DIR --every 6h [--budget 60s]
commbench watch experiment=tp_dp --baseline DIR --once    one turn, for cron, systemd, Kubernetes"""
WATCH_EPILOGUE = """\
A turn measures the suite in fresh processes, and again what is unlike the healthy runs of the
store: a change is one that fresh launches confirm. Runs that show one are not added to the store.
A turn is left out while Slurm has another job on this node, or one that waits for it.
Exit status of --once: 0 nothing has changed, 1 a change, 2 bad input, 3 ranks were lost,
4 UNDECIDED: too few runs in the store, cases that were not measured, or a job of Slurm in the
way."""
WATCHING = FolderUse("watching with", "end it, or use another --baseline")
MOST_FRESH = 20
ASK_AGAIN_S = 60.0  # whether Slurm's jobs are still in the way
PROMETHEUS_SUFFIX = ".prom"  # node_exporter reads no other files


# ---------------------------------------------------------------- options
SPAN_UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}
SPAN = re.compile(r"(\d{1,9})(s|min|h|d)")


def watch(words: list[str]) -> int:
    """Watch until a signal, or take one turn; returns its exit status. Raises ConfigError and
    Unreadable before anything is measured."""
    options = watch_options(words)
    refuse_world("commbench watch")
    watched_suite(options)  # the user's mistakes before anything is made
    with locked(make_store(options.store, WATCH_FOLDER), WATCHING):
        check_rehearsal(options)
        if options.every_s is None:
            return _only_turn(options)
        return _all_turns(options, options.every_s)


def _watch_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="commbench watch",
        usage=WATCH_USAGE,
        epilog=WATCH_EPILOGUE,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("suite", nargs="+", metavar="KEY=VALUE", help="what is measured, as for a run")
    add("-m", "--multirun", action="store_true", help="a fresh world for each combination")
    add("--baseline", required=True, type=Path, metavar="DIR", help="the store of healthy runs")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--every", type=time_span, metavar="TIME", help="from turn to turn, as 6h")
    when.add_argument("--once", action="store_true", help="one turn")
    add(
        "--budget",
        type=time_span,
        metavar="TIME",
        help="of a launch of the suite, as 60s: no case begins after it",
    )
    add(
        "--fresh",
        type=whole_number(1, MOST_FRESH),
        default=3,
        metavar="N",
        help="launches that must confirm a change (default 3)",
    )
    add_delta(parser)
    add(
        "--keep-turns",
        type=whole_number(1, MOST_TURNS),
        default=20,
        metavar="N",
        help="how long runs are kept that show nothing: fresh launches (default 20 turns)",
    )
    add(
        "--quiet",
        action="store_true",
        help="with --once: print nothing unless something has changed or went wrong",
    )
    add(
        "--plant",
        type=_planted,
        action="append",
        default=[],
        metavar="TURN:KEY=VALUE",
        help="a rehearsal: from this turn on also KEY=VALUE, as 7:backend.model.slow_factor=1.5",
    )
    add("--prometheus", type=Path, metavar="FILE.prom", help="for node_exporter's textfiles")
    add("--config-dir", help="a folder with more YAML, e.g. DIR/benchmark/mine.yaml")
    return parser


def _planted(word: str) -> tuple[int, str]:
    """The type of --plant: the turn, and what holds from it on."""
    match = re.fullmatch(r"([1-9]\d{0,5}):([^=]+=.*)", word)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{word} is not TURN:KEY=VALUE; write it as 7:backend.model.slow_factor=1.5"
        )
    return int(match[1]), match[2]


def time_span(word: str) -> int:
    """The type of an option that takes a time: seconds above 0 in 90s, 10min, 6h or 1d."""
    match = SPAN.fullmatch(word)
    span_s = int(match[1]) * SPAN_UNITS_S[match[2]] if match else 0
    if not span_s:
        raise argparse.ArgumentTypeError(
            f"{word} is not a time above 0; write it as 90s, 10min, 6h or 1d"
        )
    return span_s


def watch_options(words: list[str]) -> WatchOptions:
    options = _watch_parser().parse_intermixed_args(words)
    for word in options.suite:
        if "=" not in word and word[:1] != "~":
            raise ConfigError(
                f"{word!r} is not KEY=VALUE; a suite is what a run takes: experiment=NAME, or"
                " backend=gloo layout=1x2"
            )
    if len({turn for turn, _ in options.plant}) > 1:
        turns = ", ".join(f"{turn}:{word}" for turn, word in options.plant)
        raise ConfigError(
            f"--plant {turns}: turns with a plant are not counted, so the later ones never come;"
            " give all the same turn"
        )
    if options.quiet and not options.once:
        raise ConfigError("--quiet is for --once, which cron starts; leave it out")
    if options.prometheus is not None:
        check_file("--prometheus", str(options.prometheus))
        if options.prometheus.suffix != PROMETHEUS_SUFFIX:
            raise ConfigError(
                f"--prometheus {options.prometheus}: node_exporter reads only files that end in"
                f" {PROMETHEUS_SUFFIX}; name it so"
            )
    return WatchOptions(
        tuple(options.suite),
        options.baseline,
        options.every,
        options.budget,
        options.fresh,
        options.delta / 100,
        options.prometheus,
        options.config_dir,
        options.multirun,
        options.keep_turns,
        options.quiet,
        tuple(options.plant),
    )


# ---------------------------------------------------------------- when


def next_due_s(begin_s: float, every_s: float, now_s: float) -> float:
    """When the next turn begins: a whole number of times after the first; turns that are missed are
    left out."""
    return begin_s + every_s * (math.floor((now_s - begin_s) / every_s) + 1)


def _only_turn(options: WatchOptions) -> int:
    jobs = jobs_in_the_way()
    if jobs is not None:
        if not options.is_quiet:
            print(f"watch: {jobs}: this turn is left out", flush=True)
        return UNDECIDED_STATUS
    return watch_turn(options)


def _all_turns(options: WatchOptions, every_s: int) -> int:
    """Turn after turn, until a signal. What is wrong in the first one ends the command; what
    happens later is printed, as it may pass. A refused rehearsal would not."""
    begin_s = time.monotonic()
    is_first = True
    while True:
        due_s = next_due_s(begin_s, every_s, time.monotonic())
        if _is_free_before(due_s):
            try:
                watch_turn(options)
            except CommbenchError as error:
                if is_first or isinstance(error, YoungStore):
                    raise
                print_error(str(error))
            is_first = False
        due_s = next_due_s(begin_s, every_s, time.monotonic())
        wait_s = max(0.0, due_s - time.monotonic())
        print(f"watch: the next turn is in {about_duration(wait_s)}", flush=True)
        time.sleep(wait_s)


def _is_free_before(due_s: float) -> bool:
    """Wait until no job of Slurm is in the way, at most until the next turn; returns whether."""
    shown = None
    while (jobs := jobs_in_the_way()) is not None:
        if jobs != shown:
            print(f"watch: {jobs}: this turn waits", flush=True)
            shown = jobs
        if time.monotonic() + ASK_AGAIN_S >= due_s:
            print("watch: this turn is left out", flush=True)
            return False
        time.sleep(ASK_AGAIN_S)
    return True
