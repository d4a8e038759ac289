"""What a link really carries, by the algorithm that ran, and why a bus bandwidth may lie above its limit.

The bus factor is that of a ring, whatever the library did (as in nccl-tests): it makes figures comparable, not loads.
"""

from __future__ import annotations

from commbench.core.case import Planned
from commbench.core.layout import Layout
from commbench.core.program import AllReduce
from commbench.hardware.link_limits import COPY

RING, TREE, NVLS = "RING", "TREE", "NVLS"
LINE = 63 / 48  # line rate over planned rate where that is most: PCIe 5
SUMMED_BY_SWITCH = (NVLS, "LDMC")  # kernels for symmetric memory: AllReduce_RSxLDMC_AGxSTMC


def wire_gb_per_s(job: Planned, algbw_gb_per_s: float | None, algorithm: str | None) -> float | None:
    """GB/s that the busiest link of a GPU carries in one direction; None where no formula is known.

    n ranks, S bytes: a ring carries what the bus factor says; a tree 2 S, the root half of it (a maintainer in
    NVIDIA/nccl#457); NVLS on one node S (n + 1) / n (NVIDIA/nccl-tests#239).
    """
    factor = _load(job, (algorithm or "").upper())
    return None if factor is None or algbw_gb_per_s is None else factor * algbw_gb_per_s


def _load(job: Planned, algorithm: str) -> float | None:
    if algorithm == RING:
        return job.benchmark.bus_factor(job.size)
    if not _sums(job):
        return None
    nodes = Layout.parse(job.case.layout).nodes
    return {TREE: 2.0, NVLS: (job.size + 1) / job.size if nodes == 1 else None}.get(algorithm)


def _sums(job: Planned) -> bool:
    steps = job.program(0).steps
    return bool(steps) and isinstance(steps[0], AllReduce)


def impossible(
    job: Planned, efficiency: float | None, limit_name: str | None = None, algorithm: str | None = None
) -> str | None:
    """In words why a row shows more than its limit; None where it does not.

    A tree between two nodes is no reason here, though often named as one: it is faster than a ring's factor allows,
    and `bounds.bound` is that of the fewest bytes any algorithm can move, not of a ring's.
    """
    if efficiency is None or efficiency <= 1:
        return None
    causes = _causes(job, efficiency, limit_name or "", (algorithm or "").upper())
    causes.append("the bus factor, the limit or a clock is wrong")
    return f"busbw is {efficiency:.3g} x its limit ({limit_name or 'of no name'}): {', or '.join(causes)}"


def _causes(job: Planned, efficiency: float, limit_name: str, algorithm: str) -> list[str]:
    unknown = not algorithm
    planned = "NVLink" in limit_name or "PCIe" in limit_name
    found = {
        "NVLS: the switch sums, a link carries (n+1)/n of the message and not 2(n-1)/n": (
            planned and _sums(job) and (unknown or any(word in algorithm for word in SUMMED_BY_SWITCH))
        ),
        "SHARP: the network sums, so fewer bytes enter and leave a node": (
            not planned and not job.case.pairs and limit_name != COPY and (unknown or "COLLNET" in algorithm)
        ),
        "NVLink through a third GPU instead of PCIe": bool(job.case.pairs) and "PCIe" in limit_name,
        "the limit is the rate that NCCL plans with, below the line rate of the link": planned and efficiency <= LINE,
        "the limit was measured, and that varies": limit_name == COPY,
    }
    return [cause for cause, possible in found.items() if possible]
