"""One machine: who it is, its system, processors, memory, load, and the limits of its shell."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from . import cpu, virtualization
from .sources import ROOT, Facts, gather, parse_fields, parse_float, parse_int, read_int, read_line, read_text

MIN_STAT_FIELDS = 8  # user nice system idle iowait irq softirq steal; guest time is inside user


def collect(root: Path = ROOT) -> Facts:
    """The facts of this host as `host.*`; root is where its file tree begins."""
    return gather("host", SOURCES, root)


def parse_os_name(text: str) -> str | None:
    """PRETTY_NAME of an os-release file."""
    return parse_fields(text, "=").get("PRETTY_NAME", "").strip("\"'") or None


def parse_meminfo(text: str) -> dict[str, int]:
    """The sizes in /proc/meminfo, in bytes; lines that are counts and not sizes are left out."""
    sizes = {key: re.fullmatch(r"([0-9]{1,15}) kB", value) for key, value in parse_fields(text).items()}
    return {key: int(match[1]) * 1024 for key, match in sizes.items() if match}


def parse_selected(text: str) -> str | None:
    """The choice in brackets, madvise of `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else None


def parse_stat(text: str) -> tuple[int, int] | None:
    """(steal, total) jiffies of all processors since boot, from /proc/stat; None when the kernel has no steal."""
    line = next((line for line in text.splitlines() if line.startswith("cpu ")), "")
    numbers = [parse_int(word) for word in line.split()[1 : 1 + MIN_STAT_FIELDS]]
    known = [number for number in numbers if number is not None]
    return (known[-1], sum(known)) if len(known) == MIN_STAT_FIELDS else None


def identity_facts(root: Path) -> Facts:
    """Names that tell this machine, this boot and this system from another."""
    release = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release") or ""
    return {
        "host.hostname": platform.node() or None,
        "host.boot_id": read_line(root / "proc/sys/kernel/random/boot_id"),
        "host.kernel": platform.release() or None,
        "host.os": parse_os_name(release),
        "host.machine": platform.machine() or None,
    }


def memory_facts(root: Path) -> Facts:
    """Memory that is there and that is free to use, and the policy of large pages."""
    sizes = parse_meminfo(read_text(root / "proc/meminfo") or "")
    huge = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    return {
        "host.memory_total_bytes": sizes.get("MemTotal"),
        "host.memory_available_bytes": sizes.get("MemAvailable"),
        "host.transparent_hugepages": parse_selected(huge),
        "host.hugepages_total": read_int(root / "proc/sys/vm/nr_hugepages"),
    }


def load_facts(root: Path) -> Facts:
    """Work of others: load of the last minute, and time that the hypervisor took away (compare two readings)."""
    stat = parse_stat(read_text(root / "proc/stat") or "")
    load = (read_line(root / "proc/loadavg") or "").partition(" ")[0]
    return {
        "host.load_1min": parse_float(load),
        "host.cpu_steal_jiffies": stat[0] if stat else None,
        "host.cpu_total_jiffies": stat[1] if stat else None,
    }


def ulimit_facts(root: Path) -> Facts:
    """Soft limits that break RDMA (locked memory) and large worlds (open files); a number or `unlimited`."""
    try:
        import resource  # not there on every system
    except ImportError:
        return {}
    limits = {
        "host.ulimit_memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "host.ulimit_nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    return {key: "unlimited" if soft == resource.RLIM_INFINITY else soft for key, soft in limits.items()}


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
    virtualization.virtualization_facts,
)
