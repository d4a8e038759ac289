"""What `commbench watch` keeps between its turns, in the folder `watch` of a store of baselines:

STORE/watch/state.json   the suite, and the changes that last
STORE/watch/changed/     the runs that show a change, and are no part of the baseline for that
STORE/watch/quarantine/  the runs with a suspect case that fresh launches did not confirm; after
                         some turns they go to the baseline
STORE/watch/runs/        runs that are measured, or belong to neither: they were interrupted,
                         incomplete, or measured again what had looked changed; of whole ones only
                         those of the last turns
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from commbench.core.errors import ConfigError, Unreadable
from commbench.results.run_folder import file_bytes, write_json
from commbench.stats.verdict import Verdict

WATCH_FOLDER = "watch"
RUNS_FOLDER = "runs"  # in it
CHANGED_FOLDER = "changed"
QUARANTINE_FOLDER = "quarantine"
STATE_FILE = "state.json"
STATE_VERSION = 2
MOST_TURNS = 1000  # that state.json names

CaseVerdict = Verdict | Literal["FAILED"]
CHANGES: tuple[CaseVerdict, ...] = ("SLOWER", "FASTER", "FAILED")


@dataclass(frozen=True)
class KnownChange:
    """A change of a case that lasts: its first run, the ratio of the times after it to those
    before, None where the case fails, and the names of the nodes that were found slow then."""

    verdict: CaseVerdict
    since_run: str
    ratio: float | None = None
    nodes: str = ""


@dataclass(frozen=True)
class WatchState:
    """`cases` are keys, see `suite_key`; so are those of `changes`, and of `ended`, the run with
    which the last change of a case ended. `launches`: how many were started. `turns`: the names of
    the first runs of the last turns, oldest first. `taken`: how many turns there were."""

    suite: tuple[str, ...]
    cases: tuple[str, ...]
    launches: int = 0
    changes: Mapping[str, KnownChange] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    turns: tuple[str, ...] = ()
    taken: int = 0

    def after_turn(self, first_run: str) -> WatchState:
        turns = (*self.turns, first_run)[-MOST_TURNS:]
        return dataclasses.replace(self, turns=turns, taken=self.taken + 1)

    def oldest_of_last(self, turns: int) -> str | None:
        """The first run of the turn that is so many turns back; None if there were not as many."""
        return self.turns[-turns] if len(self.turns) >= turns else None


def state_path(store: Path) -> Path:
    return store / WATCH_FOLDER / STATE_FILE


def read_state(store: Path) -> WatchState | None:
    """None before the first turn. Raises Unreadable for a file that is damaged, or written by
    another version."""
    path = state_path(store)
    try:
        stored = json.loads(file_bytes(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"{path} can't be read ({error}); {_advice(store)}") from error
    version = stored.get("version") if isinstance(stored, dict) else None
    if version != STATE_VERSION:
        raise Unreadable(
            f"{path} has version {version}, this commbench reads {STATE_VERSION}; {_advice(store)}"
        )
    try:
        return _state_of(stored)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"{path} is not as commbench writes it; {_advice(store)}") from error


def _advice(store: Path) -> str:
    return (
        f"restore it, or move {store / WATCH_FOLDER} away: the healthy runs of the store stay,"
        " known changes are forgotten"
    )


def _state_of(stored: Mapping[str, Any]) -> WatchState:
    changes = {
        key: KnownChange(**{**change, "verdict": change["verdict"].upper()})  # lower in 2026
        for key, change in stored["changes"].items()
    }
    if any(change.verdict not in CHANGES for change in changes.values()):
        raise TypeError("a verdict that is no change")
    turns = tuple(map(str, stored["turns"]))
    return WatchState(
        tuple(map(str, stored["suite"])),
        tuple(map(str, stored["cases"])),
        int(stored["launches"]),
        changes,
        {str(key): str(run_id) for key, run_id in stored["ended"].items()},
        turns,
        int(stored.get("taken", len(turns))),  # not in earlier files
    )


def write_state(store: Path, state: WatchState) -> None:
    """Replace the state, whole. Raises ConfigError, and keeps the old one then."""
    path = state_path(store)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"version": STATE_VERSION, **dataclasses.asdict(state)})
    except OSError as error:
        raise ConfigError(
            f"{path} can't be written: {error.strerror}; make room on its disk: the turn is judged"
            " again then"
        ) from error


def check_suite(store: Path, state: WatchState, suite: tuple[str, ...]) -> None:
    """Raises ConfigError for another suite than that of the store: its runs would not be alike."""
    if state.suite != suite:
        raise ConfigError(
            f"{store} watches another suite: {' '.join(state.suite)}; here it is"
            f" {' '.join(suite)}; give the same words, or another --baseline"
        )


def check_cases(store: Path, state: WatchState, cases: tuple[str, ...]) -> None:
    """Raises ConfigError where the same words have become other cases, as after an update."""
    new = len(set(cases) - set(state.cases))
    gone = len(set(state.cases) - set(cases))
    if new or gone:
        raise ConfigError(
            f"the suite has changed since the last turn: {new} of its cases are new, {gone} are"
            f" gone; {store} can't judge it: use another --baseline"
        )
