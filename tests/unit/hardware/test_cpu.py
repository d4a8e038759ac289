from __future__ import annotations

import pytest

from commbench.hardware import host


@pytest.mark.parametrize(
    ("name", "model", "virtual", "mhz"),
    [
        ("cpuinfo_xeon_vm.txt", "Intel(R) Xeon(R) Processor", True, 2600.0),
        ("cpuinfo_epyc.txt", "AMD EPYC 7713 64-Core Processor", False, 2000.0),
        ("cpuinfo_grace.txt", "Neoverse-V2 implementer 0x41 part 0xd4f", None, None),
        ("cpuinfo_power9.txt", "POWER9, altivec supported", None, None),
    ],
)
def test_cpuinfo(saved, name, model, virtual, mhz):
    processors = host.parse_cpuinfo(saved(name))
    assert host.cpu_model(processors) == model
    assert host.hypervisor_flag(processors) is virtual
    assert host.current_mhz(processors) == mhz


def test_unknown_arm_core_keeps_its_numbers():
    text = "processor : 0\nCPU implementer : 0xc0\nCPU part : 0xac3\n"
    assert host.cpu_model(host.parse_cpuinfo(text)) == "implementer 0xc0 part 0xac3"


@pytest.mark.parametrize("text", ["", "\n\n", "no colon here", "processor : 0\n"])
def test_cpuinfo_without_a_model(text):
    assert host.cpu_model(host.parse_cpuinfo(text)) is None


@pytest.mark.parametrize(
    ("text", "size"), [("32K", 32768), ("36M\n", 36 << 20), ("1G", 1 << 30), ("64", 64), ("", None), ("12 KB", None)]
)
def test_cache_size(text, size):
    assert host.parse_cache_bytes(text) == size


def test_cpu_topology_of_two_sockets_with_smt(plant, saved):
    base = "sys/devices/system/cpu"
    files = {f"{base}/online": "0-3\n", f"{base}/smt/active": "1\n", "proc/cpuinfo": saved("cpuinfo_epyc.txt")}
    for index, size in enumerate(["32K", "32K", "512K", "32768K"]):
        files[f"{base}/cpu0/cache/index{index}/size"] = size
    for number in range(4):
        files[f"{base}/cpu{number}/topology/thread_siblings_list"] = f"{number % 2},{number % 2 + 2}\n"
        files[f"{base}/cpu{number}/topology/physical_package_id"] = f"{number % 2}\n"
    for number, governor in enumerate(["performance", "schedutil"]):
        files[f"{base}/cpufreq/policy{number}/scaling_governor"] = governor
        files[f"{base}/cpufreq/policy{number}/cpuinfo_max_freq"] = "3720703"
    files |= {"sys/devices/system/node/node0/cpulist": "0,2", "sys/devices/system/node/node10/cpulist": "\n"}
    facts = host.collect(plant(files))
    assert facts["host.cpu_logical_cores"] == 4
    assert facts["host.cpu_physical_cores"] == 2
    assert facts["host.cpu_sockets"] == 2
    assert facts["host.cpu_smt_active"] is True
    assert facts["host.cpu_llc_bytes"] == 32 << 20
    assert facts["host.cpu_governor"] == "performance,schedutil"
    assert facts["host.cpu_max_mhz"] == pytest.approx(3720.703)
    assert facts["host.numa_nodes"] == 2
    assert facts["host.numa_node0_cpus"] == "0,2"
    assert "host.numa_node10_cpus" not in facts  # memory only, as on Grace Hopper


def test_a_virtual_arm_machine_does_not_know_its_sockets(plant):
    facts = host.collect(plant({"sys/devices/system/cpu/cpu0/topology/physical_package_id": "-1\n"}))
    assert "host.cpu_sockets" not in facts
