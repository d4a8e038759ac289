"""Checks before the measurements: whether the ranks' machines agree and what they offer; the record
of the run.

Rank 0 gathers the facts of all ranks; `results/fact_scopes.py` says which of them may differ.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commbench.config.settings import Job, Settings
from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.protocols import Control
from commbench.core.secrets import masked_override
from commbench.core.terminal import TableColumn, Terminal, print_error, printable, table_text
from commbench.core.units import format_ranges
from commbench.hardware import machine_facts, network, resource_limits, topology
from commbench.hardware.gpu import own_gpu
from commbench.hardware.machine_facts import RanksByValue
from commbench.results.columns import SCHEMA_VERSION
from commbench.results.fact_scopes import is_unknown, scope_of
from commbench.results.run_folder import new_folder
from commbench.runtime.folder_lock import lock_folder
from commbench.runtime.launchers.registry import is_called_per_node
from commbench.runtime.recovery import EarlierStarts, Resume
from commbench.runtime.rendezvous import meeting_host

from .expectations import ExpectationResult
from .plan_facts import PlanFacts

MEETING_S = 120.0  # for preparations that every rank does at its own pace
GPU_UUID = "gpu.own.uuid"
FACT_TITLES = {
    "run.digest": "configuration (digest)",
    "gpu.own.name": "GPU",
    "gpu.own.memory_total_bytes": "GPU memory (bytes)",
    "gpu.own.driver_version": "GPU driver",
}
LONGEST_VALUE = 48  # characters in the table of differences
MOST_NAMED_HOSTS = 4  # named in one of its lines
CLOCK_SKEW_S = 1.0  # beyond it log lines of two hosts can't be put in order


@dataclass(frozen=True)
class Request:
    """A job, and what the command line knows about the run that it belongs to."""

    job: Job
    sweep_id: str | None = None
    folder: str | None = None  # made by the parent that started this world
    earlier: EarlierStarts | None = None  # of a run that is resumed
    config_dir: str | None = None
    # what those who read results say of settings, a folder and its rows
    judged: Callable[..., ExpectationResult] = lambda *_: ExpectationResult()
    # a parent started this world, reports how it ended, and starts a fresh one
    has_parent: bool = False
    problem: str | None = None  # why this rank's machine can't run the job: all ranks have to know


def preflight(
    settings: Settings,
    request: Request,
    world: World,
    control: Control,
    mine: dict[str, Any],
    cores: list[int],
) -> tuple[PlanFacts, dict[str, Any]]:
    """Compare the machines of all ranks. Returns what the plan needs to know of them, and the
    record of the run (on rank 0).

    Raises ConfigError on all ranks if they differ in what changes a measurement, have no GPU, or
    would share one.
    """
    # the route to rank 0 is that to the other nodes
    if len(world.nodes) > 1 and not world.is_hosted:
        mine |= network.outgoing_facts(settings.interface, [meeting_host(control.store)])
    if _ranks_have_gpus(settings, world):  # the n-th rank of a node takes the n-th GPU that it sees
        mine |= own_gpu(world.local_rank)
    cache_bytes = mine.get("gpu.own.l2_bytes") or mine.get("host.cpu_llc_bytes") or 0
    memory_bytes = resource_limits.allocatable_bytes() or sys.maxsize
    problem = request.problem
    if problem is None and mine.get("gpu.own.reason") is not None:
        no_gpu = f"no GPU for device=cuda: {mine['gpu.own.reason']}"
        problem = f"{no_gpu}; make one visible, or take device=cpu"
    gathered = control.gather(
        [mine, memory_bytes, cache_bytes, cores, problem], MEETING_S, "preflight"
    )
    problem, agreed, run = (
        _compare_ranks(settings, request, world, gathered) if world.rank == 0 else (None, [], {})
    )
    problem = control.agree(problem, MEETING_S, "preflight")
    if problem is not None:
        # rank 0 may host the store that the others read the verdict from
        control.farewell(MEETING_S)
        raise ConfigError(problem, shared=True)
    agreed = control.decide(agreed, MEETING_S, "preflight")
    if len(world.nodes) > 1:  # all ranks leave the decision within milliseconds
        times_s = control.gather(time.time(), MEETING_S, "the clocks")
        if world.rank == 0:
            text = clock_skew_warning(times_s, [answer[0] for answer in gathered])
            if text is not None and settings.preflight != "off":
                print_error(text)
            run["clock_skew_s"] = max(times_s) - min(times_s)
    if world.rank == 0 and not settings.plan:
        folder = request.folder or new_folder(settings.output)
        if request.folder is None:  # else whoever has made it holds the lock
            lock_folder(folder)
        run.setdefault("run_id", Path(folder).name)
        run["folder"] = str(Path(folder))
    if not settings.plan and not request.has_parent and is_called_per_node(world.launcher):
        _print_node_line(world, control, mine, run)
    return PlanFacts(*agreed), run


def _print_node_line(
    world: World, control: Control, mine: Mapping[str, Any], run: Mapping[str, Any]
) -> None:
    """Say once on each of several nodes what its ranks take part in."""
    if len(world.nodes) == 1:
        return
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


def _compare_ranks(
    settings: Settings, request: Request, world: World, gathered: list[Any]
) -> tuple[str | None, list[int], dict[str, Any]]:
    """From the values that the ranks gathered: why they can't measure, the values of PlanFacts, the
    run's record."""
    facts, memory_bytes, cache_bytes, cores_of_rank, problems = map(
        list, zip(*gathered, strict=True)
    )
    on_gpus = _ranks_have_gpus(settings, world)
    notes = small_shm_lines(facts) if uses_shm(settings, world) else []
    differing = machine_facts.differences(facts)
    # a line for each problem, with the first rank that has it
    first = {text: rank for rank, text in reversed(list(enumerate(problems))) if text is not None}
    lines = [
        f"rank {rank} on {facts[rank].get('host.hostname')}: {text}" for text, rank in first.items()
    ]
    problem = "\n  ".join(sorted(lines)) or None
    remark = settings.backend.remark(settings.device)
    notes += [] if remark is None else [f"backend={settings.backend.name}: {remark}"]
    if problem is None and on_gpus:
        notes += busy_gpus(facts)
        refusal = settings.backend.sharing_refusal(os.environ)
        if refusal is not None:
            problem = shared_gpu(facts, world.nodes, refusal)
    for line in [] if settings.preflight == "off" else notes:
        print_error(line)
    problem = problem or _difference_problem(differing, facts, settings)
    problem = problem or network.told_problem(settings.limit, facts)
    # a process that hosts all ranks answers for them
    nodes = world.nodes if not world.is_hosted else ((0,),)
    cores = [len({core for rank in node for core in cores_of_rank[rank]}) for node in nodes]
    agreed = [min(memory_bytes), max(cache_bytes), min(cores)]
    # the least free memory of a GPU, and the smallest number that a rank sees, where all know them
    if problem is None and on_gpus:
        free = [
            own.get("gpu.own.memory_free_bytes", own.get("gpu.own.memory_total_bytes"))
            for own in facts
        ]
        visible = [own.get("gpu.own.visible") for own in facts]
        agreed += [] if None in (*free, *visible) else [min(free), min(visible)]
    run = _run_record(settings, request, world, facts, differing)
    if request.earlier is not None:
        problem = problem or _change_problem(request.earlier, run)
        run = _continued_record(request.earlier, run)
    return problem, agreed, run


def _ranks_have_gpus(settings: Settings, world: World) -> bool:
    """Whether each rank uses a GPU; simulated ranks, which one process hosts, do not."""
    return settings.device == "cuda" and not world.is_hosted


def uses_shm(settings: Settings, world: World) -> bool:
    """Whether ranks of a node may communicate through /dev/shm: MPI and NCCL do."""
    return settings.backend.launchers == "starts_mpi" or _ranks_have_gpus(settings, world)


def small_shm_lines(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each host whose /dev/shm is too small for its ranks."""
    small = {
        own.get("host.hostname"): line
        for own in facts
        if (line := resource_limits.small_shm(dict(own)))
    }
    return [f"{host}: {line}" for host, line in small.items()]


# ---------------------------------------------------------------- facts that differ


def _difference_problem(
    differing: Mapping[str, RanksByValue], facts: list[dict[str, Any]], settings: Settings
) -> str | None:
    """Why the ranks can't be measured together; None where they agree, or where preflight is off or
    only warns."""
    if settings.preflight == "off":
        return None
    # a network such as 10.0.0.0/24: names differ by host
    same_interface = "/" not in (settings.interface or "")
    errors = {}
    for key, ranks in differing.items():
        scope = scope_of(key).ranks
        same_network = (
            same_network_text(key, facts) if scope == "network" and same_interface else None
        )
        if same_network is not None:
            print_error(same_network)
        elif scope == "error" or (scope == "network" and same_interface):
            errors[key] = ranks
    if not errors:
        return None
    table = difference_table(errors, facts)
    text = f"ranks differ:\n{table}\nmake them equal, or accept it with preflight=warn"
    if settings.preflight == "warn":
        print_error(text)
        return None
    return text


def same_network_text(key: str, facts: Sequence[Mapping[str, Any]]) -> str | None:
    """That a variable names the same network of the same rate on every host, although its values
    differ; else None."""
    name = key.removeprefix("environment.")
    behind = {network.networks_behind(name, str(own.get(key, "")), dict(own)) for own in facts}
    network_text = behind.pop()
    if behind or network_text is None:
        return None
    return f"{name} differs between hosts, but names the same network on all: {network_text}"


def difference_table(
    differing: Mapping[str, RanksByValue], facts: Sequence[Mapping[str, Any]]
) -> str:
    """A line for each value of each fact, with the ranks and hosts that have it; `facts` has one
    entry per rank."""
    rows = []
    for key, ranks_by_value in differing.items():
        title = FACT_TITLES.get(key, key)
        for value, ranks in ranks_by_value.items():
            text = (
                str(value)
                if len(str(value)) <= LONGEST_VALUE
                else f"{str(value)[: LONGEST_VALUE - 3]}..."
            )
            names = list(
                dict.fromkeys(str(facts[rank].get("host.hostname", "?")) for rank in ranks)
            )
            more = (
                f" and {len(names) - MOST_NAMED_HOSTS} more"
                if len(names) > MOST_NAMED_HOSTS
                else ""
            )
            rows.append(
                (title, text, format_ranges(ranks), ", ".join(names[:MOST_NAMED_HOSTS]) + more)
            )
            title = ""
    columns = [TableColumn(heading) for heading in ("fact", "value", "ranks", "hosts")]
    return textwrap.indent(table_text(columns, rows, Terminal()), "  ")


def clock_skew_warning(times_s: Sequence[float], facts: Sequence[Mapping[str, Any]]) -> str | None:
    """A warning if wall clocks that were read at the same moment are over a second apart."""
    first = times_s.index(min(times_s))
    last = times_s.index(max(times_s))
    apart_s = times_s[last] - times_s[first]
    if apart_s <= CLOCK_SKEW_S:
        return None
    behind, ahead = (facts[rank].get("host.hostname", "?") for rank in (first, last))
    return (
        f"the clock of {ahead} (rank {last}) is {apart_s:.1f} s ahead of that of {behind} (rank"
        f" {first}); set them by NTP"
    )


# ---------------------------------------------------------------- GPUs that are not for one rank
# alone


def shared_gpu(
    facts: Sequence[Mapping[str, Any]], nodes: Sequence[Sequence[int]], refusal: str
) -> str | None:
    """One line about ranks of a node that would use the same GPU, which the backend refuses; None
    if there are none."""
    ranks_by_gpu: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        for rank in node:
            if GPU_UUID in facts[rank]:
                ranks_by_gpu[number, facts[rank][GPU_UUID]].append(rank)
    shared = {gpu: ranks for gpu, ranks in ranks_by_gpu.items() if len(ranks) > 1}
    if not shared:
        return None
    (number, _), ranks = next(iter(shared.items()))
    node = nodes[number]
    first = facts[ranks[0]]
    more = f", and so for {len(shared) - 1} more" if len(shared) > 1 else ""
    return (
        f"ranks {format_ranges(ranks)} on {first.get('host.hostname')} have the same GPU,"
        f" {_gpu_name(first)}{more}, and {refusal}: start at most as many"
        f" ranks a node as it has GPUs ({len(node)} ranks here, {first.get('gpu.own.visible')}"
        " visible), or give each its own with CUDA_VISIBLE_DEVICES"
    )


def busy_gpus(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each GPU of a rank on which other processes compute."""
    in_use = {own[GPU_UUID]: own for own in reversed(facts) if own.get("gpu.own.users")}
    return [
        f"{own.get('host.hostname')}: {_gpu_name(own)} is in use by {own['gpu.own.users']}; "
        "they disturb what is measured"
        for own in reversed(in_use.values())
    ]


def _gpu_name(facts: Mapping[str, Any]) -> str:
    """GPU 3 (NVIDIA H100 80GB HBM3, GPU-...)"""
    number = facts.get("gpu.own.index")
    return (
        f"GPU{'' if number is None else f' {number}'} ({facts.get('gpu.own.name')},"
        f" {facts.get(GPU_UUID)})"
    )


# ---------------------------------------------------------------- the record of the run


def _run_record(
    settings: Settings,
    request: Request,
    world: World,
    facts: list[dict[str, Any]],
    differing: Mapping[str, RanksByValue],
) -> dict[str, Any]:
    """run.json, except for what the library reports once it is open."""
    nodes = machine_facts.facts_by_node(facts, [world.node_of(rank) for rank in range(len(facts))])
    gpus = [{key: own[key] for key in sorted(own) if key.startswith("gpu.own.")} for own in facts]
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "running",
        "exit_status": None,
        "started_at": datetime.now(timezone.utc).isoformat(),
        "overrides": list(map(masked_override, request.job.overrides)),
        "sweep_id": request.sweep_id,
        "trial": settings.trial,
        "launches": {"planned": settings.timing.launches, "began": [0], "spent_s": 0.0},
        "label": settings.label,
        "timing": settings.timing.name,
        "world": {
            "size": world.size,
            "nodes": len(world.nodes),
            "ranks": world.nodes,
            "launcher": world.launcher,
        },
        "cuda_ipc": {"asked": settings.cuda_ipc, "effective": None},
        "told_rates_gb_per_s": dict(settings.limit),
        "gpus": gpus if _ranks_have_gpus(settings, world) else [],
        "wiring": [topology.node_record(node) for node in nodes],
        "topology": facts[0].get(topology.TOPOLOGY_FACT),
        "config": request.job.config,
        "config_dir": request.config_dir,
        "layouts": list(map(str, settings.layouts)),
        "provenance": {"nodes": nodes, "differences": differing},
    }


def _change_problem(earlier: EarlierStarts, run: Mapping[str, Any]) -> str | None:
    """The facts that have changed since the run began, so that rows from before and after can't be
    compared."""
    before = earlier.run.get("provenance", {}).get("nodes", [])
    now = run["provenance"]["nodes"]
    lines = [f"  nodes: {len(before)} then, {len(now)} now"] if len(before) != len(now) else []
    for number, (old, new) in enumerate(zip(before, now, strict=False)):
        keys = {key for key in {*old, *new} if scope_of(key).restarts == "equal"}
        known = [key for key in keys if not is_unknown(key, old) and not is_unknown(key, new)]
        changed = sorted(key for key in known if old.get(key) != new.get(key))
        lines += [
            f"  node {number}, {key}: {old.get(key)} then, {new.get(key)} now" for key in changed
        ]
    if not lines or earlier.resume is not Resume.RETRY:
        return None
    return "\n".join(
        [
            "this is not as it was when the run began:",
            *lines,
            "accept it with: commbench resume --force",
        ]
    )


def _continued_record(earlier: EarlierStarts, run: Mapping[str, Any]) -> dict[str, Any]:
    """run.json of a resumed run, whose folder may have been renamed since: with the name and time
    of its first start, and a list of all its starts."""
    kept = {
        key: earlier.run[key]
        for key in ("run_id", "started_at", "sweep_id", "broken", "broken_reasons")
        if key in earlier.run
    }
    last = {
        key: earlier.run.get(key)
        for key in ("status", "reason", "stacks", "finished_at", "reference")
    }
    launches = {
        **run["launches"],
        **earlier.run.get("launches", {}),
        "planned": run["launches"]["planned"],
    }
    launches |= (
        {"began": [*launches["began"], earlier.launch]} if earlier.resume is Resume.LAUNCH else {}
    )
    launches |= {"spent_s": 0.0} if earlier.resume.by_user else {}
    return {
        **run,
        **kept,
        "launches": launches,
        "starts": [*earlier.run.get("starts", []), last],
    }
