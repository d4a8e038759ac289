"""Which cores are those of a rank (key `bind`)."""

from __future__ import annotations

import os
from pathlib import Path

from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.units import format_ranges, parse_ranges
from commbench.core.variables import Binding
from commbench.hardware.host import numa_processors
from commbench.hardware.sources import read_text


def bind_rank(mode: Binding, world: World, threads_per_rank: int) -> str:
    """Pin this rank as the key `bind` says; returns what was done, in words. Processes of several
    ranks stay free."""
    if world.is_hosted:
        return "none"
    node = world.nodes[world.node_of(world.rank)]
    return bind_process(mode, node.index(world.rank), len(node), threads_per_rank)


def bind_process(mode: Binding, local_rank: int, ranks_here: int, threads_per_rank: int) -> str:
    """Pin this process to its share of the cores it may use; returns what was done, in words.

    `auto` pins to whole cores where every rank gets as many as it has threads, and otherwise leaves
    the placement to the scheduler, also where the launcher has already bound this process.
    """
    cores = sorted(os.sched_getaffinity(0))
    # by hardware threads of one core: ranks must not share a core while others are idle
    groups = dict[tuple[int, ...], list[int]]()
    for core in cores:
        file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings = tuple(parse_ranges(read_text(file))) or (core,)
        groups.setdefault(siblings, []).append(core)
    physical_cores = list(groups.values())
    share = len(physical_cores) // ranks_here
    bound_by_launcher = len(cores) < (os.cpu_count() or 1)
    if mode == "none" or (
        mode == "auto" and (share < max(1, threads_per_rank) or bound_by_launcher)
    ):
        return "none"
    if mode == "numa":
        return _bind_to_numa_node(local_rank, ranks_here, cores)
    share = max(1, share)
    first = (local_rank * share) % len(physical_cores)
    chosen = sorted(core for threads in physical_cores[first : first + share] for core in threads)
    os.sched_setaffinity(0, set(chosen))
    return f"core {format_ranges(chosen)}"


def _bind_to_numa_node(local_rank: int, ranks_here: int, cores: list[int]) -> str:
    processors = {name: set(parse_ranges(text)) for name, text in numa_processors().items()}
    usable = {name: own & set(cores) for name, own in processors.items() if own & set(cores)}
    if not usable:
        raise ConfigError("bind=numa found no NUMA nodes in /sys; use bind=core or bind=none")
    name = [*usable][local_rank * len(usable) // ranks_here % len(usable)]
    os.sched_setaffinity(0, usable[name])
    return f"numa {name}"
