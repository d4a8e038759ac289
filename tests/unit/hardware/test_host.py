from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from commbench.hardware import host
from commbench.hardware.host import interference_counters
from commbench.hardware.sources import ROOT


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
def test_dmi(vendor, product, kind):
    assert host.virtualization_of_dmi(vendor, product) == kind


@pytest.mark.parametrize(
    ("cpuinfo", "kind"),
    [("cpuinfo_xeon_vm.txt", "unknown"), ("cpuinfo_epyc.txt", "none"), ("cpuinfo_grace.txt", None)],
)
def test_virtualization_by_flag_alone(plant, saved, cpuinfo, kind):
    assert host.virtualization(plant({"proc/cpuinfo": saved(cpuinfo)})) == kind


def test_virtualization_of_xen_and_arm_kvm(plant):
    assert host.virtualization(plant({"proc/device-tree/hypervisor/compatible": "linux,kvm\0"})) == "kvm"
    assert host.virtualization(plant({"sys/hypervisor/type": "xen\n"})) == "xen"


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


def test_what_disturbs_a_process_is_counted(tmp_path: Path) -> None:
    assert set(interference_counters(root=tmp_path)) == {"os.voluntary_switches", "os.involuntary_switches"}
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  1 2 3 4 5 6 7 250 9 10\n")
    assert interference_counters(root=tmp_path)["os.steal_s"] == 250 / os.sysconf("SC_CLK_TCK")
    assert "os.steal_s" not in interference_counters(whole_host=False, root=tmp_path)
    before = interference_counters()
    time.sleep(0.001)
    assert interference_counters()["os.voluntary_switches"] > before["os.voluntary_switches"]


def test_a_frequency_is_read_where_that_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SLOW_READ_S", 0.1)  # of a machine under load
    quick, slow = tmp_path / "quick", tmp_path / "slow"
    for root, cost_s in ((quick, 0.0), (slow, 0.11)):
        folder = root / "sys/devices/system/cpu/cpu7/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text("2400000\n")
        monkeypatch.setattr(host, "_current_cpu", lambda cost_s=cost_s: (time.sleep(cost_s), 7)[1])
        assert interference_counters(root=root).get("os.cpu_frequency_hz") == (2.4e9 if root is quick else None)
