"""The machines of a report from run.json: hardware and software, topology, and where ranks
differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from commbench.core.units import about_bytes, natural_key, plural
from commbench.hardware.topology import matrix_text
from commbench.results.columns import grouped
from commbench.results.network_cards import interfaces_of
from commbench.results.run_folder import mapping_or_empty

OWN_CORES = ("run.bind", "host.cpu_affinity")  # expected to differ: each rank has cores of its own
CORES_ALLOWED = "cores allowed"  # of a process: its binding, not its machine, decides
SHOWN_FACTS = (  # of each machine where they are known
    ("CPU", "host.cpu_model"),
    ("cores", "host.cpu_physical_cores"),
    ("sockets", "host.cpu_sockets"),
    ("NUMA nodes", "host.numa_nodes"),
    (CORES_ALLOWED, "limits.cpu_cores"),
    ("memory", "host.memory_total_bytes"),
    ("last-level cache", "host.cpu_llc_bytes"),
    ("kernel", "host.kernel"),
    ("system", "host.os"),
    ("virtualization", "host.virtualization"),
    ("container", "host.container"),
    ("torch", "versions.torch"),
    ("python", "versions.python"),
    ("GPUs", "gpu.count"),
    ("GPU", "gpu.0.name"),
    ("GPU driver", "gpu.driver_version"),
    ("CUDA of the driver", "gpu.cuda_driver_version"),
    ("mpi4py", "versions.mpi4py"),
    ("NCCL", "versions.nccl_wheel"),
    ("commbench", "versions.commbench"),
    ("congestion control", "network.tcp_congestion_control"),
)

Record = Mapping[str, Any]  # a run.json


@dataclass(frozen=True)
class Machine:
    """Nodes with equal facts: host names, facts as (name, text), topology by matrix_text. Where
    their processes were allowed other cores, the fact has all those numbers."""

    hosts: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    topology: str | None
    topology_reason: str | None
    text: str  # all facts, for the patterns that recognise hardware


def nodes_of(run: Record) -> list[Mapping[str, Any]]:
    """The facts of each node; empty for a record that another program wrote."""
    nodes = mapping_or_empty(run.get("provenance")).get("nodes")
    return [node for node in nodes if isinstance(node, Mapping)] if isinstance(nodes, list) else []


def machines_of(records: Iterable[Record]) -> list[Machine]:
    """One machine per set of equal facts, the most frequent first; from the records of runs
    (run.json)."""
    all_nodes = (node for record in records for node in nodes_of(record))
    groups = grouped(all_nodes, _machine_key)
    machines = []
    for nodes in sorted(groups.values(), key=len, reverse=True):
        hosts = tuple(dict.fromkeys(str(node.get("host.hostname", "?")) for node in nodes))
        first = nodes[0]
        text = "; ".join(
            f"{key}={value}" for key, value in first.items() if not key.startswith("environment.")
        )
        topology = matrix_text(first)
        reason = first.get("topology.reason")
        missing = None if topology or not reason else str(reason)
        machines.append(Machine(hosts, _facts_together(nodes), topology, missing, text))
    return machines


def _machine_key(node: Mapping[str, Any]) -> tuple[Any, ...]:
    facts = [fact for fact in _facts(node) if fact[0] != CORES_ALLOWED]
    return (*facts, matrix_text(node))


def _facts_together(nodes: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """The facts of nodes of one machine, in one line each: `cores allowed` is `1.0 or 2.0`."""
    by_title = grouped(
        (fact for node in nodes for fact in _facts(node)),
        lambda fact: fact if fact[0] != CORES_ALLOWED else CORES_ALLOWED,
    )
    titles = {title: position for position, (title, _) in enumerate(SHOWN_FACTS)}
    together = [
        (facts[0][0], " or ".join(sorted({text for _, text in facts}, key=natural_key)))
        for facts in by_title.values()
    ]
    return tuple(sorted(together, key=lambda fact: titles.get(fact[0], len(titles))))


def _facts(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Those of SHOWN_FACTS that are known, and the network interfaces that are up."""
    facts = []
    for title, key in SHOWN_FACTS:
        value = node.get(key)
        if key.endswith("_bytes") and isinstance(value, int | float):
            value = about_bytes(value)
        if value not in (None, "unknown"):
            facts.append(
                (title, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
            )
    for name, own in sorted(interfaces_of(node).items()):
        if own.get("state") != "up":
            continue
        rate = own.get("speed_mbit_per_s")
        mtu = own.get("mtu_bytes")
        speed = f"{rate / 1000:g} Gb/s" if isinstance(rate, int | float) else None
        parts = (name, own.get("driver"), speed, f"MTU {mtu} B" if mtu else None)
        facts.append(("network", ", ".join(str(part) for part in parts if part)))
    return facts


def run_groups(records: Iterable[Record]) -> list[tuple[str, ...]]:
    """Runs with the same settings: backend, library, layouts, world, CUDA IPC, timing, number of
    runs, their labels."""
    labels = dict[tuple[str, str, str, str, str, str], list[str]]()
    for record in records:
        backend = mapping_or_empty(record.get("backend"))
        world = mapping_or_empty(record.get("world"))
        ipc = mapping_or_empty(record.get("cuda_ipc"))
        ranks = "not recorded"
        if {"size", "nodes"} <= world.keys():
            ranks = (
                f"{plural(world['size'], 'rank', 'ranks')} on"
                f" {plural(world['nodes'], 'node', 'nodes')}"
            )
            ranks += f", {world.get('launcher', '?')}"
        key = (
            str(backend.get("name", "?")),
            str(backend.get("library", "?")),
            ", ".join(map(str, _list(record.get("layouts")))),
            ranks,
            (
                f"requested {ipc.get('asked', '?')}, effective"
                f" {ipc.get('effective', '?') or 'none (no GPU)'}"
            ),
            str(record.get("timing", "?")),
        )
        labels.setdefault(key, []).append(str(record.get("label") or ""))
    return [
        (*key, str(len(texts)), ", ".join(sorted({*texts} - {""}))) for key, texts in labels.items()
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def rank_differences(records: Iterable[Record]) -> list[tuple[str, str, str]]:
    """Facts that differ between the ranks of a run and should not, as (fact, value, ranks); each
    once."""
    differences = dict[tuple[str, str, str], None]()
    for record in records:
        provenance = mapping_or_empty(record.get("provenance"))
        for key, groups in mapping_or_empty(provenance.get("differences")).items():
            if isinstance(groups, Mapping) and key not in OWN_CORES:
                for value, ranks in groups.items():
                    differences[str(key), str(value), ", ".join(map(str, _list(ranks)))] = None
    return list(differences)
