"""How long the ranks of a finished run took to close their libraries and end, and what was printed
meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commbench.core.states import status_of_run
from commbench.core.units import plural
from commbench.results.run_folder import RECORD, read_record, write_json

LONG_S = 3.0  # MPI, NCCL and gloo take less than 1 s


def record_closing(folder: Path, printed: Iterable[str], is_local: bool) -> str | None:
    """Add to run.json the seconds since the end of its run, and the lines that were `printed`.
    Returns a line to print if that is noteworthy.

    Without `is_local` the ranks may be on another host, whose clock can't be compared: the seconds
    are null.
    """
    run = read_record(folder)
    if status_of_run(run) not in ("done", "running") or run.get("finished_at") is None:
        return None
    finished = datetime.fromisoformat(run["finished_at"])
    since_s = max(0.0, (datetime.now(timezone.utc) - finished).total_seconds())
    closing = {"seconds": round(since_s, 3) if is_local else None, "printed": list(printed)}
    with suppress(OSError):  # the disk is full
        write_json(folder / RECORD, {**run, "closing": closing})
    return closing_text(closing)


def closing_text(closing: Mapping[str, Any]) -> str | None:
    """`after the last result the ranks took 20.1 s to end, and printed 2 lines: ...`; None for a
    short and silent end. The line shown is the first with a word: Open MPI begins with a ruler."""
    printed = closing["printed"]
    seconds = closing["seconds"]
    if not printed and (seconds or 0.0) < LONG_S:
        return None
    parts = [] if seconds is None else [f"took {seconds:.1f} s to end"]
    if printed:
        shown = next((line for line in printed if any(map(str.isalnum, line))), printed[0])
        parts.append(f"printed {plural(len(printed), 'line', 'lines')}: {shown}")
    return f"after the last result the ranks {', and '.join(parts)}"
