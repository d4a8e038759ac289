"""A machine: its identity, system, memory, load and shell limits, and whether it is a container or virtual."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from . import cpu
from .sources import ROOT, Facts, exists, gather, parse_fields, parse_float, parse_int, read_int, read_line, read_text

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


def ulimit_facts(root: Path) -> Facts:
    """Soft limits that RDMA (locked memory) and large worlds (open files) run into: a number or `unlimited`."""
    try:
        import resource  # not available on every system
    except ImportError:
        return {}
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
    flag = cpu.hypervisor_flag(cpu.parse_cpuinfo(read_text(root / "proc/cpuinfo") or ""))
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


SOURCES = (
    identity_facts,
    cpu.model_facts,
    cpu.core_facts,
    cpu.cache_facts,
    cpu.numa_facts,
    cpu.affinity_facts,
    memory_facts,
    load_facts,
    ulimit_facts,
    virtualization_facts,
)
