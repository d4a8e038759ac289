"""The physical limit of a case: the bandwidth of the network between its nodes and of the links
between its GPUs.

docs/method.md says which rates are used where. Between nodes, each byte of the result that was made
elsewhere must enter, and each byte that others need must leave; an all_reduce of S bytes over N
nodes moves at least 2 S (N - 1) / N through each of them (Patarasuk & Yuan 2009). GPUs reach the
interfaces over their own links to the host, which limit a node, too: a single rank on a node with
eight interfaces can't saturate them.

The rates that NCCL plans with (src/graph/topo.h, topo.cc) are without protocol overhead: 20.6 GB/s
for an NVLink 4 link of 25, 48 GB/s for PCIe 5 x16 of 63. A ring uses all links of a GPU, so a
collective is limited by the GPU whose links to the others are slowest in sum, not by the worst
pair: where NVLink joins all GPUs, pairs without a direct link do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from commbench.core import program as steps
from commbench.core.case import Planned
from commbench.core.layout import Layout
from commbench.core.program import DEVICE
from commbench.core.states import LimitKind
from commbench.results.columns import grouped

from .nvml import MAX_NVLINKS
from .topology import SAME_GPU, RankGpu, Topology, link_between

MBIT_PER_GB = 8e3
# compute capability -> GB/s per link in one direction, and the most links of such a GPU; the next
# lower one counts
NVLINK = {
    60: (18.0, 4),
    70: (20.0, 6),
    80: (20.0, 12),
    86: (12.0, 4),
    87: (20.0, 12),
    90: (20.6, 18),
    100: (40.1, 18),
}
# below 3 a link is asleep: it wakes up with the first transfer
PCIE_X16 = {3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}
# encoding is taken off, packet headers are not (PCI Express base specification: 128b/130b, from 6
# on 236 of 256 B)
PCIE_LINE_X16 = {3: 15.75, 4: 31.5, 5: 63.0, 6: 118.0}
PCIE_LINKS = {"PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "PSB"}
NVLINK_LINK = re.compile(r"NV([1-9][0-9]{0,2})")


class Limit(NamedTuple):
    """A bandwidth, what limits it, and how that is known; the lower of two is the smaller."""

    gb_per_s: float
    name: str
    kind: LimitKind


def interface_limit(name: str, mbit_per_s: float) -> Limit:
    """The line rate of a node's interface in one direction."""
    return Limit(mbit_per_s / MBIT_PER_GB, f"{name} {mbit_per_s / 1e3:g} Gb/s", "network")


def told_limit(name: str, gb_per_s: float) -> Limit:
    """A line rate in one direction by the user's word; without a name that of a node."""
    return Limit(gb_per_s, f"{name or 'node'} {8 * gb_per_s:g} Gb/s by limit=", "told")


def together(count: int, limit: Limit) -> Limit:
    """The limit of several equal links together."""
    name = f"{count} x {limit.name}" if count > 1 else limit.name
    return Limit(count * limit.gb_per_s, name, limit.kind)


def bandwidth_limit(
    planned: Planned,
    wires: Sequence[Limit | None],
    node_of: Callable[[int], int],
    gpus: Sequence[RankGpu] = (),
    topologies: Mapping[int, Topology] | None = None,
    copy_gb_per_s: float | None = None,
    core_copy_gb_per_s: float | None = None,
    nvlink_joins_nodes: bool = False,
) -> Limit | None:
    """The limit of the bus bandwidth: the lower one of the network between nodes and the links
    between GPUs.

    `gpus` are those of the world's ranks, empty with device=cpu; `wires` and `topologies` those of
    its nodes. `copy_gb_per_s` is the measured rate of a copy within one GPU, `core_copy_gb_per_s`
    that of a copy by a core; both are None for what a cache holds. `nvlink_joins_nodes`: the case's
    bytes leave a node by NVLink, and no interface carries them. None if unknown, for example where
    GPU data is staged through host memory.
    """
    if "staging" in planned.benchmark.axes:
        return _host_copies_limit(planned, gpus)
    if planned.case.device == "cpu":
        return network_limit(planned, wires, node_of) or _core_copies_limit(
            planned, node_of, core_copy_gb_per_s
        )
    if nvlink_joins_nodes:
        network = _nvlink_fabric_limit(planned, gpus)
    else:
        network = network_limit(planned, wires, node_of, gpus)
    if not gpus or planned.case.staging != "none":
        return network
    by_node = grouped((gpus[rank] for rank in communicating_ranks(planned)), lambda gpu: gpu.node)
    links = _least(
        [
            _node_links_limit(planned, own, topologies or {}, copy_gb_per_s)
            for own in by_node.values()
            if len(own) > 1  # else it has no links of its own
        ]
    )
    if len(by_node) == 1:
        return links
    return network if network is None or links is None else min(network, links)


def network_limit(
    planned: Planned,
    wires: Sequence[Limit | None],
    node_of: Callable[[int], int],
    gpus: Sequence[RankGpu] = (),
) -> Limit | None:
    """The limit of the node with the slowest connection; None within a node, or where a rate or
    factor is unknown.

    `wires` are those of the nodes, `gpus` those of the world's ranks; `node_of` gives the node of a
    rank of the world.
    """
    factor = planned.bus_factor
    ranks_by_node = grouped(communicating_ranks(planned), node_of)
    if factor is None or len(ranks_by_node) < 2 or len(wires) <= max(ranks_by_node):
        return None
    shared = crossing_share(planned)
    limits = list[Limit | None]()
    for node, ranks in ranks_by_node.items():
        connections = [wires[node]]
        to_host = _least([host_link(gpus[rank]) for rank in ranks]) if gpus else None
        if to_host is not None:
            connections.append(together(len(ranks), to_host))
        slowest = _least(connections)
        share = _traffic_share(planned, [rank in ranks for rank in planned.members], shared)
        if slowest is None or share is None:
            return None
        if share:
            limits.append(slowest._replace(gb_per_s=factor * slowest.gb_per_s / share))
    return _least(limits)


def _traffic_share(
    planned: Planned, inside: Sequence[bool], otherwise: float | None
) -> float | None:
    """Bytes that some of the layout's ranks together must send to or receive from the others, over
    the bytes of the operation; `otherwise` where the case has no traffic of its own."""
    traffic = planned.benchmark.traffic_bytes(planned.case, planned.size)
    if traffic is None:
        return otherwise
    chosen = np.array(inside)
    sent = traffic[chosen][:, ~chosen].sum()
    received = traffic[~chosen][:, chosen].sum()
    return float(max(sent, received) / planned.shape.moved_bytes)


def host_link(gpu: RankGpu) -> Limit | None:
    """The line rate of a GPU's link to its host, in one direction: NVLink-C2C or PCIe; None if
    unknown."""
    if gpu.c2c_gb_per_s:
        return Limit(gpu.c2c_gb_per_s, f"C2C {gpu.c2c_gb_per_s:g} GB/s", "line")
    rate = _pcie_gb_per_s(gpu, PCIE_LINE_X16)
    return None if rate is None else Limit(rate, f"{_pcie_name(gpu)} line rate", "line")


def _pcie_gb_per_s(gpu: RankGpu, x16_gb_per_s: Mapping[int, float]) -> float | None:
    rate = x16_gb_per_s.get(gpu.pcie_generation or 0)
    return None if rate is None or not gpu.pcie_width else rate * gpu.pcie_width / 16


def _pcie_name(gpu: RankGpu) -> str:
    return f"PCIe gen{gpu.pcie_generation} x{gpu.pcie_width}"


def _planned_pcie(gpu: RankGpu) -> Limit | None:
    rate = _pcie_gb_per_s(gpu, PCIE_X16)
    return None if rate is None else Limit(rate, _pcie_name(gpu), "pcie")


def _host_copies_limit(planned: Planned, gpus: Sequence[RankGpu]) -> Limit | None:
    """The limit between host and device: the slowest link, which ranks on one GPU share; None
    within a device."""
    if (
        planned.case.device == "cpu"
        or not gpus
        or all(spec.memory == DEVICE for spec in planned.buffers(0))
    ):
        return None
    members = [gpus[rank] for rank in planned.members]
    sharing = max(sum(map(gpu.is_same, members)) for gpu in members)
    slowest = _least([host_link(gpu) for gpu in members])
    if slowest is None or sharing <= 1:
        return slowest
    return Limit(slowest.gb_per_s / sharing, f"{slowest.name} / {sharing}", slowest.kind)


def _core_copies_limit(
    planned: Planned, node_of: Callable[[int], int], core_copy_gb_per_s: float | None
) -> Limit | None:
    """The limit of ranks on the CPUs of one node, whose cores share the copying of the bytes that
    all ranks receive."""
    ranks = communicating_ranks(planned)
    nodes = {node_of(rank) for rank in ranks}
    if core_copy_gb_per_s is None or planned.bus_factor is None or len(ranks) < 2 or len(nodes) > 1:
        return None
    traffic = planned.benchmark.traffic_bytes(planned.case, planned.size)
    if traffic is None:
        share = crossing_share(planned, Layout(len(ranks), 1))
    else:
        received = traffic.sum() - np.trace(traffic)
        share = float(received / len(ranks) / planned.shape.moved_bytes)
    if not share:
        return None
    if planned.operation in (steps.Gather, steps.Scatter):
        share /= len(ranks)  # all other ranks can copy to or from the root at the same time
    elif planned.operation in (steps.Broadcast, steps.Reduce):
        share *= (len(ranks) - 1) / len(ranks)  # the root receives nothing, and its core can help
    rate = planned.bus_factor * core_copy_gb_per_s / share
    return Limit(rate, "measured copy by a core", "memory")


def communicating_ranks(planned: Planned) -> Sequence[int]:
    """The world ranks of a collective, of a single pair, or of pairs that are timed together; none
    for the pairs of a round, which are timed each by itself and share no path."""
    if not planned.case.pairs:
        return planned.members
    if len(planned.case.pairs) > 1 and "pairs" not in planned.benchmark.axes:
        return []
    return [planned.members[rank] for rank in sorted(planned.case.pair_by_rank)]


def crossing_share(planned: Planned, layout: Layout | None = None) -> float | None:
    """Bytes that the busiest node must send or receive, over the bytes of the operation; None if
    unknown.

    With another layout than the case's, for groups of ranks of equal size instead of nodes.
    """
    if planned.case.pairs:  # all bytes that the bus factor counts cross
        return planned.bus_factor
    if planned.operation is None or planned.program(0).groups:
        return None
    layout = layout or Layout.parse(planned.case.layout)
    if planned.operation is steps.Send:
        return _exchanged_share(planned, layout)
    rule = CROSSING_RULES.get(planned.operation)
    return None if rule is None else rule(layout)


def _exchanged_share(planned: Planned, layout: Layout) -> float | None:
    """Of an exchange of messages between all ranks; where rank 0 does not send to each other one,
    its program does not tell what crosses."""
    timed = map(steps.operation_of, planned.program(0).steps)
    peers = [step.peer for step in timed if isinstance(step, steps.Send)]
    if set(peers) != set(range(1, planned.size)):
        return None
    remote = sum(peer >= layout.ranks_per_node for peer in peers)
    return layout.ranks_per_node * remote * planned.case.message_bytes / planned.shape.moved_bytes


def _remote_share(layout: Layout) -> float:
    """Share of the ranks that are on other nodes."""
    return (layout.nodes - 1) / layout.nodes


CROSSING_RULES: Mapping[type, Callable[[Layout], float]] = {
    steps.AllReduce: lambda layout: 2 * _remote_share(layout),
    steps.AllGather: _remote_share,
    steps.ReduceScatter: _remote_share,
    steps.Gather: _remote_share,
    steps.Scatter: _remote_share,
    steps.Broadcast: lambda layout: 1.0,
    steps.Reduce: lambda layout: 1.0,
    # each rank has a message of its own
    steps.AllToAll: lambda layout: layout.ranks_per_node * _remote_share(layout),
}


def _node_links_limit(
    planned: Planned,
    gpus: Sequence[RankGpu],
    topologies: Mapping[int, Topology],
    copy_gb_per_s: float | None,
) -> Limit | None:
    """The limit of the links between the GPUs of a node: a copy within the only one, PCIe between
    islands of NVLink, or the NVLink of the slowest; None where a link is unknown."""
    if planned.bus_factor is None:
        return None
    links = {
        (a, b): link_between(gpus[a], gpus[b], topologies) or ""
        for a, b in combinations(range(len(gpus)), 2)
    }
    if set(links.values()) == {SAME_GPU}:
        if copy_gb_per_s is None:
            return None
        return Limit(copy_gb_per_s, "measured device copy", "memory")
    matches = {pair: NVLINK_LINK.fullmatch(link) for pair, link in links.items()}
    nvlinks = {pair: int(match[1]) for pair, match in matches.items() if match}
    if any(pair not in nvlinks and link not in PCIE_LINKS for pair, link in links.items()):
        return None
    islands = _nvlink_islands(len(gpus), sorted(nvlinks))
    if len(islands) > 1:
        return _pcie_limit(planned, [[gpus[member] for member in island] for island in islands])
    shown = [
        sum(count for pair, count in nvlinks.items() if number in pair)
        for number in range(len(gpus))
    ]
    return _least(list(map(_nvlink_limit, gpus, shown)))


def _nvlink_islands(count: int, pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Groups of GPUs that reach one another by NVLink, directly or through others."""
    island = list(range(count))
    for a, b in pairs:
        island = [island[a] if number == island[b] else number for number in island]
    return [
        [member for member in range(count) if island[member] == number]
        for number in sorted(set(island))
    ]


def _nvlink_limit(gpu: RankGpu, shown: int) -> Limit | None:
    """The links of a GPU to all others; behind a switch, the topology shows all of them for each
    pair."""
    rate = nvlink_rate(gpu.capability)
    if rate is None:
        return None
    count = min(shown, gpu.nvlinks or rate[1])
    return Limit(count * rate[0], f"NVLink {count} x {rate[0]:g} GB/s", "nvlink")


def _nvlink_fabric_limit(planned: Planned, gpus: Sequence[RankGpu]) -> Limit | None:
    """The limit of GPUs of several nodes on one NVLink switch (MNNVL), which each reaches with all
    its links: as within one node."""
    if planned.bus_factor is None:
        return None
    members = [gpus[rank] for rank in communicating_ranks(planned)]
    return _least([_nvlink_limit(gpu, MAX_NVLINKS) for gpu in members])


def nvlink_rate(capability: int | None) -> tuple[float, int] | None:
    """GB/s per link in one direction and the most links of a GPU; None if unknown."""
    known = [least for least in NVLINK if capability is not None and least <= capability]
    return NVLINK[max(known)] if known else None


def _pcie_limit(planned: Planned, islands: Sequence[Sequence[RankGpu]]) -> Limit | None:
    """The limit of PCIe between islands of NVLink: as many bytes must cross it as would cross a
    network of nodes."""
    slowest = _least([_planned_pcie(gpu) for island in islands for gpu in island])
    size = len(islands[0])
    factor = planned.bus_factor
    if (
        slowest is None
        or factor is None
        or planned.size % size
        or any(len(island) != size for island in islands)
    ):
        return None
    share = crossing_share(planned, Layout(planned.size // size, size))
    links = together(size, slowest)
    return links._replace(gb_per_s=factor * links.gb_per_s / share) if share else None


def _least(limits: Sequence[Limit | None]) -> Limit | None:
    """The lowest limit; None if one of them is unknown, or there are none."""
    known = [limit for limit in limits if limit is not None]
    return min(known) if known and len(known) == len(limits) else None
