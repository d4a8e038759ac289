"""Device memory: laid out, filled and checked as host memory is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from commbench.backends.buffers.memory import DeviceBuffer, HostBuffer, buffer_bytes
from commbench.core.payload import DTYPES, message
from commbench.core.program import BufferSpec


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
    buffer, memory = made(spec, pool)
    host = HostBuffer(spec)
    assert len(memory.bytes) == buffer_bytes(spec, pool)
    pattern = message(1, 2, count * slots)
    buffer.write(pattern)
    host.write(pattern)
    assert (memory.bytes.reshape(pool, -1) == host.raw).all()
    assert buffer.count_wrong(pattern, pool) == 0
    assert buffer.address(slots - 1, pool - 1) == memory.address + buffer.offset(
        slots - 1, pool - 1
    )


@given(st.data())
def test_any_byte_that_differs_is_seen_in_the_copies_that_were_used(data: st.DataObject) -> None:
    spec = BufferSpec("data", 100, "int32")
    pool = 3
    buffer, memory = made(spec, pool)
    pattern = message(0, 0, spec.count)
    buffer.write(pattern)
    copy = data.draw(st.integers(0, pool - 1))
    element = data.draw(st.integers(0, spec.count - 1))
    memory.bytes[buffer.offset(copy=copy) + 4 * element] ^= 1
    assert [buffer.count_wrong(pattern, used) for used in (1, 2, 3)] == [
        int(copy < used) for used in (1, 2, 3)
    ]


def test_a_fresh_buffer_is_wrong_in_every_element() -> None:
    buffer, _ = made(BufferSpec("data", 64, "float32"))
    assert buffer.count_wrong(message(0, 0, 64)) == 64


def test_no_memory_is_a_memory_error() -> None:
    def full(size: int) -> Any:
        raise MemoryError(f"{size} B")

    with pytest.raises(MemoryError):
        DeviceBuffer(BufferSpec("data", 1, "int8"), 1, full)
