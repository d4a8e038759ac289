"""`commbench locate`: which nodes, or ranks within one, are slow, in few rounds of pairs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from commbench.cli.options import CommandParser
from commbench.cli.run import run

LOCATE_USAGE = """commbench locate [KEY=VALUE ...]    on this machine, e.g. layout=1x8
torchrun|mpirun|srun ... commbench locate    the nodes of a given world, one rank a node"""
LOCATE_EPILOGUE = """\
Random disjoint pairs of ranks in 4 rounds, then suspects with good partners, in at most 8 rounds:
each rank is good, bad or undecided. With several ranks a node, the nodes are the groups that may be
bad; with one, the switches of search.switches={HOST: SWITCH, ...}.
search.slowdown=0.1 is the least that matters. All keys of a run: commbench --keys
Exit status: 0 all are good, 1 one is bad or undecided, or a case failed."""
DEFAULTS = {
    "pairs": "search",
    "schedule": "rounds",
    "benchmark": "[p2p_bandwidth,p2p_latency]",
    "sizes": "[8,1MiB]",
    "window": "16",
    "timing": "quick",
    "timing.visits": "1",
    "timing.case_s": "0.5",
    "writer": "[parquet]",
}


def locate(words: list[str]) -> int:
    """Search for slow ranks; returns the exit status. Raises ConfigError."""
    parser = CommandParser(
        prog="commbench locate",
        usage=LOCATE_USAGE,
        epilog=LOCATE_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="a key of the configuration"
    )
    parser.add_argument("--config-dir", help="a folder with more YAML")
    options = parser.parse_intermixed_args(words)
    return run(with_defaults(options.overrides), config_dir=options.config_dir)


def with_defaults(overrides: Sequence[str]) -> list[str]:
    """The overrides behind those of a search that they do not replace."""
    given = {word.partition("=")[0] for word in overrides}
    defaults = [f"{key}={value}" for key, value in DEFAULTS.items() if key not in given]
    return [*defaults, *overrides]
