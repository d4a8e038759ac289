"""The bound between nodes: the rule of each operation, against the bytes that a node must move."""

from __future__ import annotations

from functools import cache

import pytest

from commbench.config.compose import ConfigComposer
from commbench.core.case import Planned
from commbench.hardware.limits import Wire, bound
from commbench.measure.plan import Facts, plan
from commbench.world.identity import hosted_world

SLOW, FAST = Wire("eth0", 1000.0), Wire("ib0", 8000.0)
LINE = 0.125  # GB/s of 1 Gb/s


@cache
def planned(benchmark: str, layout: str, *words: str) -> Planned:
    with ConfigComposer() as door:
        sizes = [] if benchmark == "barrier" else ["sizes=[4kB]"]
        given = ["backend=simulated", f"benchmark={benchmark}", f"layout={layout}", *sizes, *words]
        settings = door.jobs(given, multirun=False)[0].settings
    nodes, ranks = settings.layouts[0].nodes, settings.layouts[0].ranks_per_node
    return plan(settings, hosted_world(nodes, ranks)[0], Facts(2**40, 2**20, 2))[0]


def limit(benchmark: str, layout: str, *words: str, wires: tuple[Wire | None, ...] = (SLOW,) * 4) -> float | None:
    job, ranks = planned(benchmark, layout, *words), int(layout[-1])
    found = bound(job, wires, lambda rank: rank // ranks)
    return None if found is None else found[0]


@pytest.mark.parametrize("benchmark", ["all_reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
                                       "broadcast", "reduce", "p2p_latency", "p2p_bandwidth", "p2p_bibandwidth",
                                       "exchange"])  # fmt: skip
def test_with_one_rank_a_node_it_is_the_line_rate(benchmark: str) -> None:
    assert limit(benchmark, "2x1") == pytest.approx(LINE)


@pytest.mark.parametrize(
    ("benchmark", "share"),
    [
        # factor of 8 ranks over what a node of 4 moves for its S bytes, with 2 nodes
        ("all_reduce", (2 * 7 / 8) / (2 * 1 / 2)),
        ("all_gather", (7 / 8) / (1 / 2)),
        ("reduce_scatter", (7 / 8) / (1 / 2)),
        ("broadcast", 1.0),
        ("all_to_all", (7 / 8) / (4 * 1 / 2)),  # 4 ranks send half of their own message each
        ("exchange", 7 / (4 * 4)),  # 4 ranks send to 4 others, while each sends 7 messages
    ],
)
def test_ranks_of_a_node_share_its_interface(benchmark: str, share: float) -> None:
    assert limit(benchmark, "2x4") == pytest.approx(share * LINE)


def test_the_slower_end_counts_and_is_named() -> None:
    job = planned("p2p_bandwidth", "2x1")
    assert bound(job, (FAST, SLOW), lambda rank: rank) == (LINE, "eth0 1 Gb/s")


@pytest.mark.parametrize(
    ("benchmark", "layout", "wires"),
    [
        ("all_reduce", "1x2", (SLOW, SLOW)),
        ("all_reduce", "2x1", (SLOW, None)),
        ("all_reduce", "2x1", ()),
        ("barrier", "2x1", (SLOW, SLOW)),
        ("p2p_multi_pair", "2x2", (SLOW, SLOW)),
    ],
)
def test_what_nobody_knows_has_none(benchmark: str, layout: str, wires: tuple[Wire | None, ...]) -> None:
    assert limit(benchmark, layout, wires=wires) is None
