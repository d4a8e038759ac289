from __future__ import annotations

from pathlib import Path

import pytest

from commbench.hardware import topology
from commbench.hardware.topology import Topology, parse_topo

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


@pytest.mark.parametrize(("name", "devices", "links"), TABLES)
def test_saved_tables(saved, name, devices, links):
    table = parse_topo(saved(name))
    assert len(table.devices) == devices
    assert set(table.links) == {(row, column) for row in table.devices for column in table.devices}
    assert set(table.links.values()) == links
    assert all((cell == "X") == (row == column) for (row, column), cell in table.links.items())
    assert all(table.links[column, row] == cell for (row, column), cell in table.links.items())
    assert table.legend["X"] == "Self"
    assert table.warnings == ()


@pytest.mark.parametrize("name", [name for name, _, _ in TABLES])
def test_tabs_and_spaces_say_the_same(saved, name):
    assert parse_topo(saved(name).expandtabs(8)) == parse_topo(saved(name))


def test_the_seed(saved):
    table = parse_topo(saved("topo_k80x8.txt"))
    assert table.devices == tuple(f"GPU{number}" for number in range(8))
    assert table.links["GPU0", "GPU7"] == "PHB"
    assert set(table.cpu_affinity.values()) == {"0-15"}
    assert table.numa_affinity == table.gpu_numa_id == table.nic_legend == {}
    assert list(table.legend) == ["X", "SYS", "NODE", "PHB", "PXB", "PIX", "NV#"]


def test_dgx(saved):
    table = parse_topo(saved("topo_dgx_a100.txt"))
    assert table.links["GPU0", "NIC2"] == "PXB"
    assert table.cpu_affinity["GPU4"] == "112-127,240-255"
    assert table.numa_affinity["GPU4"] == "7"
    assert table.gpu_numa_id == {}  # N/A
    assert table.nic_legend["NIC9"] == "mlx5_9"


def test_grace_hopper(saved):
    table = parse_topo(saved("topo_gh200.txt"))
    assert (table.cpu_affinity, table.numa_affinity, table.gpu_numa_id) == (
        {"GPU0": "0-71"},
        {"GPU0": "0"},
        {"GPU0": "1"},
    )


def test_nic_by_name(saved):
    assert parse_topo(saved("topo_old_driver.txt")).links["GPU0", "mlx5_0"] == "PIX"


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "GPU0", "GPU0 is fine\nLegend:\n", "<html>\n\x1b[4m", "\tCPU Affinity\n"]
)
def test_texts_without_a_table(text):
    assert parse_topo(text) == Topology()


def test_unknown_cells_and_short_rows_are_said():
    table = parse_topo("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tC2C\t0-3\nGPU1 0-3\n")
    assert table.links == {("GPU0", "GPU0"): "X", ("GPU0", "GPU1"): "C2C"}
    assert table.cpu_affinity == {"GPU0": "0-3", "GPU1": "0-3"}
    assert table.warnings == ("GPU0 GPU1: unknown link C2C", "GPU1: 0 of 2 links")


def test_an_affinity_that_could_be_either_is_left_out():
    table = parse_topo("     GPU0  CPU Affinity  NUMA Affinity  GPU NUMA ID\nGPU0  X    1    N/A\n")
    assert table.cpu_affinity == table.numa_affinity == {}


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
        ("exit 1", "nvidia-smi failed: it said nothing"),
        ("echo No devices were found", "nvidia-smi shows no GPU: No devices were found"),
        ("exec sleep 3", "nvidia-smi gave no answer within 0.2 s"),
        ("sleep 3 & sleep 3", "nvidia-smi gave no answer within 0.2 s"),  # a grandchild holds the pipe
    ],
)
def test_collect_says_why_there_is_no_table(tmp_path, monkeypatch, script, reason):
    fake(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = topology.collect(timeout_s=0.2)
    assert facts == {"topology.nvidia_smi_topo_m": None, "topology.reason": reason}


def test_not_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert topology.collect()["topology.reason"] == "nvidia-smi is not installed"


def test_not_runnable(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/no/such/shell\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = topology.collect()
    assert facts["topology.nvidia_smi_topo_m"] is None
    assert facts["topology.reason"].startswith("nvidia-smi failed: ")
