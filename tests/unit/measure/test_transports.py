"""What rows say of the way between GPUs, from a machine's tables and a library's log."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from gpu_cases import planned as planned_of
from gpu_cases import table
from loops import for_each
from places import HARDWARE_TEXTS

from commbench.core.case import Planned, World
from commbench.hardware import nvml
from commbench.hardware.expected_network import EFA, INFINIBAND
from commbench.hardware.link_limits import Limit, interface_limit, network_limit
from commbench.hardware.topology import TOPOLOGY_FACT, RankGpu, node_record
from commbench.measure.transports import (
    LogReader,
    TransportEvidence,
    gather_evidence,
    library_record,
    route_interfaces,
)

H100 = {
    "gpu.0.pci_bus_id": "0000:00:00.0",
    "gpu.1.pci_bus_id": "0000:01:00.0",
    "gpu.0.compute_capability": "9.0",
    "gpu.0.nvlink_links": 18,
    "gpu.1.compute_capability": "9.0",
}
LOG = (HARDWARE_TEXTS / "nccl_2.21_shm.txt").read_text()
BUS = tuple(f"0000:{number:02x}:00.0" for number in range(8))
EIGHT = tuple(RankGpu(0, index, BUS[index], capability=90) for index in range(8))
FOUR_EACH = (0, 0, 0, 0, 1, 1, 1, 1)
ON_EIGHT = TransportEvidence(gpus=EIGHT, topologies={0: table("topo_h100x8.txt")})
PAIR = planned_of("p2p_latency", "1x8", "pairs=[[0,1]]")
LINE = "h:1:2 [0] NCCL INFO Channel 00/0 : {}[0] -> {}[1] via {}\n"
TUNING = (
    "h:1:2 [0] NCCL INFO AllReduce: 4000 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..7}\n"
)


class Control:
    """Of a world in which all ranks tell the same."""

    def __init__(self, size: int) -> None:
        self._size = size

    def gather(self, value: Any, deadline_s: float, meeting: str = "") -> list[Any]:
        return [value] * self._size


def read(*looks: tuple[str, tuple[int, ...]], visited: Sequence[Planned] = ()) -> LogReader:
    """What a rank has seen: texts that a log grew by, and the ranks that used a communicator
    then; all in visits of these cases."""
    reader = LogReader()
    text = ""
    row_ids = [row_id for planned in visited for row_id in planned.case.row_ids]
    for more, members in looks:
        text += more
        reader.read({"nccl_log": text}, members, row_ids)
    return reader


def test_a_pair_has_its_cell_and_a_cpu_has_none() -> None:
    assert ON_EIGHT.of(planned_of("p2p_latency", "1x8"))["link"] == "NV18"
    assert TransportEvidence().of(planned_of("p2p_latency", "1x8", device="cpu")) == {
        "transport": None, "link": None, "cuda_ipc_effective": None, "registered": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "transport", "ipc"),
    [
        ({(0, 1): ("P2P/CUMEM",)}, "P2P/CUMEM", "on"),
        ({(0, 1): ("SHM/direct/direct",), (1, 2): ("P2P/IPC",)}, "SHM/direct/direct", "off"),
        ({(2, 3): ("P2P/IPC",)}, None, None),  # of others: nothing is known of this pair
        ({}, None, None),
    ],
)
def test_a_pair_is_told_by_its_own_lines(
    kinds: Any, transport: str | None, ipc: str | None
) -> None:
    seen = TransportEvidence(gpus=EIGHT, kinds=kinds).of(PAIR)
    assert (seen["transport"], seen["cuda_ipc_effective"]) == (transport, ipc)


def test_a_collective_is_told_by_the_lines_of_its_ranks() -> None:
    kinds = {
        (0, 1): ("P2P/IPC",),
        (1, 0): ("P2P/IPC",),
        (1, 2): ("SHM/direct/direct",),
        (2, 3): ("NET/IB",),
    }
    evidence = TransportEvidence(gpus=EIGHT, kinds=kinds)
    assert evidence.of(planned_of("all_reduce", "1x2"))["transport"] == "P2P/IPC"
    three = evidence.of(planned_of("all_reduce", "1x3"))
    assert (three["transport"], three["cuda_ipc_effective"]) == (
        "P2P/IPC, SHM/direct/direct",
        "mixed",
    )
    assert (
        TransportEvidence(transport="tcp").of(planned_of("all_reduce", "1x2"))["transport"] == "tcp"
    )


def test_the_pairs_of_a_large_collective_are_not_listed() -> None:
    """2048 ranks have 4 million pairs, of which a log names few: the row of a case must not take
    500 MB."""
    ranks = range(2048)
    planned = planned_of("all_reduce", "256x8")
    kinds = {(rank, rank + 1): ("NET/IB",) for rank in ranks[:-1]}
    evidence = TransportEvidence(
        gpus=tuple(RankGpu(rank // 8, rank % 8) for rank in ranks), kinds=kinds
    )
    tracemalloc.start()
    try:
        assert evidence.of(planned)["transport"] == "NET/IB"
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_new_lines_belong_to_the_communicator_that_was_used() -> None:
    reader = read(
        (LINE.format(0, 1, "P2P/IPC"), (0, 1, 2, 3)),
        (LINE.format(0, 1, "NET/Socket/0"), (0, 2)),  # ranks 0 and 2 of the world
        (LINE.format(0, 3, "SHM/direct/direct"), (0, 2)),  # no such rank: somebody else's line
        ("", (1, 3)),
    )
    kinds, ports, complete = reader.record()
    assert reader.available and complete and not ports
    assert sorted(kinds) == [[0, 1, ["P2P/IPC"]], [0, 2, ["NET/Socket"]]]
    other = read((LINE.format(0, 1, "P2P/CUMEM"), (0, 1)))
    merged = TransportEvidence().extended([reader.record(), other.record()], read())
    assert merged.kinds == {(0, 1): ("P2P/IPC", "P2P/CUMEM"), (0, 2): ("NET/Socket",)}
    assert not read().available


def test_a_line_that_is_being_written_is_read_when_it_is_whole() -> None:
    line = LINE.format(0, 1, "P2P/IPC")
    for length in range(len(line)):
        reader = read((line[:length], (0, 1)), (line[length:], (0, 1)))
        assert reader.kinds == {(0, 1): ("P2P/IPC",)}


CHANNELS = (
    "h:1:2 [0] NCCL INFO 24 coll channels, 24 collnet channels, {} nvls channels, 32 p2p channels\n"
)


@pytest.mark.parametrize(
    ("kinds", "nvls", "collective", "pair"),
    [
        ("SHM/direct/direct", 16, "mixed", "off"),  # cuda_ipc=off, and still multicast
        ("SHM/direct/direct", 0, "off", "off"),
        ("P2P/CUMEM", 16, "on", "on"),
        ("NET/IB/0", 16, "mixed", "off"),
    ],
)
def test_multicast_maps_memory_of_other_processes(
    kinds: str, nvls: int, collective: str, pair: str
) -> None:
    reader = read(
        (LINE.format(0, 1, kinds) + CHANNELS.format(nvls), (0, 1)),
        (CHANNELS.format(0), (0, 1, 2, 3)),
    )
    evidence = TransportEvidence(gpus=EIGHT).extended([reader.record()], reader)
    assert evidence.of(planned_of("all_reduce", "1x2"))["cuda_ipc_effective"] == collective
    assert (
        evidence.of(PAIR)["cuda_ipc_effective"] == pair
        and evidence.cuda_ipc["effective"] == collective
    )
    alone = TransportEvidence(gpus=EIGHT).extended([], reader)
    assert alone.of(planned_of("all_reduce", "1x2"))["cuda_ipc_effective"] == (
        "on" if nvls else None
    )
    assert alone.of(planned_of("all_reduce", "1x4"))["cuda_ipc_effective"] is None, (
        "other ranks, another communicator"
    )


def test_sockets_beside_another_network_are_told() -> None:
    on_sockets = {(0, 1): ("NET/Socket",), (2, 3): ("NET/IB/GDRDMA",)}
    first = TransportEvidence(nodes=FOUR_EACH, kinds=on_sockets, expected={0: EFA})
    assert first.unused_network(planned_of("all_reduce", "1x2")) == EFA
    assert first.unused_network(PAIR) == EFA
    assert replace(first, expected={1: EFA}).unused_network(PAIR) is None
    for kind in ("NET/IB/GDRDMA", "NET/AWS Libfabric (efa)", "NET/FasTrak", "NET/gIB/GDRDMA"):
        assert replace(first, kinds={(0, 1): (kind,)}).unused_network(PAIR) is None
    on_tcp = {(0, 1): ("NET/AWS Libfabric (tcp;ofi_rxm)",)}
    assert replace(first, kinds=on_tcp).unused_network(PAIR) == EFA


@for_each(
    ("transport", "between", "layout", "unused"),
    [
        ("ob1/sm", "ob1/tcp", "2x4", True),
        ("ob1/sm", "ob1/tcp", "1x4", False),  # within a node
        ("ob1/sm", "ob1/openib", "2x4", False),
        ("ucx/sysv", "ucx/tcp:eth0", "2x4", True),
        ("ucx/sysv", "ucx/rc_mlx5:mlx5_0:1", "2x4", False),
        (None, "ch4:ofi", "2x4", False),  # not known
        ("tcp", "tcp:eth0", "2x4", False),  # a backend that knows nothing else
    ],
)
def test_mpi_on_tcp_beside_another_network_is_told(
    transport: str | None, between: str, layout: str, unused: bool
) -> None:
    evidence = TransportEvidence(
        nodes=FOUR_EACH, transport=transport, between=between, expected={0: INFINIBAND}
    )
    found = evidence.unused_network(planned_of("all_reduce", layout))
    assert found == (INFINIBAND if unused else None)


def test_the_transport_of_a_case_is_that_between_its_ranks() -> None:
    evidence = TransportEvidence(nodes=FOUR_EACH, transport="ob1/sm", between="ob1/tcp")

    def transport(benchmark: str, layout: str, *words: str) -> str | None:
        return evidence.of(planned_of(benchmark, layout, *words, device="cpu"))["transport"]

    assert transport("all_reduce", "1x4") == "ob1/sm"
    assert transport("all_reduce", "2x4") == "ob1/sm, ob1/tcp"
    assert transport("p2p_latency", "1x4") == "ob1/sm"
    assert transport("p2p_latency", "2x4", "pairs=[[0,4]]") == "ob1/tcp"
    assert replace(evidence, between=None).of(planned_of("barrier", "2x4"))["transport"] == "ob1/sm"


def test_a_plugin_over_libfabric_is_named_with_its_provider() -> None:
    log = (
        "n:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)\n"
        "n:1:1 [0] NCCL INFO Channel 07/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/1/GDRDMA\n"
    )
    assert read((log, (0, 1))).kinds == {(1, 0): ("NET/AWS Libfabric/GDRDMA (efa)",)}


def test_an_algorithm_is_that_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL_ALGO does not decide: NCCL ignores it where it does not apply, as for messages."""
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    names = ("broadcast", "p2p_latency", "exchange", "all_reduce")
    *others, reduced = (planned_of(benchmark, "1x8") for benchmark in names)
    reader = read((TUNING, tuple(range(8))), visited=[*others, reduced])
    evidence = TransportEvidence().extended([], reader)
    assert evidence.algorithm(reduced) == "NVLS"
    assert [evidence.algorithm(planned) for planned in others] == [None] * 3
    assert TransportEvidence().algorithm(planned_of("all_reduce", "1x8")) is None


NO_WINDOWS = "h:1:2 [0] NCCL INFO Symmetric memory is not supported. cuMemEnable 0\n"
KERNEL = "h:1:2 [0] NCCL INFO AllReduce [Symmetric]: 4000 Bytes -> Kernel {} nchannels 8\n"
REGISTERED = "h:1:2 [0] NCCL INFO register comm 0x5 buffer 0x7 size 4096\n"


def asking(registration: Any) -> Planned:
    planned = planned_of("all_reduce", "1x8")
    return replace(planned, case=replace(planned.case, registration=registration))


@pytest.mark.parametrize(
    ("asked", "text", "registered", "reason"),
    [
        ("symmetric", KERNEL.format("AllReduce_RSxLDMC_AGxSTMC"), "window", None),
        ("symmetric", TUNING, "none", "NCCL used no symmetric memory and ran NVLS"),
        ("symmetric", NO_WINDOWS, "none", "NCCL used no symmetric memory: cuMemEnable 0"),
        ("symmetric", "", None, None),
        ("local", REGISTERED, "local", None),
        ("local", NO_WINDOWS, None, None),
        ("none", REGISTERED + NO_WINDOWS, None, None),
    ],
)
def test_buffers_are_registered_as_the_log_says(
    asked: str, text: str, registered: str | None, reason: str | None
) -> None:
    planned = asking(asked)
    reader = read((text, tuple(range(8))), visited=[planned])
    evidence = TransportEvidence().extended([], reader)
    assert evidence.of(planned)["registered"] == registered
    assert evidence.unregistered(planned) == reason


def test_each_case_of_a_sweep_is_judged_by_the_lines_of_its_own_visits() -> None:
    """Of one process, in two passes."""
    texts = {
        "none": TUNING,
        "local": REGISTERED + TUNING,
        "symmetric": KERNEL.format("AllReduce_RSxLDMC_AGxSTMC"),
    }
    reader = LogReader()
    text = ""
    for asked in (*texts, *texts):
        text += texts[asked]
        reader.read({"nccl_log": text}, range(8), asking(asked).case.row_ids)
    evidence = TransportEvidence().extended([], reader)
    seen = {asked: evidence.of(asking(asked))["registered"] for asked in texts}
    assert seen == {"none": None, "local": "local", "symmetric": "window"}
    algorithms = [evidence.algorithm(asking(asked)) for asked in texts]
    assert algorithms == ["NVLS", "NVLS", "AllReduce_RSxLDMC_AGxSTMC"]


def test_lines_of_others_make_no_buffer_of_a_case_registered() -> None:
    reader = read((REGISTERED, tuple(range(8))), visited=[asking("symmetric")])
    assert TransportEvidence().extended([], reader).of(asking("local"))["registered"] is None


@pytest.mark.parametrize(
    ("kernel", "registered", "algorithm"),
    [
        (
            "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f32(ncclSymkDevWorkArgs4K)",
            "window",
            "AllReduce_RSxLDMC_AGxSTMC",
        ),
        ("ncclSymDevKernel_AllGather_STMC(ncclSymDevArgs)", "window", "AllGather_STMC"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "none", None),
        ("Memcpy DtoD (Device -> Device)", None, None),
    ],
)
def test_the_kernels_of_a_profiled_call_are_proof(
    kernel: str, registered: str | None, algorithm: str | None
) -> None:
    before = asking("none")
    planned = asking("symmetric")
    reader = LogReader()
    reader.read({"nccl_log": "", "nccl_kernels": ["of others"]}, range(8), before.case.row_ids)
    names = ["of others", "void fill_kernel", kernel]
    reader.read({"nccl_log": "", "nccl_kernels": names}, range(8), planned.case.row_ids)
    evidence = TransportEvidence().extended([], reader)
    assert evidence.of(planned)["registered"] == registered
    assert evidence.algorithm(planned) == algorithm and evidence.algorithm(before) is None
    name = kernel.partition("(")[0]
    reason = f"NCCL used no symmetric memory and ran {name}" if registered == "none" else None
    assert evidence.unregistered(planned) == reason


def test_a_line_has_the_bytes_of_a_block() -> None:
    line = (
        "h:1:2 [0] NCCL INFO AllGather: {} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..7}}"
    )
    planned = planned_of("all_gather", "1x8")
    for logged_bytes, algorithm in ((planned.case.message_bytes // 8, "RING"), (4000, None)):
        text = f"{line.format(logged_bytes)}\n"
        reader = read((text, tuple(range(8))), visited=[planned])
        assert TransportEvidence().extended([], reader).algorithm(planned) == algorithm


def test_what_goes_through_the_host_has_no_ipc_and_a_backend_may_know_better() -> None:
    assert TransportEvidence(gpus=EIGHT, ipc="on").of(PAIR)["cuda_ipc_effective"] == "on"
    for staging in ("pinned", "library"):
        staged = replace(PAIR, case=replace(PAIR.case, staging=staging))
        assert (
            TransportEvidence(gpus=EIGHT, ipc="on", kinds={(0, 1): ("P2P/IPC",)}).of(staged)[
                "cuda_ipc_effective"
            ]
            == "off"
        )


def test_a_log_is_recorded_as_what_it_says() -> None:
    kept = library_record({"library": "torch 2.11 nccl 2.21.5", "nccl_log": LOG})
    assert "nccl_log" not in kept and kept["library"].startswith("torch")
    assert kept["nccl"]["version"].startswith("2.21") and "SHM" in kept["nccl"]["transport"]
    assert library_record({"library": "gloo"}) == {"library": "gloo"}


def test_all_ranks_tell_and_rank_0_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [
        nvml.Gpu(0, pci_bus_id=BUS[0], pcie_generation=5, pcie_width=16, nvlink_links=17),
        nvml.Gpu(1),  # has fallen off the bus
    ]
    monkeypatch.setattr(nvml, "gpus", lambda: gpus)
    run = {
        "provenance": {"nodes": [H100]},
        "wiring": [node_record({TOPOLOGY_FACT: (HARDWARE_TEXTS / "topo_h100x8.txt").read_text()})],
    }
    run |= {"gpus": [{"gpu.own.pci_bus_id": BUS[0]}, {"gpu.own.pci_bus_id": BUS[1]}]}
    reader = read((LOG, (0, 1, 2, 3)))
    facts = {"nccl_log": LOG}
    evidence = gather_evidence(World(0, 2, ((0, 1),), (0,)), Control(2), facts, run, reader)  # type: ignore[arg-type]
    # what the rank reads itself counts before the facts of its node
    assert evidence.gpus == (
        RankGpu(0, 0, BUS[0], 90, pcie_generation=5, pcie_width=16, nvlinks=17),
        RankGpu(0, 1, BUS[1], 90),
    )
    assert set(evidence.topologies) == {0} and evidence.transport is None and evidence.logged
    assert evidence.kinds == reader.kinds != {}
    other = World(1, 2, ((0, 1),), (1,))
    assert gather_evidence(other, Control(2), {}, {}, LogReader()) == TransportEvidence()  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "nodes"), [("ACTIVE", {1}), ("DOWN", set())])
def test_nodes_with_an_active_port_are_known(state: str, nodes: set[int]) -> None:
    unknown = {"network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0}
    provenance = [
        {"network.rdma.mlx5_0:1.state": "DOWN"},
        {"network.rdma.mlx5_0:1.state": state},
        unknown,
    ]
    world = World(0, 3, ((0,), (1,), (2,)), (0,))
    run = {"provenance": {"nodes": provenance}}
    evidence = gather_evidence(world, Control(3), {}, run, LogReader())  # type: ignore[arg-type]
    assert evidence.rdma_nodes == nodes == set(evidence.expected)
    assert evidence.nodes == (0, 1, 2)


@pytest.mark.parametrize(
    ("cuda_ipc", "disabled", "ignored"),
    [
        ("off", "0", "cuda_ipc=off had no effect on NCCL: NCCL_P2P_DISABLE is 0"),
        ("off", "1", None),
        ("auto", "1", None),
    ],
)
def test_a_setting_without_effect_is_said(
    monkeypatch: pytest.MonkeyPatch, cuda_ipc: str, disabled: str, ignored: str | None
) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", disabled)
    monkeypatch.delenv("NCCL_P2P_LEVEL", raising=False)
    run = {"provenance": {"nodes": [{}]}, "cuda_ipc": {"asked": cuda_ipc}}
    world = World(0, 1, ((0,),), (0,))
    reader = read((LOG, (0, 1, 2, 3)))
    facts = {"ipc_libraries": ["NCCL"], "nccl_log": LOG}
    evidence = gather_evidence(world, Control(1), facts, run, reader)  # type: ignore[arg-type]
    assert evidence.cuda_ipc == {"effective": "off", "ignored": ignored}


# ---------------------------------------------------------------- wires

ETHERNET = interface_limit("eth0", 25_000.0)
PORT = {"network.rdma.mlx5_0:1.state": "ACTIVE", "network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0}
TWO = PORT | {
    "network.rdma.mlx5_1:1.state": "ACTIVE",
    "network.rdma.mlx5_1:1.rate_gbit_per_s": 400.0,
}


@pytest.mark.parametrize(
    ("node", "facts", "wire"),
    [
        (TWO, {"transport": "tcp"}, ETHERNET),
        (TWO, {}, None),  # MPI may take either
        ({"network.rdma.mlx5_0:1.state": "DOWN"}, {}, ETHERNET),
        ({"network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0}, {}, ETHERNET),  # of an unknown state
        ({}, {}, ETHERNET),
    ],
)
def test_a_library_without_a_log_uses_the_interface_on_the_route(
    node: dict[str, Any], facts: dict[str, Any], wire: Limit | None
) -> None:
    node = node | {"network.used.interface": "eth0", "network.used.speed_mbit_per_s": 25_000.0}
    assert route_interfaces([node, node, {}], facts) == (wire, wire, None)


@pytest.mark.parametrize(
    ("told", "node", "wire"),
    [
        ({"": 12.5}, {}, (12.5, "node 100 Gb/s by limit=", "told")),
        ({"": 12.5}, TWO, (12.5, "node 100 Gb/s by limit=", "told")),  # MPI may take either
        ({"eth0": 1.25}, {}, (1.25, "eth0 10 Gb/s by limit=", "told")),
        ({"eth0": 1.25}, TWO, None),
        ({"eth1": 1.25}, {}, ETHERNET),
    ],
)
def test_the_users_word_comes_before_the_drivers(
    told: dict[str, float], node: dict[str, Any], wire: Limit | None
) -> None:
    used = {"network.used.interface": "eth0", "network.used.speed_mbit_per_s": 25_000.0}
    assert route_interfaces([node | used], {}, told) == (wire,)
    silent = {"network.used.interface": "eth0"} | node
    unknown = None if wire == ETHERNET else wire
    assert route_interfaces([silent], {}, told) == (unknown,)


def test_the_users_word_is_in_the_record_of_the_run() -> None:
    nodes = [{"network.used.interface": "eth0"}, {"network.used.interface": "ens5"}]
    run = {"provenance": {"nodes": nodes}, "told_rates_gb_per_s": {"ens5": 12.5}}
    world = World(0, 2, ((0,), (1,)), (0,))
    evidence = gather_evidence(world, Control(2), {"transport": "tcp"}, run, LogReader())  # type: ignore[arg-type]
    assert evidence.interfaces == (None, (12.5, "ens5 100 Gb/s by limit=", "told"))


# a node with eight ports for its GPUs, and two for its storage, of which NCCL lists all
GPU_PORTS = tuple(f"mlx5_{number}" for number in (0, 3, 4, 5, 6, 9, 10, 11))
ALL_PORTS = tuple(f"mlx5_{number}" for number in (0, 1, 3, 4, 5, 6, 7, 9, 10, 11))
RATES = {f"{name}:1": 400_000.0 for name in ALL_PORTS} | {"eth0": 25_000.0, "eth1": 10_000.0}
USING = "NET/IB : Using" + "".join(f" [{n}]{name}:1/IB" for n, name in enumerate(ALL_PORTS))
SOCKETS = "NET/Socket : Using [0]eth1:192.0.2.1<0> [1]eth0:198.51.100.1<0>"
ON_TWO = tuple(RankGpu(rank // 8, rank % 8, BUS[rank % 8], 90) for rank in range(16))
PAIR_0_8 = planned_of("p2p_bandwidth", "2x8", "pairs=[[0,8]]")


def number_of(gpu: int) -> int:
    """The number of the device beside a GPU of this index."""
    return ALL_PORTS.index(GPU_PORTS[gpu])


def evidence_of(
    channels: dict[int, list[str]], listed: str = USING, cut: bool = False
) -> TransportEvidence:
    """What rank 0 gathers, if these ranks of two nodes log these texts behind their device list."""
    records = []
    for texts in channels.values():
        text = "".join(f"h:1:2 [0] NCCL INFO {text}\n" for text in [listed, *texts])
        reader = LogReader()
        facts: dict[str, Any] = {"nccl_log": text} | ({"nccl_log_cut": True} if cut else {})
        reader.read(facts, range(16))
        records.append(reader.record())
    evidence = TransportEvidence(gpus=ON_TWO, rates=(RATES, RATES), logged=True)
    return evidence.extended(records, LogReader())


def both_ends(first: int, second: int, transport: str) -> dict[int, list[str]]:
    """The lines of a pair's two ranks."""
    line = f"Channel 00/0 : {first}[0] -> {second}[0] [{{}}] via {transport}"
    return {first: [line.format("send")], second: [line.format("receive")]}


def limit_of(evidence: TransportEvidence, planned: Planned) -> Limit | None:
    return network_limit(planned, evidence.wires(planned), lambda rank: rank // 8)


def test_a_pair_has_the_port_that_it_uses_and_not_all_that_nccl_lists() -> None:
    evidence = evidence_of(both_ends(0, 8, "NET/IB/0/GDRDMA"))
    port = interface_limit("mlx5_0:1", 400_000.0)
    assert evidence.wires(PAIR_0_8) == (port, port)
    assert limit_of(evidence, PAIR_0_8) == (50.0, "mlx5_0:1 400 Gb/s", "network")


def test_a_collective_has_the_ports_of_its_gpus_and_not_those_of_the_storage() -> None:
    channels: dict[int, list[str]] = {}
    for gpu in range(8):
        lines = both_ends(gpu, 8 + gpu, f"NET/IB/{number_of(gpu)}/GDRDMA")
        channels |= lines
    evidence = evidence_of(channels)
    planned = planned_of("broadcast", "2x8")
    assert limit_of(evidence, planned) == (400.0, "8 x mlx5_0:1 400 Gb/s", "network")


def test_a_pair_that_goes_through_another_gpus_port_has_that_one() -> None:
    evidence = evidence_of(both_ends(0, 8, f"NET/IB/{number_of(3)}(3)/GDRDMA/Shared"))
    port = interface_limit(f"{GPU_PORTS[3]}:1", 400_000.0)
    assert evidence.wires(PAIR_0_8) == (port, port)


def test_a_pair_on_sockets_has_its_interface_although_ports_are_listed() -> None:
    evidence = evidence_of(
        both_ends(0, 8, "NET/Socket/1"), listed=f"{USING}\nh:1:2 [0] NCCL INFO {SOCKETS}"
    )
    wire = interface_limit("eth0", 25_000.0)
    assert evidence.wires(PAIR_0_8) == (wire, wire)


def test_merged_ports_count_together() -> None:
    listed = "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [RO]; OOB eth0:192.0.2.1<0>"
    evidence = evidence_of(both_ends(0, 8, "NET/IB/0"), listed)
    assert limit_of(evidence, PAIR_0_8) == (100.0, "2 x mlx5_0:1 400 Gb/s", "network")


@pytest.mark.parametrize(
    "evidence",
    [
        evidence_of({0: both_ends(0, 8, "NET/IB/0")[0]}),  # one end alone
        evidence_of(both_ends(0, 8, "NET/IB/77")),
        evidence_of(both_ends(0, 8, "NET/IB/0/RAIL1")),
        evidence_of(both_ends(0, 8, "NET/AWS Libfabric/0/GDRDMA")),
        evidence_of(both_ends(0, 8, "NET/IB/0"), listed="NET/IB : Using [0]mlx5_99:1/IB"),
        evidence_of(both_ends(0, 8, "NET/IB/0"), listed="NET/IB : Using 0=mlx5_0"),
        evidence_of(both_ends(0, 8, "NET/IB/0"), cut=True),
        evidence_of(both_ends(1, 9, "NET/IB/0")),  # another pair
        evidence_of(both_ends(0, 8, "SHM/direct")),  # nodes that are one machine
        evidence_of({}),
    ],
)
def test_a_wire_that_the_log_does_not_tell_is_unknown(evidence: TransportEvidence) -> None:
    assert limit_of(evidence, PAIR_0_8) is None


def test_a_collective_that_the_network_sums_has_not_the_ports_of_a_pair() -> None:
    ranks = tuple(range(16))
    text = "h:1:2 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA\n"
    reader = read((text, ranks))
    pair = evidence_of(both_ends(0, 8, "NET/IB/0"))
    summed = pair.extended([], reader)
    planned = planned_of("all_reduce", "2x8")
    assert limit_of(pair, planned) is not None
    assert limit_of(summed, planned) is None
    assert limit_of(summed, PAIR_0_8) == (50.0, "mlx5_0:1 400 Gb/s", "network")


def test_the_rate_of_different_ports_together_is_unknown() -> None:
    evidence = evidence_of(both_ends(0, 8, "NET/IB/0"))
    mixed = replace(evidence, ports={(0, 8): ("mlx5_0:1", "eth0"), (8, 0): ("mlx5_0:1",)})
    assert limit_of(mixed, PAIR_0_8) is None


def test_the_users_word_counts_for_ports_that_no_driver_knows() -> None:
    """As EFA's, which NCCL's log names by number only."""
    efa = evidence_of(both_ends(0, 8, "NET/AWS Libfabric/0/GDRDMA"))
    assert limit_of(replace(efa, told={"": 400.0}), PAIR_0_8) == (
        400.0,
        "node 3200 Gb/s by limit=",
        "told",
    )
    port = evidence_of(both_ends(0, 8, "NET/IB/0"))
    told = replace(port, told={"mlx5_0:1": 25.0})
    assert limit_of(told, PAIR_0_8) == (25.0, "mlx5_0:1 200 Gb/s by limit=", "told")
    shared_memory = evidence_of(both_ends(0, 8, "SHM/direct"))
    assert limit_of(replace(shared_memory, told={"": 400.0}), PAIR_0_8) is None


def test_without_a_log_the_wire_is_the_interface() -> None:
    evidence = TransportEvidence(interfaces=(ETHERNET, ETHERNET))
    assert evidence.wires(PAIR_0_8) == (ETHERNET, ETHERNET)
    assert evidence.extended([], LogReader()).wires(PAIR_0_8) == (ETHERNET, ETHERNET)


@pytest.mark.parametrize(
    ("transports", "pair_joined", "all_joined"),
    [
        ({(0, 8): "P2P/MNNVL", (8, 0): "P2P/MNNVL"}, True, True),
        ({(0, 8): "P2P/MNNVL", (7, 15): "NET/IB/9"}, True, False),
        ({(0, 8): "NET/IB/0"}, False, False),
        ({(0, 1): "P2P/MNNVL"}, False, False),  # within a node
        ({}, False, False),
    ],
)
def test_nvlink_joins_nodes_where_all_pairs_between_them_use_it(
    transports: dict[tuple[int, int], str], pair_joined: bool, all_joined: bool
) -> None:
    lines = {
        first: [f"Channel 00/0 : {first}[0] -> {second}[0] via {transport}"]
        for (first, second), transport in transports.items()
    }
    evidence = evidence_of(lines)
    assert evidence.nvlink_joins_nodes(PAIR_0_8) is pair_joined
    assert evidence.nvlink_joins_nodes(planned_of("all_reduce", "2x8")) is all_joined
    if pair_joined:
        assert limit_of(evidence, PAIR_0_8) is None  # no interface is its wire
    assert not evidence_of(lines, cut=True).nvlink_joins_nodes(PAIR_0_8)


@pytest.mark.parametrize(
    ("layout", "size", "evidence", "slow"),
    [
        ("2x1", "1MiB", TransportEvidence(transport="tcp"), True),
        ("2x1", "512KiB", TransportEvidence(transport="tcp"), False),
        ("1x2", "1MiB", TransportEvidence(transport="tcp"), False),
        ("2x1", "1MiB", TransportEvidence(kinds={(0, 1): ("NET/Socket/0",)}), True),
        ("2x1", "1MiB", TransportEvidence(kinds={(0, 1): ("NET/IB/0",)}), False),
        # MPI does not tell, and there is no other network
        ("2x1", "1MiB", TransportEvidence(), True),
        ("2x1", "1MiB", TransportEvidence(rdma_nodes=frozenset({0, 1})), False),
    ],
)
def test_large_messages_over_tcp_between_nodes_start_slowly(
    layout: str, size: str, evidence: TransportEvidence, slow: bool
) -> None:
    planned = planned_of("p2p_latency", layout, f"sizes=[{size}]", "pairs=[[0,1]]", device="cpu")
    assert evidence.starts_slowly(planned) is slow


@pytest.mark.parametrize(("layout", "slow"), [("2x1", True), ("1x2", False)])
def test_a_stream_of_small_writes_starts_slowly_too(layout: str, slow: bool) -> None:
    planned = planned_of("stream", layout, "sizes=[16KiB]", "pairs=[[0,1]]", device="cpu")
    assert TransportEvidence(transport="tcp").starts_slowly(planned) is slow
