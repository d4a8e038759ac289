"""The backend from its command line: real worlds, real connections, one skip row for each
collective."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from commbench.backends.tcp.backend import INTERFACE, Tcp, listening_address
from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.hardware.network import meeting_address

FIXED = (
    "timing=fixed",
    "timing.repetitions=7",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
    "cache=warm",
)


def test_point_to_point_is_measured_and_counted_with_one_and_three_streams(
    world: Callable[..., Any],
) -> None:
    words = (
        "benchmark=[p2p_latency,p2p_bandwidth]",
        "layout=1x2",
        "sizes=[8,1MiB]",
        "streams=[1,3]",
    )
    run = world("commbench", "backend=tcp", *words, *FIXED)
    assert (run.cases.status == "ok").all()
    assert (run.cases.wrong_elements == 0).all()
    assert len(run.cases) == 8 and set(run.cases.streams) == {1, 3}
    assert set(run.cases.transport) == {"tcp"}
    import commbench

    counters = commbench.load(run.output, table="counters")
    names = set(counters.name)
    assert {f"tcp.peer1.stream{stream}.retransmits" for stream in range(3)} <= names
    resent = (
        counters[counters.name == "measured.retransmits"].groupby(["case_id", "rank"]).value.last()
    )
    assert (
        run.cases.set_index("case_id").retransmits.to_dict()
        == resent.groupby("case_id").sum().to_dict()
    )
    assert set(zip(run.cases.source, run.cases.destination, strict=True)) == {(0, 1)}
    counters = counters[counters.name.str.startswith("tcp.")]
    of_one = counters[counters.case_id.isin(run.cases[run.cases.streams == 1].case_id)]
    assert {name.split(".")[2] for name in of_one.name} == {"stream0"}, "only what the case uses"
    facts = {"library", "transport", "address", "congestion_control", "mss_bytes"}
    assert facts <= set(run.record["backend"])


@pytest.mark.long
def test_a_given_world_on_a_chosen_interface_skips_collectives_with_the_reason(
    world: Callable[..., Any],
) -> None:
    torchrun = ("torchrun", "--nproc-per-node", "3", "-m", "commbench")
    run = world(
        *torchrun,
        "backend=tcp",
        "interface=lo",
        "pairs=[[0,1],[2,1],[1,1]]",
        "benchmark=[p2p_bandwidth,all_reduce]",
        "sizes=[40kB]",
        "streams=64",
        "backend.buffer_bytes=65536",
        *FIXED,
    )
    measured = run.cases[run.cases.status == "ok"]
    assert set(measured.pair) == {"0-1", "1-1", "2-1"} and set(measured.streams) == {64}
    skipped = run.cases[run.cases.status == "skipped"].set_index("benchmark").reason
    assert skipped["all_reduce"] == "tcp is point to point only: sockets have no collectives"


@pytest.mark.long
def test_an_interface_that_does_not_exist_stops_everything(world: Callable[..., Any]) -> None:
    run = world(
        "commbench", "backend=tcp", "benchmark=[p2p_latency]", "interface=nosuch0", *FIXED, status=2
    )
    assert "interface=nosuch0 does not exist on this host" in run.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("buffer_bytes", 0),
        ("buffer_bytes", -1),
        ("buffer_bytes", 2**31),
        ("timeout_s", 0),
        ("timeout_s", -1.0),
        ("timeout_s", float("nan")),
        ("timeout_s", float("inf")),
    ],
)
def test_a_wrong_value_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"backend\.{key}="):
        Tcp(**{key: value})


def test_the_interface_is_exported_only_where_one_was_chosen() -> None:
    assert Tcp().environment("auto", None) == {}
    assert Tcp().environment("auto", "eth7") == {"COMMBENCH_TCP_INTERFACE": "eth7"}


# ---------------------------------------------------------------- addresses of this machine's real
# interfaces

ONE_NODE = World(0, 2, ((0, 1),), (0,))
TWO_NODES = World(0, 2, ((0,), (1,)), (0,))


@pytest.fixture
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (INTERFACE, "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def outer_addresses() -> set[str]:
    ipv4 = [
        entry.address
        for addresses in psutil.net_if_addrs().values()
        for entry in addresses
        if entry.family == socket.AF_INET
    ]
    return {address for address in ipv4 if not ipaddress.ip_address(address).is_loopback}


@pytest.mark.usefixtures("nothing_chosen")
def test_one_node_talks_over_loopback() -> None:
    assert listening_address(ONE_NODE, None) == "127.0.0.1"


@pytest.mark.usefixtures("nothing_chosen")
def test_a_chosen_interface_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERFACE, "lo")
    assert listening_address(TWO_NODES, None) == "127.0.0.1"


def test_an_unknown_interface_names_those_that_exist() -> None:
    with pytest.raises(
        ConfigError, match=r"interface=nosuch0 does not exist on this host; it has: .*lo"
    ):
        meeting_address("nosuch0")


@pytest.mark.usefixtures("nothing_chosen")
@pytest.mark.skipif(not outer_addresses(), reason="no address but loopback")
@pytest.mark.parametrize(
    "meeting", ["127.0.0.1", "localhost", "no-such-host.invalid", *sorted(outer_addresses())[:1]]
)
def test_several_nodes_never_talk_over_loopback(
    monkeypatch: pytest.MonkeyPatch, meeting: str
) -> None:
    """Also on the meeting point's own host, whose name may be a loopback address there."""
    monkeypatch.setenv("MASTER_ADDR", meeting)
    assert listening_address(TWO_NODES, None) in outer_addresses()


@pytest.mark.usefixtures("nothing_chosen")
def test_the_route_to_the_stores_host_is_asked_where_no_address_was_exported() -> None:
    class Store:
        host = "127.0.0.1"

    class Prefixed:
        underlying_store = Store()

    own = outer_addresses()
    if own:
        assert listening_address(TWO_NODES, Prefixed()) in own
    else:
        with pytest.raises(ConfigError, match="interface=NAME"):
            listening_address(TWO_NODES, Prefixed())
