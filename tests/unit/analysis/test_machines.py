"""The machines of a report: nodes with equal facts, however their processes were bound."""

from __future__ import annotations

from typing import Any

from commbench.analysis.machines import machines_of


def run_on(hostname: str, **facts: Any) -> dict[str, Any]:
    """A run.json of one node."""
    node = {"host.hostname": hostname, "host.cpu_model": "Test CPU", "host.kernel": "6.1", **facts}
    return {"provenance": {"nodes": [node]}}


def test_one_machine_is_one_column_although_its_ranks_had_other_cores() -> None:
    """MPI binds its ranks, gloo does not; the second gloo run was started with taskset."""
    records = [
        run_on("n0", **{"limits.cpu_cores": cores, "host.cpu_affinity": affinity})
        for cores, affinity in ((16.0, "0-15"), (1.0, "0"), (2.0, "0-1"))
    ]
    (machine,) = machines_of(records)
    assert machine.hosts == ("n0",)
    assert machine.facts == (
        ("CPU", "Test CPU"),
        ("cores allowed", "1.0 or 2.0 or 16.0"),
        ("kernel", "6.1"),
    )


def test_another_kernel_is_another_machine_and_two_networks_stay_two_lines() -> None:
    cards = {
        f"network.interface.{name}.{fact}": value
        for name in ("eth0", "eth1")
        for fact, value in (("state", "up"), ("speed_mbit_per_s", 1000))
    }
    records = [run_on("n0", **cards), run_on("n1", **cards, **{"host.kernel": "6.12"})]
    first, second = machines_of(records)
    assert (first.hosts, second.hosts) == (("n0",), ("n1",))
    assert [text for title, text in first.facts if title == "network"] == [
        "eth0, 1 Gb/s",
        "eth1, 1 Gb/s",
    ]
