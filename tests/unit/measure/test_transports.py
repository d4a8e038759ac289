"""What rows say of the way between GPUs, from a machine's tables and a library's log."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from gpu_cases import planned as planned_of
from gpu_cases import table
from loops import for_each
from read_nccl_logs import LINE, read

from commbench.core.case import Planned
from commbench.hardware.expected_network import EFA, INFINIBAND
from commbench.hardware.link_limits import Limit, interface_limit, network_limit
from commbench.hardware.topology import RankGpu
from commbench.measure.nccl_evidence import LogReader, NcclEvidence
from commbench.measure.transports import Reported, TransportEvidence

BUS = tuple(f"0000:{number:02x}:00.0" for number in range(8))
EIGHT = tuple(RankGpu(0, index, BUS[index], capability=90) for index in range(8))
FOUR_EACH = (0, 0, 0, 0, 1, 1, 1, 1)
ON_EIGHT = TransportEvidence(gpus=EIGHT, topologies={0: table("topo_h100x8.txt")})
PAIR = planned_of("p2p_latency", "1x8", "pairs=[[0,1]]")


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
    seen = TransportEvidence(gpus=EIGHT, nccl=NcclEvidence(kinds=kinds)).of(PAIR)
    assert (seen["transport"], seen["cuda_ipc_effective"]) == (transport, ipc)


def test_a_collective_is_told_by_the_lines_of_its_ranks() -> None:
    kinds = {
        (0, 1): ("P2P/IPC",),
        (1, 0): ("P2P/IPC",),
        (1, 2): ("SHM/direct/direct",),
        (2, 3): ("NET/IB",),
    }
    evidence = TransportEvidence(gpus=EIGHT, nccl=NcclEvidence(kinds=kinds))
    assert evidence.of(planned_of("all_reduce", "1x2"))["transport"] == "P2P/IPC"
    three = evidence.of(planned_of("all_reduce", "1x3"))
    assert (three["transport"], three["cuda_ipc_effective"]) == (
        "P2P/IPC, SHM/direct/direct",
        "mixed",
    )
    assert (
        TransportEvidence(reported=Reported(within="tcp")).of(planned_of("all_reduce", "1x2"))[
            "transport"
        ]
        == "tcp"
    )


def test_the_pairs_of_a_large_collective_are_not_listed() -> None:
    """2048 ranks have 4 million pairs, of which a log names few: the row of a case must not take
    500 MB."""
    ranks = range(2048)
    planned = planned_of("all_reduce", "256x8")
    kinds = {(rank, rank + 1): ("NET/IB",) for rank in ranks[:-1]}
    evidence = TransportEvidence(
        gpus=tuple(RankGpu(rank // 8, rank % 8) for rank in ranks), nccl=NcclEvidence(kinds=kinds)
    )
    tracemalloc.start()
    try:
        assert evidence.of(planned)["transport"] == "NET/IB"
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


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
    evidence = TransportEvidence(
        gpus=EIGHT, nccl=NcclEvidence().extended([reader.record()], reader)
    )
    assert evidence.of(planned_of("all_reduce", "1x2"))["cuda_ipc_effective"] == collective
    assert (
        evidence.of(PAIR)["cuda_ipc_effective"] == pair
        and evidence.cuda_ipc["effective"] == collective
    )
    alone = TransportEvidence(gpus=EIGHT, nccl=NcclEvidence().extended([], reader))
    assert alone.of(planned_of("all_reduce", "1x2"))["cuda_ipc_effective"] == (
        "on" if nvls else None
    )
    assert alone.of(planned_of("all_reduce", "1x4"))["cuda_ipc_effective"] is None, (
        "other ranks, another communicator"
    )


def test_sockets_beside_another_network_are_told() -> None:
    on_sockets = {(0, 1): ("NET/Socket",), (2, 3): ("NET/IB/GDRDMA",)}
    first = TransportEvidence(
        nodes=FOUR_EACH, expected={0: EFA}, nccl=NcclEvidence(kinds=on_sockets)
    )
    assert first.unused_network(planned_of("all_reduce", "1x2")) == EFA
    assert first.unused_network(PAIR) == EFA
    assert replace(first, expected={1: EFA}).unused_network(PAIR) is None
    for kind in ("NET/IB/GDRDMA", "NET/AWS Libfabric (efa)", "NET/FasTrak", "NET/gIB/GDRDMA"):
        assert (
            replace(first, nccl=NcclEvidence(kinds={(0, 1): (kind,)})).unused_network(PAIR) is None
        )
    on_tcp = {(0, 1): ("NET/AWS Libfabric (tcp;ofi_rxm)",)}
    assert replace(first, nccl=NcclEvidence(kinds=on_tcp)).unused_network(PAIR) == EFA


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
        nodes=FOUR_EACH,
        expected={0: INFINIBAND},
        reported=Reported(within=transport, between=between),
    )
    found = evidence.unused_network(planned_of("all_reduce", layout))
    assert found == (INFINIBAND if unused else None)


def test_the_transport_of_a_case_is_that_between_its_ranks() -> None:
    evidence = TransportEvidence(
        nodes=FOUR_EACH, reported=Reported(within="ob1/sm", between="ob1/tcp")
    )

    def transport(benchmark: str, layout: str, *words: str) -> str | None:
        return evidence.of(planned_of(benchmark, layout, *words, device="cpu"))["transport"]

    assert transport("all_reduce", "1x4") == "ob1/sm"
    assert transport("all_reduce", "2x4") == "ob1/sm, ob1/tcp"
    assert transport("p2p_latency", "1x4") == "ob1/sm"
    assert transport("p2p_latency", "2x4", "pairs=[[0,4]]") == "ob1/tcp"
    assert (
        replace(evidence, reported=Reported(within="ob1/sm")).of(planned_of("barrier", "2x4"))[
            "transport"
        ]
        == "ob1/sm"
    )


def test_what_goes_through_the_host_has_no_ipc_and_a_backend_may_know_better() -> None:
    assert (
        TransportEvidence(gpus=EIGHT, reported=Reported(ipc="on")).of(PAIR)["cuda_ipc_effective"]
        == "on"
    )
    for staging in ("pinned", "library"):
        staged = replace(PAIR, case=replace(PAIR.case, staging=staging))
        assert (
            TransportEvidence(
                gpus=EIGHT,
                nccl=NcclEvidence(kinds={(0, 1): ("P2P/IPC",)}),
                reported=Reported(ipc="on"),
            ).of(staged)["cuda_ipc_effective"]
            == "off"
        )


# ---------------------------------------------------------------- wires

ETHERNET = interface_limit("eth0", 25_000.0)
# a node with eight ports for its GPUs, and two for its storage, of which NCCL lists all
GPU_PORTS = tuple(f"mlx5_{number}" for number in (0, 3, 4, 5, 6, 9, 10, 11))
ALL_PORTS = tuple(f"mlx5_{number}" for number in (0, 1, 3, 4, 5, 6, 7, 9, 10, 11))
RATES = {f"{name}:1": 400_000.0 for name in ALL_PORTS} | {"eth0": 25_000.0, "eth1": 10_000.0}
USING = "NET/IB : Using" + "".join(f" [{n}]{name}:1/IB" for n, name in enumerate(ALL_PORTS))
SOCKETS = "NET/Socket : Using [0]eth1:192.0.2.1<0> [1]eth0:198.51.100.1<0>"
TWO_NODES = (0,) * 8 + (1,) * 8
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
        records.append(reader.own.record())
    nccl = NcclEvidence().extended(records, NcclEvidence(logged=True))
    return TransportEvidence(nodes=TWO_NODES, gpus=ON_TWO, rates=(RATES, RATES), nccl=nccl)


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
    summed = replace(pair, nccl=pair.nccl.extended([], reader))
    planned = planned_of("all_reduce", "2x8")
    assert limit_of(pair, planned) is not None
    assert limit_of(summed, planned) is None
    assert limit_of(summed, PAIR_0_8) == (50.0, "mlx5_0:1 400 Gb/s", "network")


def test_the_rate_of_different_ports_together_is_unknown() -> None:
    evidence = evidence_of(both_ends(0, 8, "NET/IB/0"))
    mixed = replace(
        evidence,
        nccl=replace(evidence.nccl, ports={(0, 8): ("mlx5_0:1", "eth0"), (8, 0): ("mlx5_0:1",)}),
    )
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
    evidence = TransportEvidence(reported=Reported(interfaces=(ETHERNET, ETHERNET)))
    assert evidence.wires(PAIR_0_8) == (ETHERNET, ETHERNET)


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
        ("2x1", "1MiB", TransportEvidence(reported=Reported(within="tcp")), True),
        ("2x1", "512KiB", TransportEvidence(reported=Reported(within="tcp")), False),
        ("1x2", "1MiB", TransportEvidence(reported=Reported(within="tcp")), False),
        (
            "2x1",
            "1MiB",
            TransportEvidence(nccl=NcclEvidence(kinds={(0, 1): ("NET/Socket/0",)})),
            True,
        ),
        ("2x1", "1MiB", TransportEvidence(nccl=NcclEvidence(kinds={(0, 1): ("NET/IB/0",)})), False),
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
    assert TransportEvidence(reported=Reported(within="tcp")).starts_slowly(planned) is slow
