"""The host: its identity, processors, memory, load and ulimits, and whether it is a container or a
virtual machine."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import resource
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from commbench.core.units import format_ranges, parse_ranges

from .sources import (
    ROOT,
    Facts,
    children,
    fact_text,
    gather,
    parse_fields,
    parse_int,
    read_int,
    read_line,
    read_text,
)

FREE_CORES = 0.5  # that may be missing: the load average of an idle machine is not zero
SLOW_READ_S = 1e-3
STEAL_FIELD = 8  # of cpu user nice system idle iowait irq softirq steal
# the first match counts: a pod may be run by docker, and podman's cgroup looks like docker's
CONTAINER_FILES = (
    ("kubernetes", "var/run/secrets/kubernetes.io"),
    ("kubernetes", "run/secrets/kubernetes.io"),
    ("podman", "run/.containerenv"),
    ("apptainer", ".singularity.d"),
    ("docker", ".dockerenv"),
)
CONTAINER_CGROUPS = (
    ("kubernetes", "kubepods"),
    ("podman", "libpod"),
    ("docker", "docker"),
    ("lxc", "/lxc"),
)
# the names of systemd-detect-virt, by what the vendor and product in DMI contain
DMI_NAMES = (
    ("amazon", "amazon ec2"),
    ("google", "google compute engine"),
    ("microsoft", "virtual machine"),
    ("vmware", "vmware"),
    ("oracle", "virtualbox"),
    ("xen", "xen"),
    ("kvm", "kvm"),
    ("kvm", "openstack"),
    ("qemu", "qemu"),
    ("apple", "apple virtualization"),
)
CPUS = "sys/devices/system/cpu"
# Arm's /proc/cpuinfo has part numbers instead of a name; these are cores of servers and of
# Raspberry Pis
ARM_CORES = {
    "0xd03": "Cortex-A53",
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
}
# Model: a Raspberry Pi's, of which the other fields name an instruction set. Model Name: LoongArch.
# uarch: RISC-V, where the device tree names it.
MODEL_FIELDS = ("Model", "model name", "Model Name", "cpu model", "uarch", "cpu")
# on Arm, behind the part numbers: one name for many processors (BCM2835 on every Raspberry Pi)
FAMILY_FIELDS = ("Processor", "Hardware")
S390 = "IBM/S390"


def collect(root: Path = ROOT) -> Facts:
    """The facts of this host as `host.*`; `root` is the top of its file tree."""
    return gather("host", SOURCES, root)


def parse_meminfo(text: str) -> dict[str, int]:
    """The sizes in /proc/meminfo in bytes; lines with counts are left out."""
    sizes = {
        key: re.fullmatch(r"([0-9]{1,15}) kB", value) for key, value in parse_fields(text).items()
    }
    return {key: int(match[1]) * 1024 for key, match in sizes.items() if match}


def mounts(root: Path) -> list[tuple[list[str], list[str]]]:
    """The lines of /proc/self/mountinfo, each as its fields before and after the dash."""
    lines = (line.partition(" - ") for line in read_text(root / "proc/self/mountinfo").splitlines())
    fields = ((before.split(" "), behind.split(" ")) for before, _, behind in lines)
    return [(before, behind) for before, behind in fields if len(before) >= 6 and len(behind) >= 3]


def steal_jiffies(text: str) -> int | None:
    """What the hypervisor has stolen from all processors since boot, from /proc/stat; None if the
    kernel does not count it."""
    line = next((line for line in text.splitlines() if line.startswith("cpu ")), "")
    words = line.split()
    return parse_int(words[STEAL_FIELD]) if len(words) > STEAL_FIELD else None


def identity_facts(root: Path) -> Facts:
    """Host name, boot id, kernel, distribution and architecture."""
    release = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release")
    return {
        "host.hostname": fact_text(platform.node()) or None,
        "host.boot_id": read_line(root / "proc/sys/kernel/random/boot_id"),
        "host.kernel": platform.release() or None,
        "host.os": parse_fields(release, "=").get("PRETTY_NAME", "").strip("\"'") or None,
        "host.machine": platform.machine() or None,
    }


def memory_facts(root: Path) -> Facts:
    """Total memory, and huge pages: the policy is madvise in `always [madvise] never`."""
    sizes = parse_meminfo(read_text(root / "proc/meminfo"))
    policy = re.search(r"\[(\w+)\]", read_text(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return {
        "host.memory_total_bytes": sizes.get("MemTotal"),
        "host.transparent_hugepages": policy[1] if policy else None,
        "host.hugepages_total": read_int(root / "proc/sys/vm/nr_hugepages"),
    }


def is_busy(load: float, ranks: int, cores: float) -> bool:
    """Whether other processes leave less than a core for each rank, as far as there are cores."""
    return load + min(ranks, cores) > cores + FREE_CORES


def load_facts(root: Path) -> Facts:
    """The load average of the last minute."""
    load = re.match(r"[0-9]{1,9}\.[0-9]{1,9}(?= )", read_text(root / "proc/loadavg"))
    return {"host.load_1min": float(load[0]) if load else None}


_current_cpu = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: 0)  # glibc and musl on Linux


def interference_counters(whole_host: bool = True, root: Path = ROOT) -> dict[str, float]:
    """Counters that show a disturbance by their differences: the frequency of the processor that
    this process runs on, and the processor time of the whole host that its hypervisor has
    stolen."""
    counters = dict[str, float]()
    stolen = steal_jiffies(read_text(root / "proc/stat")) if whole_host else None
    if stolen is not None:
        counters["os.steal_s"] = stolen / os.sysconf("SC_CLK_TCK")
    if frequency_is_quick(root) and (khz := read_int(_frequency_file(root))):
        counters["os.cpu_frequency_hz"] = 1e3 * khz
    return counters


def core_wait_s(root: Path = ROOT) -> float:
    """How long this thread has been ready to run but had no core, since it began; NaN where the
    kernel does not tell. The file has the ns on a core, the ns of waiting for one, and how often it
    got one (sched-stats in the kernel's documentation)."""
    fields = (read_line(root / "proc/thread-self/schedstat") or "").split()
    counts = [parse_int(field) or 0 for field in fields]
    return counts[1] / 1e9 if len(counts) == 3 and counts[2] else math.nan


@cache
def frequency_is_quick(root: Path = ROOT) -> bool:
    """Whether the frequency of a processor can be read quickly: kernels before 5.18 may sleep 10 ms
    to measure it."""
    took_s = []
    for _ in range(3):
        begin_s = time.perf_counter()
        if read_int(_frequency_file(root)) is None:
            return False
        took_s.append(time.perf_counter() - begin_s)
    return min(took_s) < SLOW_READ_S


def _frequency_file(root: Path) -> Path:
    return root / f"sys/devices/system/cpu/cpu{_current_cpu()}/cpufreq/scaling_cur_freq"


def ulimit_facts(_: Path) -> Facts:
    """The soft limits of locked memory, which RDMA needs, and of open files: a number or
    `unlimited`."""
    limits = {
        "host.ulimit_memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "host.ulimit_nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    return {
        key: "unlimited" if soft == resource.RLIM_INFINITY else soft for key, soft in limits.items()
    }


def container(root: Path) -> str | None:
    """docker, podman, kubernetes, ..., chroot or none; None if an overlay at / is the only sign of
    a container."""
    text = read_text(root / "proc/self/cgroup")
    cgroup = next((kind for kind, word in CONTAINER_CGROUPS if word in text), None)
    if cgroup == "kubernetes":
        return cgroup
    marker = next((kind for kind, path in CONTAINER_FILES if os.access(root / path, os.F_OK)), None)
    named = read_line(root / "run/systemd/container")
    if marker or named or cgroup:
        return marker or named or cgroup
    try:
        if not (root / ".").samefile(root / "proc/1/root"):
            return "chroot"
    except OSError:  # only root may look at the first process's /
        pass
    return None if root_filesystem(root) == "overlay" else "none"


def root_filesystem(root: Path) -> str | None:
    """The type of the filesystem at /. An overlay is usually a container, but may be a diskless
    node."""
    return next((source[0] for mount, source in mounts(root) if mount[4] == "/"), None)


def virtualization_facts(root: Path) -> Facts:
    """Container, hypervisor, and the vendor and product name of the machine (in a cloud the
    instance type).

    The hypervisor has the name of systemd-detect-virt, `unknown` if only the CPU flag shows it,
    `none` on x86 without the flag.
    """
    dmi = root / "sys/class/dmi/id"
    vendor = read_line(dmi / "sys_vendor")
    product = read_line(dmi / "product_name")
    # a bare-metal instance of a cloud has no hypervisor
    shown = "" if (product or "").endswith(".metal") else f"{vendor or ''} {product or ''}".lower()
    name = next((kind for kind, word in DMI_NAMES if word in shown), None) or read_line(
        root / "sys/hypervisor/type"
    )
    if name is None and os.access(root / "proc/device-tree/hypervisor/compatible", os.F_OK):
        name = "kvm"
    if name is None:
        flag = hypervisor_flag(parse_fields(read_text(root / "proc/cpuinfo")))
        name = {True: "unknown", False: "none", None: None}[flag]
    return {
        "host.container": container(root),
        "host.root_filesystem": root_filesystem(root),
        "host.virtualization": name,
        "host.machine_vendor": vendor,
        "host.machine_product": product,
    }


def cpu_model(cpuinfo: Mapping[str, str]) -> str | None:
    """The model name, or the numbers by which an architecture without names tells its processors
    apart; None if /proc/cpuinfo has neither."""
    implementer = cpuinfo.get("CPU implementer")
    part = cpuinfo.get("CPU part")
    # s390: `processor 0: version = FF,  identification = 133EC7,  machine = 8561`
    machine = re.search(r"machine = (\w+)", cpuinfo.get("processor 0", ""))
    names = [cpuinfo.get(field) for field in MODEL_FIELDS]
    if cpuinfo.get("vendor_id") == S390 and machine is not None:
        names.append(f"{S390} machine {machine[1]}")
    if implementer and part:
        core = ARM_CORES.get(part, "") if implementer == "0x41" else ""
        names.append(f"{core} implementer {implementer} part {part}".strip())
    if cpuinfo.get("mvendorid") and cpuinfo.get("marchid"):
        names.append(f"RISC-V vendor {cpuinfo['mvendorid']} architecture {cpuinfo['marchid']}")
    names += [cpuinfo.get(field) for field in FAMILY_FIELDS]
    return next((name for name in names if name), None)


def hypervisor_flag(cpuinfo: Mapping[str, str]) -> bool | None:
    """Whether an x86 processor has the flag of a virtual machine; None on other processors."""
    flags = cpuinfo.get("flags")
    return "hypervisor" in flags.split() if flags else None


def model_facts(root: Path) -> Facts:
    """The model in /proc/cpuinfo, and the governors and the highest clock of all processors."""
    policies = children(root / CPUS / "cpufreq", r"policy\d+")
    top_khz = [khz for policy in policies if (khz := read_int(policy / "cpuinfo_max_freq"))]
    governors = {name for policy in policies if (name := read_line(policy / "scaling_governor"))}
    return {
        "host.cpu_model": cpu_model(parse_fields(read_text(root / "proc/cpuinfo"))),
        "host.cpu_max_mhz": max(top_khz) / 1000 if top_khz else None,
        "host.cpu_governor": ",".join(sorted(governors)) or None,
    }


def core_facts(root: Path) -> Facts:
    """The numbers of logical processors, physical cores and sockets, whether SMT is on, and the
    process's affinity."""
    topologies = [cpu / "topology" for cpu in children(root / CPUS, r"cpu\d+")]
    # threads of one core have the same siblings; core_id is not unique where a socket has clusters
    siblings = {read_line(topology / "thread_siblings_list") for topology in topologies} - {None}
    packages = {read_int(topology / "physical_package_id") for topology in topologies} - {None, -1}
    smt = read_int(root / CPUS / "smt/active")
    return {
        "host.cpu_logical_cores": len(parse_ranges(read_text(root / CPUS / "online"))) or None,
        "host.cpu_physical_cores": len(siblings) or None,
        "host.cpu_sockets": len(packages) or None,
        "host.cpu_smt_active": None if smt is None else smt == 1,
        "host.cpu_affinity": format_ranges(os.sched_getaffinity(0)),
    }


def cache_facts(root: Path) -> Facts:
    """The largest cache of processor 0."""
    texts = [
        read_line(index / "size") or ""
        for index in children(root / CPUS / "cpu0/cache", r"index\d+")
    ]
    sizes = [
        1024 * int(match[1]) for text in texts if (match := re.fullmatch(r"([0-9]{1,12})K", text))
    ]
    return {"host.cpu_llc_bytes": max(sizes, default=None)}


def numa_processors(root: Path = ROOT) -> dict[str, str]:
    """The list of processors of each NUMA node that has any: on Grace others have only memory."""
    nodes = children(root / "sys/devices/system/node", r"node\d+")
    lists = ((node.name, read_line(node / "cpulist")) for node in nodes)
    return {name: processors for name, processors in lists if processors is not None}


def numa_facts(root: Path) -> Facts:
    """The number of NUMA nodes with processors, and the processors of each."""
    nodes = numa_processors(root)
    return {
        "host.numa_nodes": len(nodes) or None,
        **{f"host.numa_{name}_cpus": processors for name, processors in nodes.items()},
        "host.numa_balancing": read_int(root / "proc/sys/kernel/numa_balancing"),
    }


SOURCES = (
    identity_facts,
    model_facts,
    core_facts,
    cache_facts,
    numa_facts,
    memory_facts,
    load_facts,
    ulimit_facts,
    virtualization_facts,
)
