"""Which interfaces and ports of a node are rails."""

from __future__ import annotations

from commbench.results.network_cards import interface_rails, port_rails


def test_rails_are_the_fastest_interfaces_with_a_cable_and_an_address() -> None:
    def interface(name: str, rate: int | None, **more: object) -> dict[str, object]:
        start = f"network.interface.{name}"
        facts = {"state": "up", "network": "10.0.0.0/24", "speed_mbit_per_s": rate, **more}
        return {f"{start}.{key}": fact for key, fact in facts.items() if fact is not None}

    facts = {
        **interface("eth0.100", 100000),
        **interface("eth1", 100000),
        **interface("eno1", 1000),
        **interface("eth2", 100000, state="down"),
        **interface("eth3", 100000, network=None),
        **interface("docker0", 100000),
        **interface("lo", None),
    }
    assert interface_rails(facts) == ["eth0.100", "eth1"]
    unknown = {**interface("ens10", None), **interface("ens2", None)}
    assert interface_rails(unknown) == ["ens2", "ens10"]
    assert interface_rails({}) == []


def test_ports_are_rails_if_they_are_active_and_as_fast_as_the_fastest() -> None:
    facts = {
        "network.rdma.mlx5_0:1.rate_gbit_per_s": 400.0,
        "network.rdma.mlx5_0:1.state": "ACTIVE",
        "network.rdma.mlx5_1:1.rate_gbit_per_s": 400.0,
        "network.rdma.mlx5_2:1.rate_gbit_per_s": 100.0,
        "network.rdma.mlx5_3:1.rate_gbit_per_s": 400.0,
        "network.rdma.mlx5_3:1.state": "DOWN",
    }
    assert port_rails(facts) == ["mlx5_0:1", "mlx5_1:1"]
    assert port_rails({}) == []
