"""How messages are cut and who meets whom: pure arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.backends.tcp.lowering import barrier_partners, cut, peers
from commbench.core.errors import Unsupported
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Irecv,
    Isend,
    Program,
    Send,
    View,
    WaitAll,
)


@given(st.binary(max_size=300), st.integers(1, 64))
def test_parts_are_contiguous_and_nearly_equal(message: bytes, parts: int) -> None:
    found = cut(memoryview(message), parts)
    assert len(found) == parts
    assert b"".join(found) == message
    sizes = [len(part) for part in found]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 70))
def test_after_a_barrier_everybody_has_heard_of_everybody(size: int) -> None:
    """Simulate the rounds: what a rank knows when it leaves."""
    known = [{rank} for rank in range(size)]
    rounds = [barrier_partners(rank, size) for rank in range(size)]
    for number in range(len(rounds[0])):
        before = [set(one) for one in known]
        for rank in range(size):
            onward, back = rounds[rank][number]
            assert rounds[onward][number][1] == rank, "who is sent a byte expects it"
            known[rank] |= before[back]
    assert known == [set(range(size))] * size
    assert len(rounds[0]) == (size - 1).bit_length()


def test_a_collective_is_refused_with_the_reason() -> None:
    data = View("data")
    for step in (AllReduce(data, data, "sum"), Broadcast(data, 0), AllGather(data, data), AllToAll(data, data)):
        with pytest.raises(Unsupported, match="point to point only"):
            peers(Program((), (Send(data, 1), step)))
    assert peers(Program((), (Isend(data, 3, 0), Irecv(data, 1, 1), WaitAll((0, 1)), Barrier()))) == [1, 3]
