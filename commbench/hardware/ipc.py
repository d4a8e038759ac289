"""Whether CUDA IPC is possible on this machine, as far as files show it; only a transfer proves that it works."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .sources import ROOT, Facts, children, exists, gather, read_int, read_line, read_link

DRIVER = "proc/driver/nvidia/version"
WSL_DEVICE = "dev/dxg"  # the Windows Subsystem for Linux has the driver's device, but not its folder in /proc
NAMESPACES = ("pid", "ipc", "mnt", "net", "user")  # ranks in different containers open a handle only if these agree


def collect(root: Path = ROOT) -> Facts:
    """The facts as `ipc.platform.*`; without a driver `ipc.effective` is null and `ipc.reason` says so."""
    facts = gather("ipc", SOURCES, root)
    if exists(root / DRIVER) or exists(root / WSL_DEVICE):
        return facts
    return facts | {"ipc.effective": None, "ipc.reason": f"no NVIDIA driver: /{DRIVER} is absent"}


def parse_driver_version(text: str) -> str | None:
    """550.54.15 of the line `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...`."""
    match = re.search(r"NVRM version:.*?\s([0-9]{2,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?)(?:\s|$)", text)
    return match[1] if match else None


def parse_namespace(text: str) -> int | None:
    """The number in pid:[4026531836]."""
    match = re.fullmatch(r"[a-z_]+:\[([0-9]{1,19})\]", text)
    return int(match[1]) if match else None


def driver_facts(root: Path) -> Facts:
    """The kernel driver, and how many GPUs this process sees as device files."""
    line = (read_line(root / DRIVER) or "").partition(" GCC version")[0]
    return {
        "ipc.platform.nvidia_driver": parse_driver_version(line),
        "ipc.platform.nvidia_kernel_module": line or None,
        "ipc.platform.nvidia_device_nodes": len(children(root / "dev", r"nvidia[0-9]+")),
    }


def sharing_facts(root: Path) -> Facts:
    """What decides whether a process may access the memory of another one."""
    shm = root / "dev/shm"
    return {
        "ipc.platform.dev_shm_writable": exists(shm) and os.access(shm, os.W_OK),
        "ipc.platform.ptrace_scope": read_int(root / "proc/sys/kernel/yama/ptrace_scope"),
        **{
            f"ipc.platform.{name}_namespace": parse_namespace(read_link(root / "proc/self/ns" / name) or "")
            for name in NAMESPACES
        },
    }


SOURCES = (driver_facts, sharing_facts)
