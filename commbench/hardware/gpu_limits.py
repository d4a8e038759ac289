"""The physical bound of a case on GPUs: the links between them, and the network between their nodes.

Rates are those that NCCL plans with (src/graph/topo.h, topo.cc): what a link carries after protocol. Line rates are
higher (NVLink 4: 25 GB/s a link against 20.6; PCIe 5 x16: 63 GB/s against 48), and a copy engine gets nearer to them.
A ring takes all links of a GPU, so a collective is bound by the GPU whose links to the others carry least, not by the
worst pair: where NVLink joins all of them, pairs without a link of their own do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from commbench.core.case import Planned
from commbench.core.layout import Layout

from .limits import Wire, bound, crossing, talking
from .topology import Topology
from .wiring import SELF, Where, cell

Limit = tuple[float, str]  # GB/s of the bus bandwidth, and whose it is
# compute capability -> GB/s of a link in one direction, and the most links of such a GPU; the next lower one counts
NVLINK = {60: (18.0, 4), 70: (20.0, 6), 80: (20.0, 12), 90: (20.6, 18), 100: (40.1, 18)}
NVLINK_86 = (12.0, 4)
PCIE_X16 = {3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}  # below 3 a link is asleep: it wakes up with the first transfer
PCIE_CELLS = {"PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "PSB"}
NVLINK_CELL = re.compile(r"NV([1-9][0-9]{0,2})")
COPY = "measured device copy"


@dataclass(frozen=True)
class Gpu(Where):
    """A rank's GPU. `capability` is 90 for 9.0; generation and width of PCIe are the current ones."""

    capability: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None  # active ones


def gpu_of(node: int, own: Mapping[str, object], machine: Mapping[str, object]) -> Gpu:
    """From `gpu.own.*` of a rank and `gpu.<index>.*` of its node; what is missing or of another kind is unknown."""
    index, uuid = _integer(own.get("gpu.own.index")), own.get("gpu.own.uuid")
    capability = re.fullmatch(r"(\d{1,3})\.(\d)", str(machine.get(f"gpu.{index}.compute_capability")))
    return Gpu(
        node=node,
        index=index,
        uuid=uuid if isinstance(uuid, str) else None,
        capability=10 * int(capability[1]) + int(capability[2]) if capability else None,
        pcie_generation=_integer(machine.get(f"gpu.{index}.pcie_generation")),
        pcie_width=_integer(machine.get(f"gpu.{index}.pcie_width")),
        nvlinks=_integer(machine.get(f"gpu.{index}.nvlink_links")),
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def limit(
    job: Planned,
    wires: Sequence[Wire | None],
    node_of: Callable[[int], int],
    gpus: Sequence[Gpu] = (),
    topologies: Mapping[int, Topology] | None = None,
    copy_gb_per_s: float | None = None,
) -> Limit | None:
    """Of the bus bandwidth in GB/s, and whose it is: the wire between nodes, the links between GPUs, or the lesser.

    `gpus` are those of the world's ranks, empty on a CPU; `topologies` those of its nodes; `copy_gb_per_s` what a copy
    within one GPU was measured to reach. None where nobody knows, as where the bytes take a way through the host.
    """
    between = bound(job, wires, node_of)
    if job.case.device == "cpu" or not gpus or job.case.staging != "none":
        return between
    nodes = {gpus[rank].node for rank in talking(job)}
    if not nodes or (job.case.pairs and len(nodes) > 1):
        return between
    inside = _inside(job, gpus, topologies or {}, copy_gb_per_s)
    if len(nodes) == 1:
        return inside
    return between if between is None or inside is None else min(between, inside)


def _inside(
    job: Planned, gpus: Sequence[Gpu], topologies: Mapping[int, Topology], copy_gb_per_s: float | None
) -> Limit | None:
    """Of the node with the least; a node with one rank has no links of its own."""
    if job.benchmark.bus_factor(job.size) is None:
        return None
    nodes: dict[int, list[Gpu]] = {}
    for rank in talking(job):
        nodes.setdefault(gpus[rank].node, []).append(gpus[rank])
    found = [_of_node(job, group, topologies, copy_gb_per_s) for group in nodes.values() if len(group) > 1]
    known = [one for one in found if one is not None]
    return min(known) if known and len(known) == len(found) else None


def _of_node(
    job: Planned, group: Sequence[Gpu], topologies: Mapping[int, Topology], copy_gb_per_s: float | None
) -> Limit | None:
    cells = {(a, b): cell(group[a], group[b], topologies) for a, b in combinations(range(len(group)), 2)}
    if set(cells.values()) == {SELF}:
        return None if copy_gb_per_s is None else (copy_gb_per_s, COPY)
    if any(one is None or not (one in PCIE_CELLS or NVLINK_CELL.fullmatch(one)) for one in cells.values()):
        return None
    islands = _islands(len(group), {pair for pair, one in cells.items() if NVLINK_CELL.fullmatch(one or "")})
    if len(islands) == 1:
        return _least([_nvlink(group[a], [one or "" for pair, one in cells.items() if a in pair]) for a in islands[0]])
    return _between_islands(job, [[group[member] for member in island] for island in islands])


def _islands(count: int, pairs: set[tuple[int, int]]) -> list[list[int]]:
    """GPUs that reach one another by NVLink, directly or through others."""
    root = list(range(count))
    for a, b in sorted(pairs):
        root = [root[a] if one == root[b] else one for one in root]
    return [[member for member in range(count) if root[member] == one] for one in sorted(set(root))]


def _nvlink(gpu: Gpu, cells: Sequence[str]) -> Limit | None:
    """All links of a GPU to the others; behind a switch every pair shows all of its links, so they count once."""
    rate = nvlink_rate(gpu.capability)
    if rate is None:
        return None
    shown = sum(int(found[1]) for one in cells if (found := NVLINK_CELL.fullmatch(one)))
    links = min(shown, gpu.nvlinks or rate[1])
    return links * rate[0], f"NVLink {links} x {rate[0]:g} GB/s"


def nvlink_rate(capability: int | None) -> tuple[float, int] | None:
    """GB/s of a link in one direction and the most links; 86 is the one that differs from its elder."""
    if capability is None or capability < min(NVLINK):
        return None
    return NVLINK_86 if capability == 86 else NVLINK[max(one for one in NVLINK if one <= capability)]


def _between_islands(job: Planned, islands: Sequence[Sequence[Gpu]]) -> Limit | None:
    """PCIe joins islands of NVLink as a network joins nodes: the same shares of the bytes must cross it."""
    size, factor = len(islands[0]), job.benchmark.bus_factor(job.size)
    slowest = _least([_pcie(gpu) for island in islands for gpu in island])
    if slowest is None or factor is None or job.size % size or any(len(island) != size for island in islands):
        return None
    share = crossing(job, Layout(job.size // size, size))
    name = slowest[1] if size == 1 else f"{size} x {slowest[1]}"
    return (factor * size * slowest[0] / share, name) if share else None


def _pcie(gpu: Gpu) -> Limit | None:
    rate = PCIE_X16.get(gpu.pcie_generation or 0)
    if rate is None or not gpu.pcie_width:
        return None
    return rate * gpu.pcie_width / 16, f"PCIe gen{gpu.pcie_generation} x{gpu.pcie_width}"


def _least(limits: Sequence[Limit | None]) -> Limit | None:
    known = [one for one in limits if one is not None]
    return min(known) if known and len(known) == len(limits) else None
