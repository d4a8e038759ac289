"""Locked pages: whole buffers, from their begin to their end, unlocked before the memory is given back."""

from __future__ import annotations

import gc
import mmap

import pytest

from commbench.buffers.host import HostBuffer
from commbench.buffers.pinned import PinnedBuffer, with_twins
from commbench.core.errors import Unsupported
from commbench.core.program import BufferSpec, Copy, Program, Send, View

SPEC = BufferSpec("data", 3000, "float32", slots=2)
DATA = View("data")
MESSAGE = Program((SPEC,), (Send(DATA, 1),))


class Ledger:
    """A PageLock that writes down what is locked: address -> bytes. `refuses`: it has no pages left."""

    def __init__(self, refuses: bool = False) -> None:
        self.locked: dict[int, int] = {}
        self._refuses = refuses

    def lock(self, address: int, size: int) -> None:
        if self._refuses:
            raise MemoryError("no more pages")
        self.locked[address] = size

    def unlock(self, address: int) -> None:
        del self.locked[address]


def test_a_buffer_is_locked_as_long_as_it_is_there() -> None:
    ledger = Ledger()
    buffer = PinnedBuffer(SPEC, 3, ledger)
    assert ledger.locked == {buffer.address(): 3 * buffer.copy_bytes}
    assert buffer.address() % mmap.PAGESIZE == 0, "pages are locked, not bytes"
    words = buffer.words()
    del buffer
    gc.collect()
    assert ledger.locked == {}
    words[:] = 1  # the memory itself lives as long as anybody looks at it


def test_twins_have_the_pool_of_the_others() -> None:
    ledger, held = Ledger(), {"data": HostBuffer(SPEC, 3)}
    program, buffers = with_twins(MESSAGE, 0, held, lambda spec, pool: PinnedBuffer(spec, pool, ledger))
    assert set(buffers) == {"data", "data@host"} and buffers["data"] is held["data"]
    assert buffers["data@host"].pool == 3 and buffers["data@host"].spec.slots == 2
    assert program.steps == (Copy(DATA, View("data@host")), Send(View("data@host"), 1))


def test_memory_that_can_not_be_locked_is_a_reason_for_a_skip() -> None:
    with pytest.raises(Unsupported, match="staging=pinned needs as much host memory as lies on the GPU: no more pages"):
        with_twins(MESSAGE, 0, {}, lambda spec, pool: PinnedBuffer(spec, pool, Ledger(refuses=True)))
