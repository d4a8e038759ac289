"""The physical bound of a case that leaves its node: what the network interfaces let through.

A time can't be shorter than the busiest node's bytes over its interface's rate. Each byte of the result that was made
elsewhere has to enter, each byte that others need has to leave; an all_reduce of S bytes over N nodes moves at least
2 S (N - 1) / N through each of them (Patarasuk & Yuan 2009). With one rank a node this is the line rate itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from commbench.core.case import Planned
from commbench.core.layout import Layout
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Isend,
    Reduce,
    ReduceScatter,
    Scatter,
)

MBIT = 1e6 / 8
GB = 1e9


@dataclass(frozen=True)
class Wire:
    """A node's interface and its line rate in one direction; `count` of them where a node has several alike."""

    name: str
    mbit_per_s: float
    count: int = 1

    @property
    def total_mbit_per_s(self) -> float:
        return self.count * self.mbit_per_s

    def __str__(self) -> str:
        many = f"{self.count} x " if self.count > 1 else ""
        return f"{many}{self.name} {self.mbit_per_s / 1e3:g} Gb/s"


def bound(job: Planned, wires: Sequence[Wire | None], node_of: Callable[[int], int]) -> tuple[float, str] | None:
    """Of the bus bandwidth in GB/s, and whose it is; None within a node, and where a rate or the factor is unknown.

    `wires` are those of the nodes; `node_of` takes a rank of the world.
    """
    factor, nodes = job.benchmark.bus_factor(job.size), sorted({node_of(rank) for rank in talking(job)})
    if factor is None or len(nodes) < 2 or len(wires) <= nodes[-1]:
        return None
    known, share = [wire for node in nodes if (wire := wires[node]) is not None], crossing(job)
    if len(known) < len(nodes) or not share:
        return None
    slowest = min(known, key=lambda wire: wire.total_mbit_per_s)
    return factor * slowest.total_mbit_per_s * MBIT / GB / share, str(slowest)


def talking(job: Planned) -> Sequence[int]:
    """World ranks; of several pairs at once none, since each has its own way."""
    if not job.case.pairs:
        return job.members
    return [job.members[rank] for rank in job.case.pairs[0]] if len(job.case.pairs) == 1 else []


def crossing(job: Planned, layout: Layout | None = None) -> float | None:
    """Bytes that the busiest node must send or receive, over the bytes of the operation; None where nobody knows.

    Another layout than the case's asks for other groups of ranks, all of one size, in the place of nodes.
    """
    if job.case.pairs:  # a window's messages count for both: what crosses is what the factor says
        return job.benchmark.bus_factor(job.size)
    layout = layout or Layout.parse(job.case.layout)
    program = job.benchmark.program(job.case, 0, job.size)
    if not program.steps:
        return None
    rule = RULES.get(type(program.steps[0]))
    if rule is not None:
        return rule(layout)
    far = [one for one in program.steps if isinstance(one, Isend) and one.peer >= layout.ranks_per_node]
    return layout.ranks_per_node * len(far) * job.case.message_bytes / job.shape.bytes_per_sample


def _others(layout: Layout) -> float:
    """Share of the ranks that live on other nodes."""
    return (layout.nodes - 1) / layout.nodes


RULES: Mapping[type, Callable[[Layout], float]] = {
    AllReduce: lambda layout: 2 * _others(layout),
    AllGather: _others,
    ReduceScatter: _others,
    Gather: _others,
    Scatter: _others,
    Broadcast: lambda layout: 1.0,
    Reduce: lambda layout: 1.0,
    AllToAll: lambda layout: layout.ranks_per_node * _others(layout),  # each rank has a message of its own
}
