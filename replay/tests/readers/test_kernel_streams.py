"""Kernels that say to last longer than their stream lets them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commbench_replay.readers.kernel_streams import (
    COMPUTATION,
    NO_CORRELATION,
    PROCESS_GROUP,
    Kernel,
    KernelStreams,
)

Span = tuple[int, int]


def ends(
    *spans: Span, correlations: tuple[int, ...] = (), in_order: bool = True
) -> tuple[list[Span], int]:
    """Start and end of each kernel of one stream, in ns, and how many were cut."""
    streams = KernelStreams()
    for place, (start_ns, end_ns) in enumerate(spans):
        correlation = correlations[place] if correlations else NO_CORRELATION
        streams.add("7", Kernel(start_ns, end_ns, correlation, COMPUTATION))
    found = [(kernel.start_ns, kernel.end_ns) for kernel in streams.kernels(in_order)]
    return found, streams.cut


def test_a_kernel_that_ends_after_the_next_one_is_cut_at_its_start() -> None:
    assert ends((0, 90_000), (20_000, 24_000)) == ([(0, 20_000), (20_000, 24_000)], 1)
    assert ends((20_000, 24_000), (0, 90_000))[1] == 1, "in whatever order the file has them"
    assert ends((0, 90_000), (20_000, 24_000), in_order=False)[1] == 0


def test_several_such_kernels_in_a_row_are_all_cut() -> None:
    spans = [(0, 90_000), (10_000, 99_000), (20_000, 120_000), (30_000, 34_000)]
    assert ends(*spans)[0] == [(0, 10_000), (10_000, 20_000), (20_000, 30_000), (30_000, 34_000)]


def test_a_kernel_that_begins_before_the_one_ahead_has_ended_cuts_nothing() -> None:
    """As 74 kernels of a real profile do, by up to 3.7 us; 1 us is rounding."""
    assert ends((0, 10_000), (6_300, 20_000))[1] == 0
    assert ends((10_000, 12_000), (11_000, 11_000))[1] == 0


def test_kernels_of_one_graph_may_run_side_by_side_but_not_beyond_what_follows() -> None:
    spans = [(0, 9_000), (1_000, 3_000), (10_000, 12_000)]
    assert ends(*spans, correlations=(5, 5, 6))[1] == 0
    assert ends((0, 90_000), *spans[1:], correlations=(5, 5, 6))[0][0] == (0, 10_000)


def test_other_streams_are_left_alone() -> None:
    streams = KernelStreams()
    streams.add("7", Kernel(0, 90_000, 1, COMPUTATION))
    streams.add("20", Kernel(20_000, 24_000, 2, PROCESS_GROUP))
    assert [kernel.end_ns for kernel in streams.kernels(True)] == [90_000, 24_000]


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=8),
    st.integers(0, 99),
)
def test_no_kernel_gains_time_and_starts_stay(lengths: list[Span], correlations: int) -> None:
    spans = [(start * 1000, (start + length) * 1000) for start, length in lengths]
    found, cut = ends(*spans)
    assert [start for start, _ in found] == sorted(start for start, _ in spans)
    kept = sum(end - start for start, end in found)
    assert kept <= sum(length for _, length in lengths) * 1000
    assert (kept < sum(length for _, length in lengths) * 1000) == (cut > 0)
    assert all(end >= start for start, end in found)
