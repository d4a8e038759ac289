"""The data path of a case: where its GPUs are, which link is between them, which transport carries
its bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from commbench.core.case import Planned
from commbench.core.layout import Layout
from commbench.hardware.expected_network import ON_TCP, ExpectedNetwork
from commbench.hardware.link_limits import Limit, interface_limit, together, told_limit
from commbench.hardware.nccl_log import Kinds, by_frequency, effective_ipc
from commbench.hardware.topology import RankGpu, Topology, shared_link

from .nccl_evidence import NcclEvidence

IPC = "cuda_ipc_effective"  # a column, and a key of a communicator's facts
NETWORK = "NET/"  # the transports of a network begin with it
NVLINK_BETWEEN_NODES = "P2P/MNNVL"
TCP_NAMES = ("tcp", "socket")  # in the name of a transport
UNKNOWN_PORT = ("unknown",)  # of no rate
SLOW_START_BYTES = 2**20  # messages from which on TCP's slow start matters
THROUGH_HOST = ("library", "pinned")  # staging that copies through host memory


@dataclass(frozen=True)
class Reported:
    """What a backend says itself of its data paths."""

    within: str | None = None  # the transport within a node
    between: str | None = None  # that between nodes, where it is another one
    ipc: str | None = None
    interfaces: tuple[Limit | None, ...] = ()  # by node


@dataclass(frozen=True)
class TransportEvidence:
    """What is known about data paths, on rank 0; empty on the others."""

    nodes: tuple[int, ...] = ()  # of each rank
    gpus: tuple[RankGpu, ...] = ()  # of each rank; none on CPUs
    topologies: Mapping[int, Topology] = field(default_factory=dict)  # by node
    nccl: NcclEvidence = field(default_factory=NcclEvidence)
    reported: Reported = field(default_factory=Reported)
    rates: tuple[Mapping[str, float], ...] = ()  # by node: of interfaces and ports, in Mbit/s
    told: Mapping[str, float] = field(default_factory=dict)  # in GB/s, see network.told_rates
    rdma_nodes: frozenset[int] = frozenset()  # with an active InfiniBand or RoCE port
    expected: Mapping[int, ExpectedNetwork] = field(default_factory=dict)  # by node
    copy_gb_per_s: float | None = None  # within one GPU
    ignored: str | None = None  # why the setting cuda_ipc had no effect

    def of(self, planned: Planned) -> dict[str, str | None]:
        """The columns transport, link, cuda_ipc_effective and registered; None if nothing is known
        about these ranks."""
        return {
            "transport": ", ".join(self._transports(planned)) or None,
            "link": shared_link(planned, self.gpus, self.topologies) if self.gpus else None,
            IPC: self._ipc(planned),
            "registered": self.nccl.registered(planned),
        }

    @property
    def cuda_ipc(self) -> dict[str, str | None]:
        """CUDA IPC in the whole run, for run.json."""
        nccl = self.nccl
        by_log = effective_ipc(nccl.kinds, self._node_of, bool(nccl.multicast))
        effective = self.reported.ipc or by_log
        return {"effective": effective, "ignored": self.ignored}

    def shares_gpu(self, planned: Planned) -> bool:
        """Whether two ranks of the case use the same GPU."""
        if not self.gpus or planned.case.device == "cpu":
            return False
        return has_twice(self.gpus[planned.members[rank]] for rank in planned.active)

    def starts_slowly(self, planned: Planned) -> bool:
        """Whether TCP carries large messages of the case between nodes, or a stream of any: its
        windows take a second to grow.

        If the library reports no transport (MPI), it may be TCP unless a node has an active
        InfiniBand or RoCE port. Within a node round trips are so short that windows grow within
        milliseconds.
        """
        may_grow = planned.case.message_bytes >= SLOW_START_BYTES or planned.shape.is_stream
        if not may_grow or Layout.parse(planned.case.layout).nodes < 2:
            return False
        transport = (self.of(planned)["transport"] or "").lower()
        if any(name in transport for name in TCP_NAMES):
            return True
        # UCX or libfabric without a device may be on TCP
        is_open = not transport or transport.endswith(("ucx", "ofi"))
        return is_open and not self.rdma_nodes

    def wires(self, planned: Planned) -> tuple[Limit | None, ...]:
        """The wire of each node that carries the case's bytes to other nodes; None if unknown,
        empty if no wire does.

        NCCL's log names the ports of each pair, which are not all that it lists. Where the network
        sums, a collective has no pairs between nodes, and others' ports are not its own.
        """
        nccl = self.nccl
        if not nccl.logged:
            return self.reported.interfaces
        if not planned.case.pairs and planned.members in nccl.collnet:
            return ()
        across = self._kinds_across(planned)
        kinds = set(chain.from_iterable(across.values()))
        if not nccl.complete or not all(kind.startswith(NETWORK) for kind in kinds):
            return ()
        used: list[set[str]] = [set() for _ in self.rates]
        for first, second in across:
            for ends in ((first, second), (second, first)):
                used[self._node_of(ends[0])].update(nccl.ports.get(ends, UNKNOWN_PORT))
        return tuple(
            wire_of(sorted(names), rates, self.told)
            for names, rates in zip(used, self.rates, strict=True)
        )

    def nvlink_joins_nodes(self, planned: Planned) -> bool:
        """Whether NVLink is the transport of all pairs of the case that are on different nodes."""
        kinds = set(chain.from_iterable(self._kinds_across(planned).values()))
        return self.nccl.complete and kinds == {NVLINK_BETWEEN_NODES}

    def unused_network(self, planned: Planned) -> ExpectedNetwork | None:
        """The network that a node of the case has, where the library took TCP instead; None where
        it took another one or a backend knows only TCP."""
        on_tcp = {
            self._node_of(rank)
            for pair, kinds in self.nccl.kinds_of(planned).items()
            if any(map(ON_TCP.match, kinds))
            for rank in pair
        }
        if self.reported.between is not None and ON_TCP.match(self.reported.between):
            nodes = {self._node_of(planned.members[rank]) for rank in planned.active}
            on_tcp |= nodes if len(nodes) > 1 else set()
        return next((self.expected[node] for node in sorted(on_tcp) if node in self.expected), None)

    def _transports(self, planned: Planned) -> list[str]:
        """The transports of the case's pairs: as NCCL's log names them, the most frequent first, or
        as the backend reports them."""
        if kinds := by_frequency(self.nccl.kinds_of(planned)):
            return kinds
        nodes = [self._node_of(rank) for rank in planned.members]
        if planned.case.pairs:
            same = {nodes[first] == nodes[second] for first, second in planned.case.pairs}
            within, across = True in same, False in same
        else:
            across = len(set(nodes)) > 1
            within = not across or len(set(nodes)) < len(nodes)
        names = [self.reported.within] if within else []
        names += [self.reported.between or self.reported.within] if across else []
        return list(dict.fromkeys(filter(None, names)))

    def _ipc(self, planned: Planned) -> str | None:
        """Whether ranks of a node access each other's GPU memory in the case; see effective_ipc."""
        if planned.case.device == "cpu":
            return None
        if planned.case.staging in THROUGH_HOST:
            return "off"
        multicast = not planned.case.pairs and planned.members in self.nccl.multicast
        kinds = self.nccl.kinds_of(planned)
        return self.reported.ipc or effective_ipc(kinds, self._node_of, multicast)

    def _kinds_across(self, planned: Planned) -> Kinds:
        """The transports of the case's pairs that are on different nodes."""
        return {
            (first, second): kinds
            for (first, second), kinds in self.nccl.kinds_of(planned).items()
            if self._node_of(first) != self._node_of(second)
        }

    def _node_of(self, rank: int) -> int:
        return self.nodes[rank] if self.nodes else 0


def has_twice(gpus: Iterable[RankGpu]) -> bool:
    """Whether two of these ranks use the same GPU."""
    known = [(gpu.node, gpu.pci_bus_id) for gpu in gpus if gpu.pci_bus_id is not None]
    return len(set(known)) < len(known)


def wire_of(
    names: Sequence[str], rates: Mapping[str, float], told: Mapping[str, float]
) -> Limit | None:
    """The ports of a node that are used together; None if they have no rate or different ones. The
    user's word (`told`) comes before that of the driver."""
    if "" in told:
        return told_limit("", told[""])
    by_driver = {name: interface_limit(name, rate) for name, rate in rates.items()}
    limits = by_driver | {name: told_limit(name, rate) for name, rate in told.items()}
    of_names = {limits[name].gb_per_s if name in limits else None for name in names}
    if len(of_names) > 1 or None in of_names or not names:
        return None
    return together(len(names), limits[names[0]])
