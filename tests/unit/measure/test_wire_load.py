"""What links carry by algorithm, and words for what lies above a limit."""

from __future__ import annotations

import pytest
from gpu_cases import planned

from commbench.hardware.link_limits import Wire, network_limit
from commbench.measure.wire_load import impossible, wire_gb_per_s

NVLINK = "NVLink 18 x 20.6 GB/s"


@pytest.mark.parametrize(
    ("benchmark", "layout", "algorithm", "factor"),
    [
        ("all_reduce", "1x8", "RING", 2 * 7 / 8),
        ("all_reduce", "1x8", "Ring", 2 * 7 / 8),
        ("all_gather", "1x8", "RING", 7 / 8),
        ("all_reduce", "2x4", "RING", 2 * 7 / 8),
        ("all_reduce", "2x4", "TREE", 2.0),
        ("all_reduce", "1x8", "NVLS", 9 / 8),
        ("all_reduce", "2x4", "NVLS", None),
        ("all_gather", "1x8", "NVLS", None),
        ("all_gather", "1x8", "TREE", None),
        ("all_reduce", "2x4", "NVLS_TREE", None),
        ("all_reduce", "1x8", "COLLNET_DIRECT", None),
        ("all_reduce", "1x8", None, None),
        ("barrier", "1x8", "RING", None),
    ],
)
def test_the_load_of_a_link(benchmark: str, layout: str, algorithm: str | None, factor: float | None) -> None:
    found = wire_gb_per_s(planned(benchmark, layout), 100.0, algorithm)
    assert found == (None if factor is None else pytest.approx(100 * factor))


def test_without_a_rate_there_is_no_load() -> None:
    assert wire_gb_per_s(planned("all_reduce", "1x8"), None, "RING") is None


def test_nvls_is_above_the_link_in_busbw_and_below_it_on_the_wire() -> None:
    """8 x H100, as published: algbw 275, busbw 481, and 370.8 planned for a GPU's links (nccl-tests issue 212)."""
    job = planned("all_reduce", "1x8")
    busbw = 275 * (job.benchmark.bus_factor(8) or 0)
    wire = wire_gb_per_s(job, 275, "NVLS")
    assert wire is not None
    assert wire < 370.8 < busbw
    text = impossible(job, busbw / 370.8, NVLINK, "NVLS")
    assert text is not None
    assert text.startswith(f"busbw is 1.3 x its limit ({NVLINK}): NVLS: the switch sums")
    assert "NCCL plans" in text
    assert "NCCL plans" not in (impossible(job, 1.4, NVLINK, "NVLS") or "")  # beyond any line rate


@pytest.mark.parametrize("efficiency", [None, 0.0, 0.99, 1.0])
def test_below_the_limit_there_is_nothing_to_say(efficiency: float | None) -> None:
    assert impossible(planned("all_reduce", "1x8"), efficiency, NVLINK) is None


@pytest.mark.parametrize(
    ("benchmark", "layout", "limit_name", "algorithm", "words", "others"),
    [
        ("all_reduce", "1x8", NVLINK, None, {"NVLS", "NCCL plans"}, {"SHARP: the network"}),
        ("all_reduce", "1x8", NVLINK, "RING", {"is wrong", "NCCL plans"}, {"NVLS", "SHARP"}),
        ("all_reduce", "1x8", NVLINK, "AllReduce_RSxLDMC_AGxSTMC", {"NVLS"}, {"SHARP: the network"}),
        ("all_reduce", "2x4", "eth0 1 Gb/s", "COLLNET_CHAIN", {"SHARP: the network"}, {"NVLS"}),
        ("all_reduce", "2x4", "eth0 1 Gb/s", "TREE", {"is wrong"}, {"SHARP", "NVLS"}),
        ("all_gather", "1x8", NVLINK, "NVLS", {"is wrong"}, {"switch sums"}),
        ("p2p_bandwidth", "1x2", "PCIe gen4 x16", None, {"third GPU", "NCCL plans"}, {"NVLS", "SHARP"}),
        ("p2p_bandwidth", "1x2", "measured device copy", None, {"was measured"}, {"NCCL plans", "third GPU"}),
        ("p2p_bandwidth", "2x1", "eth0 1 Gb/s", None, {"is wrong"}, {"SHARP", "NCCL plans"}),
        ("all_reduce", "1x8", None, "RING", {"of no name", "is wrong"}, set()),
    ],
)
def test_causes(
    benchmark: str, layout: str, limit_name: str | None, algorithm: str | None, words: set[str], others: set[str]
) -> None:
    text = impossible(planned(benchmark, layout), 1.2, limit_name, algorithm) or ""
    assert {word for word in words if word not in text} == set()
    assert {word for word in others if word in text} == set()


def test_a_tree_between_two_nodes_stays_below_the_bound() -> None:
    """Its busiest interface carries S each way: algbw is the line rate, busbw 2(n-1)/n of it, and that is the bound."""
    job, line = planned("all_reduce", "2x4"), 12.5
    found = network_limit(job, (Wire("eth0", 100_000.0),) * 2, lambda rank: rank // 4)
    assert found is not None
    busbw = line * (job.benchmark.bus_factor(8) or 0)
    assert busbw > line
    assert busbw == pytest.approx(found[0])
