"""The command line: chooses a command, and turns its errors into one line and an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commbench.core.case import RankIdentity

USAGE = """commbench [-m] [KEY=VALUE ...]      measure: by default gloo on this machine with 2 ranks
commbench resume RUN [--force]       measure what is missing or failed in a run, in the same folder
commbench report PATH... [--html F]  what to use, what is slow, how sure that is; one page with figures
commbench compare BASE NEW           did it get faster: a verdict per case, with its interval
commbench ab BASE... --vs NEW...     both in turn, in fresh worlds, 10 launches each, then the same verdict
commbench predict PATH... --params N the communication of a data-parallel step on what was measured
commbench export PATH... --csv FILE  results as CSV
commbench doctor                     what this machine has and which backends can run
torchrun|mpirun|srun ... commbench   the same as one rank of a given world

A list is an axis inside one world: layout=[1x1,1x2] sizes=[8,1KiB,1MiB] benchmark=[p2p_latency,all_reduce]
-m sweeps over fresh worlds:        -m backend=gloo,mpi layout=1x2,1x4 launch=0,1,2
Every key with its meaning:         commbench --keys
What would run, without running:    plan=true"""

COMMANDS = {  # with options of their own: command -> module, function
    "report": ("commbench.cli.report", "command"),
    "compare": ("commbench.cli.compare", "command"),
    "predict": ("commbench.cli.predict", "command"),
    "export": ("commbench.cli.export", "command"),
    "resume": ("commbench.cli.run", "resume"),
    "ab": ("commbench.cli.ab", "ab"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 all ok, 1 a case failed or missed `expect`, 2 bad configuration, 3 the world broke.

    A rank of a world does not always return: world.exit_protocol says how each process ends.
    """
    from commbench.core.errors import CommbenchError
    from commbench.world.exit_protocol import end_with_error, exit_rank

    try:
        status = _run_command(sys.argv[1:] if argv is None else list(argv))
        if "mpi4py" not in sys.modules:  # MPI is finalized only at Python's own end
            exit_rank(status, _identity())
        return status
    except CommbenchError as error:
        return end_with_error(error, _identity())
    except KeyboardInterrupt:
        exit_rank(130, _identity())
        return 130
    except SystemExit as stop:
        if isinstance(stop.code, int):
            exit_rank(stop.code, _identity())
        raise


def _identity() -> RankIdentity | None:
    """None outside of a world, and where the launcher's variables are unusable."""
    from commbench.core.errors import ConfigError
    from commbench.launchers.registry import detect

    try:
        return detect(os.environ)
    except ConfigError:
        return None


def _run_command(words: list[str]) -> int:
    """The exit status. Commands are imported when they are used."""
    if words[:1] and words[0] in COMMANDS:
        module, function = COMMANDS[words[0]]
        status: int = getattr(import_module(module), function)(words[1:])
        return status
    arguments = _parser().parse_intermixed_args(words)
    if arguments.keys:
        from importlib.resources import files

        print((files("commbench.conf") / "config.yaml").read_text())
    elif arguments.operations:
        from commbench.cli.doctor import matrix

        print(matrix(arguments.config_dir))
    elif arguments.words[:1] == ["doctor"]:
        from commbench.cli.doctor import report

        print(report(arguments.config_dir))
    else:
        from commbench.cli.run import run

        return run(arguments.words, arguments.multirun, arguments.config_dir)
    return 0


def _parser() -> argparse.ArgumentParser:
    from importlib.metadata import PackageNotFoundError, version

    from commbench.cli.options import Options

    try:
        installed = version("commbench")
    except PackageNotFoundError:  # PYTHONPATH, or a clone that is not installed
        installed = "source"
    parser = Options(prog="commbench", usage=USAGE, add_help=True)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="an override of the configuration, or a command")
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep: a fresh world for each combination")
    parser.add_argument("--config-dir", help="a folder with more YAML, e.g. DIR/benchmark/mine.yaml")
    parser.add_argument("--keys", action="store_true", help="print the configuration file with the meaning of each key")
    parser.add_argument("--operations", action="store_true", help="what each backend can measure, and in which form")
    parser.add_argument("--version", action="version", version=f"commbench {installed}")
    return parser
