"""The table of peer access, of machines that the stand-in driver shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shown_gpus import ask, h100, hgx


def facts(folder: Path, machine: str | None, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ask(
        folder, machine, "gpu.collect_peer_access()", "from commbench.hardware import gpu", **more
    )
    return answer


def test_every_ordered_pair_of_eight_gpus(tmp_path: Path) -> None:
    table = facts(tmp_path, hgx(8))
    assert len({key.split(".")[1] for key in table}) == 56
    assert {key: value for key, value in table.items() if key.startswith("peer.7-0.")} == {
        "peer.7-0.access": True,
        "peer.7-0.native_atomics": True,
        "peer.7-0.performance_rank": 0,
    }


# two GPUs behind one switch; the third is reached over the processors, and in one direction without
# atomics
ISLANDS = "\n".join(
    [*(h100(index) for index in range(3)), "peer 0 1 0 1 1", "peer 1 0 0 1 0", "peer 0 2 3 1 0"]
)


def test_pairs_differ_also_by_direction(tmp_path: Path) -> None:
    table = facts(tmp_path, ISLANDS)

    def row(pair: str) -> list[Any]:
        return [
            table[f"peer.{pair}.{key}"] for key in ("access", "native_atomics", "performance_rank")
        ]

    assert [row(pair) for pair in ("0-1", "1-0", "0-2", "2-0")] == [
        [True, True, 0],
        [True, False, 0],
        [True, False, 3],
        [False, False, 0],
    ]


def test_what_this_process_may_see_does_not_matter(tmp_path: Path) -> None:
    hidden = facts(tmp_path, ISLANDS, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert hidden == facts(tmp_path, ISLANDS) and len(hidden) == 6 * 3


def test_this_process_itself_does_not_open_cuda(tmp_path: Path) -> None:
    code = "[len(gpu.collect_peer_access()), 'libcuda' in open('/proc/self/maps').read()]"
    assert ask(tmp_path, hgx(2), code, "from commbench.hardware import gpu", fresh=True) == [
        6,
        False,
    ]


@pytest.mark.parametrize("machine", [None, h100(0), "error nvmlInitWithFlags 9", "driver 580"])
def test_without_two_gpus_there_is_no_table(tmp_path: Path, machine: str | None) -> None:
    table = facts(tmp_path, machine)
    if machine is None and table:
        pytest.skip("this machine has GPUs")
    assert table == {}


def test_cuda_that_gives_no_answer_is_named(tmp_path: Path) -> None:
    assert facts(tmp_path, hgx(2, "error cuInit 802")) == {"peer.reason": "cuInit: error 802"}
    other = tmp_path / "other"
    other.mkdir()
    assert facts(other, hgx(2), libs=["libnvidia-ml.so.1"]) == {
        "peer.reason": "no NVIDIA driver: libcuda.so.1 was not found"
    }


def test_gpus_have_nvmls_numbers_also_where_cuda_leaves_one_out(tmp_path: Path) -> None:
    imports = "from commbench.hardware import gpu"
    table = ask(tmp_path, ISLANDS, "gpu.peer_facts()", imports, CUDA_VISIBLE_DEVICES="1,2")
    assert {key.split(".")[1] for key in table} == {"1-2", "2-1"}


def test_a_gpu_that_nvml_does_not_know_has_the_number_of_cuda(tmp_path: Path) -> None:
    imports = (
        "from commbench.hardware import gpu",
        "gpu.nvml.gpus = lambda: [gpu.Gpu(5, pci_bus_id='0000:1b:00.0')]",
    )
    table = ask(tmp_path, hgx(2), "gpu.peer_facts()", *imports)
    assert {key.split(".")[1] for key in table} == {"cuda0-5", "5-cuda0"}


def test_a_gpu_that_cuda_cannot_name_is_a_reason(tmp_path: Path) -> None:
    machine = "\n".join([h100(0), h100(1, "fails cuDeviceGetPCIBusId 101")])
    assert facts(tmp_path, machine) == {
        "peer.reason": "cuDeviceGetPCIBusId: CUDA_ERROR_INVALID_DEVICE (101)"
    }


def test_a_value_that_cuda_refuses_is_missing_and_no_other(tmp_path: Path) -> None:
    machine = "\n".join([h100(0), h100(1, "fails cuDeviceGetP2PAttribute 801")])
    table = facts(tmp_path, machine)
    assert {key.split(".")[1] for key in table} == {"0-1"} and len(table) == 3
