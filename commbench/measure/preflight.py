"""Checks before the measurements: whether the ranks' machines agree and what they offer; where the
run is recorded.

Rank 0 gathers what the ranks know of their machines, and decides for all.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commbench.config.settings import Settings
from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.protocols import Control
from commbench.core.terminal import print_error, printable
from commbench.core.units import format_ranges
from commbench.hardware import machine_facts, network, resource_limits
from commbench.hardware.gpu import own_gpu
from commbench.hardware.sources import Facts
from commbench.results.run_folder import new_folder
from commbench.runtime.folder_lock import lock_folder
from commbench.runtime.launchers.registry import is_called_per_node
from commbench.runtime.rendezvous import meeting_host

from .gpu_sharing import busy_gpus, shared_gpu
from .plan_facts import PlanFacts
from .rank_differences import clock_skew_warning, rank_differences
from .request import Request
from .run_record import change_problem, continued_record, run_record
from .time_limits import MEETING_S

GPU_BYTES = "gpu.own.memory_total_bytes"
GPU_FREE_BYTES = "gpu.own.memory_free_bytes"
GPU_COUNT = "gpu.own.visible"


def preflight(
    settings: Settings,
    request: Request,
    world: World,
    control: Control,
    mine: Facts,
    cores: Sequence[int],
) -> tuple[PlanFacts, dict[str, Any]]:
    """Compare the machines of all ranks. Returns what the plan needs to know of them, and the
    record of the run (on rank 0).

    Raises ConfigError on all ranks if they differ in what changes a measurement, have no GPU, or
    would share one.
    """
    own = _own_machine(settings, request.problem, world, control, mine, cores)
    machines = [_Machine(**each) for each in control.gather(vars(own), MEETING_S, "preflight")]
    verdict = None
    run = dict[str, Any]()
    if world.rank == 0:
        found = _comparison(settings, request, world, machines)
        _print_notes(settings, found.notes)
        verdict = [found.problem, vars(found.plan_facts)]
        run = found.run
    problem, plan_facts = control.decide(verdict, MEETING_S, "preflight")
    if problem is not None:
        # rank 0 may host the store that the others read the verdict from
        control.farewell(MEETING_S)
        raise ConfigError(problem, shared=True)
    is_on_several_nodes = len(world.nodes) > 1
    if is_on_several_nodes:
        run |= _clock_record(settings, control, machines)
    if settings.plan:
        return PlanFacts(**plan_facts), run
    if world.rank == 0:
        run = _folder_record(settings, request) | run  # a resumed run keeps its name
    if is_on_several_nodes and is_called_per_node(world.launcher) and not request.has_parent:
        _print_node_line(world, control, mine, run)
    return PlanFacts(**plan_facts), run


# ---------------------------------------------------------------- what each rank finds


@dataclass(frozen=True)
class _Machine:
    """What a rank knows of its machine."""

    facts: Facts
    memory_bytes: int  # that may be allocated now
    cache_bytes: int
    cores: Sequence[int]
    problem: str | None  # why it can't run the job


def _own_machine(
    settings: Settings,
    problem: str | None,
    world: World,
    control: Control,
    mine: Facts,
    cores: Sequence[int],
) -> _Machine:
    """What this rank knows: `mine`, and what depends on the world."""
    facts = dict(mine)
    # the route to rank 0 is that to the other nodes
    if len(world.nodes) > 1 and not world.is_hosted:
        facts |= network.outgoing_facts(settings.interface, [meeting_host(control.store)])
    if settings.ranks_have_gpus:  # the n-th rank of a node takes the n-th GPU that it sees
        facts |= own_gpu(world.local_rank)
    if problem is None and "gpu.own.reason" in facts:
        problem = (
            f"no GPU for device=cuda: {facts['gpu.own.reason']}; make one visible, or take"
            " device=cpu"
        )
    return _Machine(
        facts=facts,
        memory_bytes=resource_limits.allocatable_bytes() or sys.maxsize,
        cache_bytes=facts.get("gpu.own.l2_bytes") or facts.get("host.cpu_llc_bytes") or 0,
        cores=cores,
        problem=problem,
    )


# ---------------------------------------------------------------- what rank 0 finds


@dataclass(frozen=True)
class _Comparison:
    """What the machines of all ranks say together."""

    problem: str | None  # why they can't be measured
    notes: Sequence[str]  # lines for the user
    plan_facts: PlanFacts
    run: dict[str, Any]  # the record of the run


def _comparison(
    settings: Settings, request: Request, world: World, machines: Sequence[_Machine]
) -> _Comparison:
    """Rank 0's answer for all."""
    facts = [machine.facts for machine in machines]
    differing = machine_facts.differences(facts)
    problem = _own_problems(machines)
    notes = small_shm_lines(facts) if settings.uses_shm else []
    remark = settings.backend.remark(settings.device)
    notes += [] if remark is None else [f"backend={settings.backend.name}: {remark}"]
    if problem is None and settings.ranks_have_gpus:
        notes += busy_gpus(facts)
        refusal = settings.backend.sharing_refusal(os.environ)
        problem = refusal and shared_gpu(facts, world.nodes, refusal)
    if problem is None and settings.preflight != "off":
        unequal = rank_differences(differing, facts, settings.interface)
        notes += unequal.same_networks
        if settings.preflight == "strict":
            problem = unequal.problem
        elif unequal.problem is not None:
            notes.append(unequal.problem)
    problem = problem or network.told_problem(settings.limit, facts)
    run = run_record(settings, request, world, facts, differing)
    if request.earlier is not None:
        problem = problem or change_problem(request.earlier, run)
        run = continued_record(request.earlier, run)
    return _Comparison(problem, notes, _plan_facts(world, machines), run)


def _own_problems(machines: Sequence[_Machine]) -> str | None:
    """A line for each problem, with the first rank that has it."""
    first = {machine.problem: rank for rank, machine in reversed([*enumerate(machines)])}
    lines = [
        f"rank {rank} on {machines[rank].facts.get('host.hostname')}: {text}"
        for text, rank in first.items()
        if text is not None
    ]
    return "\n  ".join(sorted(lines)) or None


def small_shm_lines(facts: Sequence[Facts]) -> list[str]:
    """A line for each host whose /dev/shm is too small for its ranks."""
    small = {own.get("host.hostname"): resource_limits.small_shm(own) for own in facts}
    return [f"{host}: {line}" for host, line in small.items() if line is not None]


def _plan_facts(world: World, machines: Sequence[_Machine]) -> PlanFacts:
    # a process that hosts all ranks answers for them
    nodes = world.nodes if not world.is_hosted else ((0,),)
    found = PlanFacts(
        memory_bytes=min(machine.memory_bytes for machine in machines),
        cache_bytes=max(machine.cache_bytes for machine in machines),
        cores=min(len({core for rank in node for core in machines[rank].cores}) for node in nodes),
    )
    facts = [machine.facts for machine in machines]
    if not all(own.keys() >= {GPU_BYTES, GPU_COUNT} for own in facts):
        return found
    free_bytes = (own[GPU_FREE_BYTES if GPU_FREE_BYTES in own else GPU_BYTES] for own in facts)
    return replace(found, gpu_bytes=min(free_bytes), gpus=min(own[GPU_COUNT] for own in facts))


def _print_notes(settings: Settings, notes: Iterable[str]) -> None:
    """On rank 0, unless the user wants none."""
    if settings.preflight != "off":
        for line in notes:
            print_error(line)


def _clock_record(
    settings: Settings, control: Control, machines: Sequence[_Machine]
) -> dict[str, float]:
    """How far the clocks of the ranks are apart, on rank 0: all leave a decision within
    milliseconds."""
    times_s = control.gather(time.time(), MEETING_S, "the clocks")
    if not times_s:
        return {}
    warning = clock_skew_warning(times_s, [machine.facts for machine in machines])
    _print_notes(settings, filter(None, [warning]))
    return {"clock_skew_s": max(times_s) - min(times_s)}


def _folder_record(settings: Settings, request: Request) -> dict[str, str]:
    """The run's folder, which is locked, and its name."""
    folder = request.folder or new_folder(settings.output)
    if request.folder is None:  # else whoever has made it holds the lock
        lock_folder(folder)
    path = Path(folder)
    return {"run_id": path.name, "folder": str(path)}


# ---------------------------------------------------------------- a line for each node


def _print_node_line(
    world: World, control: Control, mine: Mapping[str, Any], run: Mapping[str, Any]
) -> None:
    """Say once on each node what its ranks take part in."""
    host = str(mine.get("host.hostname"))
    folder = str(Path(run["folder"]).absolute()) if world.rank == 0 else ""
    first_host, folder = control.decide([host, folder], MEETING_S, "preflight")
    if world.local_rank == 0:
        text = node_text(world, host, first_host, folder)
        print(printable(text), file=sys.stderr, flush=True)


def node_text(world: World, host: str, first_host: str, folder: str) -> str:
    """Which ranks a node has, who prints and where the results will be."""
    ranks = world.neighbours
    named = f"rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)}"
    node = f"node {world.node_of(world.rank) + 1} of {len(world.nodes)} ({host})"
    return (
        f"{node}: {named}; rank 0 prints, on {first_host}, and stores the results there: {folder}"
    )
