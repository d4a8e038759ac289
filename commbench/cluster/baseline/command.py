"""`commbench baseline`: put healthy runs into a store, and list what it has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from commbench.cli.options import CommandParser
from commbench.cluster.baseline.store import (
    check_store,
    healthy_launches,
    store_keys,
    stored_runs,
)
from commbench.cluster.baseline.writer import add_runs
from commbench.core.errors import ConfigError
from commbench.core.terminal import TableColumn, Terminal, print_error, printable, table_text
from commbench.core.units import plural

BASELINE_USAGE = """commbench baseline add RUN... --baseline DIR    put healthy runs in, each once
       commbench baseline list --baseline DIR          what the store has"""
BASELINE_EPILOGUE = """\
RUN is a folder with a run or several, which ended and of which no case failed or is invalid.
Exit status: 0 all are in the store, 2 one was refused or the store can't be used."""
LIST_COLUMNS = (
    TableColumn("hardware"),
    TableColumn("software"),
    TableColumn("runs", right=True),
    TableColumn("cases", right=True),
    TableColumn("launches\na case", right=True, priority=1),
    TableColumn("days", right=True, priority=1),
    TableColumn("sets of\nhosts", right=True, priority=1),
)


def baseline(words: list[str]) -> int:
    """Add to a store or list it; returns the exit status. Raises ConfigError."""
    parser = CommandParser(
        prog="commbench baseline",
        usage=BASELINE_USAGE,
        epilog=BASELINE_EPILOGUE,
    )
    parser.add_argument("action", choices=("add", "list"))
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folder with a run or several")
    parser.add_argument("--baseline", required=True, metavar="DIR", help="folder of the store")
    options = parser.parse_intermixed_args(words)
    if options.action == "list":
        if options.runs:
            raise ConfigError(f"baseline list takes no RUN; seen: {' '.join(options.runs)}")
        return _list_store(Path(options.baseline))
    if not options.runs:
        raise ConfigError("baseline add needs a RUN: a folder with a run or several")
    return _add_to_store(options.baseline, options.runs)


def _add_to_store(store: str, runs: list[str]) -> int:
    result = add_runs(store, runs)
    for line in result.refused:
        print_error(f"not added: {line}")
    counts = [
        f"{plural(len(result.added), 'run', 'runs')} added",
        *([f"{len(result.present)} in it already"] if result.present else []),
        *([f"{len(result.refused)} refused"] if result.refused else []),
    ]
    print(printable(f"{store}: {', '.join(counts)}"))
    return ConfigError.exit_status if result.refused else 0


def _list_store(store: Path) -> int:
    check_store(store)
    print(table_text(LIST_COLUMNS, list(_store_rows(store)), Terminal.of(sys.stdout)))
    return 0


def _store_rows(store: Path) -> Iterator[list[str]]:
    for key in store_keys(store):
        cases = healthy_launches(store, key)
        launches = [launch for case in cases.values() for launch in case.launches]
        counts = sorted({len(case.launches) for case in cases.values()})
        yield [
            key.hardware,
            key.software,
            str(len(stored_runs(store, key))),
            str(len(cases)),
            " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1])))),
            str(len({launch.day for launch in launches})),
            str(len({launch.hosts for launch in launches})),
        ]
