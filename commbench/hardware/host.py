"""A machine: its identity, processors, memory, load and shell limits, and whether it is a container or virtual."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import statistics
import time
from functools import cache
from pathlib import Path

from commbench.core.units import format_ranges, parse_ranges

from .sources import (
    ROOT,
    Facts,
    children,
    exists,
    fact_text,
    gather,
    parse_fields,
    parse_float,
    parse_int,
    read_int,
    read_line,
    read_text,
)

SLOW_READ_S = 1e-3
STAT_FIELDS = 8  # user nice system idle iowait irq softirq steal; guest time is part of user
# In this order: a pod may be run by docker, and podman writes a docker-like cgroup.
CONTAINER_FILES = (
    ("kubernetes", "var/run/secrets/kubernetes.io"),
    ("kubernetes", "run/secrets/kubernetes.io"),
    ("podman", "run/.containerenv"),
    ("apptainer", ".singularity.d"),
    ("docker", ".dockerenv"),
)
CONTAINER_CGROUPS = (("kubernetes", "kubepods"), ("podman", "libpod"), ("docker", "docker"), ("lxc", "/lxc"))
# The words of systemd-detect-virt, from the texts that hypervisors put into DMI.
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
# Arm's /proc/cpuinfo has numbers where others have a name; these are server cores used with GPUs
ARM_CORES = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
MODEL_FIELDS = ("model name", "cpu model", "Processor", "cpu", "Hardware", "Model")


def collect(root: Path = ROOT) -> Facts:
    """The facts of this host as `host.*`; `root` is the top of its file tree."""
    return gather("host", SOURCES, root)


def parse_os_name(text: str) -> str | None:
    """PRETTY_NAME of an os-release file."""
    return parse_fields(text, "=").get("PRETTY_NAME", "").strip("\"'") or None


def parse_meminfo(text: str) -> dict[str, int]:
    """The sizes in /proc/meminfo in bytes, without the lines that are counts."""
    sizes = {key: re.fullmatch(r"([0-9]{1,15}) kB", value) for key, value in parse_fields(text).items()}
    return {key: int(match[1]) * 1024 for key, match in sizes.items() if match}


def parse_selected(text: str) -> str | None:
    """The choice in brackets, madvise of `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else None


def parse_stat(text: str) -> tuple[int, int] | None:
    """(steal, total) jiffies of all processors since boot, from /proc/stat; None if the kernel does not count steal."""
    line = next((line for line in text.splitlines() if line.startswith("cpu ")), "")
    numbers = [parse_int(word) for word in line.split()[1 : 1 + STAT_FIELDS]]
    known = [number for number in numbers if number is not None]
    return (known[-1], sum(known)) if len(known) == STAT_FIELDS else None


def identity_facts(root: Path) -> Facts:
    """Names of this machine, this boot and this system."""
    release = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release") or ""
    return {
        "host.hostname": platform.node() or None,
        "host.boot_id": read_line(root / "proc/sys/kernel/random/boot_id"),
        "host.kernel": platform.release() or None,
        "host.os": parse_os_name(release),
        "host.machine": platform.machine() or None,
    }


def memory_facts(root: Path) -> Facts:
    """Total and available memory, and the policy for huge pages."""
    sizes = parse_meminfo(read_text(root / "proc/meminfo") or "")
    huge = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    return {
        "host.memory_total_bytes": sizes.get("MemTotal"),
        "host.memory_available_bytes": sizes.get("MemAvailable"),
        "host.transparent_hugepages": parse_selected(huge),
        "host.hugepages_total": read_int(root / "proc/sys/vm/nr_hugepages"),
    }


def load_facts(root: Path) -> Facts:
    """Load of the last minute, and time stolen by the hypervisor (compare two readings)."""
    stat = parse_stat(read_text(root / "proc/stat") or "")
    load = (read_line(root / "proc/loadavg") or "").partition(" ")[0]
    return {
        "host.load_1min": parse_float(load),
        "host.cpu_steal_jiffies": stat[0] if stat else None,
        "host.cpu_total_jiffies": stat[1] if stat else None,
    }


_current_cpu = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: 0)  # glibc and musl on Linux


def interference_counters(whole_host: bool = True, root: Path = ROOT) -> dict[str, float]:
    """What disturbs this process, to be compared with another reading: its context switches, the frequency of the
    processor that it runs on now, and of the whole host the processor time that its hypervisor took away."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    counters = {"os.voluntary_switches": float(usage.ru_nvcsw), "os.involuntary_switches": float(usage.ru_nivcsw)}
    stat = parse_stat(read_text(root / "proc/stat") or "") if whole_host else None
    if stat is not None:
        counters["os.steal_s"] = stat[0] / os.sysconf("SC_CLK_TCK")
    if frequency_is_quick(root) and (khz := read_int(_frequency_file(root))):
        counters["os.cpu_frequency_hz"] = 1e3 * khz
    return counters


@cache
def frequency_is_quick(root: Path = ROOT) -> bool:
    """Whether the frequency of a processor can be read; kernels before 5.18 may sleep for 10 ms to measure it."""
    took_s = []
    for _ in range(3):
        begin_s = time.perf_counter()
        if read_int(_frequency_file(root)) is None:
            return False
        took_s.append(time.perf_counter() - begin_s)
    return min(took_s) < SLOW_READ_S


def _frequency_file(root: Path) -> Path:
    return root / f"sys/devices/system/cpu/cpu{_current_cpu()}/cpufreq/scaling_cur_freq"


def ulimit_facts(root: Path) -> Facts:
    """Soft limits that RDMA (locked memory) and large worlds (open files) run into: a number or `unlimited`."""
    limits = {
        "host.ulimit_memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "host.ulimit_nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    return {key: "unlimited" if soft == resource.RLIM_INFINITY else soft for key, soft in limits.items()}


def container_of_cgroup(text: str) -> str | None:
    """The kind of container that the paths in /proc/self/cgroup name, or None."""
    return next((kind for kind, word in CONTAINER_CGROUPS if word in text), None)


def virtualization_of_dmi(vendor: str, product: str) -> str | None:
    """The hypervisor that vendor and product name; None for a cloud's *.metal instance, which has none."""
    if product.endswith(".metal"):
        return None
    both = f"{vendor} {product}".lower()
    return next((kind for kind, word in DMI_NAMES if word in both), None)


def container(root: Path) -> str | None:
    """docker, podman, kubernetes, ..., chroot or none; None if only an overlay root suggests a container."""
    cgroup = container_of_cgroup(read_text(root / "proc/self/cgroup") or "")
    if cgroup == "kubernetes":
        return cgroup
    marker = next((kind for kind, path in CONTAINER_FILES if exists(root / path)), None)
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
    """The type of the filesystem at /: an overlay is mostly a container, but sometimes a diskless node."""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split(" ")[4:5] == ["/"] and source:
            return source.split(" ")[0]
    return None


def virtualization(root: Path) -> str | None:
    """The hypervisor as systemd-detect-virt names it: unknown if only the CPU flag shows it, none on x86 without it."""
    vendor, product = _dmi(root)
    name = virtualization_of_dmi(vendor or "", product or "") or read_line(root / "sys/hypervisor/type")
    if name or exists(root / "proc/device-tree/hypervisor/compatible"):
        return name or "kvm"
    flag = hypervisor_flag(parse_cpuinfo(read_text(root / "proc/cpuinfo") or ""))
    return {True: "unknown", False: "none", None: None}[flag]


def virtualization_facts(root: Path) -> Facts:
    """Container, hypervisor, and the machine's product name (in a cloud the instance type)."""
    vendor, product = _dmi(root)
    return {
        "host.container": container(root),
        "host.root_filesystem": root_filesystem(root),
        "host.virtualization": virtualization(root),
        "host.machine_vendor": vendor,
        "host.machine_product": product,
    }


def _dmi(root: Path) -> tuple[str | None, str | None]:
    folder = root / "sys/class/dmi/id"
    return read_line(folder / "sys_vendor"), read_line(folder / "product_name")


def parse_cpuinfo(text: str) -> list[dict[str, str]]:
    """The fields of each processor in /proc/cpuinfo; fields before the first processor belong to it."""
    processors: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        key, colon, value = (fact_text(part) for part in line.partition(":"))
        if not colon:
            continue
        if key == "processor" and "processor" in processors[-1]:
            processors.append({})
        processors[-1].setdefault(key, value)
    return [fields for fields in processors if fields]


def cpu_model(processors: list[dict[str, str]]) -> str | None:
    """The marketing name, or the implementer and part numbers on Arm; None if the text has neither."""
    fields = {key: value for processor in reversed(processors) for key, value in processor.items()}
    for name in MODEL_FIELDS:
        if fields.get(name):
            return fields[name]
    implementer, part = fields.get("CPU implementer"), fields.get("CPU part")
    if not implementer or not part:
        return None
    name = ARM_CORES.get(part, "") if implementer == "0x41" else ""
    return f"{name} implementer {implementer} part {part}".strip()


def hypervisor_flag(processors: list[dict[str, str]]) -> bool | None:
    """Whether an x86 processor reports that it is virtual; None on processors without such flags."""
    flags = processors[0].get("flags") if processors else None
    return "hypervisor" in flags.split() if flags else None


def current_mhz(processors: list[dict[str, str]]) -> float | None:
    """The median clock of all processors; None where /proc/cpuinfo has no clocks."""
    clocks = [clock for fields in processors if (clock := parse_float(fields.get("cpu MHz", ""))) is not None]
    return statistics.median(clocks) if clocks else None


def parse_cache_bytes(text: str) -> int | None:
    """The bytes of 32K, 36M or 491520K, as /sys writes the size of a cache."""
    match = re.fullmatch(r"\s*([0-9]{1,12})([KMG]?)\s*", text)
    return int(match[1]) * 1024 ** " KMG".index(match[2] or " ") if match else None


def model_facts(root: Path) -> Facts:
    """The model and clock in /proc/cpuinfo, and the governors and the top speed of all frequency domains."""
    processors = parse_cpuinfo(read_text(root / "proc/cpuinfo") or "")
    policies = children(root / CPUS / "cpufreq", r"policy\d+")
    top_khz = [khz for policy in policies if (khz := read_int(policy / "cpuinfo_max_freq"))]
    governors = {name for policy in policies if (name := read_line(policy / "scaling_governor"))}
    return {
        "host.cpu_model": cpu_model(processors),
        "host.hypervisor_flag": hypervisor_flag(processors),
        "host.cpu_current_mhz": current_mhz(processors),
        "host.cpu_max_mhz": max(top_khz) / 1000 if top_khz else None,
        "host.cpu_governor": ",".join(sorted(governors)) or None,
    }


def core_facts(root: Path) -> Facts:
    """How many logical processors, physical cores and sockets are online, and whether cores are shared (SMT)."""
    topologies = [cpu / "topology" for cpu in children(root / CPUS, r"cpu\d+")]
    # threads of one core have the same siblings; core_id is not unique where a socket has clusters
    siblings = {read_line(topology / "thread_siblings_list") for topology in topologies} - {None}
    packages = {read_int(topology / "physical_package_id") for topology in topologies} - {None, -1}
    smt = read_int(root / CPUS / "smt/active")
    return {
        "host.cpu_logical_cores": len(parse_ranges(read_text(root / CPUS / "online") or "")) or None,
        "host.cpu_physical_cores": len(siblings) or None,
        "host.cpu_sockets": len(packages) or None,
        "host.cpu_smt_active": None if smt is None else smt == 1,
    }


def cache_facts(root: Path) -> Facts:
    """The largest cache of processor 0: larger messages come from memory."""
    indexes = children(root / CPUS / "cpu0/cache", r"index\d+")
    sizes = [size for index in indexes if (size := parse_cache_bytes(read_text(index / "size") or ""))]
    return {"host.cpu_llc_bytes": max(sizes) if sizes else None}


def numa_facts(root: Path) -> Facts:
    """How many NUMA nodes there are, and the processors of each; nodes that are only memory have none."""
    nodes = children(root / "sys/devices/system/node", r"node\d+")
    return {
        "host.numa_nodes": len(nodes) or None,
        **{f"host.numa_{node.name}_cpus": read_line(node / "cpulist") for node in nodes},
        "host.numa_balancing": read_int(root / "proc/sys/kernel/numa_balancing"),
    }


def affinity_facts(root: Path) -> Facts:
    """The processors this process may run on, as a list such as 0-3,8."""
    return {"host.cpu_affinity": format_ranges(os.sched_getaffinity(0))}


SOURCES = (
    identity_facts,
    model_facts,
    core_facts,
    cache_facts,
    numa_facts,
    affinity_facts,
    memory_facts,
    load_facts,
    ulimit_facts,
    virtualization_facts,
)
