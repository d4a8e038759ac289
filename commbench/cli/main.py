"""The command line: choose a command, and turn its errors into one line and an exit status."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

import commbench
from commbench.core.annexes import annex, needed_annex
from commbench.core.case import RankIdentity
from commbench.core.errors import (
    CommbenchError,
    ConfigError,
    Unreadable,
    no_permission,
    process_limit,
)
from commbench.core.extras import missing_package
from commbench.core.launchers import launchers, usual_programs
from commbench.core.suggestions import did_you_mean
from commbench.core.terminal import print_error
from commbench.results.run_folder import is_utf8
from commbench.runtime.exit_protocol import JOB, end_with_error, exit_rank
from commbench.runtime.launchers.registry import detect, likely_launcher, settle_world
from commbench.runtime.output import relay_marks
from commbench.runtime.printing import print_safely
from commbench.runtime.signals import SIGNAL_STATUS

from .options import CommandParser

USAGE = f"""\
commbench measures how fast ranks communicate over gloo, MPI and NCCL, and how certain that is.

  commbench backend=mpi sizes=[8,1MiB] timing=quick

measure
  commbench [-m] KEY=VALUE...       a run; with -m a run for each combination of values
  commbench ab BASE... --vs NEW...  two settings in turn, and a verdict for each case
  commbench resume RUN              the cases that an interrupted run has left
  commbench doctor                  what this machine has, and which backends can run
read results
  commbench show RUN...             the table of a run; of several backends side by side
  commbench report PATH...          what is fastest and what is slow; --html FILE: a page
  commbench compare BASE NEW        a verdict for each case: SLOWER, SUSPECT, FASTER, SAME, ...
  commbench export PATH...          the results as CSV
  commbench import FILE...          results of nccl-tests, OSU, iperf3, ... as runs like any other
  commbench reference add RUN...    make a run the value of what is normal on its machine
check a cluster
  commbench locate KEY=VALUE...     which node is slow, in rounds of pairs of nodes
  commbench accept PATH...          PASS, FAIL or SUSPECT for each case, against healthy runs
  commbench baseline add RUN...     store runs of the healthy cluster
  commbench watch KEY=VALUE...      what has changed since the healthy runs, every few hours
predict a training job
  commbench replay TRACE...         where its communication time goes, and what it costs here

The options of a command:           commbench COMMAND --help
Every key with its values:          commbench --keys
One run for all values of a list:   benchmark=[p2p_latency,all_reduce] layout=[1x1,1x2]
A range of sizes:                   sizes=8..8GiB (times 2), sizes=8..1MiB*4 (times 4)
A run for each value:               commbench -m backend=gloo,mpi trial=0,1,2
What would run, without running:    plan=true
In zsh, quote brackets and stars:   'sizes=[8,1KiB]' 'sizes=8..1MiB*4'
With ranks of another launcher:     {"|".join(usual_programs())} ... commbench KEY=VALUE...
{"".join(launcher.usage for launcher in launchers())}
Exit status: 0 every case is ok, or skipped for a reason; 1 a case failed, was wrong or missed a
bound of expect, or a rank is slow among its pairs; 2 the configuration is impossible; 3 ranks,
results or text were lost; 130, 143 interrupted."""

COMMANDS = {  # command with its own options -> module, function
    "report": ("commbench.cli.report", "report"),
    "show": ("commbench.cli.show", "show"),
    "compare": ("commbench.cli.compare", "compare_command"),
    "export": ("commbench.features.export.command", "export"),
    "import": ("commbench.features.other_tools.command", "import_results"),
    "reference": ("commbench.features.documents.command", "reference"),
    "replay": ("commbench_replay.command", "replay"),
    "resume": ("commbench.cli.run", "resume"),
    "ab": ("commbench.features.ab.command", "ab"),
    "locate": ("commbench.cluster.search.command", "locate"),
    "accept": ("commbench.cluster.gate.command", "accept"),
    "baseline": ("commbench.cluster.baseline.command", "baseline"),
    "watch": ("commbench.cluster.watch.command", "watch"),
    "doctor": ("commbench.features.doctor.command", "doctor"),
}
MEASURING_COMMANDS = ("resume", "ab", "locate", "watch")
SHORT_FORMS = "commbench.features.other_tools.short_forms"
OTHER_PROGRAM = re.compile(r"osu_|\w+_perf$")  # of OSU and nccl-tests
OTHER_COMMANDS = ("run", "help")
OTHER_WORDS = {  # that are options or settings here
    "list": "commbench --keys or --operations",
    "ls": "commbench --keys or --operations",
    "keys": "commbench --keys",
    "operations": "commbench --operations",
    "plan": "plan=true",
    "version": "commbench --version",
    "check": "commbench doctor",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status, by the list in runtime/exit_protocol.py.

    A rank of a world does not always return: the same module says how each process ends.
    """
    with print_safely(relay_marks()):
        try:
            if argv is None:
                _shield_children()
            status = _run_command(sys.argv[1:] if argv is None else list(argv))
            # MPI is finalized only at Python's own end
            return exit_rank(status, None if "mpi4py" in sys.modules else _identity())
        except CommbenchError as error:
            return end_with_error(error, _identity())
        except KeyboardInterrupt:
            return exit_rank(SIGNAL_STATUS + signal.SIGINT, _identity())
        except PermissionError as error:
            if error.filename is None:
                raise
            return end_with_error(Unreadable(no_permission(error.filename)), _identity())
        except ModuleNotFoundError as error:
            sentence = missing_package(error)
            if sentence is None:
                raise
            return end_with_error(ConfigError(sentence), _identity())
        except (RuntimeError, BlockingIOError) as error:
            limit = process_limit(error)
            if limit is None:
                raise
            return end_with_error(limit, _identity())
        except SystemExit as stop:
            if not isinstance(stop.code, int):
                raise
            raise SystemExit(exit_rank(stop.code, _identity())) from None


def _command(name: str) -> Callable[[list[str]], int]:
    """The function of a command; raises ConfigError where its annex is not there."""
    module, function = COMMANDS[name]
    command: Callable[[list[str]], int] = getattr(
        needed_annex(module, f"commbench {name}"), function
    )
    return command


def _shield_children() -> None:
    """Keep ranks from importing modules of the working directory, as `python -m` does, and set HOME
    for mpirun.

    Raises ConfigError where Python 3.10 can't be kept from importing a commbench.py, torch.py or
    mpi4py.py there.
    """
    if "HOME" not in os.environ:
        try:
            os.environ["HOME"] = str(Path.home())
        except (KeyError, RuntimeError):  # no passwd entry
            os.environ["HOME"] = _private_home()
    with suppress(FileNotFoundError):
        if str(Path.cwd()) in sys.path:  # started by `python -m`: the user wants the modules there
            return
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    planted = [
        f"{name}.py" for name in ("commbench", "torch", "mpi4py") if Path(f"{name}.py").exists()
    ]
    if planted and sys.version_info < (3, 11):
        raise ConfigError(f"{planted[0]} in this folder would be imported by the ranks; rename it")


def _private_home() -> str:
    """A folder for a user without a home, the same for each command.

    Others must not write to it: git, NCCL, mpirun and Python read files in HOME that run code.
    """
    try:
        folder = Path(gettempdir(), f"commbench-home-{os.geteuid()}")
        with suppress(FileExistsError):
            folder.mkdir(mode=stat.S_IRWXU)
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        is_private = is_own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return str(folder) if is_private else mkdtemp(prefix="commbench-home-")
    except OSError:  # no folder for temporary files: a home that nothing can be in
        return os.devnull


def _identity() -> RankIdentity | None:
    """This rank; None outside of a world, and where the launcher's variables are unusable."""
    try:
        return detect(os.environ)
    except ConfigError:
        return None


def _announce_world() -> None:
    """Print which world this command takes for its own, or why none, where a user may doubt it."""
    note = settle_world(os.environ)
    if note is not None:
        print_error(note)


def _run_command(words: list[str]) -> int:
    """Run a command, which is imported only now; returns the exit status."""
    foreign = [word for word in words if not is_utf8(word)]
    if foreign:
        raise ConfigError(f"{foreign[0]} is not UTF-8; write it in UTF-8, or rename the folder")
    if words[:1] == ["help"] and len(words) == 2 and words[1] in (*COMMANDS, *OTHER_COMMANDS):
        words = [words[1], "--help"]
    if words[:1] and words[0] in COMMANDS:
        if words[0] in MEASURING_COMMANDS:
            _announce_world()
        status: int = _command(words[0])(words[1:])
        return status
    if JOB in os.environ:
        from commbench.cli.rank import run_started

        return run_started()
    if OTHER_PROGRAM.match("".join(words[:1])):
        short = needed_annex(SHORT_FORMS, words[0]).short_forms()
        # before the words of the user, which count where both give a key
        words = [*short.get(words[0], words[:1]), *words[1:]]
    # before the options of a mistyped command
    _check_words([word for word in words[:1] if word[:1] != "-"])
    parser = CommandParser(
        prog="commbench",
        usage=SUPPRESS,
        description=USAGE,
    )
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="KEY=VALUE",
        help="a key of the configuration, or a command",
    )
    add(
        "-m",
        "--multirun",
        action="store_true",
        help="a run for each combination of values with commas",
    )
    add("--config-dir", help="a folder with more YAML, e.g. DIR/benchmark/mine.yaml")
    add("--keys", action="store_true", help="print every key with its default, meaning and values")
    add(
        "--operations",
        action="store_true",
        help="print the table of operations that each backend has",
    )
    add("--version", action="version", version=f"commbench {commbench.__version__}")
    options = parser.parse_intermixed_args(words[1:] if words[:1] == ["run"] else words)
    _check_words(options.words)
    if options.words[:1] == ["help"]:
        parser.print_help()
    elif options.keys or options.operations:
        from commbench.cli.listings import keys_text, operations_text

        text = keys_text if options.keys else operations_text
        print(text(options.config_dir))
    elif options.multirun and not options.words:
        raise ConfigError(
            "-m makes a run for each value; give a key several values: -m backend=gloo,mpi"
        )
    else:
        _announce_world()
        _start_rank_server(options.words)
        from commbench.cli.run import run

        return run(options.words, options.multirun, options.config_dir)
    return 0


def _check_words(words: Sequence[str]) -> None:
    """Raises ConfigError for what is neither KEY=VALUE nor a command."""
    for number, word in enumerate(words):
        if "=" in word or word[:1] == "~" or (number == 0 and word in OTHER_COMMANDS):
            continue
        if word[-1:] == "]" or word[:1] == "[":
            raise ConfigError(f"{word!r} is a part of a list: lists have no blanks: sizes=[8,1KiB]")
        raise ConfigError(
            f"{word!r} is neither KEY=VALUE nor a command; {_word_hint(word)}all commands:"
            " commbench --help"
        )


def _word_hint(word: str) -> str:
    """`did you mean benchmark=p2p_latency? `, or empty."""
    if word in OTHER_WORDS:
        return f"did you mean {OTHER_WORDS[word]}? "
    from commbench.config.compose import ConfigComposer

    other_tools = annex(SHORT_FORMS)
    meant = {} if other_tools is None else {name: name for name in other_tools.short_forms()}
    with ConfigComposer() as composer:
        for group in ("experiment", "benchmark", "backend"):
            meant |= {name: f"{group}={name}" for name in composer.options(group)}
    meant |= {name: name for name in (*COMMANDS, *OTHER_COMMANDS)}
    return did_you_mean(word, meant, meant)


def _start_rank_server(words: Sequence[str]) -> None:
    """Start a rank server where this command will probably fork ranks, so that torch loads during
    composition."""
    launcher = likely_launcher(words)
    if launcher is not None and launcher.forks and _identity() is None:
        from commbench.runtime.rank_server import start_rank_server

        start_rank_server(launcher)
