"""Real pages: aligned, apart, guarded; every wrong element is counted, and none that is right."""

from __future__ import annotations

import ctypes
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import for_each
from numpy.typing import NDArray

from commbench.backends.buffers.memory import (
    CHUNK_BYTES,
    GUARD_BYTES,
    LINE_BYTES,
    PAGE_BYTES,
    HostBuffer,
    buffer_bytes,
    slot_bytes,
)
from commbench.core.payload import DTYPES, concatenated, contribution, message, reduced
from commbench.core.program import PERIOD, BufferSpec, Pattern, Segment

EVERY_TYPE = for_each("dtype", DTYPES)
specs = st.builds(
    BufferSpec,
    st.just("data"),
    st.integers(1, 3000),
    st.sampled_from(sorted(DTYPES)),
    slots=st.integers(1, 5),
)


def by_hand(pattern: Pattern, dtype: str) -> NDArray[Any]:
    """All elements, from the definition of a Segment."""
    parts = [
        segment.period[(segment.shift + np.arange(segment.count)) % PERIOD]
        for segment in pattern.segments
    ]
    return DTYPES[dtype].encode(np.concatenate(parts))


def all_words(buffer: HostBuffer, copy: int) -> NDArray[Any]:
    return np.concatenate([buffer.words(slot, copy) for slot in range(buffer.spec.slots)])


def spoil(address: int, mask: int = 0x01) -> None:
    """Flip bits of one byte of memory, as a library that writes to the wrong place would."""
    byte = ctypes.c_uint8.from_address(address)
    byte.value ^= mask


# ---------------------------------------------------------------- where it lies


@given(specs, st.integers(1, 3))
def test_slots_lie_apart_and_large_ones_on_pages(spec: BufferSpec, pool: int) -> None:
    buffer = HostBuffer(spec, pool)
    places = [buffer.address(slot, copy) for copy in range(pool) for slot in range(spec.slots)]
    unit = PAGE_BYTES if buffer.payload_bytes >= PAGE_BYTES else LINE_BYTES
    assert buffer.address() % PAGE_BYTES == 0
    assert all(place % unit == 0 for place in places)
    assert all(b - a >= buffer.payload_bytes + GUARD_BYTES for a, b in pairwise(places))
    assert places[-1] + slot_bytes(spec) - places[0] == buffer_bytes(spec, pool)


def test_buffers_do_not_overlap() -> None:
    first, second = (HostBuffer(BufferSpec(name, 5000, "float32")) for name in ("send", "recv"))
    assert abs(first.address() - second.address()) >= slot_bytes(first.spec)


def test_pages_are_there_before_they_are_used() -> None:
    """Fresh anonymous pages read as 0: a buffer that was not touched would show it."""
    buffer = HostBuffer(BufferSpec("recv", 3 * PAGE_BYTES, "uint8", slots=2), pool=2)
    assert [int(buffer.words(slot, copy).min()) for slot in (0, 1) for copy in (0, 1)] == [0xA5] * 4


@pytest.mark.parametrize("count", [2**46, 2**62, 2**80])
def test_too_much_is_an_out_of_memory_error(count: int) -> None:
    with pytest.raises(MemoryError, match="buffer 'recv'"):
        HostBuffer(BufferSpec("recv", count, "float64"))


# ---------------------------------------------------------------- what it holds


@for_each(
    ("dtype", "reduction", "size"),
    # sizes: exact, and with the widest tolerance
    product(DTYPES, ["message", "sum", "prod", "min", "max", "avg"], [1, 40]),
)
def test_the_sentinel_is_no_payload(dtype: str, reduction: str, size: int) -> None:
    """A library that did nothing must be wrong in every element, whatever the tolerance. float8 has
    averages of a power of two of ranks only."""
    count = 2 * PERIOD
    most = DTYPES[dtype].most
    size = 64 if most < 120 and size > 1 else size
    pattern = (
        message(size, 0, count)
        if reduction == "message"
        else reduced(size, 0, reduction, count, most=most)
    )
    assert HostBuffer(BufferSpec("recv", count, dtype)).count_wrong(pattern) == count


@for_each(
    ("dtype", "shape"),
    product(DTYPES, [(1, 1), (7, 3), (PERIOD, 1), (PERIOD + 1, 2), (100, 2000), (1000, 300)]),
)
def test_a_pattern_lies_slot_after_slot_in_every_copy(dtype: str, shape: tuple[int, int]) -> None:
    count, slots = shape
    buffer = HostBuffer(BufferSpec("send", count, dtype, slots), pool=2)
    pattern = message(3, 1, count * slots, 5)
    buffer.write(pattern)
    for copy in (0, 1):
        assert np.array_equal(all_words(buffer, copy), by_hand(pattern, dtype))
    assert buffer.count_wrong(pattern, copies=2) == 0
    buffer.write(None)
    assert buffer.count_wrong(pattern, copies=2) == 2 * count * slots


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float64"])
@pytest.mark.parametrize("slots", [1, 2])
def test_patterns_go_on_beyond_a_chunk(dtype: str, slots: int) -> None:
    count = 2 * CHUNK_BYTES // DTYPES[dtype].itemsize + 12_345
    buffer = HostBuffer(BufferSpec("send", count, dtype, slots))
    pattern = message(0, 0, count * slots)
    buffer.write(pattern)
    assert np.array_equal(all_words(buffer, 0), by_hand(pattern, dtype))
    for index in (0, CHUNK_BYTES // DTYPES[dtype].itemsize - 1, count // 2, count - 1):
        spoil(buffer.address(slots - 1) + index * DTYPES[dtype].itemsize)
    assert buffer.count_wrong(pattern) == 4


@given(
    st.lists(st.tuples(st.integers(0, 2 * PERIOD), st.integers(0, 3 * PERIOD)), max_size=6),
    st.sampled_from(sorted(DTYPES)),
)
def test_segments_follow_one_another(segments: list[tuple[int, int]], dtype: str) -> None:
    parts = [
        message(key, 0, count, shift) for key, (count, shift) in enumerate([*segments, (1, 0)])
    ]
    pattern = concatenated(parts)
    buffer = HostBuffer(BufferSpec("recv", pattern.count, dtype))
    buffer.write(pattern)
    assert np.array_equal(buffer.words(), by_hand(pattern, dtype))
    assert buffer.count_wrong(pattern) == 0


def test_segments_may_end_inside_a_slot() -> None:
    pattern = concatenated([message(rank, 0, 5) for rank in range(4)])
    buffer = HostBuffer(BufferSpec("recv", 10, "int32", slots=2))
    buffer.write(pattern)
    assert np.array_equal(all_words(buffer, 0), by_hand(pattern, "int32"))
    wrong_order = concatenated([message(rank, 0, 5) for rank in (1, 0, 2, 3)])
    expected = int((by_hand(pattern, "int32") != by_hand(wrong_order, "int32")).sum())
    assert buffer.count_wrong(wrong_order) == expected > 0


# ---------------------------------------------------------------- what is wrong


@given(specs, st.integers(1, 3), st.integers(0, 100), st.data())
def test_every_flipped_element_is_counted_once(
    spec: BufferSpec, pool: int, salt: int, data: st.DataObject
) -> None:
    buffer = HostBuffer(spec, pool)
    pattern = message(1, salt, spec.count * spec.slots)
    buffer.write(pattern)
    places = st.tuples(
        st.integers(0, pool - 1), st.integers(0, spec.slots - 1), st.integers(0, spec.count - 1)
    )
    flipped = data.draw(st.sets(places, max_size=8))
    width = DTYPES[spec.dtype].itemsize
    for copy, slot, element in flipped:
        byte = data.draw(st.integers(0, width - 1))
        bit = data.draw(st.integers(0, 7))
        spoil(buffer.address(slot, copy) + element * width + byte, 1 << bit)
    for copies in range(1, pool + 2):  # more copies than there are: all
        assert buffer.count_wrong(pattern, copies) == sum(copy < copies for copy, _, _ in flipped)


@EVERY_TYPE
def test_a_number_that_is_none_is_wrong(dtype: str) -> None:
    """All bits set: NaN in floating types, which is unequal to everything and must not slip through
    a tolerance."""
    for size, reduction in ((4, "sum"), (3, "avg")):
        pattern = reduced(size, 0, reduction, 100)
        buffer = HostBuffer(BufferSpec("data", 100, dtype))
        buffer.write(pattern)
        ctypes.memset(buffer.address() + 50 * DTYPES[dtype].itemsize, 0xFF, DTYPES[dtype].itemsize)
        assert buffer.count_wrong(pattern) == 1


@for_each(("byte", "count"), product(range(GUARD_BYTES), [3, 1000, PAGE_BYTES]))
def test_a_write_behind_the_end_is_seen(count: int, byte: int) -> None:
    buffer = HostBuffer(BufferSpec("recv", count, "uint8", slots=3), pool=2)
    pattern = message(0, 0, 3 * count)
    buffer.write(pattern)
    spoil(buffer.address(slot=1, copy=1) + count + byte)
    assert (buffer.count_wrong(pattern), buffer.count_wrong(pattern, copies=2)) == (0, 1)
    buffer.write(pattern)
    assert buffer.count_wrong(pattern, copies=2) == 0  # writing mends the guard


def test_a_guard_counts_beside_the_elements() -> None:
    buffer = HostBuffer(BufferSpec("recv", 8, "int32"))
    pattern = message(0, 0, 8)
    buffer.write(pattern)
    # the last element and the guard behind it
    ctypes.memset(buffer.address() + buffer.payload_bytes - 1, 0xFF, 3)
    assert buffer.count_wrong(pattern) == 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_averages_may_differ_by_their_tolerance_and_not_more(dtype: str) -> None:
    pattern = reduced(3, 0, "avg", 1000)
    buffer = HostBuffer(BufferSpec("data", 1000, dtype))
    buffer.write(pattern)
    assert buffer.count_wrong(pattern) == 0
    exact = by_hand(reduced(3, 0, "sum", 1000), "float64") / 3
    held = DTYPES[dtype].decode(buffer.words())
    digits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[dtype]
    assert np.abs(held - exact).max() <= exact.max() * 2.0**-digits
    # the next float is the next integer
    neighbours = buffer.words().view(f"uint{8 * DTYPES[dtype].itemsize}")
    neighbours[10] += 3
    assert buffer.count_wrong(pattern) == 0
    neighbours[[11, 12]] += 8
    assert buffer.count_wrong(pattern) == 2


def test_an_average_over_a_power_of_two_is_exact() -> None:
    pattern = reduced(4, 0, "avg", 100)
    buffer = HostBuffer(BufferSpec("data", 100, "float32"))
    buffer.write(pattern)
    assert (buffer.words() * 4).tolist() == by_hand(reduced(4, 0, "sum", 100), "float32").tolist()
    spoil(buffer.address())  # one unit in the last place
    assert (pattern.ulp, buffer.count_wrong(pattern)) == (0, 1)


def test_what_a_rank_contributes_can_be_written() -> None:
    pattern = contribution(9, 12, 2, "sum", 500)
    buffer = HostBuffer(BufferSpec("source", 500, "bfloat16"))
    buffer.write(pattern)
    assert np.array_equal(buffer.words(), by_hand(pattern, "bfloat16"))


def test_periods_of_different_segments_are_kept_apart() -> None:
    """Two segments with equal shifts: a cache by position instead of by period would confuse
    them."""
    ones = np.full(PERIOD, 1)
    twos = np.full(PERIOD, 2)
    pattern = Pattern((Segment(3, ones), Segment(2, twos), Segment(1, ones)))
    buffer = HostBuffer(BufferSpec("data", 6, "int64"))
    buffer.write(pattern)
    assert buffer.words().tolist() == [1, 1, 1, 2, 2, 1]
