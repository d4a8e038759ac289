"""Which rank this process is, which ranks share its node, and which cores are its own.

Launchers export the rank; the ranks agree on the nodes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from commbench.core.case import RankIdentity, World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.protocols import Control
from commbench.core.units import format_ranges, parse_ranges

from .control import SingleProcessControl

FIRST_MEETING_S = 120.0  # the slowest rank may still be importing from a network file system


def exported_identity(
    launcher: str,
    environ: Mapping[str, str],
    rank: str,
    size: str,
    local_rank: str,
    node_id: str | None = None,
) -> RankIdentity:
    """The identity in the variables of these names; a missing local rank is 0.

    Raises ConfigError where rank and size are missing or don't fit together.
    """
    try:
        values = [int(environ.get(name, "0" if name == local_rank else "")) for name in (rank, size, local_rank)]
        if not 0 <= values[0] < values[1]:
            raise ValueError("a rank outside of its world")
    except ValueError as error:
        seen = ", ".join(f"{name}={environ.get(name)!r}" for name in (rank, size, local_rank))
        raise ConfigError(f"{launcher} exported no usable world: {seen}; start again with {launcher}") from error
    return RankIdentity(launcher, values[0], values[1], values[2], None if node_id is None else environ.get(node_id))


def host_identity() -> str:
    """Equal for processes that share a kernel, a host name and a network namespace: those are one node."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    network = Path("/proc/self/ns/net")
    parts = [socket.gethostname(), boot.read_text().strip() if boot.exists() else ""]
    return "|".join([*parts, str(network.readlink()) if network.exists() else ""])


def assemble(identity: RankIdentity, control: Control) -> World:
    """Agree on the nodes: ranks with the same host identity and the same node id of their launcher share one."""
    host = f"{identity.node_id or ''}|{host_identity()}"
    hosts = control.gather(host, FIRST_MEETING_S, "the first meeting")
    ranks_by_host: dict[str, list[int]] = {}
    for rank, its_host in enumerate(hosts):
        ranks_by_host.setdefault(its_host, []).append(rank)
    nodes = control.decide(list(ranks_by_host.values()), FIRST_MEETING_S, "the first meeting")
    return World(
        identity.rank, identity.size, tuple(tuple(node) for node in nodes), (identity.rank,), identity.launcher
    )


def hosted_world(nodes: int, ranks_per_node: int) -> tuple[World, Control]:
    """A world whose ranks all live in this process, with its control plane."""
    size = nodes * ranks_per_node
    ranks = tuple(tuple(range(node * ranks_per_node, (node + 1) * ranks_per_node)) for node in range(nodes))
    return World(0, size, ranks, tuple(range(size))), SingleProcessControl()


def check_layouts(layouts: Sequence[Layout], world: World) -> None:
    """Raises ConfigError where no layout fits into this world."""
    misfits = [layout.misfit(world) for layout in layouts]
    if all(misfits):
        raise ConfigError(f"{misfits[0]}; start more ranks or choose a smaller layout")


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
