"""What is known about the way of the bytes: where GPUs are, what lies between them, what the library says it took."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

from commbench.core.case import Planned, World
from commbench.core.protocols import Control
from commbench.hardware import nvml
from commbench.hardware.cuda_ipc_setting import ASKED, without_effect
from commbench.hardware.link_limits import Wire
from commbench.hardware.nccl_log import Chosen, Pair, Transport, effective_ipc, parse_log
from commbench.hardware.topology import RankGpu, Topology, from_records, shared_link

# keys of a communicator's facts; the libraries are those of commbench.hardware.cuda_ipc_setting
LOG, IPC, LIBRARIES = "nccl_log", "cuda_ipc_effective", "ipc_libraries"
FORCED = "NCCL_ALGO"
HOST = ("library", "pinned")  # staging: the bytes take a way through the host

Kinds = Mapping[Pair, tuple[str, ...]]  # by pairs of world ranks


class LogReader:
    """NCCL's log of this rank. Its lines name ranks of a communicator: what is new belongs to the one that was used."""

    def __init__(self) -> None:
        self._read = 0
        self.kinds: dict[Pair, tuple[str, ...]] = {}
        self.chosen: tuple[Chosen, ...] = ()
        self.there = False  # whether the backend has such a log

    def look(self, facts: Mapping[str, Any], members: Sequence[int]) -> None:
        """`members` are the world ranks of the communicator."""
        self.there = LOG in facts
        text = facts.get(LOG) or ""
        log, self._read = parse_log(text[self._read :]), len(text)
        self.chosen += log.algorithms
        for pair, kinds in log.kinds.items():
            if max(pair) < len(members):
                own = (members[pair[0]], members[pair[1]])
                self.kinds[own] = tuple(dict.fromkeys((*self.kinds.get(own, ()), *kinds)))

    def told(self) -> list[list[Any]]:
        """Fit to be gathered: [from rank, to rank, kinds]."""
        return [[*pair, list(kinds)] for pair, kinds in self.kinds.items()]


@dataclass(frozen=True)
class TransportEvidence:
    """`gpus` are those of the world's ranks, empty on a CPU; `kinds` and `chosen` are what NCCL's log has said."""

    gpus: tuple[RankGpu, ...] = ()
    topologies: Mapping[int, Topology] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=dict)
    chosen: tuple[Chosen, ...] = ()
    transport: str | None = None  # of all pairs, in the backend's own words
    ipc: str | None = None  # what the backend knows of itself
    forced: str | None = None  # the algorithm that NCCL was told to use
    copy_gb_per_s: float | None = None  # within one GPU
    ignored: str | None = None  # why the setting cuda_ipc can't have had an effect

    def of(self, job: Planned) -> dict[str, str | None]:
        """The columns transport, link and cuda_ipc_effective; null where nobody has said anything of these ranks."""
        counted = Counter(kind for kinds in self._talked(job).values() for kind in kinds)
        kinds = ", ".join(sorted(counted, key=lambda kind: (-counted[kind], kind)))
        return {
            "transport": kinds or self.transport,
            "link": shared_link(job, self.gpus, self.topologies) if self.gpus else None,
            IPC: self._ipc(job),
        }

    def algorithm(self, job: Planned) -> str | None:
        """That NCCL was told to use, or that its log names (NCCL_DEBUG_SUBSYS=INIT,TUNING)."""
        said = Transport(algorithms=self.chosen).algorithm(job.case.message_bytes, job.case.benchmark)
        return self.forced or said

    @property
    def cuda_ipc(self) -> dict[str, str | None]:
        """Of the whole run, for run.json."""
        return {"effective": self.ipc or effective_ipc(self.kinds, self._node_of), "ignored": self.ignored}

    def knowing(self, told: Iterable[Iterable[Sequence[Any]]], chosen: tuple[Chosen, ...]) -> TransportEvidence:
        """With what the readers of all ranks have told, and this rank's algorithms."""
        kinds = dict(self.kinds)
        for first, second, texts in (line for one in told for line in one):
            kinds[first, second] = tuple(dict.fromkeys((*kinds.get((first, second), ()), *texts)))
        return replace(self, kinds=kinds, chosen=chosen)

    def _ipc(self, job: Planned) -> str | None:
        if job.case.device == "cpu":
            return None
        if job.case.staging in HOST:
            return "off"
        return self.ipc or effective_ipc(self._talked(job), self._node_of)

    def _talked(self, job: Planned) -> Kinds:
        """Of the case's pairs; a collective's are all of its ranks."""
        pairs = set(job.case.pairs) or set(permutations(range(job.size), 2))
        world = {(job.members[first], job.members[second]) for first, second in pairs}
        return {pair: kinds for pair, kinds in self.kinds.items() if pair in world}

    def _node_of(self, rank: int) -> int:
        return self.gpus[rank].node if rank < len(self.gpus) else 0


def gathered(
    world: World,
    control: Control,
    facts: Mapping[str, Any],
    run: Mapping[str, Any],
    reader: LogReader,
    deadline_s: float,
) -> TransportEvidence:
    """All ranks call it, with the library open: what it and preflight know, on rank 0."""
    awake = _pcie_now() if run.get("gpus") or facts.get("gpu") or reader.there else []
    told = control.gather([reader.told(), awake], deadline_s, "the library's transports")
    if world.rank != 0:
        return TransportEvidence()
    forced, nodes = os.environ.get(FORCED, ""), run["provenance"]["nodes"]
    found = gpus_of(run.get("gpus", []), nodes, world.node_of)
    evidence = TransportEvidence(
        gpus=tuple(_awake(gpu, dict(told[rank][1])) for rank, gpu in enumerate(found)),
        topologies=from_records(run.get("wiring", [])),
        transport=facts.get("transport"),
        ipc=facts[IPC] if facts.get(IPC) in ASKED else None,
        forced=forced if forced.isalpha() else None,
        ignored=_ignored(run.get("cuda_ipc", {}).get("asked", "auto"), facts.get(LIBRARIES, ())),
    )
    return evidence.knowing((one[0] for one in told), reader.chosen)


def _pcie_now() -> list[list[Any]]:
    """[index, [generation, width]] of this machine's GPUs: links that slept in preflight are awake in a library's."""
    return [[gpu.index, [gpu.pcie_generation, gpu.pcie_width]] for gpu in nvml.gpus()]


def _awake(gpu: RankGpu, links: Mapping[int, Sequence[int | None]]) -> RankGpu:
    generation, width = links.get(-1 if gpu.index is None else gpu.index, (None, None))
    return replace(gpu, pcie_generation=generation or gpu.pcie_generation, pcie_width=width or gpu.pcie_width)


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


def gpus_of(
    own: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]], node_of: Callable[[int], int]
) -> tuple[RankGpu, ...]:
    """From what preflight has put into run.json for each rank; empty where ranks have none."""
    return tuple(RankGpu.from_facts(node_of(rank), facts, nodes[node_of(rank)]) for rank, facts in enumerate(own))


def carriers(
    known: Sequence[Wire | None], nodes: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> tuple[Wire | None, ...]:
    """Of each node the wire that this library uses. `known` are the interfaces on the way to the other nodes.

    A backend that names its transport takes those. NCCL names its InfiniBand ports. Of others nobody knows where a node
    has such ports.
    """
    if facts.get("transport") is not None:
        return tuple(known)
    log = parse_log(facts.get(LOG) or "")
    if log.network is not None:
        return tuple(known) if log.network == "Socket" else tuple(_ports(node, log.interfaces) for node in nodes)
    return tuple(None if _active_ports(node) else wire for wire, node in zip(known, nodes, strict=False))


def _ports(node: Mapping[str, Any], names: Sequence[str]) -> Wire | None:
    """The ports in NCCL's words, mlx5_0:1/IB, as one wire; None where a rate is unknown, or they differ."""
    ports = [name.partition("/")[0] for name in names]
    rates = {node.get(f"network.rdma.{port}.rate_gbit_per_s") for port in ports}
    rate = rates.pop() if len(rates) == 1 else None
    return Wire(ports[0], rate * 1e3, len(ports)) if isinstance(rate, (int, float)) else None


def _active_ports(node: Mapping[str, Any]) -> bool:
    return any(
        key.startswith("network.rdma.") and key.endswith(".state") and value == "ACTIVE" for key, value in node.items()
    )
