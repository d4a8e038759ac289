"""The operations that add, with payload=rounding: contents of their buffers, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmark_trials import case_of

from commbench.backends.buffers.memory import HostBuffer
from commbench.benchmarks.all_reduce import AllReduce
from commbench.benchmarks.each_node import OnEachNode
from commbench.benchmarks.reduce import Reduce
from commbench.benchmarks.reduce_scatter import ReduceScatter
from commbench.core.case import Benchmark
from commbench.core.payload import dtype
from commbench.core.program import BufferSpec
from commbench.core.variables import Case
from commbench.features.accuracy.rounding import around
from commbench.features.accuracy.values import summands
from commbench.features.simulated.backend import Simulated

RANKS = 4
COUNT = 20_000  # more than two periods


def rounding(benchmark: Benchmark, **axes: Any) -> tuple[Benchmark, Case]:
    case = replace(case_of(benchmark, RANKS, COUNT * 4), payload="rounding", elements=COUNT, **axes)
    return around(benchmark, case, Simulated()), case


def data_of(benchmark: Benchmark, case: Case, rank: int, count: int = COUNT) -> HostBuffer:
    """A buffer with the sums of all ranks, rounded once, and the input around them in place."""
    buffer = HostBuffer(BufferSpec("data", count, case.dtype))
    pattern = benchmark.expected(case, rank, RANKS, "data", 0)
    assert pattern is not None
    segments = tuple(
        replace(
            each,
            tolerance=None,
            period=dtype(case.dtype).decode(dtype(case.dtype).encode(each.period)),
        )
        for each in pattern.segments
    )
    buffer.write(replace(pattern, segments=segments))
    return buffer


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16"])
def test_sums_within_the_bound_are_right_and_others_are_wrong(kind: str) -> None:
    benchmark, case = rounding(AllReduce(), dtype=kind, in_place=True)
    buffer = data_of(benchmark, case, rank=1)
    pattern = benchmark.expected(case, 1, RANKS, "data", 0)
    assert pattern is not None
    assert buffer.count_wrong(pattern) == 0
    words = buffer.words()
    bits = words.view(f"u{words.itemsize}")
    bits[7] ^= 1  # the last place
    assert buffer.count_wrong(pattern) == 0
    bits[7] ^= 1 << (8 * words.itemsize - 3)  # an exponent
    bits[15_000] ^= 1 << (8 * words.itemsize - 1)  # a sign, in the second period
    assert buffer.count_wrong(pattern) == 2


def test_infinities_and_nan_are_wrong() -> None:
    benchmark, case = rounding(AllReduce(), dtype="float32", in_place=True)
    buffer = data_of(benchmark, case, rank=0)
    buffer.words()[:3] = [np.nan, np.inf, -np.inf]
    pattern = benchmark.expected(case, 0, RANKS, "data", 0)
    assert pattern is not None and buffer.count_wrong(pattern) == 3


def test_a_reduce_scatter_in_place_must_leave_the_other_blocks_as_they_were() -> None:
    benchmark, case = rounding(ReduceScatter(), dtype="float32", in_place=True)
    buffer = data_of(benchmark, case, rank=2, count=RANKS * COUNT)
    pattern = benchmark.expected(case, 2, RANKS, "data", 0)
    assert pattern is not None and buffer.count_wrong(pattern) == 0
    bits = buffer.words().view(np.uint32)
    bits[2 * COUNT + 5] ^= 1  # the own block may round otherwise
    assert buffer.count_wrong(pattern) == 0
    bits[5] ^= 1
    assert buffer.count_wrong(pattern) == 1


def test_each_rank_sends_its_own_values_and_only_the_root_of_a_reduce_has_a_result() -> None:
    benchmark, case = rounding(Reduce(), dtype="float32", root=3, in_place=False)
    pattern = benchmark.fill(case, 2, RANKS, "source", 5)
    assert pattern is not None
    assert (pattern.segments[0].period == summands("float32", 2, 5)).all()
    expected = [benchmark.expected(case, rank, RANKS, "data", 0) for rank in range(RANKS)]
    assert [pattern is not None for pattern in expected] == [False, False, False, True]


def test_a_case_without_it_keeps_its_benchmark() -> None:
    benchmark = AllReduce()
    assert around(benchmark, case_of(benchmark, RANKS, 64), Simulated()) is benchmark


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"dtype": "int32"}, "has no values of int32; use dtype=float64"),
        ({"dtype": "float32", "reduction": "max"}, "is for sums, max is not one"),
        ({"dtype": "float32", "timed": "together"}, "leave out overlap"),
    ],
)
def test_what_is_not_a_rounded_sum_of_all_ranks_is_refused(axes: dict[str, str], said: str) -> None:
    benchmark, case = rounding(AllReduce(), **axes)
    assert said in str(benchmark.refusal(case, RANKS))


def test_ranks_of_each_node_are_refused() -> None:
    benchmark, case = rounding(OnEachNode(AllReduce(), 2), dtype="float32", node="0 1")
    assert "leave out nodes=each" in str(benchmark.refusal(case, RANKS))


def test_two_groups_of_two_ranks_at_least_reduce_beside_each_other() -> None:
    benchmark, case = rounding(AllReduce())
    groups = {size: list(benchmark.groups(case, size)) for size in (2, 3, 4, 7)}
    assert groups == {
        2: [],
        3: [],
        4: [(0, 1), (2, 3)],
        7: [(0, 1, 2), (3, 4, 5)],
    }
