"""Unions of intervals are those that counting every nanosecond finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commbench_replay.busy_times import BusyTimes, SpanUnion, union_of

TIMES = st.integers(0, 40)
SPANS = st.lists(st.tuples(TIMES, TIMES), max_size=12)


def covered(spans: list[tuple[int, int]]) -> set[int]:
    return {time for start, end in spans for time in range(start, end)}


@given(spans=SPANS, most_late=st.integers(1, 5))
def test_a_union_covers_what_its_intervals_do_however_often_it_is_merged(
    spans: list[tuple[int, int]], most_late: int
) -> None:
    union = SpanUnion(most_late)
    for span in spans:
        union.add(*span)
    merged = list(union.spans())
    assert covered(merged) == covered(spans)
    assert merged == sorted(merged) == list(union.spans())
    ends = [end for _, end in merged[:-1]]
    assert all(end < start for end, (start, _) in zip(ends, merged[1:], strict=True))
    assert union_of([span for span in spans if span[0] < span[1]]) == merged


@given(spans=SPANS, start=TIMES, end=TIMES, offset=st.sampled_from([0, 7, 10**18]))
def test_the_busy_part_of_an_interval_is_its_share_of_the_union(
    spans: list[tuple[int, int]], start: int, end: int, offset: int
) -> None:
    union = SpanUnion()
    for span in spans:
        union.add(*span)
    busy = BusyTimes(union.spans(), offset)
    assert busy.total_ns == len(covered(spans))
    expected = len(covered(spans) & set(range(start, end)))
    assert busy.within(offset + start, offset + end) == expected


def test_a_time_is_kept_up_to_the_largest_integer() -> None:
    union = SpanUnion()
    union.add(0, 2**63 - 1)
    assert BusyTimes(union.spans()).within(0, 2**63 - 1) == 2**63 - 1
