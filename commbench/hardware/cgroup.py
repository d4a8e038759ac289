"""The control groups of this process, version 1 or 2: the folders from its own up to the highest it can see."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .sources import parse_fields, parse_int, read_text

UNLIMITED = 2**60  # version 1 writes "no limit" as 2^63 less a page


class Mount(NamedTuple):
    """One mounted hierarchy: which part of it, where, and which controllers (none for version 2)."""

    version: int
    inside: str
    point: str
    controllers: frozenset[str]


class Group(NamedTuple):
    """The version of a controller and its folders, the process's own first."""

    version: int
    folders: tuple[Path, ...]


def parse_membership(text: str) -> dict[str, str]:
    """/proc/self/cgroup as controller -> path; the path in the version 2 hierarchy has the key ''."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"[0-9]+:([^:]*):(/.*)", line)
        for controller in match[1].split(",") if match else ():
            paths.setdefault(controller, match[2] if match else "")
    return paths


def parse_mounts(text: str) -> list[Mount]:
    """The control group hierarchies in /proc/self/mountinfo."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        mount, source = before.split(" "), after.split(" ")
        if len(mount) < 6 or len(source) < 3 or source[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if source[0] == "cgroup2" else 1
        controllers = frozenset(source[2].split(",") if version == 1 else ())
        mounts.append(Mount(version, _unescape(mount[3]), _unescape(mount[4]), controllers))
    return mounts


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), path)


def find_group(root: Path, controller: str) -> Group | None:
    """Where a controller (memory, cpu) is set for this process; None when no such hierarchy is mounted."""
    paths = parse_membership(read_text(root / "proc/self/cgroup") or "")
    mounts = parse_mounts(read_text(root / "proc/self/mountinfo") or "")
    for mount in mounts:
        if controller in mount.controllers and controller in paths:
            return Group(1, _folders(root, mount, paths[controller]))
    for mount in mounts:
        if mount.version == 2 and "" in paths:
            return Group(2, _folders(root, mount, paths[""]))
    return None


def _folders(root: Path, mount: Mount, path: str) -> tuple[Path, ...]:
    """From the process's group up to the mount point; a container's path may lie outside what it can see."""
    group, inside = PurePosixPath(path), PurePosixPath(mount.inside)
    top = root / mount.point.lstrip("/")
    if ".." in group.parts or not group.is_relative_to(inside):
        return (top,)
    below = group.relative_to(inside)
    return tuple(top / part for part in (below, *below.parents))


def memory_limit_bytes(group: Group) -> int | None:
    """The smallest memory limit on the way up; None when there is none."""
    limits = [limit for folder in group.folders if (limit := _memory_limit(group.version, folder)) is not None]
    return min(limits, default=None)


def memory_room_bytes(group: Group) -> int | None:
    """What may still be allocated before a limit on the way up kills; file cache that can be dropped counts as free."""
    rooms = []
    for folder in group.folders:
        limit, used = _memory_limit(group.version, folder), _memory_used(group.version, folder)
        if limit is not None:
            rooms.append(max(0, limit - (used or 0)))
    return min(rooms, default=None)


def _memory_limit(version: int, folder: Path) -> int | None:
    limit = parse_int(read_text(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")) or "")
    return limit if limit is not None and 0 <= limit < UNLIMITED else None


def _memory_used(version: int, folder: Path) -> int | None:
    used = parse_int(read_text(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes")) or "")
    stat = parse_fields(read_text(folder / "memory.stat") or "", " ")
    # Version 1 counts the groups below only in total_*, version 2 always.
    cache = parse_int(stat.get("inactive_file" if version == 2 else "total_inactive_file", ""))
    return None if used is None else max(0, used - (cache or 0))


def swap_limit_bytes(group: Group) -> int | None:
    """The smallest swap limit on the way up (version 2 only: version 1 limits memory and swap together)."""
    limits = [parse_int(read_text(folder / "memory.swap.max") or "") for folder in group.folders]
    return min((limit for limit in limits if limit is not None), default=None)


def cpu_quota_cores(group: Group) -> float | None:
    """The smallest processor quota on the way up, in cores; None when there is none."""
    quotas = [quota for folder in group.folders if (quota := _cpu_quota(group.version, folder)) is not None]
    return min(quotas, default=None)


def _cpu_quota(version: int, folder: Path) -> float | None:
    if version == 2:
        return parse_cpu_max(read_text(folder / "cpu.max") or "")
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return parse_cpu_max(" ".join(read_text(folder / name) or "" for name in names))


def parse_cpu_max(text: str) -> float | None:
    """Cores of `quota period` in microseconds; None for `max 100000` and version 1's -1."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s+([0-9]{1,15})\s*", text)
    quota, period = (int(match[1]), int(match[2])) if match else (0, 0)
    return quota / period if quota and period else None
