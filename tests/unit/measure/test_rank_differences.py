"""What is said of ranks that differ, and of clocks that are apart."""

from __future__ import annotations

from typing import Any

import pytest

from commbench.measure.rank_differences import (
    clock_skew_warning,
    difference_table,
    rank_differences,
    same_network_text,
)

FACTS = [{"host.hostname": f"node{rank // 2}"} for rank in range(6)]


def test_each_value_has_a_line_with_its_ranks_and_hosts() -> None:
    text = difference_table(
        {
            "versions.torch": {"2.13.0": [0, 1, 2, 4, 5], "2.11.0": [3]},
            "run.digest": {"a": [0], "b": [1]},
        },
        FACTS,
    )
    assert [line.split() for line in text.splitlines()] == [
        ["fact", "value", "ranks", "hosts"],
        ["versions.torch", "2.13.0", "0-2,4-5", "node0,", "node1,", "node2"],
        ["2.11.0", "3", "node1"],
        ["configuration", "(digest)", "a", "0", "node0"],
        ["b", "1", "node0"],
    ]
    assert (
        len(
            {
                line.index(word)
                for line, word in zip(text.splitlines()[1:3], ("2.13", "2.11"), strict=True)
            }
        )
        == 1
    )


def test_long_values_and_many_hosts_are_cut() -> None:
    facts = [{"host.hostname": f"node{rank}"} for rank in range(9)]
    text = difference_table({"environment.PATH": {"x" * 500: list(range(9)), "missing": []}}, facts)
    assert (
        "x" * 45 + "..." in text and "and 5 more" in text and max(map(len, text.splitlines())) < 160
    )


def test_clocks_are_told_from_a_second_on() -> None:
    assert clock_skew_warning([100.0, 100.4, 100.9], FACTS) is None
    assert (
        clock_skew_warning([100.0, 99.9, 97.5], FACTS)
        == "the clock of node0 (rank 0) is 2.5 s ahead of that of node1 (rank 2); set them by NTP"
    )


SLOW = "10.0.0.0/24 at 1 Gb/s"
FAST = "10.0.0.0/24 at 100 Gb/s"
OTHER = "10.1.0.0/24 at 100 Gb/s"


def machine() -> dict[str, Any]:
    """Five interfaces, and three ports of which one is down."""
    facts: dict[str, Any] = {
        "network.interface.lo.network": "127.0.0.0/8",
        "network.interface.down.mtu_bytes": 1500,
    }
    interfaces = {
        "eth0": FAST,
        "ens3": FAST,
        "eth1": OTHER,
        "slow": SLOW,
        "docker0": "172.17.0.0/16 at 10 Gb/s",
    }
    for name, text in interfaces.items():
        address, rate = text.removesuffix(" Gb/s").split(" at ")
        facts[f"network.interface.{name}.network"] = address
        facts[f"network.interface.{name}.speed_mbit_per_s"] = 1000 * int(rate)
    for port, state in (("mlx5_0:1", "ACTIVE"), ("mlx5_2:1", "ACTIVE"), ("mlx5_10:1", "DOWN")):
        of_port = {"rate_gbit_per_s": 400.0, "link_layer": "InfiniBand", "state": state}
        facts |= {f"network.rdma.{port}.{key}": value for key, value in of_port.items()}
    return facts


@pytest.mark.parametrize(
    ("variable", "values", "text"),
    [
        ("NCCL_SOCKET_IFNAME", ("eth0", "=ens3"), FAST),
        ("NCCL_SOCKET_IFNAME", ("eth", "eth0,eth1"), f"{FAST}, {OTHER}"),  # a prefix
        ("NCCL_SOCKET_IFNAME", ("^docker,slow,ens", "eth"), f"{FAST}, {OTHER}"),
        ("NCCL_SOCKET_IFNAME", ("^=docker0,slow,eth1,eth0", "ens"), FAST),
        ("NCCL_SOCKET_IFNAME", ("eth", "=eth0"), None),
        ("NCCL_SOCKET_IFNAME", ("eth0", "=eth"), None),  # no interface has exactly this name
        ("NCCL_SOCKET_IFNAME", ("eth0", "eth1"), None),  # another network
        ("NCCL_SOCKET_IFNAME", ("eth0", "slow"), None),  # another rate
        ("NCCL_SOCKET_IFNAME", ("eth0", "eth0,ens3"), None),  # one more interface
        ("NCCL_SOCKET_IFNAME", ("eth0", "^docker"), None),
        ("NCCL_SOCKET_IFNAME", ("eth0", ""), None),
        ("NCCL_SOCKET_IFNAME", ("mlx5_0", "mlx5_2"), None),  # ports are no interfaces
        ("NCCL_IB_HCA", ("mlx5_0", "=mlx5_2:1"), "InfiniBand at 400 Gb/s"),
        ("NCCL_IB_HCA", ("mlx5", "^mlx5_1"), "InfiniBand at 400 Gb/s, InfiniBand at 400 Gb/s"),
        ("NCCL_IB_HCA", ("mlx5_0", "mlx5_0:2"), None),
        ("NCCL_IB_HCA", ("mlx5_1", "mlx5_1"), None),  # a prefix of mlx5_10, which is down
        ("GLOO_SOCKET_IFNAME", ("eth0", "ens3"), FAST),
        ("GLOO_SOCKET_IFNAME", ("eth0", "eth"), None),  # a name is no prefix there
        ("UCX_NET_DEVICES", ("mlx5_0:1", "mlx5_2:1"), "InfiniBand at 400 Gb/s"),
    ],
)
def test_names_of_interfaces_may_differ_where_network_and_rate_are_the_same(
    variable: str, values: tuple[str, str], text: str | None
) -> None:
    facts = [machine() | {f"environment.{variable}": value} for value in values]
    answer = same_network_text(f"environment.{variable}", facts)
    expected = f"{variable} differs between hosts, but names the same network on all: {text}"
    assert answer == (None if text is None else expected)


def test_only_what_must_be_equal_is_a_problem() -> None:
    """Kernels may differ, and are recorded."""
    kernels = {'"6.1"': [0, 1], '"6.8"': [2, 3, 4, 5]}
    assert rank_differences({"host.kernel": kernels}, FACTS, None) == (None, [])
    torch = {'"2.13.0"': [0, 1, 2, 3, 4], '"2.11.0"': [5]}
    found = rank_differences({"host.kernel": kernels, "versions.torch": torch}, FACTS, None)
    assert found.problem is not None and found.same_networks == []
    first, *table, last = found.problem.splitlines()
    assert (first, len(table)) == ("ranks differ:", 3), "a heading, and a line for each torch"
    assert last == "make them equal, or accept it with preflight=warn"


@pytest.mark.parametrize(
    ("values", "interface", "is_problem", "is_told"),
    [
        (("eth0", "ens3"), None, False, True),
        (("eth0", "ens3"), "eth0", False, True),
        (("eth0", "eth1"), None, True, False),
        (("eth0", "eth1"), "10.0.0.0/24", False, False),  # names differ by host there
    ],
)
def test_an_interface_may_differ_within_one_network_or_where_the_user_names_one(
    values: tuple[str, str], interface: str | None, is_problem: bool, is_told: bool
) -> None:
    variable = "environment.GLOO_SOCKET_IFNAME"
    facts = [machine() | {variable: value} for value in values]
    differing = {variable: {f'"{value}"': [rank] for rank, value in enumerate(values)}}
    found = rank_differences(differing, facts, interface)
    assert (found.problem is not None, bool(found.same_networks)) == (is_problem, is_told)
