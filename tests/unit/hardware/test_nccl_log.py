"""NCCL's log as evidence: saved texts of several versions, and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from places import HARDWARE_TEXTS

from commbench.hardware.expected_network import ON_TCP
from commbench.hardware.nccl_log import (
    ALGORITHMS,
    MAPPED_TRANSPORTS,
    Chosen,
    Transport,
    common_algorithm,
    effective_ipc,
    kind_of,
    parse_log,
    ports_of,
)

LOGS = sorted(path.name for path in HARDWARE_TEXTS.glob("nccl_*.txt"))
FORMATS = yaml.safe_load((HARDWARE_TEXTS / "nccl_formats.yaml").read_text())
VERSIONS: list[str] = FORMATS["versions"]


def one_node(rank):
    return 0


def test_two_gpus_over_cuda_ipc(saved):
    transport = parse_log(saved("nccl_2.18_ipc.txt"))
    assert transport == Transport(
        version="2.18.1",
        network="Socket",
        devices={"Socket": {0: ("eth0",), 1: ("ib-mgmt.7",)}},
        kinds={(1, 0): ("P2P/IPC",), (0, 1): ("P2P/IPC",)},
        rings=2,
        trees=2,
        multicast=False,
        nvls_channels=0,
    )
    assert transport.interfaces == ("eth0", "ib-mgmt.7")
    assert transport.transport == "P2P/IPC"
    assert effective_ipc(transport.kinds, one_node, False) == "on"


def test_without_p2p_it_is_shared_memory(saved):
    transport = parse_log(saved("nccl_2.21_shm.txt"))
    assert (transport.version, transport.transport, transport.plugin) == (
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


def test_transports_and_ports_of_two_nodes_are_read(saved):
    transport = parse_log(saved("nccl_2.21_two_nodes.txt"))
    assert transport.interfaces == ("mlx5_0:1/IB", "mlx5_3:1/RoCE")
    assert transport.kinds[2, 0] == transport.kinds[1, 3] == ("NET/IB/GDRDMA",)
    assert transport.kinds[3, 1] == ("NET/IB",)
    assert transport.net_devices == {
        (0, 2): frozenset({("IB", 0)}),
        (1, 3): frozenset({("IB", 1)}),
    }
    assert ports_of(transport.devices, ("IB", 1)) == ("mlx5_3:1",)
    assert transport.transport == "P2P/CUMEM, NET/IB/GDRDMA, NET/IB"
    assert (transport.rings, transport.trees) == (4, 4)
    assert effective_ipc(transport.kinds, lambda rank: rank // 2, False) == "on"
    assert effective_ipc(transport.kinds, one_node, False) == "mixed"
    assert effective_ipc(transport.kinds, lambda rank: rank, False) is None


def test_numbers_of_algorithms_are_told_by_name(saved):
    transport = parse_log(saved("nccl_2.21_two_nodes.txt"))
    assert transport.algorithms == (
        Chosen(None, 8, "TREE", per_block=False),
        Chosen(None, 16777216, "RING", per_block=False),
    )
    assert common_algorithm(transport.algorithms, "all_gather", 8, 4) == "TREE"
    # a number that no version has
    assert common_algorithm(transport.algorithms, "all_gather", 33554432, 8388608) is None


@pytest.mark.parametrize("operation", ["p2p_latency", "exchange", "all_to_all", "gather"])
def test_a_line_without_an_operation_is_not_that_of_sends(saved, operation):
    calls = parse_log(saved("nccl_2.21_two_nodes.txt")).algorithms
    assert common_algorithm(calls, operation, 8, 8) is None


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
    calls = transport.algorithms
    assert common_algorithm(calls, "all_reduce", 16777216, 16777216) == "NVLS"
    assert common_algorithm(calls, "all_reduce", 65536, 65536) == "AllReduce_AGxLLMC_R"
    assert common_algorithm(calls, "broadcast", 40, 40) is None
    # these lines have the bytes of a block: of a third of the message on three ranks
    assert common_algorithm(calls, "all_gather", 3 * 16777216, 16777216) == "RING"
    assert common_algorithm(calls, "all_gather", 16777216, 16777216 // 3) is None


def test_why_there_is_no_symmetric_memory():
    settings = "cuMemEnable 0, globalGinSupport 0, globalNicFused 0 cuMemGdrSupport 1"
    line = f"h:1:2 [3] NCCL INFO Symmetric memory is not supported. {settings}\n"
    assert parse_log(line).no_windows == settings
    assert parse_log("h:1:2 [3] NCCL INFO CC Off, workFifoBytes 1048576\n").no_windows is None


def test_a_buffer_that_was_registered():
    line = "h:1:2 [3] NCCL INFO register comm 0x5 buffer 0x7 size 4096\n"
    skipped = line.replace("register comm", "Skipping registration for comm")
    assert (parse_log(line).registered, parse_log(skipped).registered) == (True, False)


def test_sharp_and_one_process(saved):
    transport = parse_log(saved("nccl_2.19_sharp.txt"))
    assert (transport.plugin, transport.interfaces) == ("IBext", ("mlx5_4:1/IB",))
    assert transport.transport == "P2P/direct pointer, COLLNET/SHARP/GDRDMA"
    # one process has nothing to share
    assert effective_ipc(transport.kinds, one_node, False) is None


def test_without_a_gpu_it_says_nothing(saved):
    transport = parse_log(saved("nccl_2.28_no_gpu.txt"))
    assert transport == Transport()
    assert transport.transport is effective_ipc(transport.kinds, one_node, False) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("P2P/IPC/read", "P2P/IPC"),
        ("P2P/CUMEM/CE", "P2P/CUMEM"),
        ("P2P/MNNVL", "P2P/MNNVL"),
        ("P2P/indirect/3[1b000]/read", "P2P/indirect"),
        ("SHM/CE/direct", "SHM/CE/direct"),
        ("SHM", "SHM"),
        ("SHM/direct", "SHM/direct"),
        ("direct shared memory", "SHM/direct"),
        ("P2P/common device/read", "P2P/common device"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/AWS Libfabric/3/GDRDMA/Shared", "NET/AWS Libfabric/GDRDMA"),
        ("NET/IB/0/GDRDMA(PCI)", "NET/IB/GDRDMA"),
        ("carrier pigeon", "carrier"),
        ("", ""),
    ],
)
def test_the_text_of_a_channel_gives_its_transport(text, kind):
    assert kind_of(text) == kind


def test_an_old_word_for_a_channel():
    line = "h:1:2 [4] NCCL INFO Ring 00 : 12[41000] -> 11[2d000] [send] via NET/IB/1/GDRDMA"
    assert parse_log(line).kinds == {(12, 11): ("NET/IB/GDRDMA",)}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NCCL version 2.28.9+cuda13.0", "2.28.9"),
        ("RCCL version 2.18.6+hip6.2", "2.18.6"),
        ("RCCL version : 2.21.5-HEAD:9a0e6a1", "2.21.5"),
    ],
)
def test_rccl_says_its_version_as_nccl_does(line: str, version: str) -> None:
    assert parse_log(f"{line}\nHIP version  : 6.3.42134\n").version == version


# ---------------------------------------------------------------- the formats of every version

# the values of the formats' arguments
VALUES: dict[str, tuple[Any, ...]] = {
    "channel": (3,),
    "connection": (0, 1),
    "own": (1,),
    "own_gpu": (0x1B000,),
    "peer": (10,),
    "peer_gpu": (0xCA000,),
    "network": ("IB", "IBext_v8", "AWS Libfabric"),
    "device": (1,),
    "proxy": (5,),
    "gdr": ("", "/GDRDMA"),
    "pci": ("", "(PCI)"),
    "shared": ("", "/Shared"),
    "read": ("", "/read"),
    "copy": ("", "/CE"),
    "send_copy": ("CE", "direct"),
    "receive_copy": ("CE", "direct"),
    "memory": ("CUMEM", "MNNVL"),
    "through": (7,),
    "through_gpu": (0x3B000,),
    "relaxed": ("", "[RO]"),
    "interface": ("eth0",),
    "address": ("192.0.2.1<0>", "fe80::1%eth0<0>"),
    "plugin": ("Fabric One",),
    "channels": (24,),
    "nvls_channels": (16,),
    "peer_channels": (2,),
    "not": ("", "not "),
    "gpu": (0,),
    "operation": ("AllGather",),
    "bytes": (4096,),
    "number": tuple(range(10)),
    "protocol_number": (2,),
    "time": (25.2,),
    "algorithm": ALGORITHMS,
    "protocol": ("LL", "LL128", "SIMPLE"),
    "low": (0,),
    "high": (7,),
    "kernel": ("AllGather_LLMC",),
    "kernel_channels": (8,),
    "threads": (512,),
    "works": (1,),
    "sync": ("", " NVLS sync"),
    "ring": (1,),
    "rings": (24,),
    "down": (-1,),
    "up": (4,),
}


def formats(version: str, topic: str) -> list[tuple[str, list[str]]]:
    """The format strings of a topic in this version, with the names of their arguments."""
    number = VERSIONS.index(version)
    return [
        (text, arguments)
        for of_topic, first, last, text, arguments in FORMATS["formats"]
        if of_topic == topic and VERSIONS.index(first) <= number <= VERSIONS.index(last)
    ]


def printed(version: str, topic: str, **values: Any) -> list[tuple[dict[str, Any], str]]:
    """The lines that this version prints of a topic, with the values of their arguments."""
    lines = []
    for text, arguments in formats(version, topic):
        known = VALUES | {name: (value,) for name, value in values.items()}
        for combination in product(*(known[name] for name in arguments)):
            of_line = dict(zip(arguments, combination, strict=True))
            if not of_line.get("pci") or of_line["gdr"]:
                lines.append((of_line, f"h:1:2 [0] NCCL INFO {text % combination}"))
    return lines


def text_of(version: str, topic: str, *arguments: Any) -> str:
    """The only text of a topic."""
    ((text, _),) = formats(version, topic)
    return str(text % arguments)


@pytest.mark.parametrize("topic", ["peer", "shared memory", "send", "receive", "ib", "ring"])
def test_every_version_prints_these_lines(topic):
    assert [version for version in VERSIONS if not formats(version, topic)] == []


def test_every_version_names_the_devices_of_both_ends():
    for version in VERSIONS:
        for topic, pair in (("send", (1, 10)), ("receive", (10, 1))):
            for values, line in printed(version, topic):
                log = parse_log(line)
                network = values["network"]
                assert log.kinds == {pair: (f"NET/{network}{values['gdr']}",)}, (version, line)
                # the end of this rank, whatever the direction
                assert log.net_devices == {(1, 10): frozenset({(network, 1)})}, (version, line)


def test_every_version_names_the_transport_within_a_node():
    for version in VERSIONS:
        for topic, beginning in (("peer", "P2P/"), ("shared memory", "SHM/direct SHM/CE")):
            for _, line in printed(version, topic):
                log = parse_log(line)
                ((pair, (kind,)),) = log.kinds.items()
                assert pair == (1, 10) and not log.net_devices, (version, line)
                assert any(kind.startswith(text) for text in beginning.split()), (version, line)
                assert kind == kind_of(line.partition(" via ")[2]), (version, line)
        ways = {kind_of(line.partition(" via ")[2]) for _, line in printed(version, "peer")}
        assert ways <= {*MAPPED_TRANSPORTS, "P2P/direct pointer", "P2P/common device"}, version
        assert {"P2P/IPC", "P2P/direct pointer"} <= ways, version


def test_every_version_names_what_sums_in_the_network():
    for version in VERSIONS:
        lines = printed(version, "collnet", network="SHARP")
        assert lines or version in ("2.5.6", "2.5.7")
        for values, line in lines:
            assert parse_log(line).collnet == (f"COLLNET/SHARP{values['gdr']}",), (version, line)


def test_every_version_counts_rings_trees_and_channels():
    for version in VERSIONS:
        ring = text_of(version, "ring", 1, 24) + "   0   1   2"
        entries = printed(version, "tree")[0][1].partition("NCCL INFO")[2]
        trees = text_of(version, "trees", entries.replace("  ", " ") * 2)
        log = parse_log(f"h:1:2 [0] NCCL INFO {ring}\nh:1:2 [0] NCCL INFO {trees}")
        assert (log.rings, log.trees) == (24, 2), version
        for values, line in printed(version, "channels"):
            assert parse_log(line).nvls_channels == values.get("nvls_channels"), (version, line)
        for values, line in printed(version, "multicast"):
            assert parse_log(line).multicast is (values["not"] == ""), (version, line)
        for _, line in printed(version, "plugin"):
            assert parse_log(line).plugin == "Fabric One", (version, line)
        for values, line in printed(version, "network"):
            assert parse_log(line).network == values["network"], (version, line)


def test_every_version_names_algorithms_or_none():
    numbered = ("2.20", "2.21", "2.22", "2.23")
    for version in VERSIONS:
        for values, line in printed(version, "algorithm"):
            calls = parse_log(line).algorithms
            if values.get("number", 0) >= len(ALGORITHMS):
                assert calls == (), (version, line)
                continue
            (call,) = calls
            assert call.operation == values.get("operation"), (version, line)
            assert call.logged_bytes == 4096, (version, line)
            assert call.per_block is not version.startswith(numbered), (version, line)
            if "number" in values:
                assert call.algorithm == ALGORITHMS[values["number"]], (version, line)
            else:
                ways = ("Copy Engine", "Hierarchical CE")
                assert call.algorithm in (*ALGORITHMS, *VALUES["kernel"], *ways), (version, line)


def port_entries(version: str, names: list[str]) -> Iterator[str]:
    """A list of InfiniBand and RoCE devices, one port each, in each form that it can have."""
    if formats(version, "port"):
        yield "".join(
            text_of(version, "port", place, name, 1, ("IB", "RoCE")[place % 2])
            for place, name in enumerate(names)
        )
        return
    ids = {
        "rail and plane": text_of(version, "rail", 3) + text_of(version, "plane", 2),
        "rail": text_of(version, "rail", 3),
        "plane": text_of(version, "no rail") + text_of(version, "plane", 2),
        "neither": "",
    }
    for text in ids.values():
        yield "".join(
            text_of(version, "railed port", place, name, 1)
            + text
            + text_of(version, "layer", ("IB", "RoCE")[place % 2])
            for place, name in enumerate(names)
        )


def test_every_version_lists_ports():
    names = ["mlx5_0", "rocep23s0f1", "mlx5_bond_0", "mlx5_10"]
    for version in VERSIONS:
        for entries in port_entries(version, names):
            for _, line in printed(version, "ib", list=entries):
                devices = parse_log(line).devices
                for place, name in enumerate(names):
                    ports = ports_of(devices, ("IB", place))
                    assert ports == (f"{name}:1",), (version, line)
                assert ports_of(devices, ("IBext_v8", 2)) == ("mlx5_bond_0:1",)
                assert ports_of(devices, ("IB", 4)) == ("IB/4",)


def test_every_version_lists_interfaces():
    for version in VERSIONS:
        for address in VALUES["address"]:
            entries = "".join(
                text_of(version, "socket interface", place, name, address)
                for place, name in enumerate(["eth0", "ib-mgmt.7"])
            )
            ((_, line),) = printed(version, "socket", list=entries)
            devices = parse_log(line).devices
            assert ports_of(devices, ("Socket", 1)) == ("ib-mgmt.7",), (version, line)


MERGES = [version for version in VERSIONS if formats(version, "merged")]
MAKES_DEVICES = [version for version in VERSIONS if formats(version, "virtual device")]


def merging_list(version: str) -> str:
    """mlx5_0 alone, both ports of mlx5_1 as one device, mlx5_2 alone: devices 0, 1, 2, although
    the last has the number of its port."""
    return (
        text_of(version, "port", 0, "mlx5_0", 1, "IB")
        + text_of(version, "merged", 1)
        + text_of(version, "merged port", 1, "mlx5_1", 1, "IB", ", ")
        + text_of(version, "merged port", 2, "mlx5_1", 2, "IB", "")
        + text_of(version, "merged end")
        + text_of(version, "port", 3, "mlx5_2", 1, "IB")
    )


@pytest.mark.parametrize("version", MERGES)
def test_ports_that_are_one_device_are_counted_in_it(version):
    ((_, line),) = printed(version, "ib", list=merging_list(version), relaxed="", address="::1<0>")
    devices = parse_log(line).devices
    known = [ports_of(devices, ("IB", number)) for number in range(4)]
    assert known == [("mlx5_0:1",), ("mlx5_1:1", "mlx5_1:2"), ("mlx5_2:1",), ("IB/3",)]
    assert MERGES[0] == "2.20.3" and MERGES[-1] == "2.23.4"


@pytest.mark.parametrize("version", [MAKES_DEVICES[0], "2.28.9", MAKES_DEVICES[-1]])
def test_a_device_made_of_several_has_their_ports(version):
    made = {"device": 3, "speed": 800000, "count": 2, "rail": -1, "plane": -1}

    def devices_with(name: str) -> list[tuple[str, ...]]:
        entries = next(port_entries(version, ["mlx5_0", "mlx5_1", "mlx5_2"]))
        (_, listed), *_ = printed(version, "ib", list=entries)
        ((_, line),) = printed(version, "virtual device", port_name=name, **made)
        devices = parse_log(f"{listed}\n{line}").devices
        return [ports_of(devices, ("IB", number)) for number in (1, 3)]

    assert devices_with("mlx5_1+mlx5_2") == [("mlx5_1:1",), ("mlx5_1:1", "mlx5_2:1")]
    assert devices_with("mlx5_1+mlx5_9") == [("mlx5_1:1",), ("IB/3",)]
    # two ports of one device, of which the list has one
    assert devices_with("mlx5_1+mlx5_1") == [("mlx5_1:1",), ("IB/3",)]


def test_the_second_way_of_a_port_to_gpu_memory_is_that_port():
    line = "h:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_0_dma:1/IB [RO]; OOB e:::1<0>"
    devices = parse_log(line).devices
    assert ports_of(devices, ("IB", 0)) == ports_of(devices, ("IB", 1)) == ("mlx5_0:1",)


@pytest.mark.parametrize("version", ["2.5.6", "2.21.5", "2.30.7"])
def test_of_a_cut_list_what_is_left_is_right(version):
    """NCCL cuts the line where its buffer ends."""
    names = ["mlx5_0", "mlx5_1", "mlx5_10"]
    lists = [*port_entries(version, names)]
    if version in MERGES:
        lists.append(merging_list(version))
    for entries in lists:
        for length in range(len(entries) + 1):
            (_, line), *_ = printed(version, "ib", list=entries[:length])
            (_, whole), *_ = printed(version, "ib", list=entries)
            listed = parse_log(line).devices["IB"]
            assert listed.items() <= parse_log(whole).devices["IB"].items(), line


@pytest.mark.parametrize(
    "listed",
    [
        " [0]mlx5_0#1/IB",
        " [0]mlx5_0:1/OPA",
        " [0]mlx5_0:1:3:2:7/IB",
        " [0]={[0] mlx5_0:1/IB, mlx5_1}",
        " [0]{mlx5_0:1/IB}",
        " [7]mlx5_7:1/IB",  # a number that is not its place
        " mlx5_0:1/IB",
    ],
)
def test_a_list_of_another_form_has_no_known_ports(listed):
    line = f"h:1:2 [0] NCCL INFO NET/IB : Using{listed} [RO]; OOB eth0:192.0.2.1<0>"
    devices = parse_log(line).devices
    for number in (0, 7):
        assert ports_of(devices, ("IB", number)) == (f"IB/{number}",)


def test_two_lists_that_differ_are_no_list():
    line = "h:1:2 [0] NCCL INFO NET/IB : Using [0]{}:1/IB [RO]; OOB eth0:192.0.2.1<0>"
    same = parse_log("\n".join([line.format("mlx5_0")] * 2)).devices
    assert ports_of(same, ("IB", 0)) == ("mlx5_0:1",)
    other = parse_log("\n".join(map(line.format, ["mlx5_0", "mlx5_1"]))).devices
    assert ports_of(other, ("IB", 0)) == ("IB/0",)


@pytest.mark.parametrize("text", ["NET/IB/0/RAIL2", "NET/IB/x", "NET/IB/0(1", "NET/IB"])
def test_a_device_of_another_form_is_no_known_one(text):
    log = parse_log(f"h:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 10[1] [send] via {text}")
    ((_, devices),) = log.net_devices.items()
    listed = {"IB": {0: ("mlx5_0:1/IB",)}}
    assert [ports_of(listed, device) for device in devices] == [(f"{text}/-1",)]


# ---------------------------------------------------------------- damaged texts


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
    fields = asdict(replace(transport, kinds={}, net_devices={}))
    pairs = [*transport.kinds.items(), *map(str, transport.net_devices.items())]
    json.dumps([fields, pairs, *transport.interfaces], ensure_ascii=False).encode()
    assert (transport.transport is None) == (not transport.kinds and not transport.collnet)
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
    "piece", ["a:", "NCCL INFO ", " 1", "Trees [0] x", "[0]x", "[0]={", "0 Bytes -> Algo 0"]
)
def test_a_very_long_line_is_quick(piece):
    parse_log("NCCL INFO Channel 00/2 :" + piece * 20_000)
    parse_log("NCCL INFO NET/IB : Using" + piece * 20_000)


# lines as these plugins write them: aws-ofi-nccl 1.5 and 1.14, TCPX, FasTrak (TCPXO), gIB
@pytest.mark.parametrize(
    ("network", "via", "kind"),
    [
        ("AWS Libfabric", "NET/AWS Libfabric/1/GDRDMA", "NET/AWS Libfabric/GDRDMA"),
        ("Libfabric", "NET/Libfabric/0/GDRDMA/Shared", "NET/Libfabric/GDRDMA"),
        ("FasTrak", "NET/FasTrak/5(1)/GDRDMA", "NET/FasTrak/GDRDMA"),
        ("GPUDirectTCPX_v7", "NET/GPUDirectTCPX_v7/0", "NET/GPUDirectTCPX_v7"),
        ("gIB", "NET/gIB/3/GDRDMA", "NET/gIB/GDRDMA"),
        ("IBext_v8", "NET/IBext_v8/0(3)/GDRDMA", "NET/IBext_v8/GDRDMA"),
    ],
)
def test_networks_of_clouds_are_named_as_their_plugins_do(network, via, kind):
    log = parse_log(
        f"a:1:2 [0] NCCL INFO Using network {network}\n"
        f"a:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [send] via {via}\n"
    )
    assert (log.network, log.kinds) == (network, {(1, 8): (kind,)})
    assert not ON_TCP.match(kind)


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("NET/OFI Selected Provider is efa (found 4 nics)", "efa"),
        ("NET/OFI Selected provider is cxi, fabric is cxi (found 4 nics)", "cxi"),
        ("NET/OFI Selected Provider is tcp;ofi_rxm", "tcp;ofi_rxm"),
        ("NET/OFI Initializing aws-ofi-nccl 1.14.0", None),
    ],
)
def test_the_provider_below_libfabric_is_read(text, provider):
    assert parse_log(f"a:1:2 [0] NCCL INFO {text}\n").provider == provider
