"""The data path of a case: where its GPUs are, which link is between them, which transport the
library reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from commbench.core.case import Planned, World
from commbench.core.layout import Layout, Pair
from commbench.core.program import operation_name
from commbench.core.protocols import Control
from commbench.hardware import nvml
from commbench.hardware.cuda import CUDA_IPC_VALUES, NCCL, cuda_ipc_without_effect
from commbench.hardware.expected_network import ON_TCP, ExpectedNetwork, expected_network
from commbench.hardware.link_limits import Limit, interface_limit, together, told_limit
from commbench.hardware.nccl_log import (
    ALGORITHMS,
    Chosen,
    Kinds,
    Ports,
    by_frequency,
    common_algorithm,
    effective_ipc,
    parse_log,
    ports_of,
    symmetric_kernel,
    usual_kernel,
)
from commbench.hardware.network import line_rates
from commbench.hardware.topology import RankGpu, Topology, shared_link
from commbench.hardware.ucx_log import BETWEEN, WITHIN
from commbench.results.network_cards import active_ports_of

from .preflight import MEETING_S

# keys of a communicator's facts; the libraries are those of commbench.hardware.cuda
LOG_SOURCE = "nccl_log"
LOG_CUT = "nccl_log_cut"  # whether the log is longer than what is read of it
IPC = "cuda_ipc_effective"
LIBRARIES = "ipc_libraries"
NETWORK = "NET/"  # the transports of a network begin with it
NVLINK_BETWEEN_NODES = "P2P/MNNVL"
# fields of nvml.Gpu that the rank itself reads: no other rank need see its GPU, and PCIe links that
# were in a low-power state during preflight are active once the library has opened the GPU
OWN_READINGS = ("pcie_generation", "pcie_width", "nvlink_links", "c2c_gb_per_s")
TCP = "tcp"
TCP_NAMES = ("tcp", "socket")  # in the name of a transport
UNKNOWN_PORT = ("unknown",)  # of no rate
SLOW_START_BYTES = 2**20  # messages from which on TCP's slow start matters
THROUGH_HOST = ("library", "pinned")  # staging that copies through host memory
KERNELS = "nccl_kernels"  # the names of those that were profiled, in their order
LogRecord = list[Any]  # [from rank, to rank, kinds] and [rank, peer, ports] of pairs, whether all


@dataclass(frozen=True)
class CaseLines:
    """What NCCL said and ran in the visits of a case. `kernels` are the names of a profiled call's;
    `registered`: whether a buffer was registered."""

    algorithms: tuple[Chosen, ...] = ()
    registered: bool = False
    kernels: tuple[str, ...] = ()


NO_LINES = CaseLines()


class LogReader:
    """Reads NCCL's log of this rank as it grows. New lines are about the communicator that was used
    since."""

    def __init__(self) -> None:
        self._length = 0  # of the part that has been read
        self._kernels = 0  # how many have been read
        self._provider: str | None = None  # listed once in a process, as devices are
        self._devices: dict[str, Mapping[int, Ports]] = {}
        self._complete = True
        self.kinds: dict[Pair, Ports] = {}
        # by (this rank, other rank): the ports by which this rank reaches it
        self.ports: dict[Pair, Ports] = {}
        self.lines: dict[str, CaseLines] = {}  # by the case_id of a row; of others there are none
        # the members of communicators with NVLS channels, and of those whose network sums (SHARP)
        self.multicast: tuple[tuple[int, ...], ...] = ()
        self.collnet: tuple[tuple[int, ...], ...] = ()
        self.no_windows: str | None = None  # why NCCL has no symmetric memory
        self.available = False  # whether the backend has such a log

    def read(
        self, facts: Mapping[str, Any], members: Sequence[int], row_ids: Sequence[str] = ()
    ) -> None:
        """`members` are the world ranks of the communicator, whose own ranks the log names;
        `row_ids`: the rows of the case that was visited since."""
        self.available = LOG_SOURCE in facts
        self._complete = not facts.get(LOG_CUT, False)
        text = facts.get(LOG_SOURCE) or ""
        end = text.rfind("\n") + 1  # NCCL may still be writing the last line
        log = parse_log(text[self._length : end])
        self._length = end
        self._provider = self._provider or log.provider
        self._devices |= log.devices
        self.no_windows = self.no_windows or log.no_windows
        kernels = tuple(facts.get(KERNELS, ())[self._kernels :])
        self._kernels += len(kernels)
        new = CaseLines(log.algorithms, log.registered, kernels)
        for row_id in row_ids if new != NO_LINES else ():
            self.lines[row_id] = _together(self.lines.get(row_id, NO_LINES), new)
        self.multicast += (tuple(members),) if log.nvls_channels else ()
        self.collnet += (tuple(members),) if log.collnet else ()
        for pair, kinds in log.kinds.items():
            _add(self.kinds, pair, map(self._with_provider, kinds), members)
        for pair, devices in log.net_devices.items():
            ports = (ports_of(self._devices, device) for device in sorted(devices))
            _add(self.ports, pair, chain.from_iterable(ports), members)

    def _with_provider(self, kind: str) -> str:
        """`NET/AWS Libfabric/GDRDMA (efa)`: the plugin has the same name over TCP."""
        return f"{kind} ({self._provider})" if self._provider and "Libfabric" in kind else kind

    def record(self) -> LogRecord:
        """What is known of pairs, as JSON, to be gathered."""
        return [
            [[*pair, list(kinds)] for pair, kinds in self.kinds.items()],
            [[*ends, list(ports)] for ends, ports in self.ports.items()],
            self._complete,
        ]


def _together(known: CaseLines, new: CaseLines) -> CaseLines:
    return CaseLines(
        known.algorithms + new.algorithms,
        known.registered or new.registered,
        known.kernels + new.kernels,
    )


def _add(
    known: dict[Pair, Ports], pair: Pair, texts: Iterable[str], members: Sequence[int] | None = None
) -> None:
    """Add the texts of a pair of world ranks, or of ranks of a communicator with these members."""
    if members is not None:
        if max(pair) >= len(members):
            return
        pair = (members[pair[0]], members[pair[1]])
    known[pair] = tuple(dict.fromkeys((*known.get(pair, ()), *texts)))


@dataclass(frozen=True)
class TransportEvidence:
    """What is known about data paths, on rank 0; empty on the others."""

    nodes: tuple[int, ...] = ()  # of each rank
    gpus: tuple[RankGpu, ...] = ()  # of each rank; none on CPUs
    topologies: Mapping[int, Topology] = field(default_factory=dict)  # by node
    # from NCCL's log, see LogReader; kinds and ports by pairs of world ranks
    logged: bool = False  # whether the library has one
    complete: bool = True  # whether it was read to its end
    kinds: Kinds = field(default_factory=dict)
    ports: Mapping[Pair, Ports] = field(default_factory=dict)
    lines: Mapping[str, CaseLines] = field(default_factory=dict)
    multicast: tuple[tuple[int, ...], ...] = ()
    collnet: tuple[tuple[int, ...], ...] = ()
    no_windows: str | None = None
    # from a backend without a log
    transport: str | None = None  # of pairs within a node
    between: str | None = None  # of the others
    ipc: str | None = None
    interfaces: tuple[Limit | None, ...] = ()  # by node: what the library uses
    # from the machines
    rates: tuple[Mapping[str, float], ...] = ()  # by node: of interfaces and ports, in Mbit/s
    told: Mapping[str, float] = field(default_factory=dict)  # in GB/s, see network.told_rates
    rdma_nodes: frozenset[int] = frozenset()  # with an active InfiniBand or RoCE port
    expected: Mapping[int, ExpectedNetwork] = field(default_factory=dict)  # by node
    copy_gb_per_s: float | None = None  # within one GPU
    ignored: str | None = None  # why the setting cuda_ipc had no effect

    def of(self, planned: Planned) -> dict[str, str | None]:
        """The columns transport, link, cuda_ipc_effective and registered; None if nothing is known
        about these ranks."""
        multicast = not planned.case.pairs and planned.members in self.multicast
        ipc = self.ipc or effective_ipc(self._kinds_between(planned), self._node_of, multicast)
        if planned.case.device == "cpu" or planned.case.staging in THROUGH_HOST:
            ipc = None if planned.case.device == "cpu" else "off"
        return {
            "transport": ", ".join(self._transports(planned)) or None,
            "link": shared_link(planned, self.gpus, self.topologies) if self.gpus else None,
            IPC: ipc,
            "registered": self._registered(planned),
        }

    def shares_gpu(self, planned: Planned) -> bool:
        """Whether two ranks of the case use the same GPU."""
        if not self.gpus or planned.case.device == "cpu":
            return False
        gpus = [self.gpus[planned.members[rank]] for rank in planned.active]
        known = [(gpu.node, gpu.pci_bus_id) for gpu in gpus if gpu.pci_bus_id is not None]
        return len(set(known)) < len(known)

    def starts_slowly(self, planned: Planned) -> bool:
        """Whether TCP carries large messages of the case between nodes, or a stream of any: its
        windows take a second to grow.

        If the library reports no transport (MPI), it may be TCP unless a node has an active
        InfiniBand or RoCE port. Within a node round trips are so short that windows grow within
        milliseconds.
        """
        large = planned.case.message_bytes >= SLOW_START_BYTES
        if Layout.parse(planned.case.layout).nodes < 2 or not (large or planned.case.is_stream):
            return False
        transport = (self.of(planned)["transport"] or "").lower()
        if any(name in transport for name in TCP_NAMES):
            return True
        # UCX or libfabric without a device may be on TCP
        is_open = not transport or transport.endswith(("ucx", "ofi"))
        return is_open and not self.rdma_nodes

    def algorithm(self, planned: Planned) -> str | None:
        """The algorithm in NCCL's log of the case's visits (NCCL_DEBUG_SUBSYS=INIT,TUNING), or the
        kernel for symmetric memory that was profiled."""
        if planned.operation is None:
            return None
        name = operation_name(planned.operation)
        block_bytes = planned.case.message_bytes // max(1, planned.benchmark.blocks(planned.size))
        own = self._lines(planned)
        logged = common_algorithm(own.algorithms, name, planned.case.message_bytes, block_bytes)
        return logged or symmetric_kernel(own.kernels)

    def _lines(self, planned: Planned) -> CaseLines:
        return self.lines.get(planned.case.case_id, NO_LINES)

    def _ran(self, planned: Planned) -> str | None:
        """The algorithm, or the name of a kernel of NCCL that is not for symmetric memory."""
        return self.algorithm(planned) or usual_kernel(self._lines(planned).kernels)

    def _registered(self, planned: Planned) -> str | None:
        """What the library registered the buffers as, where the case asks for it: window, local,
        none; None if neither its log nor its kernels tell. Kernels for symmetric memory, and copy
        engines, need windows."""
        asked = planned.case.registration
        if asked != "symmetric":
            return asked if asked != "none" and self._lines(planned).registered else None
        ran = self._ran(planned)
        if ran is None:
            return None if self.no_windows is None else "none"
        return "none" if ran in ALGORITHMS or usual_kernel([ran]) else "window"

    def unregistered(self, planned: Planned) -> str | None:
        """Why windows were asked for and not used; None if they were, or that is not known."""
        if self._registered(planned) != "none":
            return None
        ran = self._ran(planned)
        instead = f" and ran {ran}" if ran else ""
        settings = f": {self.no_windows}" if self.no_windows else ""
        return f"NCCL used no symmetric memory{instead}{settings}"

    def wires(self, planned: Planned) -> tuple[Limit | None, ...]:
        """The wire of each node that carries the case's bytes to other nodes; None if unknown,
        empty if no wire does.

        NCCL's log names the ports of each pair, which are not all that it lists. Where the network
        sums, a collective has no pairs between nodes, and others' ports are not its own.
        """
        if not self.logged:
            return self.interfaces
        if not planned.case.pairs and planned.members in self.collnet:
            return ()
        across = self._kinds_across(planned)
        kinds = set(chain.from_iterable(across.values()))
        if not self.complete or not all(kind.startswith(NETWORK) for kind in kinds):
            return ()
        used: list[set[str]] = [set() for _ in self.rates]
        for first, second in across:
            for rank, peer in ((first, second), (second, first)):
                used[self._node_of(rank)].update(self.ports.get((rank, peer), UNKNOWN_PORT))
        return tuple(
            _wire(sorted(names), rates, self.told)
            for names, rates in zip(used, self.rates, strict=True)
        )

    def nvlink_joins_nodes(self, planned: Planned) -> bool:
        """Whether NVLink is the transport of all pairs of the case that are on different nodes."""
        kinds = set(chain.from_iterable(self._kinds_across(planned).values()))
        return self.complete and kinds == {NVLINK_BETWEEN_NODES}

    @property
    def cuda_ipc(self) -> dict[str, str | None]:
        """CUDA IPC in the whole run, for run.json."""
        effective = self.ipc or effective_ipc(self.kinds, self._node_of, bool(self.multicast))
        return {"effective": effective, "ignored": self.ignored}

    def unused_network(self, planned: Planned) -> ExpectedNetwork | None:
        """The network that a node of the case has, where the library took TCP instead; None where
        it took another one or a backend knows only TCP."""
        on_tcp = {
            self._node_of(rank)
            for pair, kinds in self._kinds_between(planned).items()
            if any(map(ON_TCP.match, kinds))
            for rank in pair
        }
        if self.between is not None and ON_TCP.match(self.between):
            nodes = {self._node_of(planned.members[rank]) for rank in planned.active}
            on_tcp |= nodes if len(nodes) > 1 else set()
        return next((self.expected[node] for node in sorted(on_tcp) if node in self.expected), None)

    def _transports(self, planned: Planned) -> list[str]:
        """The transports of the case's pairs: as NCCL's log names them, the most frequent first, or
        as the backend reports them."""
        if kinds := by_frequency(self._kinds_between(planned)):
            return kinds
        on_nodes = Counter(map(self._node_of, planned.members))
        across = len(on_nodes) > 1
        within = max(on_nodes.values()) > 1 or not across
        if planned.case.pairs:
            members = planned.members
            same = {
                self._node_of(members[first]) == self._node_of(members[second])
                for first, second in planned.case.pairs
            }
            within = True in same
            across = False in same
        names = [self.transport] if within else []
        names += [self.between or self.transport] if across else []
        return [name for name in dict.fromkeys(names) if name is not None]

    def extended(self, records: Iterable[LogRecord], reader: LogReader) -> TransportEvidence:
        """Adds the `record()` of all ranks' log readers, and the other values of this rank's
        reader."""
        kinds = dict(self.kinds)
        ports = dict(self.ports)
        complete = self.complete
        for kinds_of_rank, ports_of_rank, read_to_end in records:
            complete &= read_to_end
            for first, second, texts in kinds_of_rank:
                _add(kinds, (first, second), texts)
            for first, second, texts in ports_of_rank:
                _add(ports, (first, second), texts)
        return replace(
            self,
            kinds=kinds,
            ports=ports,
            complete=complete,
            lines=reader.lines,
            multicast=reader.multicast,
            collnet=reader.collnet,
            no_windows=reader.no_windows,
        )

    def _kinds_between(self, planned: Planned) -> Kinds:
        """The transports of the case's pairs; for a collective these are all pairs of its ranks."""
        if planned.case.pairs:
            pairs = {
                (planned.members[first], planned.members[second])
                for first, second in planned.case.pairs
            }
            return {pair: kinds for pair, kinds in self.kinds.items() if pair in pairs}
        members = set(planned.members)  # with thousands of ranks there are too many pairs to list
        return {pair: kinds for pair, kinds in self.kinds.items() if members.issuperset(pair)}

    def _kinds_across(self, planned: Planned) -> Kinds:
        """The transports of the case's pairs that are on different nodes."""
        return {
            (first, second): kinds
            for (first, second), kinds in self._kinds_between(planned).items()
            if self._node_of(first) != self._node_of(second)
        }

    def _node_of(self, rank: int) -> int:
        if rank < len(self.nodes):
            return self.nodes[rank]
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
    readings = [
        [gpu.pci_bus_id, {name: getattr(gpu, name) for name in OWN_READINGS}]
        for gpu in (nvml.gpus() if gpu_run else ())
    ]
    gathered = control.gather([reader.record(), readings], MEETING_S, "the library's transports")
    if world.rank != 0:
        return TransportEvidence()
    nodes = run["provenance"]["nodes"]
    gpus = []
    for rank, own in enumerate(run.get("gpus", [])):
        reading = dict(gathered[rank][1]).get(own.get("gpu.own.pci_bus_id"))
        node = world.node_of(rank)
        gpus.append(RankGpu.from_facts(node, own, nodes[node], reading))
    told = run.get("told_rates_gb_per_s", {})
    setting = run.get("cuda_ipc", {}).get("asked", "auto")
    libraries = facts.get(LIBRARIES, ())
    ignored = [
        cuda_ipc_without_effect(setting, library, os.environ)
        or _same_gpu_without_effect(setting, library, gpus)
        for library in libraries
    ]
    reported = facts.get("transport")
    by_mpi = facts.get("transports", {})
    evidence = TransportEvidence(
        nodes=tuple(map(world.node_of, range(world.size))),
        gpus=tuple(gpus),
        topologies={
            node: record["links"]
            for node, record in enumerate(run.get("wiring", []))
            if record is not None
        },
        expected={
            number: expected
            for number, node in enumerate(nodes)
            if (expected := expected_network(node)) is not None
        },
        transport=reported or by_mpi.get(WITHIN),
        between=by_mpi.get(BETWEEN) or _with_interfaces(reported, nodes),
        ipc=facts[IPC] if facts.get(IPC) in CUDA_IPC_VALUES else None,
        logged=reader.available,
        rates=tuple(line_rates(node) for node in nodes),
        interfaces=route_interfaces(nodes, facts, told),
        told=told,
        rdma_nodes=frozenset(number for number, node in enumerate(nodes) if active_ports_of(node)),
        # the setting was ignored only if every library that may carry the data ignored it
        ignored="; ".join(map(str, ignored)) if ignored and all(ignored) else None,
    )
    return evidence.extended((record for record, _ in gathered), reader)


def _same_gpu_without_effect(setting: str, library: str, gpus: Sequence[RankGpu]) -> str | None:
    """Seen with NCCL 2.30.7: it logs P2P/CUMEM between two ranks on one GPU."""
    used = [(gpu.node, gpu.pci_bus_id) for gpu in gpus if gpu.pci_bus_id is not None]
    if setting != "off" or library != NCCL or len(set(used)) == len(used):
        return None
    return (
        "cuda_ipc=off has no effect between ranks on one GPU: NCCL maps their memory all the same"
    )


def library_record(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A communicator's facts for run.json, with the contents of NCCL's log instead of its text."""
    others = {name: value for name, value in facts.items() if name not in (LOG_SOURCE, KERNELS)}
    log = parse_log(facts.get(LOG_SOURCE) or "")
    values = {
        "version": log.version,
        "network": log.network,
        "plugin": log.plugin,
        "provider": log.provider,
        "interfaces": list(log.interfaces),
        "transport": log.summary,
        "rings": log.rings,
        "trees": log.trees,
        "multicast": log.multicast,
        "nvls_channels": log.nvls_channels,
    }
    nccl = {name: value for name, value in values.items() if value not in (None, [])}
    return others | ({"nccl": nccl} if nccl else {})


def route_interfaces(
    nodes: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    told: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Limit | None, ...]:
    """The interface of each node on the route to the others; None if its rate is unknown. The
    user's word (`told`) comes before that of the driver.

    A backend that reports its transport uses it. Another one may use InfiniBand ports if there are
    any.
    """
    interfaces = list[Limit | None]()
    for node in nodes:
        is_used = facts.get("transport") is not None or not active_ports_of(node)
        name = node.get("network.used.interface") if is_used else None
        rate = node.get("network.used.speed_mbit_per_s")
        rates = {} if name is None or rate is None else {name: rate}
        interfaces.append(_wire([] if name is None else [name], rates, told))
    return tuple(interfaces)


def _with_interfaces(transport: str | None, nodes: Sequence[Mapping[str, Any]]) -> str | None:
    """`tcp:eth0`: a backend that reports TCP takes the interface on the route to the others."""
    names = sorted({str(node.get("network.used.interface", "")) for node in nodes} - {""})
    return f"{transport}:{'+'.join(names)}" if transport == TCP and names else transport


def _wire(
    names: Sequence[str], rates: Mapping[str, float], told: Mapping[str, float]
) -> Limit | None:
    """The ports of a node that are used together; None if they have no rate or different ones."""
    if "" in told:
        return told_limit("", told[""])
    by_driver = {name: interface_limit(name, rate) for name, rate in rates.items()}
    limits = by_driver | {name: told_limit(name, rate) for name, rate in told.items()}
    of_names = {limits[name].gb_per_s if name in limits else None for name in names}
    if len(of_names) > 1 or None in of_names or not names:
        return None
    return together(len(names), limits[names[0]])
