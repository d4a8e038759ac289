"""A store of baselines: a folder with the runs of healthy machines, and what it knows about a case.

    STORE/hardware=8x-NVIDIA-H100_NVLink_8x-InfiniBand_.../software=torch-2.13.0-nccl-2.27.3/
        20261125T130450.400323-585e/run.json
        20261125T130450.400323-585e/cases.parquet

Each run is an ordinary run without samples and counters, so every command that reads runs reads a
store. The two levels above it are a hive partition: names of what its cases may be compared with.
Layouts, sizes and all other variables are in the case_id. A run belongs to the store once it has
its cases.parquet, which appears last and whole (cluster/baseline/writer.py).
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.core.annexes import registered
from commbench.core.errors import ConfigError, Unreadable
from commbench.core.variables import NAMES
from commbench.report.showing import Showing
from commbench.results.load import load_run, rows_of_table
from commbench.results.row import Measured, Row
from commbench.results.run_folder import check_readable, mapping_or_empty
from commbench.results.table_files import Damaged, read_table

CASES_FILE = "cases.parquet"
HARDWARE = "hardware="
SOFTWARE = "software="
NOT_RECORDED = "unknown"
LONGEST_NAME = 160  # characters of a folder's name; file systems take 255 bytes
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
GPU_NAME = re.compile(r"gpu\.\d+\.name")
NVLINKS = re.compile(r"gpu\.\d+\.nvlink_links")
DRIVER = re.compile(r"network\.interface\..+\.driver")
RDMA_PORT = re.compile(r"network\.rdma\..+:\d+\.link_layer")
READ_COLUMNS = (  # beside those that features read of a change
    *NAMES,
    "run_id",
    "case_id",
    "hosts",
    "status",
    "median_s",
    "visit_medians_s",
    "visit_launches",
)


# ---------------------------------------------------------------- keys


@dataclass(frozen=True, order=True)
class StoreKey:
    """What the cases of a run may be compared with: runs on hardware and with a library of the same
    names. Both are names of folders."""

    hardware: str
    software: str

    @property
    def folder(self) -> Path:
        """Below the store."""
        return Path(f"{HARDWARE}{self.hardware}", f"{SOFTWARE}{self.software}")

    def __str__(self) -> str:
        return f"{self.hardware} with {self.software}"


def store_key(record: Mapping[str, Any]) -> StoreKey:
    """The key of a run, from its run.json."""
    backend = mapping_or_empty(record.get("backend"))
    nodes = mapping_or_empty(record.get("provenance")).get("nodes")
    listed = nodes if isinstance(nodes, list) else []
    kinds = sorted({_node_text(mapping_or_empty(node)) for node in listed})
    return StoreKey(
        _shortened("_and_".join(kinds) or NOT_RECORDED),
        _shortened(_readable(str(backend.get("library") or NOT_RECORDED))),
    )


def _node_text(node: Mapping[str, Any]) -> str:
    """What a node is: its GPUs, their links, its network cards and its CPU.

    No rates and states: a link at half its rate is a fault of this hardware, not other hardware.
    """
    gpus = Counter(str(node[fact]) for fact in node if GPU_NAME.fullmatch(fact))
    links = [node[fact] for fact in node if NVLINKS.fullmatch(fact) and node[fact]]
    ports = Counter(str(node[fact]) for fact in node if RDMA_PORT.fullmatch(fact) and node[fact])
    drivers = Counter(str(node[fact]) for fact in node if DRIVER.fullmatch(fact) and node[fact])
    cores = node.get("host.cpu_physical_cores")
    parts = [
        *_counted(gpus),
        *(["NVLink"] if links else []),
        *_counted(ports),
        *_counted(drivers),
        str(node.get("host.cpu_model") or NOT_RECORDED),
        *([f"{cores}-cores"] if cores else []),
    ]
    return "_".join(_readable(part) for part in parts)


def _counted(names: Counter[str]) -> Iterator[str]:
    for name, count in sorted(names.items()):
        yield f"{count}x {name}"


def _readable(text: str) -> str:
    """The text as part of a path that no shell, URL or database reads otherwise."""
    return NOT_IN_NAMES.sub("-", text.strip()).strip("-.") or NOT_RECORDED


def _shortened(name: str) -> str:
    """The name, if need be with a digest in place of its end."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# ---------------------------------------------------------------- what a store holds


def stored_runs(store: Path, key: StoreKey | None = None) -> list[Path]:
    """The folders of the whole runs of a store, or of a key, oldest first. Raises Unreadable."""
    check_readable(store)
    below = f"{HARDWARE}*/{SOFTWARE}*" if key is None else str(key.folder)
    return sorted(
        (file.parent for file in store.glob(f"{below}/*/{CASES_FILE}")), key=lambda run: run.name
    )


def store_keys(store: Path) -> list[StoreKey]:
    """The keys for which the store has runs."""
    names = {(run.parents[1].name, run.parent.name) for run in stored_runs(store)}
    return sorted(
        StoreKey(hardware.removeprefix(HARDWARE), software.removeprefix(SOFTWARE))
        for hardware, software in names
    )


def check_store(store: Path) -> None:
    """Raise ConfigError where there is no store with a run."""
    if not store.is_dir():
        raise ConfigError(
            f"{store} is not a folder; make a store with: commbench baseline add RUN..."
            f" --baseline {store}"
        )
    if not stored_runs(store):
        raise ConfigError(
            f"{store} is not a store of baselines: it has no {HARDWARE}*/{SOFTWARE}*/RUN/"
            f"{CASES_FILE}; add healthy runs with: commbench baseline add RUN... --baseline {store}"
        )


@dataclass(frozen=True)
class BaselineCase:
    """A case of a store: its rows and its launches, oldest first; no launches where no run could
    measure it."""

    rows: tuple[Row, ...]
    launches: tuple[HealthyLaunch, ...]


def healthy_launches(store: str | Path, key: StoreKey) -> dict[str, BaselineCase]:
    """Case id -> what the runs of this key have measured; empty for a key that the store does not
    have.

    Raises Unreadable, in one line, where a run of the store can't be read or has another schema.
    """
    rows: dict[str, list[Row]] = {}
    launches: dict[str, list[HealthyLaunch]] = {}
    for run in stored_runs(Path(store), key):
        record, cases = read_stored_run(run)
        day = day_of(record.get("started_at"))
        for row in cases:
            rows.setdefault(row.case_id, []).append(row)
            launches.setdefault(row.case_id, []).extend(launches_of(row, day))
    return {
        case_id: BaselineCase(tuple(own), tuple(launches[case_id])) for case_id, own in rows.items()
    }


def day_of(started_at: object) -> str:
    """The day (UTC) on which a run began."""
    return str(started_at or NOT_RECORDED)[:10]


def launches_of(row: Row, day: str) -> list[HealthyLaunch]:
    """The launches of a row; none of one that was not measured."""
    if not isinstance(row, Measured) or row.median_s <= 0:
        return []
    return [
        HealthyLaunch(median_s, row.run_id, row.hosts or NOT_RECORDED, day)
        for median_s in row.launch_medians
    ]


def read_stored_run(run: Path) -> tuple[dict[str, Any], list[Row]]:
    """The record (run.json) and the rows of a run of a store. Raises Unreadable."""
    changing = chain.from_iterable(feature.changing for feature in registered(Showing))
    try:
        record = load_run(run)
        cases = read_table(run / CASES_FILE, "cases", (*READ_COLUMNS, *changing))
    except FileNotFoundError as error:
        raise Unreadable(f"{run} of the store has no {CASES_FILE} any more") from error
    except Damaged as error:
        raise Unreadable(
            f"{error}; move {run} out of the store, or add its run again after that"
        ) from error
    return record, rows_of_table(cases)


@dataclass(frozen=True)
class StoredRun:
    """A run of the store: its hardware, its record (run.json) and its rows."""

    path: Path
    hardware: str
    record: Mapping[str, Any]
    rows: Sequence[Row]


def read_stored_runs(store: Path) -> list[StoredRun]:
    """All runs of the store, oldest first. Raises Unreadable."""
    runs = []
    for path in stored_runs(store):
        record, rows = read_stored_run(path)
        runs.append(StoredRun(path, store_key(record).hardware, record, rows))
    return runs
