"""The processors of a machine: model, cores, sockets, caches, clock, and the cores this process may use."""

from __future__ import annotations

import os
import re
import statistics
from pathlib import Path

from commbench.core.ranges import format_ranges, parse_ranges

from .sources import Facts, children, one_line, parse_float, read_int, read_line, read_text

CPUS = "sys/devices/system/cpu"
# Arm's /proc/cpuinfo has numbers where others have a name; these are server cores used with GPUs
ARM_CORES = {"0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2", "0xd4f": "Neoverse-V2"}
MODEL_FIELDS = ("model name", "cpu model", "Processor", "cpu", "Hardware", "Model")


def parse_cpuinfo(text: str) -> list[dict[str, str]]:
    """The fields of each processor in /proc/cpuinfo; fields before the first processor belong to it."""
    processors: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        key, colon, value = (one_line(part) for part in line.partition(":"))
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


def affinity() -> set[int] | None:
    """The processors this process may run on; None where the system has no such call."""
    get_affinity = getattr(os, "sched_getaffinity", None)
    return set(get_affinity(0)) if get_affinity else None


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
    return {"host.cpu_affinity": format_ranges(affinity() or ()) or None}
