"""What this process may use: cores, memory, swap and shared memory, under the control groups it lives in."""

from __future__ import annotations

import os
from pathlib import Path

from . import cgroup, cpu
from .host import parse_meminfo
from .sources import ROOT, Facts, gather, read_text


def collect(root: Path = ROOT) -> Facts:
    """The facts as `limits.*`; a limit that isn't set is a missing key."""
    return gather("limits", SOURCES, root)


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """What may be allocated now without swapping or being killed; None when nothing tells."""
    group = cgroup.find_group(root, "memory")
    room = cgroup.memory_room_bytes(group) if group else None
    available = parse_meminfo(read_text(root / "proc/meminfo") or "").get("MemAvailable")
    return min((limit for limit in (room, available) if limit is not None), default=None)


def cpu_limit_cores(root: Path = ROOT) -> float:
    """The cores this process can keep busy: those it may run on, or less when its quota is smaller."""
    group = cgroup.find_group(root, "cpu")
    quota = cgroup.cpu_quota_cores(group) if group else None
    allowed = float(len(cpu.affinity() or ()) or os.cpu_count() or 1)
    return allowed if quota is None else min(allowed, quota)


def cpu_facts(root: Path) -> Facts:
    """The quota of the control group, and what is left of the machine with it."""
    group = cgroup.find_group(root, "cpu")
    return {
        "limits.cgroup_cpu_version": group.version if group else None,
        "limits.cgroup_cpu_quota_cores": cgroup.cpu_quota_cores(group) if group else None,
        "limits.cpu_cores": cpu_limit_cores(root),
    }


def memory_facts(root: Path) -> Facts:
    """The limit of the control group, and what may be allocated now."""
    group = cgroup.find_group(root, "memory")
    return {
        "limits.cgroup_memory_version": group.version if group else None,
        "limits.cgroup_memory_limit_bytes": cgroup.memory_limit_bytes(group) if group else None,
        "limits.memory_allocatable_bytes": memory_limit_bytes(root),
    }


def swap_facts(root: Path) -> Facts:
    """Swap: a run that uses it measures a disk."""
    sizes = parse_meminfo(read_text(root / "proc/meminfo") or "")
    group = cgroup.find_group(root, "memory")
    return {
        "limits.swap_total_bytes": sizes.get("SwapTotal"),
        "limits.swap_free_bytes": sizes.get("SwapFree"),
        "limits.cgroup_swap_limit_bytes": cgroup.swap_limit_bytes(group) if group else None,
    }


def shm_facts(root: Path) -> Facts:
    """/dev/shm, through which ranks of one node talk: a container's default of 64 MiB is too small for NCCL."""
    try:
        space = os.statvfs(root / "dev/shm")
    except (OSError, AttributeError):
        return {}
    return {
        "limits.shm_total_bytes": space.f_blocks * space.f_frsize,
        "limits.shm_free_bytes": space.f_bavail * space.f_frsize,
    }


SOURCES = (cpu_facts, memory_facts, swap_facts, shm_facts)
