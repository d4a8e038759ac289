"""all_to_all_v: its size, its blocks and its bus bandwidth follow from the traffic."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_trials import BenchmarkTrial, case_of

from commbench.core.program import AllToAllV as AllToAllVStep
from commbench.core.program import BufferSpec
from commbench.features.traffic.all_to_all_v import AllToAllV
from commbench.features.traffic.matrices import parse_traffic

BENCHMARK = AllToAllV()


def test_traffic_with_bytes_decides_the_size_and_a_pattern_does_not(tmp_path: Path) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text("0 40 0\n 8 0 8\n 0 0 0\n")
    case = case_of(BENCHMARK, 3, 1000, traffic=parse_traffic(str(path)).text)
    assert (case.elements, case.message_bytes) == (10, 40)
    pattern = case_of(BENCHMARK, 3, 1000, traffic="incast")
    assert (pattern.elements, pattern.message_bytes) == (1000, 4000)


@pytest.mark.parametrize(
    ("traffic", "factor"),
    [("uniform", 3 / 4), ("incast", 3.0), ("outcast", 1.0), ("ring", 1.0), ("permutation", 1.0)],
)
def test_bus_bandwidth_is_that_of_the_busiest_rank_without_itself(
    traffic: str, factor: float
) -> None:
    case = case_of(BENCHMARK, 4, 1200, traffic=traffic)
    assert BENCHMARK.bus_factor(case, 4) == factor


def test_traffic_of_each_rank_with_itself_has_no_bus_bandwidth(tmp_path: Path) -> None:
    path = tmp_path / "matrix.txt"
    path.write_text("8 0\n0 8\n")
    case = case_of(BENCHMARK, 2, 1, traffic=parse_traffic(str(path)).text)
    assert BENCHMARK.bus_factor(case, 2) is None


def test_blocks_and_buffers_are_as_long_as_the_matrix_says() -> None:
    case = case_of(BENCHMARK, 3, 6, traffic="incast")
    programs = [BENCHMARK.program(case, rank, 3) for rank in range(3)]
    counts = []
    for program in programs:
        (step,) = program.steps
        assert isinstance(step, AllToAllVStep)
        counts.append((step.send_counts, step.recv_counts))
    nothing = (0, 0, 0)
    assert counts == [(nothing, (0, 6, 6)), ((6, 0, 0), nothing), ((6, 0, 0), nothing)]
    lengths = [[spec.count for spec in program.buffers] for program in programs]
    assert lengths == [[1, 12], [6, 1], [6, 1]]
    assert programs[0].buffers[0] == BufferSpec("source", 1, "float32")


def test_a_block_at_another_senders_place_is_seen() -> None:
    """Rows of alike length: only the contents tell the senders apart."""
    case = case_of(BENCHMARK, 3, 6, traffic="incast")
    world = BenchmarkTrial(BENCHMARK, case, 3)
    world.run(1)
    assert world.wrong() == {(0, "data"): 0}
    words = world.buffers[0]["data"].words(0)
    words[:6] = words[6:].copy()
    assert world.count(0, "data") > 0


def test_a_world_of_a_thousand_is_planned_in_seconds() -> None:
    """The matrix of all ranks is made once."""
    size = 1024
    case = case_of(BENCHMARK, size, 1, traffic="moe tokens=64 hidden=64 experts=1024")
    specs = [BENCHMARK.buffers(case, rank, size) for rank in range(size)]
    assert max(source.count for source, _ in specs) == case.elements
