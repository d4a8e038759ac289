"""The table of nvidia-smi topo -m and the link column, from saved tables of real and modelled
machines."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path

import pytest
from gpu_cases import BRIDGED, matrix, planned, table
from hypothesis import given
from hypothesis import strategies as st

from commbench.core.terminal import printable
from commbench.hardware import topology
from commbench.hardware.topology import RankGpu, link_between, parse_topo, shared_link

SHIFTED = "nvidia-smi topo -m: the cells of"
TABLES = [
    ("topo_k80x8.txt", 8, {"X", "PHB"}),
    ("topo_dgx_a100.txt", 18, {"X", "NV12", "PXB", "PIX", "SYS"}),
    ("topo_h100x8.txt", 16, {"X", "NV18", "PIX", "NODE", "SYS"}),
    ("topo_single.txt", 1, {"X"}),
    ("topo_single_container.txt", 1, {"X"}),
    ("topo_gh200.txt", 3, {"X", "NODE", "PIX"}),
    ("topo_mig_vm.txt", 2, {"X", "PHB"}),
    ("topo_old_driver.txt", 3, {"X", "PIX", "SOC"}),
]


@pytest.mark.parametrize(("name", "devices", "cells"), TABLES)
def test_saved_tables(saved, name, devices, cells):
    links = parse_topo(saved(name))
    names = {pair.split()[0] for pair in links}
    assert len(names) == devices
    assert set(links) == {f"{row} {column}" for row in names for column in names}
    assert set(links.values()) == cells
    for row, column in product(names, repeat=2):
        assert links[f"{row} {column}"] == links[f"{column} {row}"]
        assert (links[f"{row} {column}"] == "X") == (row == column)


@pytest.mark.parametrize("name", [name for name, _, _ in TABLES])
def test_tabs_and_spaces_say_the_same(saved, name):
    assert parse_topo(saved(name).expandtabs(8)) == parse_topo(saved(name))


def test_cells_of_known_machines(saved):
    assert parse_topo(saved("topo_k80x8.txt"))["GPU0 GPU7"] == "PHB"
    assert parse_topo(saved("topo_dgx_a100.txt"))["GPU0 NIC2"] == "PXB"


def test_nic_by_name(saved):
    assert parse_topo(saved("topo_old_driver.txt"))["GPU0 mlx5_0"] == "PIX"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "GPU0",
        "GPU0 is fine\nLegend:\n",
        "<html>\n\x1b[4m",
        "\tCPU Affinity\n",
    ],
)
def test_texts_without_a_table(text):
    assert parse_topo(text) == {}


def test_unknown_cells_and_short_rows_are_kept_as_far_as_they_go():
    links = parse_topo("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tC2C\t0-3\nGPU1 0-3\n")
    assert links == {"GPU0 GPU0": "X", "GPU0 GPU1": "C2C"}


HEADER = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\n"


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        ("X  PIXNODE", {"GPU0": "X", "GPU1": "PIX", "NIC0": "NODE"}),
        ("X NV18NODE", {"GPU0": "X", "GPU1": "NV18", "NIC0": "NODE"}),
        ("XSYSSYS", {"GPU0": "X", "GPU1": "SYS", "NIC0": "SYS"}),
        ("X sidewaysNODE", None),
        ("X NODE", None),
        ("NODE X PIX", None),
    ],
)
@pytest.mark.parametrize("affinity", ["0-3\t0", "0\tN/A"])
def test_cells_without_a_space_between_them_shift_no_others(
    row, cells, affinity, tmp_path, monkeypatch
):
    """They are told apart, or the whole row is unknown, and said to be."""
    text = f"{HEADER}GPU0\t{row}\t{affinity}\nGPU1\tPIX\tX\tSYS\t{affinity}\n"
    links = parse_topo(text)
    found = {pair.split()[1]: cell for pair, cell in links.items() if pair.startswith("GPU0")}
    assert found == (cells or {}) and links["GPU1 NIC0"] == "SYS"
    (tmp_path / "table").write_text(text)
    fake(tmp_path, f"cat {tmp_path}/table")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    reason = topology.collect().get("topology.reason")
    assert reason == (None if cells else f"{SHIFTED} GPU0 are not those of its columns")


@pytest.mark.parametrize("name", [name for name, _, _ in TABLES])
def test_the_matrix_for_people_has_the_same_links_and_nothing_to_act_on(saved, name):
    text = topology.matrix_text({topology.TOPOLOGY_FACT: saved(name)})
    assert parse_topo(text) == parse_topo(saved(name))
    assert printable(text) == text


def fake(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_collect_with_a_driver(tmp_path, monkeypatch, saved):
    (tmp_path / "table").write_text(saved("topo_dgx_a100.txt"))
    fake(tmp_path, f'[ "$*" = "topo -m" ] && cat {tmp_path}/table')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert topology.collect() == {"topology.nvidia_smi_topo_m": saved("topo_dgx_a100.txt")}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo; echo driver mismatch >&2; exit 9", "nvidia-smi failed: driver mismatch"),
        ("echo first; echo second; exit 1", "nvidia-smi failed: first"),
        ("exit 1", "nvidia-smi failed: status 1"),
        ("echo No devices were found", "nvidia-smi shows no GPU: No devices were found"),
    ],
)
def test_collect_says_why_there_is_no_table(tmp_path, monkeypatch, script, reason):
    fake(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = topology.collect()
    assert facts == {"topology.nvidia_smi_topo_m": None, "topology.reason": reason}


# a grandchild holds the pipe
@pytest.mark.parametrize("script", ["exec sleep 3", "sleep 3 & sleep 3"])
def test_collect_waits_for_no_program_that_hangs(tmp_path, monkeypatch, script):
    fake(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = topology.collect(timeout_s=0.2)
    assert facts["topology.reason"] == "nvidia-smi did not answer within 0.2 s"


def test_not_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert topology.collect()["topology.reason"] == "nvidia-smi is not installed"


def test_not_runnable(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/no/such/shell\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = topology.collect()
    assert facts["topology.nvidia_smi_topo_m"] is None
    assert facts["topology.reason"].startswith("nvidia-smi can't be started: ")


def test_the_record_of_a_node(saved):
    """The table is parsed once; what run.json keeps of it is read afterwards."""
    record = topology.node_record({topology.TOPOLOGY_FACT: saved("topo_dgx_a100.txt")})
    assert record == {"links": parse_topo(saved("topo_dgx_a100.txt"))}
    assert json.loads(json.dumps(record))["links"]["GPU0 GPU1"] == "NV12"
    assert (
        topology.node_record({}) is None
        and topology.node_record({topology.TOPOLOGY_FACT: None}) is None
    )


BUS = [f"0000:{number:02x}:00.0" for number in range(16)]


def world(nodes: int, ranks: int) -> list[RankGpu]:
    return [RankGpu(node, index, BUS[index]) for node in range(nodes) for index in range(ranks)]


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
    job = planned(
        "p2p_latency", "1x8" if "8" in name or "dgx" in name else "1x2", f"pairs=[[{pair}]]"
    )
    assert shared_link(job, world(1, 8), {0: table(name)}) == expected


def test_other_nodes_are_the_network() -> None:
    tables = {0: table("topo_h100x8.txt"), 1: table("topo_h100x8.txt")}
    assert shared_link(planned("p2p_latency", "2x1"), world(2, 1), tables) == "NET"
    assert shared_link(planned("all_reduce", "2x1"), world(2, 1), tables) == "NET"
    assert shared_link(planned("all_reduce", "2x2"), world(2, 2), tables) is None  # NV18 and NET


def test_one_gpu_for_two_ranks_is_itself() -> None:
    job = planned("p2p_latency", "1x2")
    for index in (3, None):
        gpu = RankGpu(0, index, BUS[3])
        assert shared_link(job, [gpu, gpu], {}) == "SELF"
    assert shared_link(job, [RankGpu(0, 0, BUS[0]), RankGpu(1, 0, BUS[0])], {}) == "NET"


def seen_by(*numbers: int) -> dict[str, str]:
    """The facts of a container that sees these GPUs of the machine, and counts them from 0."""
    return {f"gpu.{index}.pci_bus_id": BUS[number] for index, number in enumerate(numbers)}


def of_rank(number: int, machine: dict[str, str]) -> RankGpu:
    return RankGpu.from_facts(0, {"gpu.own.index": 0, "gpu.own.pci_bus_id": BUS[number]}, machine)


def test_gpus_that_each_see_only_themselves_are_not_the_same() -> None:
    """Under a device cgroup (srun --gpus-per-task=1) each of them is index 0 to its rank."""
    gpus = [of_rank(number, seen_by(0)) for number in range(8)]
    assert [gpu.index for gpu in gpus] == [0, *[None] * 7]
    assert not any(gpus[0].is_same(gpu) for gpu in gpus[1:])
    single = {0: matrix("X")}
    for job in (planned("p2p_latency", "1x2"), planned("all_reduce", "1x8")):
        assert shared_link(job, gpus, single) is None


def test_a_table_is_that_of_one_container() -> None:
    """Two pods of one machine see two GPUs each: the table of the first says nothing of the others,
    although they have the same indices."""
    machine = seen_by(0, 1)
    gpus = [of_rank(number, machine) for number in range(4)]
    tables = {0: matrix("X NV4", "NV4 X")}
    links = [link_between(gpus[0], other, tables) for other in gpus]
    assert links == ["SELF", "NV4", None, None]
    assert link_between(gpus[2], gpus[3], tables) is None


def test_a_table_of_all_gpus_holds_for_a_rank_that_sees_one() -> None:
    gpus = [of_rank(number, seen_by(*range(8))) for number in range(8)]
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert shared_link(planned("all_reduce", "1x8"), gpus, {0: table("topo_h100x8.txt")}) == "NV18"


def test_parts_of_a_gpu_are_one_gpu() -> None:
    """MIG: CUDA gives each part the PCI bus id of the whole."""
    job = planned("p2p_latency", "1x2")
    parts = [of_rank(1, seen_by(0, 1)), of_rank(1, seen_by(0, 1))]
    assert shared_link(job, parts, {0: matrix("X SYS", "SYS X")}) == "SELF"


def test_a_rank_and_itself_are_one_gpu() -> None:
    job = planned("p2p_latency", "1x2", "pairs=[[0,0]]")
    assert shared_link(job, world(1, 2), {0: table("topo_mig_vm.txt")}) == "SELF"


def test_pairs_at_once_share_one_cell_or_have_none() -> None:
    same = planned("p2p_multi_pair", "1x4", "pairs=[[0,2],[1,3]]")
    other = planned("p2p_latency", "1x4", "pairs=[[0,1]]")
    assert len(same.case.pairs) == 2
    assert shared_link(same, world(1, 4), {0: BRIDGED}) == "SYS"
    swapped = [
        RankGpu(0, index, BUS[index]) for index in (0, 2, 1, 2)
    ]  # 0-2 is NV4 now, 1-3 one GPU
    assert shared_link(same, swapped, {0: BRIDGED}) is None
    assert shared_link(other, world(1, 4), {0: BRIDGED}) == "NV4"


def test_a_collective_has_the_cell_that_all_its_pairs_share() -> None:
    assert (
        shared_link(planned("all_reduce", "1x4"), world(1, 4), {0: table("topo_k80x8.txt")})
        == "PHB"
    )
    assert shared_link(planned("all_reduce", "1x2"), world(1, 4), {0: BRIDGED}) == "NV4"
    assert shared_link(planned("all_reduce", "1x4"), world(1, 4), {0: BRIDGED}) is None


def test_the_members_of_a_layout_are_those_that_count() -> None:
    """CUDA's order and a layout's ranks are not NVML's: the index of each rank decides."""
    assert (
        shared_link(planned("p2p_latency", "1x2"), [RankGpu(0, 3), RankGpu(0, 2)], {0: BRIDGED})
        == "NV4"
    )
    assert (
        shared_link(planned("p2p_latency", "1x2"), [RankGpu(0, 3), RankGpu(0, 1)], {0: BRIDGED})
        == "SYS"
    )


@pytest.mark.parametrize("cell_text", ["C2C", "NV99", "sideways"])
def test_an_unknown_cell_is_kept(cell_text: str) -> None:
    cells = matrix(f"X {cell_text}", f"{cell_text} X")
    assert shared_link(planned("p2p_latency", "1x2"), world(1, 2), {0: cells}) == cell_text


def test_half_a_table_is_enough() -> None:
    """A row that is cut off: its cell stands in the other GPU's row."""
    cells = matrix("X", "PIX X")
    assert link_between(RankGpu(0, 0), RankGpu(0, 1), {0: cells}) == "PIX"


def test_an_unknown_link_is_null() -> None:
    job = planned("p2p_latency", "1x2")
    assert shared_link(job, world(1, 2), {}) is None
    assert shared_link(job, [RankGpu(0, 0), RankGpu(0, 9)], {0: table("topo_k80x8.txt")}) is None
    assert shared_link(job, [RankGpu(0), RankGpu(0)], {0: table("topo_k80x8.txt")}) is None
    assert shared_link(job, world(1, 2), {0: matrix("X N/A", "N/A X")}) is None


def test_a_cpu_has_no_link() -> None:
    cpu = planned("p2p_latency", "1x2", device="cpu")
    assert shared_link(cpu, world(1, 2), {0: table("topo_k80x8.txt")}) is None
    assert shared_link(planned("p2p_latency", "2x1", device="cpu"), world(2, 1), {}) is None


PLACE = st.builds(
    RankGpu,
    st.integers(0, 2),
    st.none() | st.integers(0, 7),
    st.none() | st.sampled_from(BUS[:2]),
)


@given(first=PLACE, second=PLACE)
def test_a_link_is_the_same_from_both_ends(first: RankGpu, second: RankGpu) -> None:
    tables = {0: table("topo_dgx_a100.txt"), 1: BRIDGED}
    link = link_between(first, second, tables)
    assert link == link_between(second, first, tables)
    assert (link == "NET") == (first.node != second.node)
    assert link in {None, "NET", "SELF", "NV12", "NV4", "SYS", "X"}


def test_of_a_long_message_the_beginning_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nhead -c 5000 /dev/zero | tr '\\0' x\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reason = topology.collect()["topology.reason"]
    assert reason.startswith("nvidia-smi shows no GPU: xxx") and len(reason) < 300
