"""Device memory: laid out, filled and checked as host memory is."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from commbench.backends.buffers import memory
from commbench.backends.buffers.memory import (
    CHUNK_BYTES,
    GUARD_BYTES,
    SENTINEL,
    DeviceBuffer,
    HostBuffer,
    buffer_bytes,
    host_bytes,
    resident_bytes,
)
from commbench.core.payload import DTYPES, message
from commbench.core.program import BufferSpec, View


class Memory:
    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, dtype=np.uint8)
        self.address = 1 << 40

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        self.bytes[offset : offset + len(data)] = data

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        return self.bytes[offset : offset + size].copy()


def made(spec: BufferSpec, pool: int = 1) -> tuple[DeviceBuffer, Any]:
    buffer = DeviceBuffer(spec, pool, Memory)
    return buffer, buffer.allocation


@given(st.integers(1, 3000), st.sampled_from(sorted(DTYPES)), st.integers(1, 3), st.integers(1, 3))
def test_all_copies_hold_what_host_memory_would(
    count: int, kind: str, slots: int, pool: int
) -> None:
    spec = BufferSpec("data", count, kind, slots)
    buffer, device = made(spec, pool)
    host = HostBuffer(spec)
    assert len(device.bytes) == buffer_bytes(spec, pool)
    pattern = message(1, 2, count * slots)
    buffer.write(pattern)
    host.write(pattern)
    assert (device.bytes.reshape(pool, -1) == host.raw).all()
    assert buffer.count_wrong(pattern, pool) == 0
    assert buffer.address(slots - 1, pool - 1) == device.address + buffer.offset(
        slots - 1, pool - 1
    )


@given(st.data())
def test_any_byte_that_differs_is_seen_in_the_copies_that_were_used(data: st.DataObject) -> None:
    spec = BufferSpec("data", 100, "int32")
    pool = 3
    buffer, device = made(spec, pool)
    pattern = message(0, 0, spec.count)
    buffer.write(pattern)
    copy = data.draw(st.integers(0, pool - 1))
    element = data.draw(st.integers(0, spec.count - 1))
    device.bytes[buffer.offset(copy=copy) + 4 * element] ^= 1
    assert [buffer.count_wrong(pattern, used) for used in (1, 2, 3)] == [
        int(copy < used) for used in (1, 2, 3)
    ]


@given(st.data())
def test_a_large_copy_is_written_and_checked_in_parts(data: st.DataObject) -> None:
    """Of 4 KiB here: its elements, its guards and any byte of them that differs."""
    kind = data.draw(st.sampled_from(sorted(DTYPES)))
    slots, pool = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    spec = BufferSpec("data", data.draw(st.integers(1000, 6000)), kind, slots)
    pattern = message(1, 2, spec.count * slots)
    with patch.object(memory, "PART_BYTES", 4096):
        buffer, device = made(spec, pool)
        buffer.write(pattern)
        host = HostBuffer(spec, pool)
        host.write(pattern)
        slot_bytes = buffer.payload_bytes + GUARD_BYTES
        slot, copy = data.draw(st.integers(0, slots - 1)), data.draw(st.integers(0, pool - 1))
        begin = buffer.offset(slot, copy)
        assert (device.bytes[begin:][:slot_bytes] == host.raw[begin:][:slot_bytes]).all()
        assert buffer.count_wrong(pattern, pool) == 0
        device.bytes[begin + data.draw(st.integers(0, slot_bytes - 1))] ^= 1
        assert buffer.count_wrong(pattern, pool) == 1
        assert buffer.count_wrong(pattern, copy) == 0


def test_an_incomplete_pattern_leaves_the_sentinel_behind_it() -> None:
    spec = BufferSpec("data", 5000, "int32")
    with patch.object(memory, "PART_BYTES", 4096):
        buffer, device = made(spec)
        buffer.write(message(1, 2, spec.count))
        buffer.write(message(1, 3, 1500))
    assert (device.bytes[4 * 1500 : 4 * spec.count] == SENTINEL).all()
    assert buffer.count_wrong(message(1, 3, 1500)) == 0


class NoMemory:
    """Of a device: none is kept on the host."""

    address = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def upload(self, offset: int, data: NDArray[np.uint8]) -> None:
        assert offset + len(data) <= self.size

    def download(self, offset: int, size: int) -> NDArray[np.uint8]:
        return np.full(size, SENTINEL, dtype=np.uint8)


def test_a_vector_on_a_device_needs_two_parts_of_it_on_the_host() -> None:
    count = 2**26
    spec = BufferSpec("data", count, "float32")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident_bytes(peak=True)
    buffer = DeviceBuffer(spec, 1, NoMemory)
    buffer.write(message(0, 0, count))
    assert buffer.count_wrong(message(0, 0, count)) == count
    after = resident_bytes(peak=True)
    assert before is not None and after is not None
    rest_bytes = 16 * CHUNK_BYTES  # a repeated pattern and the elements that are compared
    assert after - before < host_bytes(spec, 1) + rest_bytes < buffer_bytes(spec, 1) / 4


def test_a_fresh_buffer_is_wrong_in_every_element() -> None:
    buffer, _ = made(BufferSpec("data", 64, "float32"))
    assert buffer.count_wrong(message(0, 0, 64)) == 64


def test_no_memory_is_a_memory_error() -> None:
    def full(size: int) -> Any:
        raise MemoryError(f"{size} B")

    with pytest.raises(MemoryError):
        DeviceBuffer(BufferSpec("data", 1, "int8"), 1, full)


def test_a_view_is_read_as_host_memory_has_it() -> None:
    spec = BufferSpec("data", 100, "bfloat16", 2)
    device, _ = made(spec, 2)
    host = HostBuffer(spec, 2)
    for buffer in (device, host):
        buffer.write(message(1, 2, 200))
    view = View("data", slot=1, offset=7, count=50)
    host.words(1, copy=1)[7] = 0
    device.allocation.upload(0, host.raw)
    for copy in range(2):
        assert (device.read(view, copy) == host.words(1, copy)[7:57]).all()
        assert (host.read(view, copy) == device.read(view, copy)).all()
    assert (host.read(view, 0) != host.read(view, 1)).sum() == 1
