"""Pinning each rank to its share of the cores of its node."""

from __future__ import annotations

import os
from pathlib import Path

from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.ranges import format_ranges, parse_ranges


def bind_rank(mode: str, world: World, threads_per_rank: int) -> str:
    """Pin this rank as the key `bind` says; what was done, in words. Processes that host several ranks stay free."""
    if len(world.hosted) > 1:
        return "none"
    node = world.nodes[world.node_of(world.rank)]
    return bind_process(mode, node.index(world.rank), len(node), threads_per_rank)


def bind_process(mode: str, local_rank: int, ranks_here: int, threads_per_rank: int) -> str:
    """Pin this process to its share of the cores it may use; what was done, in words.

    `auto` pins to whole cores where every rank gets as many as it has threads, and otherwise leaves the placement to
    the scheduler, also where the launcher has already bound this process.
    """
    cores = sorted(os.sched_getaffinity(0))
    physical_cores = _by_physical_core(cores)
    share = len(physical_cores) // ranks_here
    bound_by_launcher = len(cores) < (os.cpu_count() or 1)
    if mode == "none" or (mode == "auto" and (share < max(1, threads_per_rank) or bound_by_launcher)):
        return "none"
    if mode == "numa":
        return _bind_to_numa_node(local_rank, ranks_here, cores)
    share = max(1, share)
    first = (local_rank * share) % len(physical_cores)
    chosen = sorted(core for threads in physical_cores[first : first + share] for core in threads)
    os.sched_setaffinity(0, set(chosen))
    return f"core {format_ranges(chosen)}"


def _by_physical_core(cores: list[int]) -> list[list[int]]:
    """Hardware threads grouped by physical core, in order: ranks must not share a core while others are idle."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for core in cores:
        file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings = tuple(parse_ranges(file.read_text()) if file.exists() else ()) or (core,)
        groups.setdefault(siblings, []).append(core)
    return list(groups.values())


def _bind_to_numa_node(local_rank: int, ranks_here: int, cores: list[int]) -> str:
    nodes = []
    for path in sorted(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist")):
        usable = set(parse_ranges(path.read_text())) & set(cores)
        if usable:
            nodes.append((path.parent.name, usable))
    if not nodes:
        raise ConfigError("bind=numa found no NUMA nodes in /sys; use bind=core or bind=none")
    name, usable = nodes[local_rank * len(nodes) // ranks_here % len(nodes)]
    os.sched_setaffinity(0, usable)
    return f"numa {name}"
