"""The machines of a report, from run.json: what they are, how they are wired, where ranks differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .crossover import about
from .results import Run

FACTS = (  # shown for each machine where they are known, in this order
    ("CPU", "host.cpu_model"), ("cores", "host.cpu_physical_cores"), ("sockets", "host.cpu_sockets"),
    ("NUMA nodes", "host.numa_nodes"), ("cores allowed", "limits.cpu_cores"), ("memory", "host.memory_total_bytes"),
    ("last-level cache", "host.cpu_llc_bytes"),
    ("kernel", "host.kernel"), ("system", "host.os"), ("virtualization", "host.virtualization"),
    ("container", "host.container"), ("torch", "versions.torch"), ("python", "versions.python"),
    ("GPUs", "gpu.count"), ("GPU", "gpu.0.name"), ("NVIDIA driver", "gpu.driver_version"),
    ("CUDA of the driver", "gpu.cuda_driver_version"),
    ("mpi4py", "versions.mpi4py"), ("NCCL", "versions.nccl_wheel"), ("commbench", "versions.commbench"),
    ("congestion control", "network.tcp_congestion_control"),
)  # fmt: skip
LINKED = re.compile(r"NV[0-9]+|X|PIX|PXB|PHB|NODE|SYS|SOC|PSB|N/A")
DEVICE = re.compile(r"GPU[0-9]+|NIC[0-9]+|[a-z][a-z0-9_]*[0-9]")
OF_A_RANK = ("run.bind",)  # each rank has cores of its own
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Machine:
    """Equal nodes of some runs: `hosts` by name, `facts` as (name, text), `topology` as nvidia-smi printed it."""

    hosts: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    topology: str | None
    topology_reason: str | None
    nodes: int
    text: str  # all facts in one text, for what recognises hardware


@dataclass(frozen=True)
class Head:
    """Runs that are alike: backend, launcher, world and what CUDA IPC did; `runs` of them."""

    backend: str
    library: str
    layouts: str
    world: str
    ipc: str
    timing: str
    runs: int
    labels: str


def machines(runs: Iterable[Run]) -> list[Machine]:
    """One for each set of equal facts, the most frequent first."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        for node in nodes_of(run):
            groups.setdefault(json.dumps([*_facts(node), _topology(node)]), []).append(node)
    return [_machine(nodes) for nodes in sorted(groups.values(), key=len, reverse=True)]


def nodes_of(run: Run) -> list[Mapping[str, Any]]:
    nodes = _mapping(run.record, "provenance").get("nodes")
    return [node for node in _listed(nodes) if isinstance(node, Mapping)]


def _machine(nodes: Sequence[Mapping[str, Any]]) -> Machine:
    hosts = tuple(dict.fromkeys(str(node.get("host.hostname", "?")) for node in nodes))
    first = nodes[0]
    reason = first.get("topology.reason")
    text = "; ".join(f"{key}={value}" for key, value in first.items() if not key.startswith("environment."))
    return Machine(hosts, tuple(_facts(first)), _topology(first), str(reason) if reason else None, len(nodes), text)


def _topology(node: Mapping[str, Any]) -> str | None:
    table = node.get("topology.nvidia_smi_topo_m")
    return str(table) if table else None


def _facts(node: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [(title, _fact(key, node[key])) for title, key in FACTS if node.get(key) not in (None, "unknown")]
    nics = sorted(key.split(".")[2] for key in node if key.startswith("network.interface.") and key.endswith(".state"))
    up = [name for name in nics if node[f"network.interface.{name}.state"] == "up"]
    return facts + [("network", _interface(node, name)) for name in up]


def _interface(node: Mapping[str, Any], name: str) -> str:
    start = f"network.interface.{name}."
    rate = node.get(f"{start}speed_mbit_per_s")
    parts = [name, node.get(f"{start}driver"), f"{rate / 1000:g} Gb/s" if isinstance(rate, (int, float)) else None]
    mtu = node.get(f"{start}mtu_bytes")
    return ", ".join(str(part) for part in [*parts, f"MTU {mtu} B" if mtu else None] if part)


def _fact(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, (int, float)):
        return about(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def heads(runs: Iterable[Run]) -> list[Head]:
    """How the runs were made, in their order."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(_head(run.record), []).append(run)
    return [
        Head(backend, library, layouts, world, ipc, timing, len(group), _labels(group))
        for (backend, library, layouts, world, ipc, timing), group in groups.items()
    ]


def _head(record: Mapping[str, Any]) -> tuple[str, ...]:
    backend, world = _mapping(record, "backend"), _mapping(record, "world")
    ipc, layouts = _mapping(record, "cuda_ipc"), _listed(record.get("layouts"))
    ranks = f"{world.get('size', '?')} ranks on {world.get('nodes', '?')} node(s), {world.get('launcher', '?')}"
    asked = f"asked {ipc.get('asked', '?')}, effective {ipc.get('effective') or 'none (no GPU)'}"
    return (
        str(backend.get("name", "?")), str(backend.get("library", "?")), ", ".join(map(str, layouts)), ranks, asked,
        str(record.get("timing", "?")),
    )  # fmt: skip


def _mapping(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = record.get(name)
    return value if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _labels(group: Sequence[Run]) -> str:
    return ", ".join(sorted({str(run.record["label"]) for run in group if run.record.get("label")}))


def differences(runs: Iterable[Run]) -> list[tuple[str, str, str]]:
    """What differs between the ranks of a run and should not: fact, value, ranks; each once."""
    found: dict[tuple[str, str, str], None] = {}
    for run in runs:
        for key, groups in _mapping(_mapping(run.record, "provenance"), "differences").items():
            if isinstance(groups, Mapping) and key not in OF_A_RANK:
                found |= {
                    (str(key), str(value), ", ".join(map(str, _listed(ranks)))): None for value, ranks in groups.items()
                }
    return list(found)


def topology_cells(text: str) -> list[tuple[str, list[str]]]:
    """Device and its links, row by row, from the table of `nvidia-smi topo -m`; empty where it can't be read."""
    rows = []
    for line in ANSI.sub("", text).splitlines():
        words = line.split()
        if words and DEVICE.fullmatch(words[0]) and any(word == "X" for word in words[1:]):
            links = [word for word in words[1:] if LINKED.fullmatch(word)]
            rows.append((words[0], links))
    width = len(rows)
    return [(device, links[:width]) for device, links in rows] if all(len(one) >= width for _, one in rows) else []
