"""The link column: what lies between the GPUs of a case, from saved tables of real and modelled machines."""

from __future__ import annotations

import pytest
from gpu_cases import BRIDGED, matrix, planned, table
from hypothesis import given, settings
from hypothesis import strategies as st

from commbench.hardware.wiring import Where, cell, link


def world(nodes: int, ranks: int) -> list[Where]:
    return [Where(node, index) for node in range(nodes) for index in range(ranks)]


@pytest.mark.parametrize(
    ("name", "pair", "expected"),
    [
        ("topo_k80x8.txt", "0,7", "PHB"),
        ("topo_dgx_a100.txt", "1,6", "NV12"),
        ("topo_h100x8.txt", "7,0", "NV18"),
        ("topo_mig_vm.txt", "0,1", "PHB"),
    ],
)
def test_a_pair_of_one_node_has_its_cell(name: str, pair: str, expected: str) -> None:
    job = planned("p2p_latency", "1x8" if "8" in name or "dgx" in name else "1x2", f"pairs=[[{pair}]]")
    assert link(job, world(1, 8), {0: table(name)}) == expected


def test_other_nodes_are_the_network() -> None:
    tables = {0: table("topo_h100x8.txt"), 1: table("topo_h100x8.txt")}
    assert link(planned("p2p_latency", "2x1"), world(2, 1), tables) == "NET"
    assert link(planned("all_reduce", "2x1"), world(2, 1), tables) == "NET"
    assert link(planned("all_reduce", "2x2"), world(2, 2), tables) is None  # NV18 and NET


def test_one_gpu_for_two_ranks_is_itself() -> None:
    job = planned("p2p_latency", "1x2")
    assert link(job, [Where(0, 3), Where(0, 3)], {}) == "SELF"
    assert link(job, [Where(0, None, "GPU-a"), Where(0, None, "GPU-a")], {}) == "SELF"
    assert link(job, [Where(0, 0, "MIG-a"), Where(0, 0, "MIG-b")], {}) == "SELF"
    assert link(job, [Where(0, 0), Where(1, 0)], {}) == "NET"


def test_a_rank_and_itself_are_one_gpu() -> None:
    job = planned("p2p_latency", "1x2", "pairs=[[0,0]]")
    assert link(job, world(1, 2), {0: table("topo_mig_vm.txt")}) == "SELF"


def test_pairs_at_once_share_one_cell_or_have_none() -> None:
    same, other = (
        planned("p2p_multi_pair", "1x4", "pairs=[[0,2],[1,3]]"),
        planned("p2p_latency", "1x4", "pairs=[[0,1]]"),
    )
    assert len(same.case.pairs) == 2
    assert link(same, world(1, 4), {0: BRIDGED}) == "SYS"
    swapped = [Where(0, index) for index in (0, 2, 1, 2)]  # 0-2 is NV4 now, 1-3 one GPU
    assert link(same, swapped, {0: BRIDGED}) is None
    assert link(other, world(1, 4), {0: BRIDGED}) == "NV4"


def test_a_collective_has_the_cell_that_all_its_pairs_share() -> None:
    assert link(planned("all_reduce", "1x4"), world(1, 4), {0: table("topo_k80x8.txt")}) == "PHB"
    assert link(planned("all_reduce", "1x2"), world(1, 4), {0: BRIDGED}) == "NV4"
    assert link(planned("all_reduce", "1x4"), world(1, 4), {0: BRIDGED}) is None


def test_the_members_of_a_layout_are_those_that_count() -> None:
    """CUDA's order and a layout's ranks are not NVML's: the index of each rank decides."""
    assert link(planned("p2p_latency", "1x2"), [Where(0, 3), Where(0, 2)], {0: BRIDGED}) == "NV4"
    assert link(planned("p2p_latency", "1x2"), [Where(0, 3), Where(0, 1)], {0: BRIDGED}) == "SYS"


@pytest.mark.parametrize("cell_text", ["C2C", "NV99", "sideways"])
def test_an_unknown_cell_is_kept(cell_text: str) -> None:
    topology = matrix(f"X {cell_text}", f"{cell_text} X")
    assert link(planned("p2p_latency", "1x2"), world(1, 2), {0: topology}) == cell_text


def test_half_a_table_is_enough() -> None:
    """A row that is cut off: its cell stands in the other GPU's row."""
    topology = matrix("X", "PIX X")
    assert cell(Where(0, 0), Where(0, 1), {0: topology}) == "PIX"


def test_what_nobody_knows_is_null() -> None:
    job = planned("p2p_latency", "1x2")
    assert link(job, world(1, 2), {}) is None
    assert link(job, [Where(0, 0), Where(0, 9)], {0: table("topo_k80x8.txt")}) is None
    assert link(job, [Where(0), Where(0)], {0: table("topo_k80x8.txt")}) is None
    assert link(job, world(1, 2), {0: matrix("X N/A", "N/A X")}) is None


def test_a_cpu_has_no_link() -> None:
    cpu = planned("p2p_latency", "1x2", device="cpu")
    assert link(cpu, world(1, 2), {0: table("topo_k80x8.txt")}) is None
    assert link(planned("p2p_latency", "2x1", device="cpu"), world(2, 1), {}) is None


PLACE = st.builds(Where, st.integers(0, 2), st.none() | st.integers(0, 7), st.none() | st.sampled_from(["a", "b"]))


@settings(max_examples=100, deadline=None)
@given(first=PLACE, second=PLACE)
def test_a_link_is_the_same_from_both_ends(first: Where, second: Where) -> None:
    tables = {0: table("topo_dgx_a100.txt"), 1: BRIDGED}
    found = cell(first, second, tables)
    assert found == cell(second, first, tables)
    assert (found == "NET") == (first.node != second.node)
    assert found in {None, "NET", "SELF", "NV12", "NV4", "SYS"}
