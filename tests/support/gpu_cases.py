"""Cases as they are planned for GPUs on a machine that has none, and tables of machines that have some."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from places import HARDWARE_TEXTS

from commbench.config.compose import ConfigComposer
from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.layout import Layout
from commbench.hardware.topology import Topology, parse_topo
from commbench.measure.plan import PlanFacts, plan
from commbench.world.control import hosted_world


@cache
def settings_of(benchmark: str, *words: str) -> Settings:
    with ConfigComposer() as door:
        sizes = [] if benchmark == "barrier" else ["sizes=[4kB]"]
        return door.jobs(["backend=simulated", f"benchmark={benchmark}", *sizes, *words], multirun=False)[0].settings


def planned(benchmark: str, layout: str, *words: str, device: str = "cuda") -> Planned:
    """The only case of a benchmark in a world of exactly this layout."""
    of_world = Layout.parse(layout)
    settings = replace(settings_of(benchmark, *words), layouts=(of_world,))
    job = plan(settings, hosted_world(of_world.nodes, of_world.ranks_per_node)[0], PlanFacts(2**40, 2**20, 2))[0]
    return replace(job, case=replace(job.case, device=device))


def table(name: str) -> Topology:
    """A saved one."""
    return parse_topo((HARDWARE_TEXTS / name).read_text())


def matrix(*rows: str) -> Topology:
    """One with these rows of cells, GPU0 first."""
    header = "\t" + "\t".join(f"GPU{index}" for index in range(len(rows)))
    lines = [f"GPU{index}\t" + "\t".join(row.split()) for index, row in enumerate(rows)]
    return parse_topo("\n".join([header, *lines]))


BRIDGED = matrix("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X")  # two pairs, each with a bridge
