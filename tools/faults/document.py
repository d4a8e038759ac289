"""Writes docs/faults.md: two sections, each by the command that played it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from combination import DEATH_S, LATE_S, START_S, STOPPED_S, Combination
from load import Burden
from verdict import SHORT, Verdict

FILE = Path(__file__).parents[2] / "docs" / "faults.md"
WHOSE = "\n## Whose world\n"
LOAD = "\n## Load\n"
FILES = re.compile(r"/\S+/(?=\w+\.py)")  # the folder of this checkout is not published
HEAD = f"""# Faults

`make faults` plays every row of this table in a world of its own and writes the table. It exits with 1 if a finished
case is missing from the results, if a process, a file in /dev/shm or a listening port is left behind, if the exit
status is not the documented one, or if the world takes longer to end than allowed: 20 s after a death (8 s without a
heartbeat, then the end of the world), 10 s for a rank that is stopped, 3 s for a signal, and budget.late_s + 25 s for a
rank that hangs (here with budget.late_s={LATE_S:g}). What ranks wait 120 s for before their first heartbeat is shortened to
{START_S:g} s here; with the imports of the other rank, such a world may take {START_S + DEATH_S + STOPPED_S:g} s to end.

Each world has two ranks and five cases: three short ones, one in which the fault happens, and one that is left to
measure.

- *Phase*: starting (before the control plane), opening the library, preparing the buffers of the fourth case, at the
  start of the case (filling the buffers), in a call of the library, in a check, between cases (rank 0 records the
  third), closing the library after all cases.
- *Launcher* is the process between commbench and the ranks: the rank server (gloo), mpirun or torchrun. *Parent* is
  commbench itself; when it is stopped, it continues after 4 s, and nothing is lost.
- *Finished* is the number of cases that had ended before the fault, *gone* the time from the fault until no process of
  the broken world was left.

If commbench has started the world, a fresh world then measures the remaining cases (exit status 0, or 1 if the case
broke two worlds), unless restarts are disabled (`budget.restarts=0`: 3). Launchers that were started by hand exit with
a status of their own. If a rank dies, hydra (MPICH) kills all ranks at once, so no rank is left to remove their segment
in /dev/shm; the same happens with every MPI launcher if commbench itself is killed (parent SIGKILL).

Three faults concern what the command prints: its stdout is /dev/full or closed from the start, or the pipe that it is
has no reader any more (*reader gone*). Everything is measured; only a full disk is said, and the exit status is 4. SIGTERM
ends a run also while its terminal is stopped (*SIGTERM after Ctrl-S*): its text is given 0.5 s more.

A world that commbench has started must end with one line per fault, which names the rank or launcher that failed and
how, and with the folder of the results; after a signal, that line says how to resume. stderr has nothing else but the
progress. If the folder of the run is renamed while it is measured, the lines say instead that it can't be written, where
the results are, and that it is gone.
"""  # noqa: E501
COLUMNS = (
    "fault",
    "times",
    "phase",
    "rank",
    "world",
    "finished",
    "lost",
    "gone",
    "exit",
    "message",
)


def write_faults(verdicts: Sequence[Verdict], skipped: Sequence[str], seconds: float) -> None:
    rows = [_row(verdict) for verdict in verdicts]
    lost = sum(verdict.lost for verdict in verdicts)
    wrong = sum(bool(verdict.wrong) for verdict in verdicts)
    finished = sum(verdict.finished for verdict in verdicts)
    times = sum(verdict.times for verdict in verdicts)
    result = (
        f"\nMeasured on {_machine()}: {len(verdicts)} combinations, {times} faults, {finished}"
        f" finished cases, **{lost} lost**; {wrong} lines with something wrong; {seconds:.0f} s.\n"
    )
    notes = "".join(f"\nNot played: {entry}." for entry in skipped)
    _, whose, load = _old()
    FILE.write_text(HEAD + result + notes + "\n" + _table(COLUMNS, rows) + whose + load)


def write_whose(burdens: Sequence[Burden]) -> None:
    text = (
        "\n`python tools/faults whose` plays these: worlds that somebody else has started, and"
        " variables\nthat are left over from one; the line that a user reads is below *result*."
        f"\nMeasured on {_machine()}:\n\n"
    )
    faults, _, load = _old()
    FILE.write_text(faults + WHOSE + text + _burden_table(burdens) + load)


def write_load(burdens: Sequence[Burden]) -> None:
    text = (
        "\n`python tools/faults load [SECONDS]` plays these; SECONDS is the length of the soak.\n"
        f"Measured on {_machine()}:\n\n"
    )
    faults, whose, _ = _old()
    FILE.write_text(faults + whose + LOAD + text + _burden_table(burdens))


def _burden_table(burdens: Sequence[Burden]) -> str:
    rows = [
        (burden.name, f"{burden.seconds:.0f} s", burden.result, burden.wrong or "-")
        for burden in burdens
    ]
    return _table(("what", "took", "result", "wrong"), rows)


def _old() -> tuple[str, str, str]:
    """The three sections as they are in the file, with their titles; empty if they are missing."""
    text = FILE.read_text() if FILE.exists() else HEAD
    before, load_title, load = text.partition(LOAD)
    faults, whose_title, whose = before.partition(WHOSE)
    return faults, whose_title + whose, load_title + load


def played(document: str, combination: Combination) -> bool:
    """Whether the document has the row of a combination, or says why not."""
    return (
        f"\n| {' | '.join(_first_cells(combination))} |" in document
        or f"\nNot played: {combination} (" in document
    )


def _first_cells(combination: Combination) -> tuple[str, ...]:
    world = combination.world + (
        ", no restart" if combination.own and not combination.restarts else ""
    )
    return (
        combination.fault,
        str(combination.times),
        combination.phase,
        str(combination.rank),
        world,
    )


def _row(verdict: Verdict) -> tuple[str, ...]:
    message = (
        verdict.message if len(verdict.message) <= SHORT else verdict.message[: SHORT - 3] + "..."
    )
    message = FILES.sub("", message) + "".join(f" **{text}**" for text in verdict.wrong)
    result = (
        str(verdict.finished),
        str(verdict.lost),
        f"{verdict.seconds:.1f} s",
        str(verdict.status),
        message,
    )
    return (*_first_cells(verdict.combination), *result)


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
