"""What NVML tells, of machines that the stand-in driver shows; without one on this machine as it
is."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shown_gpus import GIB, LIBRARIES, ask, h100, hgx, uuid

from commbench.hardware import nvml

ALL = (
    "from dataclasses import asdict",
    "from commbench.hardware import nvml",
    "gpus = lambda: [{k: v for k, v in asdict(g).items() if k != 'health'} for g in nvml.gpus()]",
)
BUS_ID = "0000:1a:00.0"
NOT_SUPPORTED = 3
GPU_IS_LOST = 15
UNKNOWN = 999


def watch(
    folder: Path, machine: str | None, name: str = BUS_ID, code: str = "m.readings()", **more: Any
) -> Any:
    return ask(
        folder,
        machine,
        code,
        "from commbench.hardware import nvml",
        f"m = nvml.Monitor({name!r})",
        **more,
    )


# ---------------------------------------------------------------- machines


def test_eight_gpus_with_nvlink(tmp_path: Path) -> None:
    answers = ask(
        tmp_path,
        hgx(8),
        "[gpus(), [nvml.driver_version(), nvml.newest_cuda()], nvml.reason()]",
        *ALL,
    )
    gpus, driver, reason = answers
    assert [gpu["index"] for gpu in gpus] == list(range(8)) and reason is None
    assert driver == ["580.65.06", "13.0"]
    assert gpus[7] == {
        "index": 7,
        "error": None,
        "uuid": uuid(7),
        "name": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": "0000:21:00.0",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": GIB // 2,
        "compute_capability": "9.0",
        "mig": False,
        "pcie_generation": 4,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "nvlink_links": 18,
        "sm_clock_max_mhz": 1980,
        "processes": {},
        "c2c_gb_per_s": None,
    }


def test_the_links_to_a_grace_cpu_count_together(tmp_path: Path) -> None:
    """As `nvidia-smi c2c -s` shows them on a GH200: 10 links of 44.712 GB/s; one is inactive
    here."""
    links = [f"field 172 {link} 1 44712" for link in range(9)]
    (gpu,) = ask(tmp_path, h100(0, "field 170 0 1 10", *links), "gpus()", *ALL)
    assert gpu["c2c_gb_per_s"] == pytest.approx(9 * 44.712, rel=1e-3)


def test_without_a_driver_there_is_nothing_and_pynvml_stays_out(tmp_path: Path) -> None:
    with suppress(OSError):
        ctypes.CDLL(LIBRARIES[0])
        pytest.skip("this machine has a driver")
    code = (
        "[gpus(), nvml.newest_cuda(), nvml.Monitor('').readings(), nvml.reason(), 'pynvml' in"
        " sys.modules]"
    )
    reason = "no NVIDIA driver: libnvidia-ml.so.1 was not found"
    assert ask(tmp_path, None, code, *ALL) == [[], None, {}, reason, False]


def test_a_library_without_its_kernel_module(tmp_path: Path) -> None:
    code = "[gpus(), nvml.Monitor('0000:1a:00.0').readings(), nvml.reason()]"
    assert ask(tmp_path, "error nvmlInitWithFlags 9", code, *ALL) == [
        [],
        {},
        "NVML: Driver Not Loaded",
    ]


def test_a_driver_without_gpus(tmp_path: Path) -> None:
    assert ask(tmp_path, "driver 580.65.06", "[gpus(), nvml.reason()]", *ALL) == [[], None]


FIELDS = {
    "nvmlDeviceGetUUID": {"uuid"},
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetPciInfo_v3": {"pci_bus_id"},
    "nvmlDeviceGetMemoryInfo": {"memory_total_bytes", "memory_used_bytes"},
    "nvmlDeviceGetMigMode": {"mig"},
    "nvmlDeviceGetCudaComputeCapability": {"compute_capability"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_generation_max"},
    "nvmlDeviceGetNvLinkState": {"nvlink_links"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_mhz"},
}


@pytest.mark.parametrize("code", [NOT_SUPPORTED, GPU_IS_LOST, UNKNOWN])
def test_a_call_that_fails_costs_only_its_own_value(tmp_path: Path, code: int) -> None:
    machine = "\n".join(
        h100(index, f"fails {function} {code}") for index, function in enumerate(FIELDS)
    )
    gpus = ask(tmp_path, machine, "gpus()", *ALL)
    missing = [
        {key for key, value in gpu.items() if value is None} - {"error", "c2c_gb_per_s"}
        for gpu in gpus
    ]
    assert missing == list(FIELDS.values())


def test_a_gpu_that_fell_off_the_bus_leaves_the_others(tmp_path: Path) -> None:
    machine = "\n".join(
        [h100(0), h100(1, f"fails nvmlDeviceGetHandleByIndex_v2 {GPU_IS_LOST}"), h100(2)]
    )
    gpus = ask(tmp_path, machine, "gpus()", *ALL)
    assert [gpu["error"] for gpu in gpus] == [None, "NVML: GPU is lost", None]
    assert [gpu["name"] is None for gpu in gpus] == [False, True, False]


def test_a_pcie_card_has_no_links(tmp_path: Path) -> None:
    (gpu,) = ask(tmp_path, h100(0, "links -1"), "gpus()", *ALL)
    assert gpu["nvlink_links"] is None


def test_links_that_are_down_do_not_count(tmp_path: Path) -> None:
    gpus = ask(tmp_path, "\n".join([h100(0, "links 17"), h100(1, "links 0")]), "gpus()", *ALL)
    assert [gpu["nvlink_links"] for gpu in gpus] == [17, 0]


PROCESSES = h100(0, "process 4711 40000000000", f"process 12 {2**64 - 1}")


@pytest.mark.parametrize("old", [False, True])
def test_processes_and_versions_of_old_and_new_drivers(tmp_path: Path, old: bool) -> None:
    machine = "\n".join(["cuda 11040", PROCESSES])
    (gpu,), cuda = ask(tmp_path, machine, "[gpus(), nvml.newest_cuda()]", *ALL, old=old)
    # of the second it is not available
    assert gpu["processes"] == {"4711": 40_000_000_000, "12": None}
    assert cuda == "11.4"


# ---------------------------------------------------------------- readings

LINKS = [
    f"field {138 + direction} {link} 3 {1000 * (direction + 1)}"
    for link in range(18)
    for direction in (0, 1)
]
BUS = ["field 197 0 3 5000", "field 198 0 3 6000"]
# of a Monitor before its first reading; each field of the stand-in counts one further with each
# call
CALLS = 2
PLAIN = {"gpu.sm_clock_mhz": 1755.0, "gpu.memory_clock_mhz": 2619.0, "gpu.temperature_c": 41.0}


def test_all_readings_of_a_new_gpu(tmp_path: Path) -> None:
    first, second = watch(
        tmp_path,
        h100(0, "reasons 0x44", "field 186 0 1 300000", *LINKS, *BUS),
        code="[m.readings(), m.readings()]",
    )
    assert set(first) == {
        *PLAIN, "gpu.throttle_reasons", "gpu.power_w", "gpu.nvlink_tx_bytes", "gpu.nvlink_rx_bytes",
        "gpu.pcie_tx_bytes", "gpu.pcie_rx_bytes",
    }  # fmt: skip
    assert first.items() >= PLAIN.items() and first["gpu.throttle_reasons"] == 0x44
    assert first["gpu.power_w"] == pytest.approx(300, abs=0.01)
    assert second["gpu.nvlink_tx_bytes"] - first["gpu.nvlink_tx_bytes"] == 18 * 1024
    assert first["gpu.nvlink_rx_bytes"] - first["gpu.nvlink_tx_bytes"] == 18 * 1000 * 1024
    assert second["gpu.pcie_rx_bytes"] - first["gpu.pcie_tx_bytes"] == 1001


def test_nvlink_5_counts_all_links_at_once_in_bytes(tmp_path: Path) -> None:
    newer = [
        f"field {202 + 2 * direction} {0xFFFFFFFF} 3 {7000 * (direction + 1)}"
        for direction in (0, 1)
    ]
    first, second = watch(tmp_path, h100(0, *newer), code="[m.readings(), m.readings()]")
    assert second["gpu.nvlink_tx_bytes"] - first["gpu.nvlink_tx_bytes"] == 1
    assert first["gpu.nvlink_rx_bytes"] - first["gpu.nvlink_tx_bytes"] == 7000
    both = watch(tmp_path, h100(0, *newer, *LINKS), code="m.readings()['gpu.nvlink_tx_bytes']")
    assert both == 18 * (1000 + CALLS) * 1024, "the two kinds of counters were added"


@pytest.mark.parametrize(
    ("kind", "value"), [(0, 5e9), (1, 4e9), (3, 2.0**52), (5, 2.0**30), (6, 60000.0)]
)
def test_every_type_of_a_field_is_read_as_itself(tmp_path: Path, kind: int, value: float) -> None:
    tx_bytes = watch(
        tmp_path,
        h100(0, f"field 197 0 {kind} {value:.0f}"),
        code="m.readings()['gpu.pcie_tx_bytes']",
    )
    assert tx_bytes == value + CALLS


def test_a_field_of_an_unknown_type_is_no_number(tmp_path: Path) -> None:
    assert "gpu.pcie_tx_bytes" not in watch(tmp_path, h100(0, "field 197 0 99 5"))


def test_an_old_driver_has_older_names(tmp_path: Path) -> None:
    readings = watch(tmp_path, h100(0, "reasons 0x8"), old=True)
    assert readings == PLAIN | {"gpu.throttle_reasons": 8.0, "gpu.power_w": 71.5}


def test_what_is_not_supported_is_missing(tmp_path: Path) -> None:
    calls = (
        "ClockInfo",
        "PowerUsage",
        "CurrentClocksEventReasons",
        "CurrentClocksThrottleReasons",
        "FieldValues",
    )
    fails = [f"fails nvmlDeviceGet{call} {NOT_SUPPORTED}" for call in calls]
    assert watch(tmp_path, h100(0, *fails, *LINKS)) == {"gpu.temperature_c": 41.0}


def test_a_gpu_lost_on_the_way_has_no_readings_and_ends_nothing(tmp_path: Path) -> None:
    lost = "(os.environ.update(SHOWN_GPUS_LOST='1'), m.readings())[1]"
    back = "(os.environ.pop('SHOWN_GPUS_LOST'), m.readings())[1]"
    before, during, after = watch(tmp_path, h100(0, *LINKS), code=f"[m.readings(), {lost}, {back}]")
    assert during == {} and set(before) == set(after) >= {"gpu.nvlink_tx_bytes", "gpu.power_w"}


@pytest.mark.parametrize("name", ["0000:1b:00.0", "00000000:1B:00.0"])
def test_a_gpu_is_found_by_its_bus_id(tmp_path: Path, name: str) -> None:
    machine = "\n".join([h100(0), h100(1, "clock 1234", "mig 1", f"part {uuid(5, 'MIG')}")])
    assert watch(tmp_path, machine, name)["gpu.sm_clock_mhz"] == 1234


@pytest.mark.parametrize("name", ["0000:99:00.0", ""])
def test_a_gpu_that_is_not_there_has_no_readings(tmp_path: Path, name: str) -> None:
    assert watch(tmp_path, h100(0), name) == {}


# ---------------------------------------------------------------- words


@given(st.integers(0, 2**64 - 1))
def test_only_what_slows_down_is_throttling(mask: int) -> None:
    harmless = 0x1 | 0x2 | 0x10 | 0x100  # idle, application clocks, sync boost, display
    assert nvml.throttled(mask) == nvml.throttled(mask & 0xEC)
    assert nvml.throttled(mask & harmless) == []
    assert len(nvml.throttled(mask)) == (mask & 0xEC).bit_count()


def test_throttling_has_names() -> None:
    assert nvml.throttled(0xEC) == [
        "sw_power_cap",
        "hw_slowdown",
        "sw_thermal",
        "hw_thermal",
        "power_brake",
    ]
    assert nvml.throttled(0x41) == ["hw_thermal"]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("00010000:1B:00.0", "10000:1b:00.0"),
        ("00000009:01:00.0", "0009:01:00.0"),
        ("", ""),
        ("Odd", "odd"),
    ],
)
def test_bus_ids_as_sysfs_writes_them(text: str, short: str) -> None:
    assert nvml.bus_id(text) == short


@given(st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_a_bus_id_keeps_its_numbers(domain: int, bus: int) -> None:
    short = nvml.bus_id(f"{domain:08X}:{bus:02X}:00.0")
    assert [int(part, 16) for part in short.split(":")[:2]] == [domain, bus] and len(
        short.split(":")[0]
    ) >= 4


def test_a_value_that_this_pynvml_can_not_hold_is_unknown() -> None:
    """nvidia-ml-py 12.535 to 12.560 have no usVal, which is type 6 of newer drivers."""

    class OldValue(ctypes.Union):
        _fields_ = [("dVal", ctypes.c_double), ("uiVal", ctypes.c_uint)]

    answer = SimpleNamespace(nvmlReturn=0, valueType=6, value=OldValue())
    assert nvml._value_member(answer) == ""
    answer.valueType = 1
    assert nvml._value_member(answer) == "uiVal"
