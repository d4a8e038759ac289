"""`commbench` and `python -m commbench`: words in, exit status out."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

# the first rank to leave is the end of all: torchrun and mpirun end the others, rank 0 perhaps before its one line
RANK_0_SPEAKS_S = 10.0

USAGE = """commbench [-m] [KEY=VALUE ...]      measure: gloo on this machine with 2 ranks, unless told otherwise
commbench resume RUN [--force]       measure what is missing or failed in a run, in the same folder
commbench report PATH... [--html F]  what to use, what is slow, how sure that is; one page with pictures
commbench compare BASE NEW           did it get faster: a verdict a case, with its interval
commbench ab BASE... --vs NEW...     both in turn, in fresh worlds, 10 launches each, then the same verdict
commbench predict PATH... --params N the communication of a data-parallel step on what was measured
commbench export PATH... --csv FILE  results as CSV
commbench doctor                     what this machine has and which backends can run
torchrun|mpirun|srun ... commbench   the same as one rank of a given world

A list is an axis inside one world: layout=[1x1,1x2] sizes=[8,1KiB,1MiB] benchmark=[p2p_latency,all_reduce]
-m sweeps over fresh worlds:        -m backend=gloo,mpi layout=1x2,1x4 launch=0,1,2
Every key with its meaning:         commbench --keys
What would run, without running:    plan=true"""

READING = {  # command about results -> the module that has it
    "report": "commbench.cli.report",
    "compare": "commbench.cli.compare",
    "predict": "commbench.cli.predict",
    "export": "commbench.cli.export",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 all ok, 1 a case failed or missed `expect`, 2 bad configuration, 3 the world broke."""
    from commbench.core.errors import CommbenchError, Missing, WorldBroken
    from commbench.core.text import printable
    from commbench.hardware.mpi_library import give_up

    words = sys.argv[1:] if argv is None else list(argv)
    try:
        status = _reading(words) if words[:1] and words[0] in READING else _measuring(words)
        if "mpi4py" not in sys.modules:  # MPI ends in order only at Python's own end
            _leave(status)
        return status
    except CommbenchError as error:
        _refuse(error.exit_status)
        if _speaks():
            if not (isinstance(error, WorldBroken) and error.told):
                print(f"commbench: {printable(str(error))}", file=sys.stderr)
        elif not _held(error):
            if isinstance(error, Missing) or not isinstance(error, WorldBroken):  # rank 0 says the same, or never will
                time.sleep(RANK_0_SPEAKS_S)
            print(f"commbench: {_who()}: {printable(str(error))}", file=sys.stderr)
        sys.stderr.flush()
        give_up(error.exit_status)
        if isinstance(error, WorldBroken):
            _leave(error.exit_status)
        return error.exit_status
    except KeyboardInterrupt:
        _leave(130)
        return 130
    except SystemExit as stop:
        if isinstance(stop.code, int):
            _leave(stop.code)
        raise


def _reading(words: list[str]) -> int:
    """A command about results that exist: its module has the options and the work."""
    from importlib import import_module

    status: int = import_module(READING[words[0]]).command(words[1:])
    return status


def _measuring(words: list[str]) -> int:
    if words[:1] == ["resume"]:
        from commbench.cli.run import resume

        return resume(words[1:])
    if words[:1] == ["ab"]:
        from commbench.cli.ab import ab

        return ab(words[1:])
    return _command(_parser().parse_intermixed_args(words))


def _command(arguments: argparse.Namespace) -> int:
    words = arguments.words
    if arguments.keys:
        from importlib.resources import files

        print((files("commbench.conf") / "config.yaml").read_text())
        return 0
    if arguments.operations:
        from commbench.cli.doctor import matrix

        print(matrix(arguments.config_dir))
        return 0
    if words[:1] == ["doctor"]:
        from commbench.cli.doctor import report

        print(report(arguments.config_dir))
        return 0
    from commbench.cli.run import run

    return run(words, arguments.multirun, arguments.config_dir)


def _parser() -> argparse.ArgumentParser:
    from commbench.cli.options import Options

    parser = Options(prog="commbench", usage=USAGE, add_help=True)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="an override of the configuration, or a command")
    parser.add_argument("-m", "--multirun", action="store_true", help="sweep: a fresh world for each combination")
    parser.add_argument("--config-dir", help="a folder with more YAML, e.g. DIR/benchmark/mine.yaml")
    parser.add_argument("--keys", action="store_true", help="print the configuration file with the meaning of each key")
    parser.add_argument("--operations", action="store_true", help="what each backend can measure, and in which form")
    parser.add_argument("--version", action="version", version=_version())
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"commbench {version('commbench')}"
    except PackageNotFoundError:  # PYTHONPATH, or a clone that is not installed
        return "commbench source"


def _speaks() -> bool:
    """Only rank 0 of a world prints."""
    from commbench.core.errors import ConfigError
    from commbench.world.identity import detect

    try:
        place = detect(os.environ)
    except ConfigError:  # nobody knows who is rank 0
        return True
    return place is None or place.rank == 0


def _held(error: Exception) -> bool:
    """Rank 0 says the same, and MPI's end holds this rank until it has."""
    return getattr(error, "shared", False) and "mpi4py.MPI" in sys.modules


def _who() -> str:
    import socket

    from commbench.world.identity import detect

    place = detect(os.environ)
    return socket.gethostname() if place is None else f"rank {place.rank} on {socket.gethostname()}"


def _leave(status: int) -> None:
    """End a rank at once: Python's end would abort in gloo's last worker thread, or wait for ranks that are gone."""
    from commbench.world.identity import detect

    if detect(os.environ) is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _refuse(status: int) -> None:
    """Tell the parent that started this world; it can't see our exit status through the launcher."""
    from commbench.world.launch import FOLDER, refuse

    if _speaks():
        refuse(os.environ.get(FOLDER), status)


if __name__ == "__main__":
    sys.exit(main())
