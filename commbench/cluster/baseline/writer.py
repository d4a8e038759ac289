"""The one writer of a store of baselines (store.py): whole runs, once each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.cluster.baseline.store import CASES_FILE, store_key, stored_runs
from commbench.core.errors import CommbenchError, ConfigError, Unreadable
from commbench.core.states import CaseStatus, status_of_run
from commbench.core.terminal import first_line
from commbench.core.units import plural
from commbench.results.columns import SCHEMA_VERSION, arrow_schema
from commbench.results.durable_files import error_text
from commbench.results.load import RUN, find_runs, frame_of, load_run, read_cases
from commbench.results.run_folder import RECORD, how_to_finish, replace_file, write_json
from commbench.runtime.folder_lock import FolderUse, is_measured_into, locked

if TYPE_CHECKING:
    import pandas as pd

ADDING = FolderUse("adding runs to", "wait for its end, then repeat the command")
UNHEALTHY: tuple[CaseStatus, ...] = ("failed", "invalid")


@dataclass(frozen=True)
class AddedRuns:
    """The folders of runs that were added, or were in the store already; `refused` has a line for
    each that was not added, which says why."""

    added: tuple[Path, ...]
    present: tuple[Path, ...]
    refused: tuple[str, ...]


@dataclass(frozen=True)
class _HealthyRun:
    """A run that may be added: its id, its record (run.json) and its cases."""

    run_id: str
    record: dict[str, Any]
    cases: pd.DataFrame


def make_store(store: Path, below: str = "") -> Path:
    """Make the folder of a store, or one below it. Raises ConfigError."""
    folder = store / below
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--baseline {store} can't be made: {error_text(error)}; choose another folder"
        ) from error
    return folder


def add_runs(store: str | Path, paths: Iterable[str | Path]) -> AddedRuns:
    """Add the runs at or below the paths to a store, which is made if there is none; a run whose id
    is in it already changes nothing.

    Takes the lock of the store, which the caller must not hold. Raises ConfigError where another
    process holds it, the folder is something else, or can't be written.
    """
    root = Path(store)
    _check_target(root)
    runs: list[Path] = []
    refused: list[str] = []
    for path in map(Path, paths):
        below = find_runs(path)
        runs += below
        refused += [] if below else [_no_run(path)]
    make_store(root)
    with locked(root, ADDING):
        return _add_each(root, runs, refused)


def set_aside(store: str | Path, runs: Iterable[Path], target: Path) -> None:
    """Move runs, of the store or from anywhere on its disk, to a folder that is no part of the
    baseline. Raises ConfigError.

    Takes the lock of the store, which the caller must not hold.
    """
    root = Path(store)
    with locked(root, ADDING):
        for run in filter(Path.exists, runs):  # not those that an interrupted turn has moved
            try:
                target.mkdir(parents=True, exist_ok=True)
                run.rename(target / run.name)
            except OSError as error:
                raise ConfigError(
                    f"{run} can't be moved to {target}: {error_text(error)}; move it by hand: it"
                    " looks changed, so it is no baseline"
                ) from error
            _remove_empty(run.parent, run.parent.parent)


def is_healthy(run: Path) -> bool:
    """Whether a run has ended and has no failed or invalid case, so that it could be added."""
    try:
        _healthy_run(run)
    except CommbenchError:
        return False
    return True


def _add_each(root: Path, runs: Sequence[Path], refused: list[str]) -> AddedRuns:
    present_ids = {run.name for run in stored_runs(root)}
    added: list[Path] = []
    present: list[Path] = []
    for run in runs:
        try:
            healthy = _healthy_run(run)
        except CommbenchError as error:
            refused.append(first_line(error))
            continue
        if healthy.run_id in present_ids:
            present.append(run)
            continue
        try:
            _write_run(root, healthy)
        except OSError as error:
            raise ConfigError(
                f"--baseline {root} can't be written: {error_text(error)}; {len(added)} of"
                f" {plural(len(runs), 'run was', 'runs were')} added; make room and repeat the"
                " command: runs that are in the store stay as they are"
            ) from error
        present_ids.add(healthy.run_id)
        added.append(run)
    return AddedRuns(tuple(added), tuple(present), tuple(refused))


def _check_target(root: Path) -> None:
    """Raise ConfigError for a folder of results, or a file, which must not become a store."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"--baseline {root} is not a folder; name one")
    direct = next(root.glob(f"*/{RECORD}"), None)
    if (root / RECORD).exists() or direct is not None:
        raise ConfigError(
            f"--baseline {root} is a folder of results: it has {direct or root / RECORD}; name a"
            " folder of its own for the store"
        )


def _no_run(path: Path) -> str:
    return f"{path} {'has no run.json in it or below it' if path.is_dir() else 'does not exist'}"


def _healthy_run(run: Path) -> _HealthyRun:
    """The run, read whole. Raises CommbenchError, in one line, where it must not be added."""
    record = load_run(run)
    status = status_of_run(record)
    run_id = str(record.get("run_id") or "")
    if is_measured_into(run):
        raise Unreadable(f"{run} is being measured into; add it when it has ended")
    if status != "done":
        raise Unreadable(f"{run} has not ended (status {status}); {how_to_finish(run)}")
    if not run_id or run_id != Path(run_id).name:
        raise Unreadable(f"{run / RECORD} has no usable run_id: {run_id!r}")
    sources, problems = read_cases([run])
    if problems:
        raise Unreadable(problems[0])
    cases = frame_of([source.cases for source in sources])
    counts = Counter(cases["status"])
    bad = [f"{counts[status]} {status}" for status in UNHEALTHY if counts[status]]
    if bad:
        raise Unreadable(
            f"{run} is no baseline: {', '.join(bad)} of {plural(len(cases), 'case', 'cases')};"
            f" see commbench show {run}"
        )
    if not counts["ok"]:
        raise Unreadable(f"{run} is no baseline: no case of it was measured")
    return _HealthyRun(run_id, record, cases)


def _write_run(root: Path, run: _HealthyRun) -> None:
    """Write both files of a run, the cases last: with them it belongs to the store. Raises OSError,
    and leaves nothing then."""
    folder = root / store_key(run.record).folder / run.run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RECORD, run.record)
        replace_file(folder / CASES_FILE, _as_parquet(run))
    except OSError:
        with suppress(OSError):
            (folder / RECORD).unlink(missing_ok=True)
        _remove_empty(folder, folder.parent, folder.parent.parent)
        raise


def _remove_empty(*folders: Path) -> None:
    """The innermost first; what other runs are in stays."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _as_parquet(run: _HealthyRun) -> memoryview:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema("cases")
    table = pa.Table.from_pandas(run.cases[schema.names], schema, preserve_index=False)
    metadata = {b"schema_version": str(SCHEMA_VERSION), RUN: json.dumps(run.record)}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True)
    return memoryview(sink.getvalue())
