"""Cases as they are planned for GPUs on a machine that has none, and tables of machines that have
some."""

from __future__ import annotations

from dataclasses import replace

from composed import FACTS, every_benchmark, settings_of
from places import HARDWARE_TEXTS

from commbench.core.case import Planned
from commbench.core.layout import Layout
from commbench.hardware.topology import Topology, parse_topo
from commbench.measure.plan import plan
from commbench.runtime.control import hosted_world


def planned(benchmark: str, layout: str, *words: str, device: str = "cuda") -> Planned:
    """The only case of a benchmark in a world of exactly this layout."""
    of_world = Layout.parse(layout)
    sizes = () if benchmark == "barrier" else ("sizes=[4kB]",)
    settings = settings_of("backend=simulated", *sizes, *words)
    chosen = replace(settings, benchmarks=(every_benchmark()[benchmark],), layouts=(of_world,))
    world, _ = hosted_world(of_world.nodes, of_world.ranks_per_node)
    job = plan(chosen, world, FACTS)[0]
    return replace(job, case=replace(job.case, device=device))


def table(name: str) -> Topology:
    """A saved one."""
    return parse_topo((HARDWARE_TEXTS / name).read_text())


def matrix(*rows: str) -> Topology:
    """One with these rows of cells, GPU0 first."""
    header = "\t" + "\t".join(f"GPU{index}" for index in range(len(rows)))
    lines = [f"GPU{index}\t" + "\t".join(row.split()) for index, row in enumerate(rows)]
    return parse_topo("\n".join([header, *lines]))


# two pairs, each with a bridge
BRIDGED = matrix("X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X")
