"""What earlier starts of a run have left: which cases need no second try, and which broke the world."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commbench.core.run_folder import write_json

TRIES = 2  # a case that broke the world so often is not tried again
UNFINISHED = ("running", "interrupted")  # stop reasons of a soak that goes on
HOPELESS = "broke the world"
GOOD = ("ok", "skipped")
IN_FLIGHT = "in_flight"  # file in the run's folder: the case that is being measured


@dataclass(frozen=True)
class EarlierStarts:
    """`recorded`: case -> status, `reasons`: case -> why it failed, `broken`: case -> how often it broke the world.

    `run` is run.json. Only rank 0 needs the contents; the other ranks only know that the run goes on. With `retry`
    failed cases are tried again (the user asks for it); without it only what a broken world has left.
    """

    recorded: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[str, int] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    retry: bool = False
    force: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def segment(self) -> int:
        """Number of the start that follows."""
        return len(self.run.get("segments", [])) + 1

    def left(self, case_id: str, rows: Sequence[str]) -> bool:
        """Whether a case has to be measured or written down; `rows` are the case ids of its rows."""
        found = [self.recorded.get(row) for row in rows]
        if None in found:
            return True
        if all(status in GOOD for status in found):
            return False
        return self.retry or case_id in self.broken

    def hopeless(self, case_id: str) -> str | None:
        """Why a case is not tried again."""
        times, why = self.broken.get(case_id, 0), self.reasons.get(case_id)
        if times < TRIES or self.retry:
            return None
        if why is not None and why.startswith(HOPELESS):  # written down by an earlier start
            return why
        return f"{HOPELESS} {times} times; it is not tried again" + (f"; {why}" if why else "")


def mark_in_flight(folder: str, case_id: str, text: str) -> None:
    """Leave word of the case that is being measured: if the world ends now, this one is the suspect.

    A disk that takes no word ends no run: then nobody is the suspect.
    """
    mark = Path(folder) / IN_FLIGHT
    aside = mark.with_suffix(".tmp")
    try:
        aside.write_text(json.dumps([case_id, text]))
        aside.replace(mark)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        clear_in_flight(folder)


def clear_in_flight(folder: str) -> None:
    with suppress(OSError):
        (Path(folder) / IN_FLIGHT).unlink()


def blame(folder: str) -> str | None:
    """Count the case in flight as one that broke the world, in run.json; its name.

    None where no case was in flight, or nothing can be written down: a fresh world could not write either.
    """
    mark, record = Path(folder) / IN_FLIGHT, Path(folder) / "run.json"
    try:
        case_id, text = json.loads(mark.read_text())
        run = json.loads(record.read_text())
    except (OSError, ValueError):
        return None
    clear_in_flight(folder)
    broken = dict(run.get("broken", {}))
    broken[case_id] = broken.get(case_id, 0) + 1
    try:
        write_json(record, run | {"broken": broken})
    except OSError:
        return None
    return str(text)
