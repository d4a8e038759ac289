from __future__ import annotations

import pytest

from commbench.hardware import cpu, host, virtualization
from commbench.hardware.sources import ROOT


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
    processors = cpu.parse_cpuinfo(saved(name))
    assert cpu.cpu_model(processors) == model
    assert cpu.hypervisor_flag(processors) is virtual
    assert cpu.current_mhz(processors) == mhz


def test_unknown_arm_core_keeps_its_numbers():
    text = "processor : 0\nCPU implementer : 0xc0\nCPU part : 0xac3\n"
    assert cpu.cpu_model(cpu.parse_cpuinfo(text)) == "implementer 0xc0 part 0xac3"


@pytest.mark.parametrize("text", ["", "\n\n", "no colon here", "processor : 0\n"])
def test_cpuinfo_without_a_model(text):
    assert cpu.cpu_model(cpu.parse_cpuinfo(text)) is None


@pytest.mark.parametrize(
    ("text", "size"), [("32K", 32768), ("36M\n", 36 << 20), ("1G", 1 << 30), ("64", 64), ("", None), ("12 KB", None)]
)
def test_cache_size(text, size):
    assert cpu.parse_cache_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "count"), [("0-3,8", 5), ("0\n", 1), ("0-9999999", 10**7), ("", None), ("3-1", 0), ("a-b", None)]
)
def test_count_cpus(text, count):
    assert cpu.count_cpus(text) == count


def test_format_cpus():
    assert cpu.format_cpus({8, 0, 1, 2, 3}) == "0-3,8"
    assert cpu.format_cpus([5, 5]) == "5"
    assert cpu.format_cpus([]) == ""


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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('NAME=x\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n', "Debian GNU/Linux 12 (bookworm)"),
        ("PRETTY_NAME='Alpine Linux v3.20'", "Alpine Linux v3.20"),
        ("PRETTY_NAME=Arch", "Arch"),
        ("NAME=x", None),
        ("", None),
    ],
)
def test_os_name(text, name):
    assert host.parse_os_name(text) == name


def test_meminfo():
    text = "MemTotal:  24684084 kB\nMemAvailable:      12 kB\nHugePages_Total:       5\nbroken\nX: 1 MB\n"
    assert host.parse_meminfo(text) == {"MemTotal": 24684084 * 1024, "MemAvailable": 12 * 1024}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("cpu  10 20 30 40 50 60 70 80 5 5\ncpu0 1 1 1 1 1 1 1 1 0 0\n", (80, 360)),  # guest is inside user
        ("intr 5\ncpu  1 2 3 4 5 6 7 8\n", (8, 36)),
        ("cpu  1 2 3 4\n", None),  # before Linux 2.6.11 there was no steal
        ("cpu  1 2 3 four 5 6 7 8\n", None),
        ("cpu0 1 2 3 4 5 6 7 8\n", None),
        ("", None),
    ],
)
def test_stat(text, answer):
    assert host.parse_stat(text) == answer


def test_transparent_hugepages():
    assert host.parse_selected("always [madvise] never\n") == "madvise"
    assert host.parse_selected("always madvise") is None


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
    assert virtualization.container(plant(files)) == kind


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
def test_dmi(vendor, product, kind):
    assert virtualization.virtualization_of_dmi(vendor, product) == kind


@pytest.mark.parametrize(
    ("cpuinfo", "kind"),
    [("cpuinfo_xeon_vm.txt", "unknown"), ("cpuinfo_epyc.txt", "none"), ("cpuinfo_grace.txt", None)],
)
def test_virtualization_by_flag_alone(plant, saved, cpuinfo, kind):
    assert virtualization.virtualization(plant({"proc/cpuinfo": saved(cpuinfo)})) == kind


def test_virtualization_of_xen_and_arm_kvm(plant):
    assert virtualization.virtualization(plant({"proc/device-tree/hypervisor/compatible": "linux,kvm\0"})) == "kvm"
    assert virtualization.virtualization(plant({"sys/hypervisor/type": "xen\n"})) == "xen"


def test_an_empty_tree_leaves_only_what_the_process_itself_knows(tmp_path):
    facts = host.collect(tmp_path)
    assert "host.error" not in facts
    assert set(facts) <= {
        *("host.hostname", "host.kernel", "host.machine", "host.cpu_affinity", "host.container"),
        *("host.ulimit_memlock_bytes", "host.ulimit_nofile"),
    }


def test_this_machine():
    facts = host.collect(ROOT)
    assert "host.error" not in facts
    assert facts["host.memory_total_bytes"] >= facts["host.memory_available_bytes"] > 0
    assert facts["host.cpu_logical_cores"] >= 1
    assert facts["host.cpu_total_jiffies"] > facts["host.cpu_steal_jiffies"] >= 0


def test_a_virtual_arm_machine_does_not_know_its_sockets(plant):
    facts = host.collect(plant({"sys/devices/system/cpu/cpu0/topology/physical_package_id": "-1\n"}))
    assert "host.cpu_sockets" not in facts
