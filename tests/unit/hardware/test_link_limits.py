"""Limits of the network and of GPU links: the rule of each operation, and known machines calculated
by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args
from unittest.mock import ANY

import pytest
from gpu_cases import BRIDGED, matrix, planned, table
from hypothesis import given
from hypothesis import strategies as st
from two_steps import GATHER, REDUCE, Steps

from commbench.core.program import (
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.core.states import LimitKind
from commbench.hardware.link_limits import (
    Limit,
    bandwidth_limit,
    crossing_share,
    host_link,
    interface_limit,
    network_limit,
    nvlink_rate,
    together,
    told_limit,
)
from commbench.hardware.topology import RankGpu, Topology

NICS = together(8, interface_limit("mlx5_0", 400_000.0))
SLOW = interface_limit("eth0", 1000.0)
FAST = interface_limit("ib0", 8000.0)
BUS = "0000:1b:00.0"
LINE = 0.125  # GB/s of 1 Gb/s
# the hybrid cube mesh of 8 V100: the links of a GPU go to four others
CUBE_MESH = matrix(
    "X NV1 NV1 NV2 NV2 SYS SYS SYS",
    "NV1 X NV2 NV1 SYS NV2 SYS SYS",
    "NV1 NV2 X NV2 SYS SYS NV1 SYS",
    "NV2 NV1 NV2 X SYS SYS SYS NV1",
    "NV2 SYS SYS SYS X NV1 NV1 NV2",
    "SYS NV2 SYS SYS NV1 X NV2 NV1",
    "SYS SYS NV1 SYS NV1 NV2 X NV2",
    "SYS SYS SYS NV1 NV2 NV1 NV2 X",
)
COLLECTIVES = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "exchange",
]


def gpus(
    count: int, capability: int | None, generation: int | None = 4, width: int = 16, nodes: int = 1
) -> list[RankGpu]:
    return [
        RankGpu(node, index, f"0000:{index:02x}:00.0", capability, generation, width)
        for node in range(nodes)
        for index in range(count)
    ]


def limit_of(
    benchmark: str,
    layout: str,
    seen: list[RankGpu],
    topology: Topology,
    *words: str,
    copy: float | None = None,
) -> Limit | None:
    wires = (NICS,) * 4
    job = planned(benchmark, layout, *words)
    tables = dict.fromkeys(range(4), topology)
    return bandwidth_limit(job, wires, lambda rank: seen[rank].node, seen, tables, copy)


def near(value: float, name: str) -> tuple[object, str, object]:
    return pytest.approx(value), name, ANY


H100 = table("topo_h100x8.txt")


def network_gb_per_s(
    benchmark: str, layout: str, *words: str, wires: tuple[Limit | None, ...] = (SLOW,) * 4
) -> float | None:
    job = planned(benchmark, layout, *words)
    ranks = int(layout[-1])
    limit = network_limit(job, wires, lambda rank: rank // ranks)
    return None if limit is None else limit.gb_per_s


@pytest.mark.parametrize(
    "benchmark",
    [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "gather",
        "scatter",
        "all_to_all",
        "broadcast",
        "reduce",
        "p2p_latency",
        "p2p_bandwidth",
        "p2p_bibandwidth",
        "exchange",
    ],
)
def test_with_one_rank_per_node_it_is_the_line_rate(benchmark: str) -> None:
    assert network_gb_per_s(benchmark, "2x1") == pytest.approx(LINE)


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
    assert network_gb_per_s(benchmark, "2x4") == pytest.approx(share * LINE)


@pytest.mark.parametrize("layout", ["2x1", "2x4", "4x2"])
def test_uniform_traffic_has_the_limit_of_an_all_to_all(layout: str) -> None:
    assert network_gb_per_s("all_to_all_v", layout) == pytest.approx(
        network_gb_per_s("all_to_all", layout)
    )
    cores = [
        bandwidth_limit(
            planned(name, layout, device="cpu"), (None,), lambda _: 0, core_copy_gb_per_s=10.0
        )
        for name in ("all_to_all", "all_to_all_v")
    ]
    assert cores[1] is not None and cores[0] == near(cores[1].gb_per_s, cores[1].name)


def test_the_limit_of_uneven_traffic_is_that_of_the_node_that_takes_longest(tmp_path: Path) -> None:
    """Incast with 2x4: 7 S enter rank 0, and 4 S of them its node."""
    assert network_gb_per_s("all_to_all_v", "2x4", "traffic=incast") == pytest.approx(7 / 4 * LINE)
    wires = {"fast": FAST, "slow": SLOW}
    for cells, last, expected in (
        ("0 8K 0 \n 0 0 4K \n 0 0 0", "fast", near(1.0, "ib0 8 Gb/s")),
        # 4 KiB over the slow line take as long as 32 KiB over the fast one
        ("0 8K 0 \n 0 0 4K \n 0 0 0", "slow", near(2 * LINE, "eth0 1 Gb/s")),
        ("0 8K 0 \n 0 0 256 \n 0 0 0", "slow", near(1.0, "ib0 8 Gb/s")),
        ("0 8K 0 \n 0 0 0 \n 0 0 0", "slow", near(1.0, "ib0 8 Gb/s")),
    ):
        path = tmp_path / f"{len(cells)}.txt"
        path.write_text(cells)
        job = planned("all_to_all_v", "3x1", f"traffic={path}")
        assert network_limit(job, (FAST, FAST, wires[last]), lambda rank: rank) == expected


def test_the_slower_interface_counts_and_is_named() -> None:
    job = planned("p2p_bandwidth", "2x1")
    assert network_limit(job, (FAST, SLOW), lambda rank: rank) == near(LINE, "eth0 1 Gb/s")


@pytest.mark.parametrize(
    ("benchmark", "layout", "wires"),
    [
        ("all_reduce", "1x2", (SLOW, SLOW)),
        ("all_reduce", "2x1", (SLOW, None)),
        ("all_reduce", "2x1", ()),
        ("barrier", "2x1", (SLOW, SLOW)),
        ("p2p_multi_pair", "4x1", (SLOW,) * 4),  # each node is in one pair
        ("p2p_multi_pair", "1x4", (SLOW,)),
    ],
)
def test_an_unknown_network_has_no_network_gb_per_s(
    benchmark: str, layout: str, wires: tuple[Limit | None, ...]
) -> None:
    assert network_gb_per_s(benchmark, layout, wires=wires) is None


@pytest.mark.parametrize(
    ("pairs", "factor"),
    [
        ("[[0,2],[1,3]]", 1.0),
        ("[[2,0],[1,3]]", 0.5),  # one in each direction
        ("[[0,1],[2,3]]", None),
    ],
)
def test_many_pairs_between_two_nodes_share_their_line(pairs: str, factor: float | None) -> None:
    job = planned("p2p_multi_pair", "2x2", f"pairs={pairs}", device="cpu")
    limit = network_limit(job, (FAST, SLOW), lambda rank: rank // 2)
    assert job.bus_factor == factor
    assert limit == (Limit(LINE, "eth0 1 Gb/s", "network") if factor else None)


@pytest.mark.parametrize("benchmark", ["p2p_latency", "p2p_bandwidth", "p2p_bibandwidth"])
def test_a_pair_on_nvlink(benchmark: str) -> None:
    assert limit_of(benchmark, "1x2", gpus(2, 90), H100) == near(370.8, "NVLink 18 x 20.6 GB/s")


@pytest.mark.parametrize("benchmark", COLLECTIVES)
def test_a_switch_shows_all_links_to_each_gpu_and_they_count_once(benchmark: str) -> None:
    assert limit_of(benchmark, "1x8", gpus(8, 90), H100) == near(370.8, "NVLink 18 x 20.6 GB/s")


def test_fewer_active_links_than_the_architecture_has() -> None:
    """Eight links behind a switch: every pair shows NV8, and 8 is all there is."""
    switched = matrix("X NV8 NV8", "NV8 X NV8", "NV8 NV8 X")
    seen = [RankGpu(0, index, None, 90, 5, 16, nvlinks=8) for index in range(3)]
    assert limit_of("all_reduce", "1x3", seen, switched) == near(164.8, "NVLink 8 x 20.6 GB/s")


def test_in_a_mesh_the_links_to_all_others_add_up() -> None:
    """Six links a GPU: nccl-tests reach more on 8 V100 than any one pair has, and than PCIe between
    some of them."""
    assert limit_of("all_reduce", "1x8", gpus(8, 70, 3), CUBE_MESH) == near(
        120.0, "NVLink 6 x 20 GB/s"
    )
    assert limit_of("all_reduce", "1x4", gpus(8, 70, 3), CUBE_MESH) == near(
        80.0, "NVLink 4 x 20 GB/s"
    )
    assert limit_of("p2p_bandwidth", "1x8", gpus(8, 70, 3), CUBE_MESH, "pairs=[[0,3]]") == near(
        40.0, "NVLink 2 x 20 GB/s"
    )
    assert limit_of("p2p_bandwidth", "1x8", gpus(8, 70, 3), CUBE_MESH, "pairs=[[0,7]]") == near(
        12.0, "PCIe gen3 x16"
    )


def test_the_seeds_k80() -> None:
    seen = gpus(8, 37, 3)
    assert limit_of("p2p_bandwidth", "1x2", seen, table("topo_k80x8.txt")) == near(
        12.0, "PCIe gen3 x16"
    )
    assert limit_of("all_reduce", "1x8", seen, table("topo_k80x8.txt")) == near(
        12.0, "PCIe gen3 x16"
    )


@pytest.mark.parametrize(
    ("generation", "width", "expected"),
    [(3, 16, 12), (4, 16, 24), (5, 16, 48), (6, 16, 96), (4, 8, 12), (5, 1, 3)],
)
def test_pcie_by_generation_and_width(generation: int, width: int, expected: float) -> None:
    topology = matrix("X PHB", "PHB X")
    seen = gpus(2, 89, generation, width)
    assert limit_of("p2p_bandwidth", "1x2", seen, topology) == near(
        expected, f"PCIe gen{generation} x{width}"
    )


def test_the_slower_gpu_counts() -> None:
    topology = matrix("X SYS", "SYS X")
    seen = [RankGpu(0, 0, None, 89, 5, 16), RankGpu(0, 1, None, 89, 4, 8)]
    assert limit_of("p2p_bandwidth", "1x2", seen, topology) == near(12.0, "PCIe gen4 x8")
    assert limit_of("all_reduce", "1x2", seen, topology) == near(12.0, "PCIe gen4 x8")


def test_between_islands_of_nvlink_pcie_counts_as_a_network_does() -> None:
    """Two bridged pairs: half of a ring's bytes are not needed between them, as between two
    nodes."""
    expected = (2 * 3 / 4) / (2 * 1 / 2) * 2 * 24.0
    assert limit_of("all_reduce", "1x4", gpus(4, 86), BRIDGED) == near(
        expected, "2 x PCIe gen4 x16"
    )
    assert limit_of("broadcast", "1x4", gpus(4, 86), BRIDGED) == near(48.0, "2 x PCIe gen4 x16")
    assert limit_of("all_reduce", "1x2", gpus(2, 86), BRIDGED) == near(48.0, "NVLink 4 x 12 GB/s")


def test_a_limit_says_how_it_is_known() -> None:
    """Whatever its name, and after it was divided or multiplied."""
    apart = gpus(2, 90, 5, nodes=2)
    told = told_limit("NVLink-eth0", 1.25)
    job = planned("all_to_all", "2x2")
    limits = {
        "memory": limit_of("all_reduce", "1x2", [RankGpu(0, 0, BUS, 90)] * 2, H100, copy=9.0),
        "nvlink": limit_of("all_reduce", "1x8", gpus(8, 90), H100),
        "pcie": limit_of("all_reduce", "1x4", gpus(4, 86), BRIDGED),
        "line": network_limit(job, (NICS, NICS), lambda rank: rank // 2, apart),
        "network": network_limit(job, (SLOW, NICS), lambda rank: rank // 2, apart),
        "told": network_limit(job, (together(2, told), NICS), lambda rank: rank // 2, apart),
    }
    assert set(limits) == set(get_args(LimitKind))
    assert {name: limit and limit.kind for name, limit in limits.items()} == {
        name: name for name in limits
    }
    shared = limit_of("copy_h2d", "1x2", gpus(1, 90, 5) * 2, H100)
    core = bandwidth_limit(
        planned("all_reduce", "1x2", device="cpu"), (), lambda _: 0, core_copy_gb_per_s=9.0
    )
    assert shared is not None and shared.kind == "line"
    assert core is not None and core.kind == "memory"


def test_islands_of_different_size_are_not_known() -> None:
    assert limit_of("all_reduce", "1x3", gpus(3, 86), BRIDGED) is None


def test_one_gpu_for_all_ranks_is_bound_by_a_copy() -> None:
    seen = [RankGpu(0, 0, BUS, 90), RankGpu(0, 0, BUS, 90)]
    assert limit_of("p2p_bandwidth", "1x2", seen, H100, copy=1500.0) == Limit(
        1500.0, "measured device copy", "memory"
    )
    assert limit_of("all_reduce", "1x2", seen, H100, copy=1500.0) == Limit(
        1500.0, "measured device copy", "memory"
    )
    assert limit_of("p2p_bandwidth", "1x2", seen, H100) is None


def test_between_nodes_the_lesser_of_network_and_links() -> None:
    seen = gpus(4, 90, 5, nodes=2)
    tables = {0: H100, 1: H100}
    job = planned("all_reduce", "2x4")

    def between(wire: Limit) -> Limit | None:
        return bandwidth_limit(job, (wire, wire), lambda rank: rank // 4, seen, tables)

    assert between(NICS) == near(370.8, "NVLink 18 x 20.6 GB/s")
    assert between(interface_limit("eth0", 100_000.0)) == near(
        (2 * 7 / 8) / 1 * 12.5, "eth0 100 Gb/s"
    )
    assert between(together(2, interface_limit("mlx5_0", 400_000.0))) == near(
        (2 * 7 / 8) / 1 * 100, "2 x mlx5_0 400 Gb/s"
    )


def test_between_nodes_a_pair_and_single_ranks_have_the_network_only() -> None:
    unknown = gpus(1, 90, None, nodes=2)
    assert limit_of("p2p_bandwidth", "2x1", unknown, H100) == near(400.0, "8 x mlx5_0 400 Gb/s")
    assert limit_of("all_reduce", "2x1", unknown, H100) == near(400.0, "8 x mlx5_0 400 Gb/s")


@pytest.mark.parametrize(
    ("benchmark", "layout", "generation", "limit", "name"),
    [
        ("p2p_bandwidth", "2x1", 5, 63.0, "PCIe gen5 x16 line rate"),
        ("all_reduce", "2x1", 5, 63.0, "PCIe gen5 x16 line rate"),
        ("all_reduce", "2x1", 4, 31.5, "PCIe gen4 x16 line rate"),
        # (n-1)/n x 126 / (2 ranks x 1/2)
        ("all_to_all", "2x2", 5, 94.5, "2 x PCIe gen5 x16 line rate"),
        # 15/16 x 400 / (1/2): eight GPUs can fill eight ports
        ("all_gather", "2x8", 5, 750.0, "8 x mlx5_0 400 Gb/s"),
    ],
)
def test_few_ranks_of_a_node_cannot_fill_all_its_ports(
    benchmark: str, layout: str, generation: int, limit: float, name: str
) -> None:
    ranks = int(layout[-1])
    job = planned(benchmark, layout)
    seen = gpus(ranks, 90, generation, nodes=2)
    assert network_limit(job, (NICS, NICS), lambda rank: rank // ranks, seen) == near(limit, name)


@pytest.mark.parametrize("benchmark", ["copy_h2d", "copy_d2h", "copy_h2d_d2h"])
def test_a_copy_to_or_from_the_host_has_the_link_of_its_gpu(benchmark: str) -> None:
    assert limit_of(benchmark, "1x1", gpus(1, 90, 5), H100) == near(63.0, "PCIe gen5 x16 line rate")
    assert limit_of(benchmark, "1x1", gpus(1, 80, 4, 8), H100) == near(
        15.75, "PCIe gen4 x8 line rate"
    )
    slow = [gpus(2, 90, 5)[0], gpus(2, 90, 3)[1]]
    assert limit_of(benchmark, "1x2", slow, H100) == near(15.75, "PCIe gen3 x16 line rate")
    both = gpus(1, 90, 5) * 2
    assert limit_of(benchmark, "1x2", both, H100) == near(31.5, "PCIe gen5 x16 line rate / 2")
    grace = [replace(gpu, c2c_gb_per_s=447.0) for gpu in gpus(1, 90, None)]
    assert limit_of(benchmark, "1x1", grace, H100) == near(447.0, "C2C 447 GB/s")
    assert limit_of(benchmark, "1x1", gpus(1, 90, None), H100) is None


@pytest.mark.parametrize("layout", ["1x1", "1x2", "2x1"])
def test_a_copy_within_a_gpu_has_no_known_limit(layout: str) -> None:
    assert limit_of("copy_d2d", layout, gpus(2, 90, 5, nodes=2), H100, copy=1500.0) is None


def test_a_gpu_on_c2c_is_not_bound_by_its_pcie_link() -> None:
    seen = [replace(gpu, c2c_gb_per_s=447.0) for gpu in gpus(1, 90, 5, nodes=2)]
    job = planned("p2p_bandwidth", "2x1")
    assert network_limit(job, (NICS, NICS), lambda rank: rank, seen) == near(
        400.0, "8 x mlx5_0 400 Gb/s"
    )
    assert (
        host_link(seen[0]) == near(447.0, "C2C 447 GB/s")
        and host_link(gpus(1, 90, None)[0]) is None
    )


def test_gpus_that_each_see_only_themselves_have_no_known_limit_but_that_of_their_own_link() -> (
    None
):
    """Under a device cgroup all are index 0: not one GPU, and not the copies of eight to it."""
    machine = {"gpu.0.pci_bus_id": "0000:00:00.0"}
    reading = {"pcie_generation": 5, "pcie_width": 16, "nvlink_links": 18}
    seen = []
    for number in range(8):
        own = {"gpu.own.index": 0, "gpu.own.pci_bus_id": f"0000:{number:02x}:00.0"}
        seen.append(RankGpu.from_facts(0, own, machine, reading))
    alone = matrix("X")
    assert limit_of("p2p_bandwidth", "1x8", seen, alone, copy=1500.0) is None
    assert limit_of("all_reduce", "1x8", seen, alone, copy=1500.0) is None
    assert limit_of("copy_h2d", "1x8", seen, alone) == near(63.0, "PCIe gen5 x16 line rate")


NVL72 = [replace(gpu, nvlinks=18, c2c_gb_per_s=447.0) for gpu in gpus(4, 100, 5, nodes=2)]
# an NVLink switch within each node, and one between them
SWITCHED = matrix("X NV18 NV18 NV18", "NV18 X NV18 NV18", "NV18 NV18 X NV18", "NV18 NV18 NV18 X")


@pytest.mark.parametrize(
    ("benchmark", "layout"),
    [
        ("p2p_bandwidth", "2x1"),
        ("all_reduce", "2x1"),
        ("all_reduce", "2x4"),
        ("all_to_all", "2x4"),
        ("broadcast", "2x4"),
    ],
)
@pytest.mark.parametrize("topology", [SWITCHED, {}])
def test_nvlink_between_nodes_is_the_limit_instead_of_their_interfaces(
    benchmark: str, layout: str, topology: Topology
) -> None:
    job = planned(benchmark, layout)
    ranks = int(layout[-1])
    seen = [gpu for gpu in NVL72 if (gpu.index or 0) < ranks]
    slow = (interface_limit("mlx5_0", 400_000.0),) * 2
    tables = dict.fromkeys(range(2), topology)

    def limit(nvlink: bool) -> Limit | None:
        return bandwidth_limit(
            job, slow, lambda rank: rank // ranks, seen, tables, nvlink_joins_nodes=nvlink
        )

    assert limit(True) == near(721.8, "NVLink 18 x 40.1 GB/s")
    assert limit(False) == network_limit(job, slow, lambda rank: rank // ranks, seen)


def test_nvlink_between_nodes_of_unknown_gpus_is_no_known_limit() -> None:
    job = planned("all_reduce", "2x1")
    seen = [NVL72[0], replace(NVL72[4], capability=None)]
    limit = bandwidth_limit(job, (NICS, NICS), lambda rank: rank, seen, {}, nvlink_joins_nodes=True)
    assert limit is None


def test_unknown_links_leave_the_network_and_an_unknown_network_leaves_nothing() -> None:
    job = planned("all_reduce", "2x4")
    seen = gpus(4, 90, nodes=2)
    assert bandwidth_limit(job, (NICS, NICS), lambda rank: rank // 4, seen, {}) == network_limit(
        job, (NICS, NICS), lambda rank: rank // 4, seen
    )
    assert (
        bandwidth_limit(job, (NICS, None), lambda rank: rank // 4, seen, {0: H100, 1: H100}) is None
    )


@pytest.mark.parametrize("layout", ["1x2", "2x1", "2x4"])
def test_on_a_cpu_nothing_changes(layout: str) -> None:
    job = planned("all_reduce", layout, device="cpu")
    size = int(layout[-1])
    expected = network_limit(job, (NICS, NICS), lambda rank: rank // size)
    assert (
        bandwidth_limit(
            job, (NICS, NICS), lambda rank: rank // size, gpus(size, 90, nodes=2), {0: H100}
        )
        == expected
    )
    assert (
        bandwidth_limit(planned("all_reduce", layout), (NICS, NICS), lambda rank: rank // size)
        == expected
    )


@pytest.mark.parametrize(
    ("benchmark", "layout", "seen", "topology", "words"),
    [
        ("barrier", "1x8", gpus(8, 90), H100, ()),
        ("p2p_multi_pair", "1x4", gpus(4, 90), H100, ()),
        ("p2p_bandwidth", "1x2", gpus(2, None), H100, ()),
        ("p2p_bandwidth", "1x2", gpus(2, 37), matrix("X NV4", "NV4 X"), ()),  # older than NVLink
        ("p2p_bandwidth", "1x2", gpus(2, 89, None), matrix("X PIX", "PIX X"), ()),
        ("p2p_bandwidth", "1x2", gpus(2, 89, 1), matrix("X PIX", "PIX X"), ()),  # asleep
        ("p2p_bandwidth", "1x2", gpus(2, 90), matrix("X C2C", "C2C X"), ()),
        ("all_reduce", "1x2", gpus(2, 90), {}, ()),
        ("all_reduce", "1x3", [*gpus(1, 90), *gpus(2, 90)], H100, ()),  # one GPU twice
    ],
)
def test_what_is_not_known_has_no_limit(
    benchmark: str, layout: str, seen: list[RankGpu], topology: Topology, words: tuple[str, ...]
) -> None:
    assert limit_of(benchmark, layout, seen, topology, *words) is None


def test_a_way_through_the_host_is_not_that_of_the_links() -> None:
    job = planned("p2p_bandwidth", "1x2")
    staged = replace(job, case=replace(job.case, staging="library"))
    assert bandwidth_limit(staged, (), lambda rank: 0, gpus(2, 90), {0: H100}) is None


@pytest.mark.parametrize(
    ("capability", "rate"),
    [
        (60, 18.0),
        (61, 18.0),
        (70, 20.0),
        (75, 20.0),
        (80, 20.0),
        (86, 12.0),
        (87, 20.0),
        (90, 20.6),
        (103, 40.1),
    ],
)
def test_rates_of_a_link(capability: int, rate: float) -> None:
    assert (nvlink_rate(capability) or (None,))[0] == rate


MACHINE = {
    "gpu.0.pci_bus_id": "0000:1a:00.0",
    "gpu.1.pci_bus_id": BUS,
    "gpu.1.compute_capability": "9.0",
    "gpu.1.pcie_generation": 5,
    "gpu.1.pcie_width": 16,
    "gpu.1.nvlink_links": 18,
}


def test_a_gpu_from_facts() -> None:
    # the rank sees this GPU alone, as index 0; the node's facts are of two
    own = {"gpu.own.index": 0, "gpu.own.pci_bus_id": BUS}
    assert RankGpu.from_facts(3, own, MACHINE) == RankGpu(3, 1, BUS, 90, 5, 16, 18)
    assert RankGpu.from_facts(0, {}, MACHINE) == RankGpu(0)
    newer = own | {"gpu.own.compute_capability": "12.1"}
    assert RankGpu.from_facts(0, newer, MACHINE).capability == 121


def test_what_a_rank_reads_of_its_gpu_counts_before_the_facts_of_the_node() -> None:
    own = {"gpu.own.pci_bus_id": BUS, "gpu.own.compute_capability": "9.0"}
    reading = {
        "pcie_generation": 4,
        "pcie_width": None,
        "nvlink_links": 17,
        "c2c_gb_per_s": 450.0,
    }
    read = RankGpu.from_facts(0, own, MACHINE, reading)
    assert read == RankGpu(0, 1, BUS, 90, 4, 16, 17, 450.0)
    # a GPU that the node's first rank does not see has only what its own rank has read
    hidden = RankGpu.from_facts(0, own, {}, reading)
    assert hidden == RankGpu(0, None, BUS, 90, 4, None, 17, 450.0)


@given(missing=st.sets(st.sampled_from(["gpu.own.pci_bus_id", *MACHINE])))
def test_missing_facts_are_unknown_and_break_nothing(missing: set[str]) -> None:
    facts = {"gpu.own.pci_bus_id": BUS} | MACHINE
    known = {key: value for key, value in facts.items() if key not in missing}
    gpu = RankGpu.from_facts(0, known, known)
    job = planned("p2p_bandwidth", "1x2")
    bounded = bandwidth_limit(
        job, (), lambda rank: 0, [gpu, RankGpu(0, 0, None, 90, 5, 16)], {0: H100}
    )
    assert bounded is None or bounded.gb_per_s > 0


@given(
    links=st.integers(1, 18),
    capability=st.sampled_from([60, 70, 80, 86, 90, 100]),
    benchmark=st.sampled_from(COLLECTIVES),
)
def test_two_gpus_are_bound_alike_by_every_operation(
    links: int, capability: int, benchmark: str
) -> None:
    topology = matrix(f"X NV{links}", f"NV{links} X")
    pair = limit_of("p2p_bandwidth", "1x2", gpus(2, capability), topology)
    assert pair is not None
    assert limit_of(benchmark, "1x2", gpus(2, capability), topology) == pair


@pytest.mark.parametrize("order", [(REDUCE, GATHER), (GATHER, REDUCE)])
def test_several_operations_have_no_bus_bandwidth_and_no_limit(order: tuple[Step, ...]) -> None:
    job = replace(planned("all_reduce", "2x2"), benchmark=Steps(order))
    assert job.bus_factor is None and crossing_share(job) is None
    for wires in ((SLOW,) * 2, ()):
        assert bandwidth_limit(job, wires, lambda rank: rank // 2) is None
    assert bandwidth_limit(job, (), lambda _: 0, core_copy_gb_per_s=10.0) is None


def test_the_same_operation_twice_has_the_limit_of_one() -> None:
    once = planned("all_reduce", "2x2")
    twice = replace(planned("all_reduce", "2x2"), benchmark=Steps((REDUCE, REDUCE)))
    assert crossing_share(twice) == crossing_share(once) == 1.0
    assert twice.bus_factor == once.bus_factor


def test_messages_to_some_ranks_only_do_not_tell_what_crosses() -> None:
    ring = (
        Start(Recv(View("data"), 3), 0),
        Start(Send(View("source"), 1), 1),
        WaitAll((0, 1)),
    )
    job = replace(planned("all_reduce", "2x2"), benchmark=Steps(ring))
    assert crossing_share(job) is None


@pytest.mark.parametrize(
    ("benchmark", "ranks", "expected"),
    [
        ("p2p_bandwidth", 2, 10.0),
        ("p2p_bibandwidth", 2, 10.0),
        ("all_reduce", 2, 10.0),
        ("all_reduce", 4, 10.0),
        ("all_gather", 4, 10.0),
        ("all_to_all", 4, 10.0),
        ("all_to_all_v", 4, 10.0),
        ("broadcast", 4, 10 * 4 / 3),
        ("gather", 4, 40.0),
        ("barrier", 2, None),
    ],
)
def test_within_a_node_of_cpus_each_byte_is_copied_once(
    benchmark: str, ranks: int, expected: float | None
) -> None:
    job = planned(benchmark, f"1x{ranks}", device="cpu")
    limit = bandwidth_limit(job, (None,), lambda _: 0, core_copy_gb_per_s=10.0)
    assert limit == (None if expected is None else near(expected, "measured copy by a core"))
    assert bandwidth_limit(job, (None,), lambda _: 0) is None
    apart = bandwidth_limit(job, (None, None), lambda rank: rank % 2, core_copy_gb_per_s=10.0)
    assert apart is None, "the network is unknown"
