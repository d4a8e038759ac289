"""What lies between the GPUs of a case: SELF, NET, or the cell of `nvidia-smi topo -m` that its pairs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from commbench.core.case import Planned

from .topology import NOT_AVAILABLE, Topology

SELF, NET = "SELF", "NET"


@dataclass(frozen=True)
class Where:
    """A rank's place. `index` is NVML's, which nvidia-smi calls GPU<index>; CUDA's own order may differ from it."""

    node: int
    index: int | None = None
    uuid: str | None = None

    def same_gpu(self, other: Where) -> bool:
        """Parts of one GPU (MIG) have UUIDs of their own, but its index."""
        if self.node != other.node:
            return False
        if self.index is None or other.index is None:
            return self.uuid is not None and self.uuid == other.uuid
        return self.index == other.index


def link(job: Planned, ranks: Sequence[Where], topologies: Mapping[int, Topology]) -> str | None:
    """Of a pair what lies between its GPUs; of several pairs or a collective the one thing that all pairs share.

    None on CPUs, where the pairs differ, and where a GPU or its cell is unknown. `ranks` are those of the world,
    `topologies` those of its nodes. NET says another node: NVLink can reach there as well, `transport` tells.
    """
    if job.case.device == "cpu":
        return None
    members = [ranks[rank] for rank in job.members]
    if job.case.pairs:
        return shared({cell(members[first], members[second], topologies) for first, second in job.case.pairs})
    nodes = {one.node for one in members}
    if len(nodes) > 1:  # two ranks of a node are never linked as two nodes are
        return NET if len(nodes) == len(members) else None
    return shared({cell(first, second, topologies) for first, second in combinations(members, 2)})


def shared(cells: set[str | None]) -> str | None:
    return next(iter(cells)) if len(cells) == 1 else None


def cell(first: Where, second: Where, topologies: Mapping[int, Topology]) -> str | None:
    """Between two ranks. A cell that no driver known to us writes is given as it is."""
    if first.node != second.node:
        return NET
    if first.same_gpu(second):
        return SELF
    links = topologies.get(first.node, Topology()).links
    row, column = f"GPU{first.index}", f"GPU{second.index}"
    found = links.get((row, column)) or links.get((column, row))
    return None if found == NOT_AVAILABLE else found
