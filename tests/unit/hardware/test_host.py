from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from math import isnan, nan
from pathlib import Path
from types import SimpleNamespace

import pytest

from commbench.hardware import host
from commbench.hardware.host import core_wait_s, interference_counters
from commbench.hardware.sources import ROOT


def facts(root: Path) -> dict[str, object]:
    """Without the prefix `host.`"""
    return {key.removeprefix("host."): value for key, value in host.collect(root).items()}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            'NAME=x\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "Debian GNU/Linux 12 (bookworm)",
        ),
        ("PRETTY_NAME='Alpine Linux v3.20'", "Alpine Linux v3.20"),
        ("NAME=x", None),
    ],
)
def test_os_name(plant, text, name):
    assert facts(plant({"etc/os-release": text})).get("os") == name


def test_meminfo():
    text = (
        "MemTotal:  24684084 kB\nMemAvailable:      12 kB\nHugePages_Total:       5\nbroken\nX: 1"
        " MB\n"
    )
    assert host.parse_meminfo(text) == {"MemTotal": 24684084 * 1024, "MemAvailable": 12 * 1024}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("cpu  10 20 30 40 50 60 70 80 5 5\ncpu0 1 1 1 1 1 1 1 1 0 0\n", 80),
        ("intr 5\ncpu  1 2 3 4 5 6 7 8\n", 8),
        ("cpu  1 2 3 4\n", None),  # before Linux 2.6.11 there was no steal
        ("cpu  1 2 3 4 5 6 7 eight\n", None),
        ("cpu0 1 2 3 4 5 6 7 8\n", None),
        ("", None),
    ],
)
def test_steal(text, answer):
    assert host.steal_jiffies(text) == answer


def test_transparent_hugepages(plant):
    file = "sys/kernel/mm/transparent_hugepage/enabled"
    assert facts(plant({file: "always [madvise] never\n"}))["transparent_hugepages"] == "madvise"
    assert "transparent_hugepages" not in facts(plant({file: "always madvise"}))


MOUNTED_OVERLAY = {"proc/self/mountinfo": "1 0 0:5 / / rw - overlay overlay rw\n"}


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"proc/self/cgroup": "0::/kubepods.slice/pod1\n", ".dockerenv": ""}, "kubernetes"),
        ({"run/secrets/kubernetes.io/serviceaccount/namespace": "x"}, "kubernetes"),
        ({"run/.containerenv": "", "proc/self/cgroup": "0::/"}, "podman"),
        ({".dockerenv": "", "proc/self/cgroup": "0::/"}, "docker"),
        ({"proc/self/cgroup": "4:memory:/docker/0123abc\n"}, "docker"),
        ({"run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn"),
        ({".singularity.d/env/x": ""}, "apptainer"),
        ({"proc/self/cgroup": "0::/user.slice\n"}, "none"),
        ({"proc/1/root/marker": ""}, "chroot"),
        (MOUNTED_OVERLAY, None),  # a nameless container or a diskless node: no guess
    ],
)
def test_container(plant, files, kind):
    assert host.container(plant(files)) == kind


@pytest.mark.parametrize(
    ("vendor", "product", "kind"),
    [
        ("Amazon EC2", "p4d.24xlarge", "amazon"),
        ("Amazon EC2", "c5n.metal", None),
        ("Google", "Google Compute Engine", "google"),
        ("Microsoft Corporation", "Virtual Machine", "microsoft"),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "qemu"),
        ("NVIDIA", "DGXA100 920-23687-2530-000", None),
        ("", "", None),
    ],
)
def test_dmi(plant, vendor, product, kind):
    seen = facts(
        plant({"sys/class/dmi/id/sys_vendor": vendor, "sys/class/dmi/id/product_name": product})
    )
    assert seen.get("virtualization") == kind


@pytest.mark.parametrize(
    ("name", "model", "virtualization"),
    [
        ("cpuinfo_xeon_vm.txt", "Intel(R) Xeon(R) Processor", "unknown"),
        ("cpuinfo_epyc.txt", "AMD EPYC 7713 64-Core Processor", "none"),
        ("cpuinfo_grace.txt", "Neoverse-V2 implementer 0x41 part 0xd4f", None),
        ("cpuinfo_power9.txt", "POWER9, altivec supported", None),
        ("cpuinfo_loongson.txt", "Loongson-3A5000", None),
        ("cpuinfo_z15.txt", "IBM/S390 machine 8561", None),
        ("cpuinfo_riscv.txt", "sifive,u74-mc", None),
        ("cpuinfo_raspberry_pi.txt", "Raspberry Pi 4 Model B Rev 1.2", None),
    ],
)
def test_cpuinfo(plant, saved, name, model, virtualization):
    seen = facts(plant({"proc/cpuinfo": saved(name)}))
    assert (seen["cpu_model"], seen.get("virtualization")) == (model, virtualization)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        # unknown core
        (
            "processor : 0\nCPU implementer : 0xc0\nCPU part : 0xac3\n",
            "implementer 0xc0 part 0xac3",
        ),
        # one name for all Raspberry Pis
        (
            "CPU implementer : 0x41\nCPU part : 0xd03\nHardware : BCM2835\n",
            "Cortex-A53 implementer 0x41 part 0xd03",
        ),
        ("processor : 0\nHardware : BCM2835\n", "BCM2835"),
        # 32 bits
        (
            "model name : ARMv7 Processor rev 3 (v7l)\nModel : Raspberry Pi 4 Model B Rev 1.2\n",
            "Raspberry Pi 4 Model B Rev 1.2",
        ),
        # without a device tree
        (
            "isa : rv64imafdc\nmvendorid : 0x5b7\nmarchid : 0x0\n",
            "RISC-V vendor 0x5b7 architecture 0x0",
        ),
        ("vendor_id : IBM/S390\n", None),
        ("no colon here", None),
        ("processor : 0\n", None),
    ],
)
def test_cpuinfo_without_a_name(plant, text, model):
    assert facts(plant({"proc/cpuinfo": text})).get("cpu_model") == model


def test_cpu_topology_of_two_sockets_with_smt(plant, saved):
    base = "sys/devices/system/cpu"
    files = {
        f"{base}/online": "0-3\n",
        f"{base}/smt/active": "1\n",
        "proc/cpuinfo": saved("cpuinfo_epyc.txt"),
    }
    for index, size in enumerate(["32K", "32K", "512K", "32768K\n", "unknown"]):
        files[f"{base}/cpu0/cache/index{index}/size"] = size
    for number in range(4):
        files[f"{base}/cpu{number}/topology/thread_siblings_list"] = (
            f"{number % 2},{number % 2 + 2}\n"
        )
        files[f"{base}/cpu{number}/topology/physical_package_id"] = f"{number % 2}\n"
    for number, governor in enumerate(["performance", "schedutil"]):
        files[f"{base}/cpufreq/policy{number}/scaling_governor"] = governor
        files[f"{base}/cpufreq/policy{number}/cpuinfo_max_freq"] = "3720703"
    files |= {
        "sys/devices/system/node/node0/cpulist": "0,2",
        "sys/devices/system/node/node10/cpulist": "\n",
    }
    seen = facts(plant(files))
    assert seen["cpu_logical_cores"] == 4
    assert seen["cpu_physical_cores"] == 2
    assert seen["cpu_sockets"] == 2
    assert seen["cpu_smt_active"] is True
    assert seen["cpu_llc_bytes"] == 32 << 20
    assert seen["cpu_governor"] == "performance,schedutil"
    assert seen["cpu_max_mhz"] == pytest.approx(3720.703)
    assert seen["numa_nodes"] == 1
    assert seen["numa_node0_cpus"] == "0,2"
    assert "numa_node10_cpus" not in seen  # memory only, as on Grace Hopper


def test_a_virtual_arm_machine_does_not_know_its_sockets(plant):
    assert "cpu_sockets" not in facts(
        plant({"sys/devices/system/cpu/cpu0/topology/physical_package_id": "-1\n"})
    )


def test_virtualization_of_xen_and_arm_kvm(plant, tmp_path):
    assert facts(plant({"sys/hypervisor/type": "xen\n"}))["virtualization"] == "xen"
    (tmp_path / "sys/hypervisor/type").unlink()
    assert (
        facts(plant({"proc/device-tree/hypervisor/compatible": "linux,kvm\0"}))["virtualization"]
        == "kvm"
    )


def test_an_empty_tree_leaves_only_what_the_process_itself_knows(tmp_path):
    facts = host.collect(tmp_path)
    assert "host.error" not in facts
    assert set(facts) <= {
        *("host.hostname", "host.kernel", "host.machine", "host.cpu_affinity", "host.container"),
        *("host.ulimit_memlock_bytes", "host.ulimit_nofile"),
    }


def test_this_machine_has_all_facts_of_a_host():
    facts = host.collect(ROOT)
    assert "host.error" not in facts
    assert facts["host.memory_total_bytes"] > 0
    assert facts["host.cpu_logical_cores"] >= 1


def test_what_disturbs_a_process_is_counted(tmp_path: Path) -> None:
    assert interference_counters(root=tmp_path) == {}
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  1 2 3 4 5 6 7 250 9 10\n")
    assert interference_counters(root=tmp_path)["os.steal_s"] == 250 / os.sysconf("SC_CLK_TCK")
    assert "os.steal_s" not in interference_counters(whole_host=False, root=tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("7000 2500000000 3\n", 2.5), ("0 0 0\n", nan), ("", nan), (None, nan)]
)
def test_the_time_without_a_core_is_the_second_number_where_the_kernel_counts(
    tmp_path: Path, text: str | None, seconds: float
) -> None:
    if text is not None:
        (tmp_path / "proc/thread-self").mkdir(parents=True)
        (tmp_path / "proc/thread-self/schedstat").write_text(text)
    assert core_wait_s(tmp_path) == pytest.approx(seconds, nan_ok=True)


def test_a_thread_that_shares_its_core_waits_for_it() -> None:
    if isnan(core_wait_s()):
        pytest.skip("this kernel does not count it")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with subprocess.Popen(
            [sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=-1
        ) as loop:
            assert loop.stdout is not None and loop.stdout.readline()
            before_s = core_wait_s()
            begin_s = time.perf_counter()
            while time.perf_counter() < begin_s + 0.5:
                pass
            waited_s = core_wait_s() - before_s
            loop.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert 0.05 < waited_s < time.perf_counter() - begin_s


def test_a_frequency_is_read_where_that_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tmp_path / "quick"
    slow = tmp_path / "slow"
    for root, cost_s in ((quick, 0.5 * host.SLOW_READ_S), (slow, 1.1 * host.SLOW_READ_S)):
        folder = root / "sys/devices/system/cpu/cpu7/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text("2400000\n")
        readings = itertools.count(0.0, cost_s)
        monkeypatch.setattr(host, "_current_cpu", lambda: 7)
        monkeypatch.setattr(
            host, "time", SimpleNamespace(perf_counter=lambda readings=readings: next(readings))
        )
        assert interference_counters(root=root).get("os.cpu_frequency_hz") == (
            2.4e9 if root is quick else None
        )
