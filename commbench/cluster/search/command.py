"""`commbench locate`: which nodes, or ranks of one, are slow, in rounds of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.cli.options import CommandParser
from commbench.cli.run import run
from commbench.core.launchers import usual_programs

LOCATE_USAGE = f"""commbench locate [KEY=VALUE ...]    on this machine, e.g. layout=1x8
{"|".join(usual_programs())} ... commbench locate    the nodes of a given world"""
LOCATE_EPILOGUE = """\
Random disjoint pairs of nodes, with all their ranks, in about 20 rounds; if these leave a node in
doubt, in 24 to 120 more, which alone decide about it: each is SLOWER, SAME or UNDECIDED. Of one
node its ranks are compared. search.slowdown=0.1 is what matters: a node that takes 10 % longer.
search.switches={HOST: SWITCH, ...} names slow switches. All keys of a run: commbench --keys
Exit status: 0 all are SAME, 1 one is SLOWER or UNDECIDED, or a case failed."""
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
