"""Facts about GPUs, of machines that the stand-in driver shows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shown_gpus import GIB, ask, h100, hgx, uuid

from commbench.hardware.gpu import own_pids, parse_visible, users, visible_indices
from commbench.hardware.nvml import Gpu

GPU = "from commbench.hardware import gpu"
MIG = uuid(7, "MIG")


def facts(folder: Path, machine: str | None, **env: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ask(folder, machine, "gpu.collect()", GPU, **env)
    return answer


def own(folder: Path, machine: str | None, local_rank: int, **env: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ask(folder, machine, f"gpu.own_gpu({local_rank})", GPU, **env)
    return {key.removeprefix("gpu.own."): value for key, value in answer.items()}


# ---------------------------------------------------------------- all GPUs


def test_the_facts_of_a_machine_are_flat(tmp_path: Path) -> None:
    collected = facts(tmp_path, hgx(2, "driver 550.54.15", "cuda 12040"))
    assert {key: value for key, value in collected.items() if not key.startswith("gpu.1.")} == {
        "gpu.count": 2,
        "gpu.driver_version": "550.54.15",
        "gpu.cuda_driver_version": "12.4",
        "gpu.visible": "0,1",
        "gpu.0.uuid": uuid(0),
        "gpu.0.name": "NVIDIA H100 80GB HBM3",
        "gpu.0.pci_bus_id": "0000:1a:00.0",
        "gpu.0.memory_total_bytes": 80 * GIB,
        "gpu.0.compute_capability": "9.0",
        "gpu.0.mig": False,
        "gpu.0.pcie_generation": 4,
        "gpu.0.pcie_generation_max": 5,
        "gpu.0.pcie_width": 16,
        "gpu.0.pcie_width_max": 16,
        "gpu.0.nvlink_links": 18,
        "gpu.0.sm_clock_max_mhz": 1980,
    }
    assert {key.replace(".1.", ".0.") for key in collected if key.startswith("gpu.1.")} < set(
        collected
    )


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (None, "no NVIDIA driver: libnvidia-ml.so.1 was not found"),
        ("error nvmlInitWithFlags 9", "NVML: Driver Not Loaded"),
    ],
)
def test_where_there_is_no_answer_the_reason_is_the_only_fact(
    tmp_path: Path, machine: str | None, reason: str
) -> None:
    if machine is None and "gpu.count" in facts(tmp_path, None):
        pytest.skip("this machine has a driver")
    assert facts(tmp_path, machine) == {"gpu.reason": reason}


def test_a_lost_gpu_is_counted_and_named(tmp_path: Path) -> None:
    collected = facts(
        tmp_path, "\n".join([h100(0, "fails nvmlDeviceGetHandleByIndex_v2 15"), h100(1)])
    )
    assert collected["gpu.count"] == 2 and collected["gpu.1.name"] == "NVIDIA H100 80GB HBM3"
    assert {key: value for key, value in collected.items() if key.startswith("gpu.0.")} == {
        "gpu.0.error": "NVML: GPU is lost"
    }


def test_a_grace_hopper(tmp_path: Path) -> None:
    collected = facts(
        tmp_path,
        h100(0, "name NVIDIA GH200 480GB", "bus 00000009:01:00.0", "links 0", "pcie 1 5 1 1"),
    )
    assert (collected["gpu.0.name"], collected["gpu.0.pci_bus_id"]) == (
        "NVIDIA GH200 480GB",
        "0009:01:00.0",
    )
    assert collected["gpu.0.nvlink_links"] == 0


def test_collect_of_all_modules_on_such_a_machine_is_well_formed(tmp_path: Path) -> None:
    collected = ask(
        tmp_path, hgx(8), "machine_facts.collect()", "from commbench.hardware import machine_facts"
    )
    assert (
        collected["gpu.count"] == 8 and sum(key.startswith("peer.") for key in collected) == 56 * 3
    )
    assert [key for key in collected if key.endswith(".error")] == []
    assert [
        key for key in collected if not re.fullmatch(r"[a-z0-9_]+(\.[A-Za-z0-9_\-:@]+)+", key)
    ] == []


# ---------------------------------------------------------------- what is visible


@pytest.mark.parametrize(
    ("machine", "visible", "counts"),
    [
        (None, [None], [None]),
        (hgx(8), [None, "2,3", "", "0,9,1", uuid(1), "MIG-0e0d,MIG-0e0e"], [8, 2, 0, 1, 1, 2]),
    ],
)
def test_how_many_are_visible(
    tmp_path: Path, machine: str | None, visible: list[str | None], counts: list[int | None]
) -> None:
    environments = [{} if value is None else {"CUDA_VISIBLE_DEVICES": value} for value in visible]
    assert (
        ask(tmp_path, machine, f"[gpu.visible_count(environ) for environ in {environments}]", GPU)
        == counts
    )


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("2,0", "2,0"),
        ("", "none"),
        ("-1", "none"),
        ("1,-1,2", "1"),
        (uuid(3), "3"),
        (uuid(3)[:11], "none"),
        (f"{uuid(1)[:12]},{uuid(0)}", "1,0"),
        ("0,9,1", "0"),
        ("0,0", "none"),
        ("GPU-0", "none"),
    ],
)
def test_visible_gpus_have_nvmls_numbers(tmp_path: Path, text: str, visible: str) -> None:
    assert facts(tmp_path, hgx(4), CUDA_VISIBLE_DEVICES=text)["gpu.visible"] == visible


def test_parts_of_gpus_keep_their_names(tmp_path: Path) -> None:
    machine = h100(0, "mig 1", f"part {MIG}")
    collected = facts(tmp_path, machine, CUDA_VISIBLE_DEVICES=MIG)
    assert collected["gpu.visible"] == MIG and collected["gpu.0.mig"] is True
    assert "gpu.visible" not in facts(tmp_path, machine), "only CUDA knows which part it takes"


MIXED = "\n".join([h100(0, "name NVIDIA T4", "rank 1"), h100(1, "rank 0"), h100(2, "rank 2")])


def test_numbers_among_several_kinds_count_only_in_a_known_order(tmp_path: Path) -> None:
    assert "gpu.visible" not in facts(tmp_path, MIXED, CUDA_VISIBLE_DEVICES="0")
    assert (
        facts(tmp_path, MIXED, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")[
            "gpu.visible"
        ]
        == "0"
    )
    assert facts(tmp_path, MIXED, CUDA_VISIBLE_DEVICES=uuid(2))["gpu.visible"] == "2"


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (None, None),
        ("0, 1", ("0", "1")),
        ("007", ("7",)),
        ("2nd,1gpu", ("2", "1")),
        ("0,GPU-1", ("0",)),
        ("GPU-1,MIG-2", ("GPU-1",)),
        ("MIG-GPU-1/0/0", ("MIG-GPU-1/0/0",)),
        ("all", ()),
        ("0,,1", ("0",)),
        ("٣", ()),
        ("GPU-", ()),
        ("1" * 10, ()),
    ],
)
def test_cuda_visible_devices_is_read_as_a_tuple_of_entries(
    text: str | None, entries: tuple[str, ...] | None
) -> None:
    assert parse_visible(text) == entries


@given(st.text() | st.text(alphabet="0123456789,-GPUMI/ab "))
def test_any_text_has_entries_that_stand_in_it_in_this_order(text: str) -> None:
    entries = parse_visible(text)
    assert entries is not None and len(set(entries)) == len(entries) <= text.count(",") + 1
    assert all(entry in text or entry == "0" or entry.isdigit() for entry in entries)
    assert not entries or parse_visible(",".join(entries)) == entries


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=6))
def test_numbers_up_to_the_first_invalid_one_are_visible(numbers: list[int]) -> None:
    gpus = [Gpu(index, name="one kind", uuid=uuid(index)) for index in range(4)]
    visible = visible_indices({"CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))}, gpus)
    negative = numbers.index(-1) if -1 in numbers else len(numbers)
    listed = numbers[:negative]
    beyond = next((place for place, number in enumerate(listed) if number > 3), len(listed))
    assert visible == ([] if len(set(listed)) < len(listed) else listed[:beyond])


# ---------------------------------------------------------------- a rank's own GPU


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (3, 3), (4, 0), (6, 2)])
def test_ranks_take_the_gpus_in_turn(tmp_path: Path, local_rank: int, index: int) -> None:
    assert own(tmp_path, hgx(4), local_rank) == {
        "uuid": uuid(index),
        "index": index,
        "ordinal": index,
        "name": "NVIDIA H100 80GB HBM3",
        "visible": 4,
        "pci_bus_id": f"0000:{0x1A + index:02x}:00.0",
        "memory_total_bytes": 80 * GIB,
        "compute_capability": "9.0",
        "driver_version": "580.65.06",
        "memory_free_bytes": 80 * GIB - GIB // 2,
        "l2_bytes": 50 * 2**20,
    }


@pytest.mark.parametrize(
    ("text", "local_rank", "index"),
    [
        ("2,0", 0, 2),
        ("2,0", 1, 0),
        ("2,0", 2, 2),
        (f"{uuid(3)},{uuid(1)}", 1, 1),
        (uuid(2)[:12], 5, 2),
    ],
)
def test_the_own_gpu_is_one_of_the_visible_ones(
    tmp_path: Path, text: str, local_rank: int, index: int
) -> None:
    gpu = own(tmp_path, hgx(4), local_rank, CUDA_VISIBLE_DEVICES=text)
    assert (gpu["uuid"], gpu["index"], gpu["visible"]) == (uuid(index), index, text.count(",") + 1)


def test_cuda_counts_from_the_fastest_and_nvml_along_the_bus(tmp_path: Path) -> None:
    gpu = own(tmp_path, MIXED, 0)
    assert (gpu["name"], gpu["index"], gpu["ordinal"]) == ("NVIDIA H100 80GB HBM3", 1, 0)
    assert own(tmp_path, MIXED, 0, CUDA_DEVICE_ORDER="PCI_BUS_ID")["name"] == "NVIDIA T4"


def test_a_part_of_a_gpu_has_its_own_uuid(tmp_path: Path) -> None:
    machine = h100(0, "mig 1", f"part {MIG}", "process 7 5000000000")
    gpu = own(tmp_path, machine, 0, CUDA_VISIBLE_DEVICES=MIG)
    assert (gpu["uuid"], gpu["index"]) == (MIG, 0)
    assert "users" not in gpu, "the process may live on another part"


def test_an_old_driver_has_an_older_uuid_call(tmp_path: Path) -> None:
    assert own(tmp_path, hgx(2), 1, old=True)["uuid"] == uuid(1)


def test_without_nvml_cuda_alone_answers(tmp_path: Path) -> None:
    gpu = own(tmp_path, hgx(2), 1, libs=["libcuda.so.1"])
    assert gpu["uuid"] == uuid(1) and not {"index", "driver_version", "users"} & set(gpu)


@pytest.mark.parametrize(
    ("machine", "env", "reason"),
    [
        (
            hgx(2),
            {"CUDA_VISIBLE_DEVICES": ""},
            "cuInit: CUDA_ERROR_NO_DEVICE (100) (CUDA_VISIBLE_DEVICES='' hides every GPU)",
        ),
        (
            hgx(2),
            {"CUDA_VISIBLE_DEVICES": "5"},
            "cuInit: CUDA_ERROR_NO_DEVICE (100) (CUDA_VISIBLE_DEVICES='5')",
        ),
        ("error cuInit 803", {}, "cuInit: error 803"),
        ("driver 580", {}, "cuInit: CUDA_ERROR_NO_DEVICE (100)"),
        (
            hgx(1, "error cuDeviceTotalMem_v2 101"),
            {},
            "cuDeviceTotalMem_v2: CUDA_ERROR_INVALID_DEVICE (101)",
        ),
        (hgx(1), {"libs": ["libnvidia-ml.so.1"]}, "no NVIDIA driver: libcuda.so.1 was not found"),
    ],
)
def test_a_rank_without_gpu_says_why(
    tmp_path: Path, machine: str, env: dict[str, Any], reason: str
) -> None:
    assert own(tmp_path, machine, 0, **env) == {"reason": reason}


@pytest.mark.parametrize(
    ("lines", "users"),
    [
        (["process 1 40000000000"], "1 (37.3 GiB)"),
        (
            ["process 99999999 4", f"process 1 {2**64 - 1}"],
            "99999999 (4 B, a number of another PID namespace), 1 (? B)",
        ),
        ([f"used {3 * GIB}"], "processes that can't be seen from here (3 GiB)"),
        ([f"used {GIB}"], None),
        ([], None),
    ],
)
def test_other_processes_on_a_gpu_are_named(
    tmp_path: Path, lines: list[str], users: str | None
) -> None:
    assert own(tmp_path, h100(0, *lines), 0).get("users") == users


def test_this_process_is_no_other_by_its_number_outside_the_container(tmp_path: Path) -> None:
    """NVML has the host's numbers, /proc may show both: a process on the host's procfs with a
    namespace of its own."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tpython\nNSpid:\t48213\t7\n")
    gpu = Gpu(0, processes={48213: 5}, memory_used_bytes=5)
    assert users(gpu, tmp_path) is None
    (tmp_path / "7").mkdir()
    seen = users(replace(gpu, processes={48214: 5, 9: None}), tmp_path)
    unknown = "a number of another PID namespace"
    assert seen == f"48214 (5 B, {unknown}), 9 (? B, {unknown})"
    assert own_pids(tmp_path / "nowhere") == []


def test_this_process_is_not_counted_among_the_users_of_a_gpu(tmp_path: Path) -> None:
    code = "gpu.users(nvml.Gpu(0, processes={os.getpid(): 10**10}, memory_used_bytes=10**10))"
    assert ask(tmp_path, h100(0), code, GPU, "from commbench.hardware import nvml") is None
