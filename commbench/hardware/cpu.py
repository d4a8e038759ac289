"""The processors of a machine: model, cores, sockets, caches, clock, and the cores this process may use."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from .sources import Facts, children, one_line, parse_float, parse_int, read_int, read_line, read_text

CPUS = "sys/devices/system/cpu"
# Arm's /proc/cpuinfo has numbers where others have a name; these are the server cores met with GPUs.
ARM_CORES = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
MODEL_FIELDS = ("model name", "cpu model", "Processor", "cpu", "Hardware", "Model")


def parse_cpuinfo(text: str) -> list[dict[str, str]]:
    """One dict of fields for each processor in /proc/cpuinfo; fields before the first belong to it."""
    blocks: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        key, found, value = (one_line(part) for part in line.partition(":"))
        if not found:
            continue
        if key == "processor" and "processor" in blocks[-1]:
            blocks.append({})
        blocks[-1].setdefault(key, value)
    return [block for block in blocks if block]


def cpu_model(processors: list[dict[str, str]]) -> str | None:
    """The marketing name, or on Arm the implementer and part numbers; None when the text says neither."""
    fields = {key: value for block in reversed(processors) for key, value in block.items()}
    for name in MODEL_FIELDS:
        if fields.get(name):
            return fields[name]
    implementer, part = fields.get("CPU implementer"), fields.get("CPU part")
    if not implementer or not part:
        return None
    name = ARM_CORES.get(part, "") if implementer == "0x41" else ""
    return f"{name} implementer {implementer} part {part}".strip()


def hypervisor_flag(processors: list[dict[str, str]]) -> bool | None:
    """Whether an x86 processor says that it is virtual; None where there are no such flags."""
    flags = processors[0].get("flags") if processors else None
    return "hypervisor" in flags.split() if flags else None


def current_mhz(processors: list[dict[str, str]]) -> float | None:
    """The median clock of all processors, as far as /proc/cpuinfo tells it."""
    clocks = [parse_float(block.get("cpu MHz", "")) for block in processors]
    known = [clock for clock in clocks if clock is not None]
    return statistics.median(known) if known else None


def parse_cache_bytes(text: str) -> int | None:
    """The bytes of 32K, 36M or 491520K as /sys writes the size of a cache."""
    match = re.fullmatch(r"\s*([0-9]{1,12})([KMG]?)\s*", text)
    return int(match[1]) * 1024 ** " KMG".index(match[2] or " ") if match else None


def count_cpus(text: str) -> int | None:
    """How many processors the list 0-3,8 names; None when it isn't such a list."""
    total = 0
    for part in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if not match:
            return None
        total += max(0, int(match[2] or match[1]) - int(match[1]) + 1)
    return total


def format_cpus(cpus: Iterable[int]) -> str:
    """Processor numbers as the kernel writes them: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def affinity() -> set[int] | None:
    """The processors this process may run on; None where the system can't say."""
    ask = getattr(os, "sched_getaffinity", None)
    return set(ask(0)) if ask else None


def model_facts(root: Path) -> Facts:
    """What /proc/cpuinfo says, and the governor and top speed of every frequency domain."""
    processors = parse_cpuinfo(read_text(root / "proc/cpuinfo") or "")
    policies = children(root / CPUS / "cpufreq", r"policy\d+")
    tops = [khz for policy in policies if (khz := read_int(policy / "cpuinfo_max_freq"))]
    governors = {name for policy in policies if (name := read_line(policy / "scaling_governor"))}
    return {
        "host.cpu_model": cpu_model(processors),
        "host.hypervisor_flag": hypervisor_flag(processors),
        "host.cpu_current_mhz": current_mhz(processors),
        "host.cpu_max_mhz": max(tops) / 1000 if tops else None,
        "host.cpu_governor": ",".join(sorted(governors)) or None,
    }


def core_facts(root: Path) -> Facts:
    """How many logical processors, physical cores and sockets are online, and whether cores are shared (SMT)."""
    topologies = [cpu / "topology" for cpu in children(root / CPUS, r"cpu\d+")]
    # Threads of one core have the same siblings; core_id isn't unique where a socket has clusters.
    siblings = {read_line(topology / "thread_siblings_list") for topology in topologies} - {None}
    packages = {read_int(topology / "physical_package_id") for topology in topologies} - {None, -1}
    smt = read_int(root / CPUS / "smt/active")
    return {
        "host.cpu_logical_cores": count_cpus(read_text(root / CPUS / "online") or ""),
        "host.cpu_physical_cores": len(siblings) or None,
        "host.cpu_sockets": len(packages) or None,
        "host.cpu_smt_active": None if smt is None else smt == 1,
    }


def cache_facts(root: Path) -> Facts:
    """The largest cache that processor 0 sees: messages beyond it come from memory."""
    indexes = children(root / CPUS / "cpu0/cache", r"index\d+")
    sizes = [size for index in indexes if (size := parse_cache_bytes(read_text(index / "size") or ""))]
    return {"host.cpu_llc_bytes": max(sizes) if sizes else None}


def numa_facts(root: Path) -> Facts:
    """How many NUMA nodes there are and the processors of each; nodes of memory only have none."""
    nodes = children(root / "sys/devices/system/node", r"node\d+")
    facts: Facts = {"host.numa_nodes": len(nodes) or None}
    for node in nodes:
        facts[f"host.numa_{node.name}_cpus"] = read_line(node / "cpulist")
    balancing = parse_int(read_text(root / "proc/sys/kernel/numa_balancing") or "")
    return facts | {"host.numa_balancing": balancing}


def affinity_facts(root: Path) -> Facts:
    """The processors this process was given, as a list like 0-3,8."""
    cpus = affinity()
    return {"host.cpu_affinity": format_cpus(cpus) if cpus else None}
