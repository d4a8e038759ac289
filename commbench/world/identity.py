"""Which rank this process is, and which ranks share a node: launchers export the first, ranks agree on the second."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from commbench.core.case import RankIdentity, World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.protocols import Control

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
