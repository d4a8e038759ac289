"""What is known about the way of the bytes between GPUs: where they are, what lies between, what the library says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.contracts import Control, Planned, World
from commbench.cuda_ipc import ASKED, without_effect
from commbench.gpu_bounds import Gpu, gpu_of
from commbench.provenance.nccl_log import Pair, Transport, effective_ipc, parse_log
from commbench.provenance.topology import Topology, parse_topo
from commbench.wiring import link

# what backends tell in their facts beside library and transport; the libraries are words of commbench.cuda_ipc
LOG, IPC, LIBRARIES = "nccl_log", "cuda_ipc_effective", "ipc_libraries"
FORCED = "NCCL_ALGO"
HOST = ("library", "pinned")  # staging: the bytes take a way through the host


@dataclass(frozen=True)
class Evidence:
    """`gpus` are those of the world's ranks, empty on a CPU. `kinds` are NCCL's transports by pairs of world ranks."""

    gpus: tuple[Gpu, ...] = ()
    topologies: Mapping[int, Topology] = field(default_factory=dict)
    kinds: Mapping[Pair, tuple[str, ...]] = field(default_factory=dict)
    transport: str | None = None  # of all pairs, as the library says
    ipc: str | None = None  # what the backend knows of itself
    algorithm: str | None = None  # that NCCL was told to use
    copy_gb_per_s: float | None = None  # within one GPU
    ignored: str | None = None  # why the setting cuda_ipc can't have had an effect

    def of(self, job: Planned) -> dict[str, str | None]:
        """The columns transport, link and cuda_ipc_effective."""
        return {
            "transport": self._transport(job),
            "link": link(job, self.gpus, self.topologies) if self.gpus else None,
            IPC: self._ipc(job),
        }

    @property
    def cuda_ipc(self) -> dict[str, str | None]:
        """Of the whole run, for run.json."""
        return {"effective": self.ipc or effective_ipc(self.kinds, self._node_of), "ignored": self.ignored}

    def _transport(self, job: Planned) -> str | None:
        kinds = self._talked(job)
        return ", ".join(dict.fromkeys(kind for one in kinds.values() for kind in one)) or self.transport

    def _ipc(self, job: Planned) -> str | None:
        if job.case.device == "cpu":
            return None
        if job.case.staging in HOST:
            return "off"
        return self.ipc or effective_ipc(self._talked(job) or self.kinds, self._node_of)

    def _talked(self, job: Planned) -> dict[Pair, tuple[str, ...]]:
        pairs = {(job.members[first], job.members[second]) for first, second in job.case.pairs}
        return {pair: kinds for pair, kinds in self.kinds.items() if pair in pairs}

    def _node_of(self, rank: int) -> int:
        return self.gpus[rank].node if rank < len(self.gpus) else 0


def log_kinds(facts: Mapping[str, Any]) -> list[list[Any]]:
    """What this rank's log tells, fit to be gathered: [from rank, to rank, kinds]."""
    return [[*pair, list(kinds)] for pair, kinds in parse_log(facts.get(LOG) or "").kinds.items()]


def gathered(
    world: World, control: Control, facts: Mapping[str, Any], run: Mapping[str, Any], deadline_s: float
) -> Evidence:
    """All ranks call it; what the opened library and preflight know, on rank 0."""
    told = control.gather(log_kinds(facts), deadline_s, "the library's transports")
    if world.rank != 0:
        return Evidence()
    kinds = {(first, second): tuple(texts) for one in told for first, second, texts in one}
    log, nodes = parse_log(facts.get(LOG) or ""), run["provenance"]["nodes"]
    text = Transport(kinds=kinds, collnet=log.collnet).summary
    forced = os.environ.get(FORCED, "")
    return Evidence(
        gpus=gpus_of(run.get("gpus", []), nodes, world.node_of),
        topologies=topologies_of(nodes),
        kinds=kinds,
        transport=facts.get("transport") or text,
        ipc=facts[IPC] if facts.get(IPC) in ASKED else None,
        algorithm=forced if forced.isalpha() else None,
        ignored=_ignored(run.get("cuda_ipc", {}).get("asked", "auto"), facts.get(LIBRARIES, ())),
    )


def transports(control: Control, facts: Mapping[str, Any], deadline_s: float) -> dict[str, list[str]]:
    """All ranks call it, at the end: pairs connect in their first case. "0-1" -> kinds, on rank 0."""
    if LOG not in facts:
        return {}
    told = control.gather(log_kinds(facts), deadline_s, "the library's transports")
    return {f"{first}-{second}": kinds for one in told for first, second, kinds in sorted(one)}


def gpus_of(
    own: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]], node_of: Callable[[int], int]
) -> tuple[Gpu, ...]:
    """From what preflight has put into run.json for each rank; empty where ranks have none."""
    return tuple(gpu_of(node_of(rank), facts, nodes[node_of(rank)]) for rank, facts in enumerate(own))


def topologies_of(nodes: Sequence[Mapping[str, Any]]) -> dict[int, Topology]:
    """Of the nodes whose nvidia-smi answered."""
    texts = {number: node.get("topology.nvidia_smi_topo_m") for number, node in enumerate(nodes)}
    return {number: parse_topo(text) for number, text in texts.items() if text}


def _ignored(asked: str, libraries: Sequence[str]) -> str | None:
    """Only where all that may carry the bytes agree."""
    reasons = [without_effect(asked, library, os.environ) for library in libraries]
    return "; ".join(filter(None, reasons)) if reasons and all(reasons) else None


def recorded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A backend's facts for run.json, with what NCCL's log says in the place of the log."""
    others = {name: value for name, value in facts.items() if name != LOG}
    log = parse_log(facts.get(LOG) or "")
    known = {
        "version": log.version, "network": log.network, "plugin": log.plugin, "interfaces": list(log.interfaces),
        "transport": log.summary, "rings": log.rings, "trees": log.trees, "multicast": log.multicast,
        "nvls_channels": log.nvls_channels,
    }  # fmt: skip
    said = {name: value for name, value in known.items() if value not in (None, [])}
    return others | ({"nccl": said} if said else {})
