"""What made the numbers of a run less certain than they could be, each cause once, with its
figures."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from commbench.analysis.case_names import case_names
from commbench.core.layout import Layout
from commbench.core.texts import span_text
from commbench.core.units import format_number, format_seconds
from commbench.core.variables import MODEL_ENGINE
from commbench.hardware.host import is_busy
from commbench.results.columns import grouped
from commbench.results.flags import UNBOUND, binding_text
from commbench.results.row import Row
from commbench.results.run_folder import clock_text, mapping_or_empty

from .machines import nodes_of

READING = "p2p_latency_s"  # of the reference case
MOST_NODES = 3
MOST_NAMED = 3  # cases with two typical times


def causes(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[str]:
    """A text for each cause: `this machine was busy: load 12.4 on 2 cores`."""
    measured = [row for row in rows if row.status == "ok" and row.engine != MODEL_ENGINE]
    if not measured:
        return []
    return [
        *_busy(_first_of_sweeps(runs)),
        *_core_waits(measured),
        *_shared_cores(runs, measured),
        *_moved(runs),
        *_two_modes(measured),
        *_bindings(runs, {row.backend for row in measured if _is_crowded(row)}),
        *filter(None, [clock_text(runs)]),
    ]


def _first_of_sweeps(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first run of each command: in the load of the others are the runs before them."""
    in_order = sorted(runs, key=lambda run: str(run.get("run_id")))
    by_sweep = grouped(in_order, lambda run: str(run.get("sweep_id") or run.get("run_id")))
    return [of_sweep[0] for of_sweep in by_sweep.values()]


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


def _busy(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The load of each host, once for all runs on it."""
    hosts = {node.get("host.hostname") for run in runs for node in nodes_of(run)}
    busy = grouped(
        (found for run in runs for found in busy_nodes(run)),
        lambda found: (found[0], found[2]),
    )
    for (host, cores), found in [*busy.items()][:MOST_NODES]:
        name = "this machine" if len(hosts) == 1 else host
        loads = span_text([load for _, load, _ in found], format_number)
        yield f"{name} was busy: load {loads} on {cores:g} cores"
    if len(busy) > MOST_NODES:
        yield f"and {len(busy) - MOST_NODES} more nodes"


def _core_waits(rows: Sequence[Row]) -> Iterator[str]:
    """For which share of the measured time the ranks of each backend had no core."""
    waited = [row for row in rows if "waited" in row.warnings]
    for backend, own in grouped(waited, lambda row: row.backend).items():
        percent = span_text([100 * (row.core_wait_share or 0.0) for row in own], "{:.0f}".format)
        yield f"ranks of {backend} waited for a core, {percent} % of the time"


def _shared_cores(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Iterator[str]:
    """Which backends had ranks on one GPU, or more threads than cores, where nobody knows how long
    these have waited for one."""
    crowded = list(filter(_is_crowded, rows))
    cores = {count for run in runs for node in nodes_of(run) if (count := _cores(run, node))}
    of_node = f"the {min(cores):g} cores" if len(cores) == 1 else "the cores of a node"
    for backend, own in grouped(crowded, lambda row: row.backend).items():
        if any(row.device == "cuda" for row in own):
            yield f"{backend} has several ranks on a GPU"
        else:
            layouts = sorted({row.layout for row in own})
            every = {row.layout for row in rows if row.backend == backend}
            where = f" in {', '.join(layouts)}" if set(layouts) != every else ""
            ranks = max(Layout.parse(layout).ranks_per_node for layout in layouts)
            what = f"{ranks} ranks on" if ranks > min(cores, default=ranks) else "more threads than"
            yield f"{backend} has {what} {of_node}{where}"


def _is_crowded(row: Row) -> bool:
    is_measured = row.device != "cuda" and row.core_wait_share is not None
    return "oversubscribed" in row.warnings and not is_measured


def _moved(runs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """How far the reference case moved between the passes, by backend, in runs where at least half
    of the passes differ from the others."""
    medians_s = dict[str, list[float]]()
    for run in runs:
        passes = [entry for entry in run.get("reference") or [] if isinstance(entry, Mapping)]
        if 2 * sum(bool(entry.get("moved")) for entry in passes) >= max(len(passes), 1):
            backend = str(mapping_or_empty(run.get("backend")).get("name"))
            own = [entry[READING][0] for entry in passes if entry.get(READING)]
            medians_s.setdefault(backend, []).extend(own)
    spans = [
        f"{span_text(own, format_seconds)} with {backend}"
        for backend, own in medians_s.items()
        if own
    ]
    if spans:
        took = f"the reference case, 8 B after each pass, took {', '.join(spans)}"
        yield f"the machine changed between passes, which the intervals include: {took}"


def _two_modes(rows: Sequence[Row]) -> Iterator[str]:
    """The cases whose repetitions have two typical times, with both."""
    apart = [row for row in rows if (row.slow_share or 0.0) > 0]
    if len(apart) > MOST_NAMED:
        yield f"{len(apart)} cases have two typical times, both in the interval"
        return
    is_only = len({row.backend for row in rows}) == 1
    for row, name in zip(apart, case_names(apart), strict=True):
        which = name if is_only else f"{row.backend} {name}"
        fast, slow = format_seconds(row.fast_mode_s), format_seconds(row.slow_mode_s)
        share = f"{100 * (row.slow_share or 0.0):.0f} %"
        yield f"two typical times of {which}: {fast}, and {slow} in {share} of the repetitions"


def _bindings(runs: Iterable[Mapping[str, Any]], crowded: Container[str]) -> Iterator[str]:
    """Which backends had ranks that were not bound to cores, where others had. More threads than
    cores can't be bound."""
    texts = dict[str, set[str]]()
    for run in runs:
        backend = mapping_or_empty(run.get("backend")).get("name")
        if backend and (text := binding_text(run)):
            texts.setdefault(str(backend), set()).add(text)
    unbound = sorted(name for name, seen in texts.items() if UNBOUND in seen)
    told = [name for name in unbound if name not in crowded]
    if told and len(unbound) < len(texts):
        yield f"{', '.join(told)}: ranks not bound to cores, others were"
