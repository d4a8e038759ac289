"""An experiment of another tool as the folder of a run, which every command reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import commbench
from commbench.core.case import version_of
from commbench.core.errors import ConfigError
from commbench.core.extras import is_installed
from commbench.core.layout import Layout, ends_of_pair
from commbench.core.variables import NAMES, Case
from commbench.results.columns import SCHEMA_VERSION, grouped
from commbench.results.jsonl import JsonStore
from commbench.results.parquet import Parquet
from commbench.results.row import Measured, Row
from commbench.results.run_folder import new_folder
from commbench.results.writer import Entry, Writer

from .experiment import GB, ONE_PATH, WITHOUT_RATE, Experiment, RankPlace, bus_factor

CUDA = "cuda"


@dataclass(frozen=True)
class Source:
    """A file, by the SHA-256 of its content (of a packed one unpacked), and what of it could not be
    read."""

    name: str
    sha256: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Told:
    """What the user says of all files."""

    machine: str | None = None
    layout: Layout | None = None


@dataclass(frozen=True)
class Imported:
    """A run to write: its cases without those that the file does not say enough of, and `left_out`,
    why."""

    experiment: Experiment
    sources: Sequence[Source]
    told: Told
    rows: Sequence[Row]
    left_out: Sequence[str] = ()

    @property
    def layout(self) -> Layout | None:
        return self.experiment.layout or self.told.layout

    @property
    def ranks(self) -> int | None:
        return self.layout.size if self.layout else self.experiment.ranks


def imported_runs(
    experiment: Experiment, sources: Sequence[Source], told: Told
) -> Iterator[Imported]:
    """One for each launch of an experiment; raises ConfigError where the user says another layout
    than the file."""
    layout, ranks = experiment.layout, experiment.ranks
    if told.layout is not None:
        if layout is None and ranks not in (None, told.layout.size):
            raise ConfigError(
                f"--layout {told.layout} has {told.layout.size} ranks, but {sources[0].name} has"
                f" {ranks}; give the layout of its ranks, or none"
            )
        if layout not in (None, told.layout):
            raise ConfigError(
                f"--layout {told.layout}: {sources[0].name} says {layout}; leave --layout out"
            )
    own = Imported(experiment, sources, told, ())
    sized, left_out = _sized(own)
    complete = [_complete(row, own) for row in sized]
    by_case = grouped(complete, lambda row: row.case_id)
    if experiment.repeats == "visits":
        yield replace(own, rows=[*map(_of_visits, by_case.values())], left_out=left_out)
        return
    launches = max(map(len, by_case.values()), default=0)
    for launch in range(launches):
        rows = [rows[launch] for rows in by_case.values() if launch < len(rows)]
        yield replace(own, rows=rows, left_out=left_out)


def _sized(run: Imported) -> tuple[list[Row], list[str]]:
    """The rows with the message of all ranks, where a file has the block of one; without those of
    which it is not known, said once for each operation."""
    rows: list[Row] = []
    left_out = dict[str, None]()
    for row in run.experiment.rows:
        if row.bytes_per_rank is None:
            rows.append(row)
        elif run.ranks is None:
            left_out[
                f"{row.benchmark}: its sizes are those of one rank, and the file does not say how"
                " many ranks there were; say it with --layout NODESxRANKS"
            ] = None
        else:
            rows.append(replace(row, message_bytes=row.bytes_per_rank * run.ranks))
    return rows, [*left_out]


def _complete(row: Row, run: Imported) -> Row:
    """The row with what its experiment has, and its rates."""
    experiment = run.experiment
    layout = Layout.parse(row.layout) if row.layout else run.layout
    ranks = layout.size if layout else run.ranks
    told: dict[str, Any] = {
        "backend": experiment.backend,
        "layout": layout and str(layout),
        "library": experiment.library,
        **ends_of_pair(row.pair),
    }
    row = replace(row, **told)
    hosts = sorted({place.host for place in experiment.places if place.host})
    row = replace(
        row,
        case_id=Case(**{name: getattr(row, name) for name in NAMES}).case_id,
        hosts=" ".join(hosts) or None,
        started_at=experiment.started_at,
        library_version=version_of(experiment.library),
        nodes=layout.nodes if layout else None,
        ranks_per_node=layout.ranks_per_node if layout else None,
        world_size=ranks,
        imported_from=f"{experiment.tool_text}, sha256 {run.sources[0].sha256}",
    )
    return _with_rates(row, ranks) if isinstance(row, Measured) else row


def _with_rates(row: Measured, ranks: int | None) -> Row:
    """By the time, which has more digits; the bus bandwidth as printed where the ranks are not
    known."""
    if row.benchmark in WITHOUT_RATE:
        return row
    rate = row.message_bytes / row.median_s / GB
    factor = 1.0 if row.benchmark in ONE_PATH else bus_factor(row.benchmark, ranks)
    return replace(
        row,
        algbw_gb_per_s=rate,
        busbw_gb_per_s=row.busbw_gb_per_s if factor is None else rate * factor,
        message_rate_per_s=1 / row.median_s if row.pair else None,
    )


def _of_visits(rows: Sequence[Row]) -> Row:
    """One row of a case that came several times in one start."""
    worst = next((row for row in rows if row.status != "ok"), None)
    if worst is not None or len(rows) == 1:
        return worst or rows[0]
    measured = [row for row in rows if isinstance(row, Measured)]
    times = [row.median_s for row in measured]
    middle = replace(
        measured[0],
        median_s=median(times),
        mean_s=fmean(times),
        visits=len(times),
        visit_spread=max(times) / min(times),
        visit_medians_s=tuple(times),
        visit_launches=(0,) * len(times),
    )
    return _with_rates(middle, middle.world_size)


# ---------------------------------------------------------------- the folder


def write_run(run: Imported, output: str, after: str, first: str | None) -> Path:
    """The folder of a new run, named after `after`; `first`: the first run of this import. Raises
    ConfigError and Unsaved."""
    folder = Path(new_folder(output, after))
    rows = [
        replace(row, run_id=folder.name, sweep_id=first or folder.name, order=order)
        for order, row in enumerate(run.rows)
    ]
    record = _record(run, folder, first or folder.name)
    writer: Writer = Parquet() if is_installed("pyarrow") else JsonStore()
    writer.begin(record, str(folder))
    writer.cases([*map(Entry, rows)])
    writer.end(record)
    return folder


def _record(run: Imported, folder: Path, sweep: str) -> dict[str, Any]:
    """run.json: what a run has that commbench measures, as far as the file says it."""
    experiment = run.experiment
    layout = run.layout
    is_invalid = any(row.status != "ok" for row in run.rows)
    started_at = experiment.started_at
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "done",
        "exit_status": int(is_invalid),
        "started_at": started_at and started_at.isoformat(),
        "overrides": _settings(run),
        "sweep_id": sweep,
        "trial": None,
        "label": "",
        "timing": f"of {experiment.tool_text}",
        "world": {
            **({"size": run.ranks} if run.ranks else {}),
            **({"nodes": layout.nodes} if layout else {}),
            "launcher": "unknown",
        },
        "layouts": sorted({row.layout for row in run.rows if row.layout}),
        "backend": {"name": experiment.backend, "library": experiment.library or "unknown library"},
        "provenance": {"nodes": _nodes(run), "differences": {}},
        "run_id": folder.name,
        "folder": str(folder),
        "cases": len(run.rows),
        "imported": {
            "by": f"commbench {commbench.__version__}",
            "tool": experiment.tool,
            "tool_version": experiment.version,
            "files": [{"name": each.name, "sha256": each.sha256} for each in run.sources],
            "machine": run.told.machine,
            "layout": run.told.layout and str(run.told.layout),
            "settings": dict(experiment.settings),
            "notes": [*experiment.notes],
            "ended_early": experiment.is_cut,
            "not_read": [text for each in run.sources for text in each.problems],
        },
    }


def _settings(run: Imported) -> list[str]:
    """The keys with which commbench measures the same operations."""
    names = sorted({row.benchmark for row in run.rows})
    timers = sorted({row.timer for row in run.rows if row.timer})
    return [
        f"backend={run.experiment.backend}",
        f"benchmark=[{','.join(names)}]",
        *([f"layout={run.layout}"] if run.layout else []),
        *([f"timer=[{','.join(timers)}]"] if timers != ["host"] and timers else []),
    ]


def _nodes(run: Imported) -> list[dict[str, Any]]:
    """The facts of each node that are known, by the names that commbench has for them."""
    by_host = grouped(run.experiment.places, lambda place: place.host)
    on_gpus = any(row.device == CUDA for row in run.rows)
    nodes = [_node(host, places, on_gpus, run) for host, places in by_host.items()]
    if not nodes and run.told.machine is not None:
        nodes = [_node(None, (), on_gpus, run)]
    return [node for node in nodes if node]


def _node(
    host: str | None, places: Sequence[RankPlace], on_gpus: bool, run: Imported
) -> dict[str, Any]:
    machine = run.told.machine
    names = [place.gpu or machine for place in places] or [machine]
    # without a host it is not known how many of the ranks are on a node
    known = names if host is not None or (run.layout and run.layout.nodes == 1) else names[:1]
    gpus = {f"gpu.{at}.name": name for at, name in enumerate(known) if name} if on_gpus else {}
    return {
        **({"host.hostname": host} if host else {}),
        **({"machine": machine} if machine else {}),
        **({"host.cpu_model": machine} if machine and not on_gpus else {}),
        **({"gpu.count": len(gpus)} if gpus and known is names else {}),
        **gpus,
    }
