"""What made the numbers of a run less certain than they could be, each cause once, with its
figures."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from commbench.analysis.case_names import case_names
from commbench.core.layout import Layout
from commbench.core.states import Row, case_status
from commbench.core.texts import span_text
from commbench.core.units import format_number, format_seconds
from commbench.core.variables import MODEL_ENGINE, NAMES
from commbench.hardware.host import is_busy
from commbench.results.columns import grouped
from commbench.results.flags import UNBOUND, binding_text, warnings_of
from commbench.results.run_folder import mapping_or_empty

from .machines import nodes_of

# the columns of a row that causes reads
JUDGED = (*NAMES, "label", "status", "warnings", "unmeasured_s", "visits_s")
READING = "p2p_latency_s"  # of the reference case
MOST_NODES = 3
MOST_SOAKS = 3  # that are named
GAPS_SHARE = 0.01  # of a soak that may pass outside its repetitions


def causes(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[str]:
    """A text for each cause: `this machine was busy: load 12.4 on 2 cores`."""
    measured = [row for row in rows if case_status(row) == "ok" and row["engine"] != MODEL_ENGINE]
    if not measured:
        return []
    return [
        *dict.fromkeys(text for run in _first_of_sweeps(runs) for text in _busy(run)),
        *_shared_cores(runs, measured),
        *(text for run in runs for text in _moved(run)),
        *_gaps(measured),
        *_bindings(runs, {str(row["backend"]) for row in measured if _is_crowded(row)}),
    ]


def _first_of_sweeps(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first run of each command: in the load of the others are the runs before them."""
    in_order = sorted(runs, key=lambda run: str(run.get("started_at")))
    by_sweep = grouped(in_order, lambda run: str(run.get("sweep_id") or run.get("run_id")))
    return [of_sweep[0] for of_sweep in by_sweep.values()]


def disturbances_text(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> str:
    """All causes in one paragraph; empty where there is none."""
    found = causes(runs, rows)
    return f"disturbances: {'; '.join(found)}" if found else ""


def busy_nodes(run: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Host, load and cores of each node that had less than a free core for each rank when the run
    began."""
    ranks = mapping_or_empty(run.get("world")).get("ranks")
    for number, node in enumerate(nodes_of(run)):
        load = node.get("host.load_1min")
        cores = _cores(run, node)
        if not load or not cores:
            continue
        on_node = len(ranks[number]) if isinstance(ranks, list) and number < len(ranks) else 1
        if is_busy(load, on_node, cores):
            yield str(node.get("host.hostname")), float(load), cores


def _cores(run: Mapping[str, Any], node: Mapping[str, Any]) -> float:
    """The cores of a node that ranks may use; 0 where unknown. A bound process sees only its
    own."""
    allowed = node.get("limits.cpu_cores") if binding_text(run) == UNBOUND else None
    return float(allowed or node.get("host.cpu_logical_cores") or 0)


def _busy(run: Mapping[str, Any]) -> Iterator[str]:
    busy = list(busy_nodes(run))
    alone = len(nodes_of(run)) == 1
    for host, load, cores in busy[:MOST_NODES]:
        name = "this machine" if alone else host
        yield f"{name} was busy: load {format_number(load)} on {cores:g} cores"
    if len(busy) > MOST_NODES:
        yield f"and {len(busy) - MOST_NODES} more nodes"


def _shared_cores(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Iterator[str]:
    """Which backends had more threads than cores, or ranks than GPUs."""
    crowded = list(filter(_is_crowded, rows))
    cores = {count for run in runs for node in nodes_of(run) if (count := _cores(run, node))}
    of_node = f"the {min(cores):g} cores" if len(cores) == 1 else "the cores of a node"
    for backend, own in grouped(crowded, lambda row: str(row["backend"])).items():
        if any(row["device"] == "cuda" for row in own):
            yield f"{backend} has several ranks on a GPU"
        else:
            layouts = sorted({str(row["layout"]) for row in own})
            every = {str(row["layout"]) for row in rows if row["backend"] == backend}
            where = f" in {', '.join(layouts)}" if set(layouts) != every else ""
            ranks = max(Layout.parse(layout).ranks_per_node for layout in layouts)
            what = f"{ranks} ranks on" if ranks > min(cores, default=ranks) else "more threads than"
            yield f"{backend} has {what} {of_node}{where}"


def _is_crowded(row: Row) -> bool:
    return "oversubscribed" in warnings_of(row)


def _moved(run: Mapping[str, Any]) -> Iterator[str]:
    """How far the reference case moved between the passes, where at least half of them differ from
    the others."""
    passes = [entry for entry in run.get("reference") or [] if isinstance(entry, Mapping)]
    if not passes or 2 * sum(bool(entry.get("moved")) for entry in passes) < len(passes):
        return
    medians = [entry[READING][0] for entry in passes if entry.get(READING)]
    if medians:
        backend = mapping_or_empty(run.get("backend")).get("name")
        yield f"{backend} at 8 B moved between passes: {span_text(medians, format_seconds)}"


def _gaps(rows: Iterable[Row]) -> Iterator[str]:
    """The soaks of which more than GAPS_SHARE passed outside of their repetitions."""
    soaks = [
        row
        for row in rows
        if (row.get("unmeasured_s") or 0.0) > GAPS_SHARE * (row.get("visits_s") or 0.0)
    ]
    gaps_s = [float(row["unmeasured_s"]) for row in soaks]
    if len(soaks) > MOST_SOAKS:
        gaps = span_text(gaps_s, format_seconds)
        yield f"{len(soaks)} soaks: {gaps} passed between the repetitions of each"
        return
    for gap_s, name in zip(gaps_s, case_names(soaks), strict=True):
        yield f"{name}: {format_seconds(gap_s)} passed between its repetitions"


def _bindings(runs: Iterable[Mapping[str, Any]], crowded: Container[str]) -> Iterator[str]:
    """Which backends had ranks that were not bound to cores, where others had. More threads than
    cores can't be bound."""
    texts: dict[str, set[str]] = {}
    for run in runs:
        backend = mapping_or_empty(run.get("backend")).get("name")
        if backend and (text := binding_text(run)):
            texts.setdefault(str(backend), set()).add(text)
    unbound = sorted(name for name, seen in texts.items() if UNBOUND in seen)
    told = [name for name in unbound if name not in crowded]
    if told and len(unbound) < len(texts):
        yield f"{', '.join(told)}: ranks not bound to cores, others were"
