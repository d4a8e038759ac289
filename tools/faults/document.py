"""Writes docs/faults.md: two sections, each by the command that played it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from combination import LATE_S, START_S
from load import Burden
from verdict import Verdict

FILE = Path(__file__).parents[2] / "docs" / "faults.md"
LOAD = "\n## Load\n"
# the folder of this checkout is not published, and a message is an example for many
OWN = re.compile(r"/\S+/(?=\w+\.py)| \(pid \d+\)|(?<=commbench resume) \S+|/tmp/\S+/results/\S+?/")
LONGEST = 130  # characters of an example
HEAD = f"""# Faults

`make faults` breaks real worlds of two ranks on purpose and writes this page; it exits with 1 if something is wrong.
Each world has five cases: three short ones, one in which the fault happens, and one that is left to measure.

A world is right if

- no finished case is missing from the results;
- no process, no file in /dev/shm and no listening port is left;
- it ends in the time that is allowed, and with the documented exit status;
- one line names the rank or launcher that failed, how, and where the results are. After a signal, it says how to resume.

If commbench has started the world, a fresh world measures the remaining cases (exit status 0, or 1 if the case broke two
worlds). With `budget.restarts=0` it does not (3). A launcher that was started by hand exits with a status of its own.

- *when*: *starting* is before the ranks meet, *opening* and *closing* are of the library, *preparing* is of the buffers.
- *worlds*: `gloo`, `openmpi`, `mpich` and `tcp` are started by commbench, `own torchrun` by commbench with torchrun;
  the others by hand.
- *gone*: the longest time until no process of the broken world was left, and the time that is allowed. For a hang,
  `budget.late_s` is {LATE_S:g}, and what ranks wait for before their first heartbeat is shortened from 120 s to {START_S:g} s.
- The *launcher* is the rank server, torchrun or mpirun; the *parent* is commbench. A stopped parent goes on after 4 s.

If one rank dies, hydra (MPICH) kills all ranks, so their segment stays in /dev/shm. The same happens with every MPI
launcher if commbench itself is killed.
"""  # noqa: E501
COLUMNS = ("fault", "when", "worlds", "played", "finished", "lost", "gone", "exit", "example")


def write_faults(verdicts: Sequence[Verdict], skipped: Sequence[str], seconds: float) -> None:
    times = sum(verdict.times for verdict in verdicts)
    finished = sum(verdict.finished for verdict in verdicts)
    lost = sum(verdict.lost for verdict in verdicts)
    wrong = [
        f"\nWrong: {each.combination}: {', '.join(each.wrong)}." for each in verdicts if each.wrong
    ]
    result = (
        f"\nMeasured on {_machine()}: {len(verdicts)} combinations, {times} faults, {finished}"
        f" finished cases,\n**{lost} lost**; {len(wrong)} with something wrong; {seconds:.0f} s.\n"
    )
    notes = [*wrong, *(f"\nNot played: {entry}." for entry in skipped)]
    faults = dict.fromkeys(verdict.combination.fault for verdict in verdicts)
    rows = [
        _row([each for each in verdicts if each.combination.fault == fault]) for fault in faults
    ]
    _, load = _old()
    FILE.write_text(HEAD + result + "".join(notes) + "\n\n" + _table(COLUMNS, rows) + load)


def write_load(burdens: Sequence[Burden]) -> None:
    text = (
        "\n`python tools/faults load [SECONDS]` plays these; SECONDS is the length of the soak.\n"
        f"Measured on {_machine()}:\n\n"
    )
    rows = [
        (burden.name, f"{burden.seconds:.0f} s", burden.result, burden.wrong or "-")
        for burden in burdens
    ]
    faults, _ = _old()
    FILE.write_text(faults + LOAD + text + _table(("what", "took", "result", "wrong"), rows))


def _old() -> tuple[str, str]:
    """Both sections as they are in the file, the second with its title."""
    faults, title, load = FILE.read_text().partition(LOAD)
    return faults, title + load


def _row(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The row of a fault."""
    played = [verdict.combination for verdict in verdicts]
    gone_s = max(verdict.seconds for verdict in verdicts)
    allowed_s = max(each.bound_s for each in played)
    gone = f"{gone_s:.1f} of {allowed_s:g} s" if played[0].ends_world else "the run goes on"
    example = next((OWN.sub("", each.message) for each in verdicts if each.message), "")
    return (
        played[0].fault,
        _listed(each.phase for each in played),
        _listed(each.world for each in played),
        str(sum(verdict.times for verdict in verdicts)),
        str(sum(verdict.finished for verdict in verdicts)),
        str(sum(verdict.lost for verdict in verdicts)),
        gone,
        _listed(str(status) for status in sorted({str(each.status) for each in verdicts})),
        example if len(example) <= LONGEST else f"{example[: LONGEST - 3]}...",
    )


def _listed(names: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(names))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        columns,
        ["---"] * len(columns),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _machine() -> str:
    today = datetime.now(timezone.utc).date()
    kind = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{today} with {len(os.sched_getaffinity(0))} cores, {kind}"
