"""The cores, memory and shared memory that this process may use under its control groups
(version 1 or 2)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

from commbench.core.units import format_bytes

from .host import mounts, parse_meminfo
from .sources import ROOT, Facts, gather, parse_fields, parse_int, read_int, read_text

SMALL_SHM_BYTES = 64 * 2**20  # docker's default
Number = TypeVar("Number", int, float)
NO_LIMIT_BYTES = 2**60  # version 1 writes "no limit" as 2^63 less a page


class CgroupFolders(NamedTuple):
    """The folders of the control groups that apply to this process, its own first, up to the
    highest visible one.

    Without control groups the version is None, and there are no folders.
    """

    version: int | None = None
    folders: tuple[Path, ...] = ()

    def memory_limit_bytes(self) -> int | None:
        """The lowest memory limit of these groups; None if there is none."""
        return _smallest(map(self._folder_limit_bytes, self.folders))

    def memory_room_bytes(self) -> int | None:
        """What may still be allocated before a limit is reached; reclaimable file cache counts as
        free."""
        # of version 1 only total_* includes the groups below
        usage = "memory.usage_in_bytes"
        droppable = "total_inactive_file"
        if self.version == 2:
            usage = "memory.current"
            droppable = "inactive_file"
        rooms = []
        for folder in self.folders:
            limit = self._folder_limit_bytes(folder)
            if limit is not None:
                used = read_int(folder / usage) or 0
                statistics = parse_fields(read_text(folder / "memory.stat"), " ")
                rooms.append(
                    max(0, limit - max(0, used - (parse_int(statistics.get(droppable, "")) or 0)))
                )
        return min(rooms, default=None)

    def oom_kills(self) -> int | None:
        """How many processes of the group the kernel has killed because memory was short; None if
        nobody counts them."""
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        counts = (parse_fields(read_text(folder / file), " ") for folder in self.folders)
        return next((parse_int(count["oom_kill"]) for count in counts if "oom_kill" in count), None)

    def process_refusals(self) -> int:
        """How often these groups were refused another process or thread."""
        counts = (parse_fields(read_text(folder / "pids.events"), " ") for folder in self.folders)
        return sum(parse_int(count.get("max", "")) or 0 for count in counts)

    def _folder_limit_bytes(self, folder: Path) -> int | None:
        limit = read_int(folder / ("memory.max" if self.version == 2 else "memory.limit_in_bytes"))
        return limit if limit is not None and 0 <= limit < NO_LIMIT_BYTES else None

    def cpu_quota_cores(self) -> float | None:
        """The lowest CPU quota in cores; None if there is none."""
        names = ("cpu.max",) if self.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        texts = (" ".join(read_text(folder / name) for name in names) for folder in self.folders)
        return _smallest(map(parse_cpu_max, texts))


def _smallest(values: Iterable[Number | None]) -> Number | None:
    return min((value for value in values if value is not None), default=None)


def parse_cpu_max(text: str) -> float | None:
    """The cores of a `quota period` in microseconds; None without a quota (`max 100000`, in version
    1 -1)."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s+([0-9]{1,15})\s*", text)
    quota, period = (int(match[1]), int(match[2])) if match else (0, 0)
    return quota / period if quota and period else None


def find_group(root: Path, controller: str) -> CgroupFolders:
    """The control groups of a controller (memory, cpu) that apply to this process."""
    # by controller, from lines such as `4:cpu,cpuacct:/docker/abc`; "" for version 2
    paths = dict[str, str]()
    for line in read_text(root / "proc/self/cgroup").splitlines():
        if match := re.fullmatch(r"[0-9]+:([^:]*):(/.*)", line):
            paths |= {name: match[2] for name in match[1].split(",") if name not in paths}
    group = CgroupFolders()
    for mount, source in mounts(root):
        if source[0] == "cgroup" and controller in source[2].split(",") and controller in paths:
            return CgroupFolders(1, _folders(root, mount[3], mount[4], paths[controller]))
        if source[0] == "cgroup2" and "" in paths and group.version is None:
            group = CgroupFolders(2, _folders(root, mount[3], mount[4], paths[""]))
    return group


def _folders(root: Path, inside: str, point: str, path: str) -> tuple[Path, ...]:
    """The folders from the process's group up to the mount point, which shows the hierarchy from
    `inside` on.

    A container may not see its own group; then it is only the mount point.
    """
    inside, point = (
        re.sub(r"\\([0-3][0-7]{2})", lambda code: chr(int(code[1], 8)), text)
        for text in (inside, point)
    )
    group = PurePosixPath(path)
    top = root / point.lstrip("/")
    if ".." in group.parts or not group.is_relative_to(inside):
        return (top,)
    below = group.relative_to(inside)
    return tuple(top / part for part in (below, *below.parents))


def allocatable_bytes(root: Path = ROOT) -> int | None:
    """The bytes that can be allocated now without swapping or being killed; None if unknown."""
    available = parse_meminfo(read_text(root / "proc/meminfo")).get("MemAvailable")
    return _smallest((find_group(root, "memory").memory_room_bytes(), available))


def oom_kills(root: Path = ROOT) -> int:
    """How many processes the kernel has killed because memory was short: of this process's control
    group, else of the whole host; 0 if unknown."""
    kills = find_group(root, "memory").oom_kills()
    if kills is None:
        kills = parse_int(parse_fields(read_text(root / "proc/vmstat"), " ").get("oom_kill", ""))
    return kills or 0


def process_refusals(root: Path = ROOT) -> int:
    """How often the control groups of this process were refused another process or thread; 0 if
    unknown."""
    return find_group(root, "pids").process_refusals()


def cpu_limit_cores(root: Path = ROOT) -> float:
    """The number of cores that this process can use: those of its affinity, or fewer with a lower
    quota."""
    quota = find_group(root, "cpu").cpu_quota_cores()
    allowed = float(len(os.sched_getaffinity(0)))
    return allowed if quota is None else min(allowed, quota)


def collect(root: Path = ROOT) -> Facts:
    """The facts as `limits.*`; a limit that is not set is a missing key."""
    return gather("limits", SOURCES, root)


def cpu_facts(root: Path) -> Facts:
    """The CPU quota of the control groups, and the number of usable cores."""
    group = find_group(root, "cpu")
    return {
        "limits.cgroup_cpu_quota_cores": group.cpu_quota_cores(),
        "limits.cpu_cores": cpu_limit_cores(root),
    }


def memory_limit_facts(root: Path) -> Facts:
    """The memory limit of the control groups."""
    return {"limits.cgroup_memory_limit_bytes": find_group(root, "memory").memory_limit_bytes()}


def shm_facts(root: Path) -> Facts:
    """The size of /dev/shm, through which ranks of a node communicate."""
    try:
        space = os.statvfs(root / "dev/shm")
    except OSError:
        return {}
    return {"limits.shm_total_bytes": space.f_blocks * space.f_frsize}


def small_shm(facts: Mapping[str, object]) -> str | None:
    """A warning if /dev/shm is too small for the ranks of a node, else None."""
    total = facts.get("limits.shm_total_bytes")
    if not isinstance(total, int) or total > SMALL_SHM_BYTES:
        return None
    return (
        f"/dev/shm has {format_bytes(total)} (docker's default is 64 MiB): MPI silently takes a"
        " slower transport, NCCL fails; start the container with --shm-size=8g or --ipc=host"
    )


SOURCES = (cpu_facts, memory_limit_facts, shm_facts)
