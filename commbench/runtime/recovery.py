"""Continuing a run: which cases earlier starts have finished, and which of them broke the world."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from commbench.core.states import CaseStatus
from commbench.results.row import Row
from commbench.results.run_folder import RECORD, read_record, replace_file, write_json

MAX_BREAKS = 2  # a case that broke the world this often is not tried again
GIVEN_UP = "lost its ranks"
FINISHED: tuple[CaseStatus, ...] = ("ok", "skipped")
IN_FLIGHT = "in_flight"  # file in the run's folder: the case that is being measured


class Resume(str, Enum):
    """Why a world continues a run, and so which of its cases it measures."""

    RETRY = "retry"  # the user asks for it: what is missing, and failed cases again
    FORCE = "force"  # the same, also where the configuration or the machine has changed
    REST = "rest"  # what a broken world has left
    LAUNCH = "launch"  # another launch of the run: all its cases again

    @property
    def by_user(self) -> bool:
        return self in (Resume.RETRY, Resume.FORCE)


@dataclass(frozen=True, eq=False)
class EarlierVisits:
    """What earlier starts have measured for a row of cases.parquet, from samples.parquet.

    `times` are the seconds per operation of each visit that `row` counts; empty where the case
    begins anew. `last` is the number of the last visit there, `blocks` and `repetitions` (by phase)
    are the numbers that follow.
    """

    row: Row
    times: tuple[NDArray[Any], ...]
    last: int
    blocks: int
    repetitions: Mapping[str, int]


@dataclass(frozen=True)
class EarlierStarts:
    """What earlier starts have left of a run: run.json and, by case, its status (`recorded`), why
    it failed (`reasons`) and the visits of an unfinished one. Empty except on rank 0.
    """

    resume: Resume = Resume.REST
    run: Mapping[str, Any] = field(default_factory=dict)
    recorded: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    visits: Mapping[str, EarlierVisits] = field(default_factory=dict)

    @property
    def launch(self) -> int:
        """The number of the launch that follows."""
        return len(self.run.get("starts", [])) + 1

    def unfinished(self, case_id: str, rows: Sequence[str]) -> bool:
        """Whether a case has to be measured or recorded; `rows` are the case ids of its rows."""
        statuses = [self.recorded.get(row) for row in rows]
        if None in statuses:
            return True
        if all(status in FINISHED for status in statuses):
            return False
        return self.resume.by_user or case_id in self.run.get("broken", {})

    def given_up(self, case_id: str) -> str | None:
        """Why a case is not tried again; None if it is."""
        times = self.run.get("broken", {}).get(case_id, 0)
        last_start: Mapping[str, str] = (self.run.get("starts") or [{}])[-1]
        # the parent knows more than the row of rank 0, which is missing where rank 0 was lost
        why = (
            self.run.get("broken_reasons", {}).get(case_id)
            or self.reasons.get(case_id)
            or last_start.get("reason")
        )
        if times < MAX_BREAKS or self.resume.by_user:
            return None
        return f"{GIVEN_UP} {times} times; it is not tried again" + (f"; {why}" if why else "")


def mark_in_flight(folder: str, case_id: str, text: str) -> None:
    """Record the case that is being measured: if the world breaks now, this one is the suspect.

    Where the disk refuses, the run continues without a suspect.
    """
    try:
        mark = json.dumps([case_id, text]).encode()
        replace_file(Path(folder) / IN_FLIGHT, mark, sync=False)
    except OSError:
        clear_in_flight(folder)


def clear_in_flight(folder: str) -> None:
    with suppress(OSError):
        (Path(folder) / IN_FLIGHT).unlink()


def case_in_flight(folder: str | Path) -> tuple[str, str] | None:
    """The id and the name of the case that is being measured, or was when the world broke."""
    try:
        case_id, text = json.loads((Path(folder) / IN_FLIGHT).read_text())
    except (OSError, ValueError):
        return None
    return str(case_id), str(text)


def count_suspect(folder: str) -> str | None:
    """Count the case in flight, in run.json, as one that broke the world; returns its name.

    None where no case was in flight, or nothing can be written: a fresh world could not write
    either.
    """
    case = case_in_flight(folder)
    run = read_record(folder)
    if case is None or not run:
        return None
    case_id, text = case
    clear_in_flight(folder)
    broken = dict(run.get("broken", {}))
    broken[case_id] = broken.get(case_id, 0) + 1
    reasons = {**run.get("broken_reasons", {}), case_id: run.get("reason")}
    try:
        write_json(Path(folder) / RECORD, run | {"broken": broken, "broken_reasons": reasons})
    except OSError:
        return None
    return text
