"""Before anything is measured: are all ranks the same, what can each node give, and what is to be written down."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commbench.config.settings import Settings
from commbench.core.case import World
from commbench.core.columns import SCHEMA_VERSION
from commbench.core.errors import ConfigError
from commbench.core.fact_scopes import scope_of
from commbench.core.protocols import Control
from commbench.core.run_folder import new_folder
from commbench.core.secrets import recorded_override
from commbench.hardware import machine_facts, network, resource_limits, topology
from commbench.hardware.gpu import own_gpu
from commbench.hardware.link_limits import Wire
from commbench.world.recovery import EarlierStarts

from .difference import skew_text, table
from .shared_gpus import busy, duplicate, lacking

MEETING_S = 120.0  # for preparations that every rank does at its own pace
USED = "network.used"
MEETING = ("MASTER_ADDR",)  # who is met there lives on the way to the other nodes


@dataclass(frozen=True)
class Request:
    """What the door knows about a job, beside its settings."""

    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    digest: str
    sweep_id: str | None = None
    folder: str | None = None  # made by the parent that started this world
    earlier: EarlierStarts | None = None  # where a run goes on
    config_dir: str | None = None
    judged: Callable[[str], list[str]] = lambda folder: []  # what in a folder misses expect=normal
    parent: bool = False  # it started this world, will say how it ended, and start a fresh one
    problem: str | None = None  # what this rank's own machine lacks: all ranks have to hear it


def preflight(
    settings: Settings, request: Request, world: World, control: Control, mine: dict[str, Any], cores: list[int]
) -> tuple[list[int], dict[str, Any]]:
    """Compare all ranks; memory, cache and cores that they agree on, and the description of the run (on rank 0).

    Raises ConfigError where ranks differ in what changes a measurement.
    """
    if len(world.nodes) > 1 and len(world.hosted) == 1:
        mine |= network.outgoing_facts(settings.interface, [os.environ[name] for name in MEETING if name in os.environ])
    mine |= _own_gpu(settings, world)
    cache_bytes = mine.get("gpu.own.l2_bytes") or mine.get("host.cpu_llc_bytes") or 0
    machine = [resource_limits.memory_limit_bytes() or sys.maxsize, cache_bytes]
    gathered = control.gather([mine, machine, cores, request.problem or lacking(mine)], MEETING_S, "preflight")
    problem, run, agreed = None, {}, None
    if world.rank == 0:
        facts = [one[0] for one in gathered]
        differing = machine_facts.differences(facts)
        problem = _lacking([one[3] for one in gathered], facts) or _shared_text(settings, world, facts)
        problem = problem or _difference_text(differing, facts, settings)
        agreed = _agreed(world, gathered)
        if problem is None and _have_gpus(settings, world):
            agreed += _gpus_agreed(facts)
        run = _describe(settings, request, world, facts, differing)
        if request.earlier is not None:
            problem = problem or _change_text(request.earlier, run)
            run = _continued(request.earlier, run)
    problem = control.agree(problem, MEETING_S, "preflight")
    if problem is not None:
        control.farewell(MEETING_S)  # rank 0 may hold the store that the others read the verdict from
        raise ConfigError(problem, shared=True)
    agreed = control.decide(agreed, MEETING_S, "preflight")
    if len(world.nodes) > 1:  # all leave the decision within milliseconds
        run |= _skew(settings, control.gather(time.time(), MEETING_S, "the clocks"), gathered)
    if world.rank == 0 and not settings.plan:
        run["run_id"] = Path(request.folder or new_folder(settings.output)).name
        run["folder"] = str(Path(request.folder or Path(settings.output).absolute() / run["run_id"]))
    return agreed, run


def _gpus_agreed(facts: list[dict[str, Any]]) -> list[int]:
    """Of a GPU the least memory that is free, and the fewest that a rank sees."""
    free = [one.get("gpu.own.memory_free_bytes", one["gpu.own.memory_total_bytes"]) for one in facts]
    return [min(free), min(one["gpu.own.visible"] for one in facts)]


def _have_gpus(settings: Settings, world: World) -> bool:
    """Whether each rank uses a GPU; ranks that one process hosts are no real ones."""
    return settings.device == "cuda" and len(world.hosted) == 1


def _own_gpu(settings: Settings, world: World) -> dict[str, Any]:
    """Facts about the GPU that this rank will use: the n-th rank of a node takes the n-th GPU that it sees."""
    if not _have_gpus(settings, world):
        return {}
    return own_gpu(world.nodes[world.node_of(world.rank)].index(world.rank))


def _shared_text(settings: Settings, world: World, facts: list[dict[str, Any]]) -> str | None:
    """Ranks that would meet on one GPU with a backend that can't do that; a GPU that others use is only said."""
    if not _have_gpus(settings, world):
        return None
    for line in busy(facts) if settings.preflight != "off" else ():
        print(f"commbench: {line}", file=sys.stderr)
    backend = settings.backend
    return None if backend.shares_gpu else duplicate(facts, world.nodes, backend.name)


def _skew(settings: Settings, times_s: list[float], gathered: list[Any]) -> dict[str, Any]:
    """For the record of rank 0, which also says it where it is much."""
    if not times_s:
        return {}
    text = skew_text(times_s, [one[0] for one in gathered])
    if text is not None and settings.preflight != "off":
        print(f"commbench: {text}", file=sys.stderr)
    return {"clock_skew_s": max(times_s) - min(times_s)}


def _agreed(world: World, gathered: list[Any]) -> list[int]:
    """The least memory, the largest cache, and the least number of cores that a node's ranks share."""
    if len(world.hosted) > 1:
        return [*gathered[0][1], len(gathered[0][2])]
    shared = [len({core for rank in node for core in gathered[rank][2]}) for node in world.nodes]
    return [min(one[1][0] for one in gathered), max(one[1][1] for one in gathered), min(shared)]


def _lacking(problems: list[str | None], facts: list[dict[str, Any]]) -> str | None:
    """What ranks lack on their machines, a line each; equal ones once, with the first rank that has it."""
    first = {problem: rank for rank, problem in reversed(list(enumerate(problems))) if problem is not None}
    lines = [f"rank {rank} on {facts[rank].get('host.hostname')}: {text}" for text, rank in first.items()]
    return "\n  ".join(sorted(lines)) or None


def _difference_text(
    differing: Mapping[str, Mapping[str, list[int]]], facts: list[dict[str, Any]], settings: Settings
) -> str | None:
    """None where the ranks agree in all that changes a measurement, or nobody wants to know."""
    preflight, network = settings.preflight, "/" in (settings.interface or "")
    errors = ("error",) if network else ("error", "network")
    grave = {key: ranks for key, ranks in differing.items() if scope_of(key).ranks in errors}
    if not grave or preflight == "off":
        return None
    text = f"ranks differ:\n{table(grave, facts)}\nmake them equal, or accept it with preflight=warn"
    if preflight == "warn":
        print(f"commbench: {text}", file=sys.stderr)
        return None
    return text


def _change_text(earlier: EarlierStarts, run: Mapping[str, Any]) -> str | None:
    """What is no longer as it was when the run began; rows before and after could not be compared."""
    before = earlier.run.get("provenance", {}).get("nodes", [])
    now = run["provenance"]["nodes"]
    lines = [f"  nodes: {len(before)} then, {len(now)} now"] if len(before) != len(now) else []
    for number, (old, new) in enumerate(zip(before, now, strict=False)):
        keys = {key for key in {*old, *new} if scope_of(key).restarts == "equal"}
        changed = sorted(key for key in keys if old.get(key) != new.get(key))
        lines += [f"  node {number}, {key}: {old.get(key)} then, {new.get(key)} now" for key in changed]
    if not lines or earlier.force:
        return None
    return "\n".join(["this is not as it was when the run began:", *lines, "accept it with: commbench resume --force"])


def _continued(earlier: EarlierStarts, run: Mapping[str, Any]) -> dict[str, Any]:
    """run.json of a run that goes on: it began when it began, and tells all its starts."""
    kept = ("started_at", "sweep_id", "broken")
    last = {key: earlier.run.get(key) for key in ("status", "reason", "finished_at")}
    segments = [*earlier.run.get("segments", []), last]
    return {**run, **{key: earlier.run[key] for key in kept if key in earlier.run}, "segments": segments}


def wires(run: Mapping[str, Any]) -> tuple[Wire | None, ...]:
    """Of each node, the interface to the others and its rate; None where that is not known. Only rank 0 has a run."""
    nodes = run["provenance"]["nodes"] if run else []
    found = [(node.get(f"{USED}.interface"), node.get(f"{USED}.speed_mbit_per_s")) for node in nodes]
    return tuple(None if name is None or speed is None else Wire(name, speed) for name, speed in found)


def _describe(
    settings: Settings,
    request: Request,
    world: World,
    facts: list[dict[str, Any]],
    differing: Mapping[str, Mapping[str, list[int]]],
) -> dict[str, Any]:
    """run.json, but for what the library tells when it is open."""
    nodes = machine_facts.by_node(facts, [world.node_of(rank) for rank in range(len(facts))])
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "running",
        "exit_status": None,
        "started_at": datetime.now(timezone.utc).isoformat(),
        "overrides": [recorded_override(one) for one in request.overrides],
        "sweep_id": request.sweep_id,
        "launch": settings.launch,
        "label": settings.label,
        "timing": settings.timing.name,
        "world": {"size": world.size, "nodes": len(world.nodes), "ranks": world.nodes, "launcher": world.launcher},
        "cuda_ipc": {"asked": settings.cuda_ipc, "effective": facts[0].get("ipc.effective")},
        "gpus": [{key: one[key] for key in sorted(one) if key.startswith("gpu.own.")} for one in facts]
        if _have_gpus(settings, world)
        else [],
        "wiring": [topology.node_record(one) for one in nodes],
        "topology": facts[0].get(topology.TABLE),
        "config": request.config,
        "config_dir": request.config_dir,
        "layouts": [str(layout) for layout in settings.layouts],
        "provenance": {
            "nodes": nodes,
            "differences": differing,
        },
    }
