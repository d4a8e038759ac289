"""The data path of a case: where its GPUs are, which link is between them, which transport the
library reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commbench.core.case import Planned, World
from commbench.core.layout import Layout, Pair
from commbench.core.protocols import Control
from commbench.hardware import nvml
from commbench.hardware.cuda import CUDA_IPC_VALUES, cuda_ipc_without_effect
from commbench.hardware.link_limits import Limit, interface_limit
from commbench.hardware.nccl_log import (
    Chosen,
    Kinds,
    by_frequency,
    common_algorithm,
    effective_ipc,
    parse_log,
)
from commbench.hardware.topology import RankGpu, Topology, shared_link

from .preflight import MEETING_S

# keys of a communicator's facts; the libraries are those of commbench.hardware.cuda
LOG_SOURCE = "nccl_log"
IPC = "cuda_ipc_effective"
LIBRARIES = "ipc_libraries"
FORCED_ALGORITHM = "NCCL_ALGO"
SOCKETS = "NET/Socket"
TCP_NAMES = ("tcp", "socket")  # in the name of a transport
SLOW_START_BYTES = 2**20  # messages from which on TCP's slow start matters
THROUGH_HOST = ("library", "pinned")  # staging that copies through host memory


class LogReader:
    """Reads NCCL's log of this rank as it grows. New lines are about the communicator that was used
    since."""

    def __init__(self) -> None:
        self._length = 0  # of the part that has been read
        self.kinds: dict[Pair, tuple[str, ...]] = {}
        self.algorithms: tuple[Chosen, ...] = ()
        # the members of communicators with NVLS channels
        self.multicast: tuple[tuple[int, ...], ...] = ()
        self.available = False  # whether the backend has such a log

    def read(self, facts: Mapping[str, Any], members: Sequence[int]) -> None:
        """`members` are the world ranks of the communicator, whose own ranks the log names."""
        self.available = LOG_SOURCE in facts
        text = facts.get(LOG_SOURCE) or ""
        log = parse_log(text[self._length :])
        self._length = len(text)
        self.algorithms += log.algorithms
        self.multicast += (tuple(members),) if log.nvls_channels else ()
        for (first, second), kinds in log.kinds.items():
            if max(first, second) < len(members):
                pair = members[first], members[second]
                self.kinds[pair] = tuple(dict.fromkeys((*self.kinds.get(pair, ()), *kinds)))

    def pairs(self) -> list[list[Any]]:
        """The pairs as JSON, to be gathered: [from rank, to rank, kinds]."""
        return [[*pair, list(kinds)] for pair, kinds in self.kinds.items()]


@dataclass(frozen=True)
class TransportEvidence:
    """What is known about data paths. `gpus` has one entry per rank, none on CPUs. `kinds` (by
    pairs of world ranks), `algorithms` and `multicast` come from NCCL's log, see LogReader.
    `rdma_nodes` have an active InfiniBand or RoCE port."""

    gpus: tuple[RankGpu, ...] = ()
    topologies: Mapping[int, Topology] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=dict)
    algorithms: tuple[Chosen, ...] = ()
    multicast: tuple[tuple[int, ...], ...] = ()
    rdma_nodes: frozenset[int] = frozenset()
    transport: str | None = None  # of all pairs, as the backend reports it
    ipc: str | None = None  # as the backend reports it
    forced: str | None = None  # the algorithm set by NCCL_ALGO
    copy_gb_per_s: float | None = None  # within one GPU
    ignored: str | None = None  # why the setting cuda_ipc had no effect

    def of(self, job: Planned) -> dict[str, str | None]:
        """The columns transport, link and cuda_ipc_effective; None if nothing is known about these
        ranks."""
        multicast = not job.case.pairs and job.members in self.multicast
        ipc = self.ipc or effective_ipc(self._kinds_between(job), self._node_of, multicast)
        if job.case.device == "cpu" or job.case.staging in THROUGH_HOST:
            ipc = None if job.case.device == "cpu" else "off"
        return {
            "transport": ", ".join(by_frequency(self._kinds_between(job))) or self.transport,
            "link": shared_link(job, self.gpus, self.topologies) if self.gpus else None,
            IPC: ipc,
        }

    def starts_slowly(self, job: Planned) -> bool:
        """Whether TCP carries large messages of the case between nodes: its windows take a second
        to grow.

        If the library reports no transport (MPI), it may be TCP unless a node has an active
        InfiniBand or RoCE port. Within a node round trips are so short that windows grow within
        milliseconds.
        """
        if Layout.parse(job.case.layout).nodes < 2 or job.case.message_bytes < SLOW_START_BYTES:
            return False
        transport = (self.of(job)["transport"] or "").lower()
        return any(name in transport for name in TCP_NAMES) if transport else not self.rdma_nodes

    def algorithm(self, job: Planned) -> str | None:
        """The algorithm set by NCCL_ALGO or named in NCCL's log (NCCL_DEBUG_SUBSYS=INIT,TUNING)."""
        return self.forced or common_algorithm(
            self.algorithms, job.case.message_bytes, job.case.benchmark
        )

    @property
    def cuda_ipc(self) -> dict[str, str | None]:
        """CUDA IPC in the whole run, for run.json."""
        effective = self.ipc or effective_ipc(self.kinds, self._node_of, bool(self.multicast))
        return {"effective": effective, "ignored": self.ignored}

    def rdma_unused(self, job: Planned) -> bool:
        """Whether NCCL used sockets between ranks of the case on a node with an active InfiniBand
        or RoCE port."""
        on_sockets = {
            rank
            for pair, kinds in self._kinds_between(job).items()
            if SOCKETS in kinds
            for rank in pair
        }
        return any(self._node_of(rank) in self.rdma_nodes for rank in on_sockets)

    def extended(
        self, pairs_by_rank: Iterable[Iterable[Sequence[Any]]], reader: LogReader
    ) -> TransportEvidence:
        """Adds the `pairs()` of all ranks' log readers, and the other values of this rank's
        reader."""
        kinds = dict(self.kinds)
        for first, second, texts in (line for pairs in pairs_by_rank for line in pairs):
            kinds[first, second] = tuple(dict.fromkeys((*kinds.get((first, second), ()), *texts)))
        return replace(self, kinds=kinds, algorithms=reader.algorithms, multicast=reader.multicast)

    def _kinds_between(self, job: Planned) -> Kinds:
        """The transports of the case's pairs; for a collective these are all pairs of its ranks."""
        if job.case.pairs:
            pairs = {(job.members[first], job.members[second]) for first, second in job.case.pairs}
            return {pair: kinds for pair, kinds in self.kinds.items() if pair in pairs}
        members = set(job.members)  # with thousands of ranks there are too many pairs to list
        return {pair: kinds for pair, kinds in self.kinds.items() if members.issuperset(pair)}

    def _node_of(self, rank: int) -> int:
        return self.gpus[rank].node if rank < len(self.gpus) else 0


def gather_evidence(
    world: World,
    control: Control,
    facts: Mapping[str, Any],
    run: Mapping[str, Any],
    reader: LogReader,
) -> TransportEvidence:
    """What the opened library and preflight know about data paths, on rank 0; all ranks call it."""
    gpu_run = run.get("gpus") or facts.get("gpu") or reader.available
    # PCIe links that were in a low-power state during preflight are awake now (wake_links)
    links = (
        [[gpu.index, [gpu.pcie_generation, gpu.pcie_width]] for gpu in nvml.gpus()]
        if gpu_run
        else []
    )
    gathered = control.gather([reader.pairs(), links], MEETING_S, "the library's transports")
    if world.rank != 0:
        return TransportEvidence()
    forced = os.environ.get(FORCED_ALGORITHM, "")
    nodes = run["provenance"]["nodes"]
    gpus = []
    for rank, own in enumerate(run.get("gpus", [])):
        gpu = RankGpu.from_facts(world.node_of(rank), own, nodes[world.node_of(rank)])
        generation, width = dict(gathered[rank][1]).get(gpu.index, (None, None))
        generation = generation or gpu.pcie_generation
        width = width or gpu.pcie_width
        gpus.append(replace(gpu, pcie_generation=generation, pcie_width=width))
    setting = run.get("cuda_ipc", {}).get("asked", "auto")
    libraries = facts.get(LIBRARIES, ())
    ignored = [cuda_ipc_without_effect(setting, library, os.environ) for library in libraries]
    evidence = TransportEvidence(
        gpus=tuple(gpus),
        topologies={
            node: record["links"]
            for node, record in enumerate(run.get("wiring", []))
            if record is not None
        },
        transport=facts.get("transport"),
        ipc=facts[IPC] if facts.get(IPC) in CUDA_IPC_VALUES else None,
        rdma_nodes=frozenset(
            number for number, node in enumerate(nodes) if _has_active_infiniband(node)
        ),
        forced=forced if forced.isalpha() else None,
        # it had none only if it had none on every library that may carry the data
        ignored="; ".join(map(str, ignored)) if ignored and all(ignored) else None,
    )
    return evidence.extended((pairs for pairs, _ in gathered), reader)


def library_record(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A communicator's facts for run.json, with the contents of NCCL's log instead of its text."""
    others = {name: value for name, value in facts.items() if name != LOG_SOURCE}
    log = parse_log(facts.get(LOG_SOURCE) or "")
    values = {
        "version": log.version,
        "network": log.network,
        "plugin": log.plugin,
        "interfaces": list(log.interfaces),
        "transport": log.summary,
        "rings": log.rings,
        "trees": log.trees,
        "multicast": log.multicast,
        "nvls_channels": log.nvls_channels,
    }
    nccl = {name: value for name, value in values.items() if value not in (None, [])}
    return others | ({"nccl": nccl} if nccl else {})


def carriers(
    nodes: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> tuple[Limit | None, ...]:
    """The wire of each node that this library uses; None if its rate is unknown.

    A backend that reports its transport uses the interface on the route to the other nodes. NCCL
    logs its InfiniBand ports. For other libraries the wire is unknown if a node has such ports.
    """
    log = parse_log(facts.get(LOG_SOURCE) or "")
    wires = list[Limit | None]()
    # such as mlx5_0:1/IB: together one wire
    ports = [name.partition("/")[0] for name in log.interfaces]
    for node in nodes:
        name = node.get("network.used.interface")
        speed = node.get("network.used.speed_mbit_per_s")
        interface = None if name is None or speed is None else interface_limit(name, speed)
        rates = {node.get(f"network.rdma.{port}.rate_gbit_per_s") for port in ports}
        if facts.get("transport") is not None or log.network == "Socket":
            wires.append(interface)
        elif log.network is None:
            wires.append(None if _has_active_infiniband(node) else interface)
        else:
            rate = rates.pop() if len(rates) == 1 else None
            wires.append(
                interface_limit(ports[0], rate * 1e3, len(ports))
                if isinstance(rate, (int, float))
                else None
            )
    return tuple(wires)


def _has_active_infiniband(node: Mapping[str, Any]) -> bool:
    return any(
        key.startswith("network.rdma.") and key.endswith(".state") and value == "ACTIVE"
        for key, value in node.items()
    )
