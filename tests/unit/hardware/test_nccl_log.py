"""NCCL's log as evidence: saved texts of several versions, and damaged ones."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import HARDWARE_TEXTS

from commbench.hardware.nccl_log import (
    MAPPED_TRANSPORTS,
    Chosen,
    Transport,
    common_algorithm,
    effective_ipc,
    kind_of,
    parse_log,
)

LOGS = sorted(path.name for path in HARDWARE_TEXTS.glob("nccl_*.txt"))


def one_node(rank):
    return 0


def test_two_gpus_over_cuda_ipc(saved):
    transport = parse_log(saved("nccl_2.18_ipc.txt"))
    assert transport == Transport(
        version="2.18.1",
        network="Socket",
        interfaces=("eth0", "ib-mgmt.7"),
        kinds={(1, 0): ("P2P/IPC",), (0, 1): ("P2P/IPC",)},
        rings=2,
        trees=2,
        multicast=False,
        nvls_channels=0,
    )
    assert transport.summary == "P2P/IPC"
    assert effective_ipc(transport.kinds, one_node, False) == "on"


def test_without_p2p_it_is_shared_memory(saved):
    transport = parse_log(saved("nccl_2.21_shm.txt"))
    assert (transport.version, transport.summary, transport.plugin) == (
        "2.21.5",
        "SHM/direct/direct",
        None,
    )
    assert (transport.rings, transport.trees, transport.nvls_channels, transport.multicast) == (
        2,
        2,
        0,
        None,
    )
    assert effective_ipc(transport.kinds, one_node, False) == "off"


def test_two_nodes(saved):
    transport = parse_log(saved("nccl_2.21_two_nodes.txt"))
    assert transport.interfaces == ("mlx5_0:1/IB", "mlx5_3:1/RoCE")
    assert transport.kinds[2, 0] == transport.kinds[1, 3] == ("NET/IB/GDRDMA",)
    assert transport.kinds[3, 1] == ("NET/IB",)
    assert transport.summary == "P2P/CUMEM, NET/IB/GDRDMA, NET/IB"
    assert (transport.rings, transport.trees) == (4, 4)
    assert effective_ipc(transport.kinds, lambda rank: rank // 2, False) == "on"
    assert effective_ipc(transport.kinds, one_node, False) == "mixed"
    assert effective_ipc(transport.kinds, lambda rank: rank, False) is None


def test_numbers_of_algorithms_are_told_by_name(saved):
    transport = parse_log(saved("nccl_2.21_two_nodes.txt"))
    assert transport.algorithms == (Chosen(None, 8, "TREE"), Chosen(None, 16777216, "RING"))
    assert common_algorithm(transport.algorithms, 8, "all_gather") == "TREE"
    # a number that no version has
    assert common_algorithm(transport.algorithms, 33554432, "all_gather") is None


def test_nvlink_sharp(saved):
    transport = parse_log(saved("nccl_2.28_nvls.txt"))
    assert (transport.version, transport.plugin, transport.network) == (
        "2.28.9",
        "Fabric One",
        "Fabric One",
    )
    assert (transport.rings, transport.multicast, transport.nvls_channels) == (24, True, 16)
    assert transport.kinds == {
        (0, 1): ("P2P/CUMEM",),
        (1, 2): ("P2P/CUMEM",),
        (2, 0): ("P2P/CUMEM",),
    }
    assert common_algorithm(transport.algorithms, 16777216, "all_reduce") == "NVLS"
    assert common_algorithm(transport.algorithms, 16777216, "all_gather") == "RING"
    assert common_algorithm(transport.algorithms, 65536, "all_reduce") == "AllReduce_AGxLLMC_R"
    assert common_algorithm(transport.algorithms, 40, "broadcast") is None


def test_sharp_and_one_process(saved):
    transport = parse_log(saved("nccl_2.19_sharp.txt"))
    assert (transport.plugin, transport.interfaces) == ("IBext", ("mlx5_4:1/IB",))
    assert transport.summary == "P2P/direct pointer, COLLNET/SHARP/GDRDMA"
    # one process has nothing to share
    assert effective_ipc(transport.kinds, one_node, False) is None


def test_without_a_gpu_it_says_nothing(saved):
    transport = parse_log(saved("nccl_2.28_no_gpu.txt"))
    assert transport == Transport()
    assert transport.summary is effective_ipc(transport.kinds, one_node, False) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("P2P/IPC/read", "P2P/IPC"),
        ("P2P/CUMEM/CE", "P2P/CUMEM"),
        ("P2P/MNNVL", "P2P/MNNVL"),
        ("P2P/indirect/3[1b000]/read", "P2P/indirect"),
        ("SHM/CE/direct", "SHM/CE/direct"),
        ("SHM", "SHM"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/AWS Libfabric/3/GDRDMA/Shared", "NET/AWS Libfabric/GDRDMA"),
        ("NET/IB/0/GDRDMA(PCI)", "NET/IB/GDRDMA"),
        ("carrier pigeon", "carrier"),
        ("", ""),
    ],
)
def test_kinds(text, kind):
    assert kind_of(text) == kind


def test_an_old_word_for_a_channel():
    line = "h:1:2 [4] NCCL INFO Ring 00 : 12[41000] -> 11[2d000] [send] via NET/IB/1/GDRDMA"
    assert parse_log(line).kinds == {(12, 11): ("NET/IB/GDRDMA",)}


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = (HARDWARE_TEXTS / draw(st.sampled_from(LOGS))).read_text()
    start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return text[:start] + draw(st.text(max_size=12)) + text[end:]


WORDS = [
    "NCCL INFO ",
    "Channel ",
    "00/0 : ",
    "0[0]",
    " -> ",
    "via ",
    "P2P/",
    "NET/",
    "IB/0",
    "Trees",
    " [0] ",
    "Bytes -> ",
    "Algo ",
    "9",
    "\n",
    "CollNet ",
    "Using network ",
    "NET/IB : Using",
    "\u0663",
    "\ud800",
]


@given(
    text=st.one_of(
        damaged(), st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=24).map("".join)
    )
)
def test_no_text_is_refused(text):
    transport = parse_log(text)
    json.dumps(
        asdict(transport) | {"kinds": list(transport.kinds.items())}, ensure_ascii=False
    ).encode()
    assert (transport.summary is None) == (not transport.kinds and not transport.collnet)
    assert effective_ipc(transport.kinds, one_node, False) in {None, "on", "off", "mixed"}


@given(
    pairs=st.dictionaries(
        st.tuples(st.integers(0, 99), st.integers(0, 99)),
        st.sampled_from([*MAPPED_TRANSPORTS, "SHM/direct/direct", "NET/IB/GDRDMA"]),
    )
)
def test_every_pair_that_is_written_is_read(pairs):
    texts = {"NET/IB/GDRDMA": "NET/IB/2/GDRDMA", "P2P/indirect": "P2P/indirect/7[7]"}
    lines = [
        f"h:1:2 [0] NCCL INFO Channel 00/0 : {a}[{a}] -> {b}[{b}] via {texts.get(k, k)}"
        for (a, b), k in pairs.items()
    ]
    assert parse_log("\n".join(lines)).kinds == {pair: (kind,) for pair, kind in pairs.items()}


@given(mapped=st.integers(0, 3), copied=st.integers(0, 3))
def test_ipc_is_on_where_every_pair_maps_and_off_where_none_does(mapped, copied):
    kinds = {(0, peer + 1): (MAPPED_TRANSPORTS[peer],) for peer in range(mapped)}
    kinds |= {(9, peer): ("SHM/direct/direct",) for peer in range(copied)}
    expected = {(True, False): "on", (False, True): "off", (True, True): "mixed"}.get(
        (mapped > 0, copied > 0)
    )
    assert effective_ipc(kinds, one_node, False) == expected


@pytest.mark.parametrize(
    "piece", ["a:", "NCCL INFO ", " 1", "Trees [0] x", "[0]x", "0 Bytes -> Algo 0"]
)
def test_a_very_long_line_is_quick(piece):
    parse_log("NCCL INFO Channel 00/2 :" + piece * 20_000)
    parse_log("NCCL INFO NET/IB : Using" + piece * 20_000)
