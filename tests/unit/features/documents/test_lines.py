"""The lines that say whether numbers are normal."""

from __future__ import annotations

from typing import Any

import pytest
from sample_cases import case_row

from commbench.features.documents.lines import lines_without, normal_lines
from commbench.features.documents.normal import judge
from commbench.features.documents.reference import Reference, references
from commbench.results.row import Row

H100 = "gpu.0.name=NVIDIA H100 80GB HBM3; gpu.count=8"
B200 = "gpu.0.name=NVIDIA B200; gpu.count=8"


def row(benchmark: str, size: int, **more: Any) -> Row:
    values = {
        "benchmark": benchmark,
        "backend": "nccl",
        "layout": "1x8",
        "world_size": 8,
        "ranks_per_node": 8,
        "message_bytes": size,
        "in_place": False,
        "timer": "host_sync",
        "library": "torch 2.13.0+cu130 nccl 2.29.2",
        "device": "cuda",
        "status": "ok",
        "median_s": 1e-3,
    }
    return case_row(**values | more)


def test_a_line_has_the_case_the_value_the_ratio_and_how_it_was_measured() -> None:
    rows = [row("all_gather", 2**29, busbw_gb_per_s=331.0)]
    assert normal_lines(judge(rows, [H100])) == [
        "all_gather 512 MiB: 331 GB/s busbw; normal on 8 H100 SXM: 335 GB/s (0.988 x; nccl-tests,"
        " NCCL 2.29.2, out of place, one measurement)"
    ]


def test_what_differs_in_the_way_of_measuring_is_said() -> None:
    library = "torch 2.13.0+cu130 nccl 2.27.5"
    rows = [row("all_gather", 2**29, busbw_gb_per_s=331.0, in_place=True, library=library)]
    (line,) = normal_lines(judge(rows, [H100]))
    assert line.endswith("; here: in place, NCCL 2.27.5")


def test_a_small_message_of_another_timer_is_shown_and_decides_nothing() -> None:
    (judged,) = judge([row("all_reduce", 2**13, median_s=31e-6)], [H100])
    assert not judged.decides and judged.verdict == "slower than with another timer"
    (line,) = normal_lines([judged])
    assert "31.0 us; slower than with another timer on 8 H100 SXM: 16.0 us (1.94 x" in line
    assert "here: timer host_sync" in line and "usual causes" not in line
    (same,) = judge([row("all_reduce", 2**13, median_s=31e-6, timer="throughput")], [H100])
    assert same.decides and same.verdict == "slower"


def test_the_largest_and_the_smallest_size_have_a_line_and_each_value_that_is_far() -> None:
    rows = [
        row("all_reduce", size, busbw_gb_per_s=rate, median_s=16e-6, timer="throughput")
        for size, rate in ((2**13, 1.0), (2**28, 420.0), (2**29, 440.0), (2**34, 480.0))
    ]
    azure = f"host.machine_vendor=Microsoft; {H100}"
    lines = normal_lines(judge(rows, [azure]))
    assert [line.split(":")[0] for line in lines] == ["all_reduce 16 GiB", "all_reduce 8 KiB"]
    rows[-1] = row("all_reduce", 2**34, busbw_gb_per_s=455.0)
    floor = "slower than normal on Azure ND H100 v5, 8 GPUs of one node: at least 460 GB/s"
    assert any(floor in line for line in normal_lines(judge(rows, [azure])))


def test_each_version_of_a_library_has_its_own_value_where_they_differ() -> None:
    rates = {"2.29.2": 141.0, "2.28.9": 276.0, "2.30.1": 276.0}
    for version, rate in rates.items():
        library = f"torch 2.13.0 nccl {version}"
        rows = [row("all_gather", 2**24, busbw_gb_per_s=rate, library=library)]
        verdicts = [each.verdict for each in judge(rows, [B200])]
        assert verdicts == (["normal"] if version != "2.30.1" else [])


def test_without_a_value_the_nearest_machine_that_has_one_is_named() -> None:
    rows = [row("all_reduce", 2**29, busbw_gb_per_s=400.0)]
    h20 = "gpu.0.name=NVIDIA H20"
    nearest, own = lines_without([], {(h20,): rows})
    assert nearest.startswith("all_reduce nccl 1x8: no value; the nearest machine with one is 8 H")
    assert own.startswith("Add your own: commbench reference add RUN --name ")
    other_size = [row("all_to_all", 2**20, busbw_gb_per_s=100.0)]
    line, _ = lines_without([], {(H100,): other_size})
    assert line.endswith("no value of these sizes; known on 8 H100 SXM: 315 GB/s at 512 MiB")
    unknown, _ = lines_without([], {(H100,): [row("broadcast", 2**29, busbw_gb_per_s=1.0)]})
    assert unknown == "broadcast nccl 1x8: no value of any machine"
    flagged = [row("all_reduce", 2**29, busbw_gb_per_s=1.0, warnings=["waited"])]
    assert lines_without([], {(H100,): flagged}) == [], "it has a value, but is not judged"
    assert lines_without(judge(rows, [H100]), {(H100,): rows}) == []


MACHINES = {
    "A100 SXM": ("NVIDIA A100-SXM4-80GB", 8),
    "H100 SXM": ("NVIDIA H100 80GB HBM3", 8),
    "H200 SXM": ("NVIDIA H200", 8),
    "B200 SXM": ("NVIDIA B200", 8),
    "GB200": ("NVIDIA GB200", 4),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("benchmark", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_the_collectives_on_the_gpus_of_a_node_have_values(name: str, benchmark: str) -> None:
    gpu, most = MACHINES[name]
    for ranks in {4, most}:
        case = row(
            benchmark,
            2**29,
            busbw_gb_per_s=1.0,
            layout=f"1x{ranks}",
            world_size=ranks,
            ranks_per_node=ranks,
        )
        found = judge([case], [f"gpu.0.name={gpu}"])
        assert name in {each.reference.name for each in found}, (gpu, ranks)


def documents_with(**keys: object) -> list[Reference]:
    return [each for each in references() if all(getattr(each, n) == v for n, v in keys.items())]


def test_every_value_of_another_tool_says_its_licence_and_how_sure_it_is() -> None:
    assert len(documents_with(tool="nccl-tests")) > 40
    for each in references():
        assert bool(each.licence) == bool(each.sure), each
        if each.tool:
            assert each.licence and each.sure, each
    assert not any("L40S" in each.machine for each in references()), "of a sick host"


def test_a_value_that_is_in_doubt_decides_nothing() -> None:
    (doubtful,) = documents_with(sure="low")
    assert doubtful.ranks == 2048 and not doubtful.decides
