"""Portions of memory hold the same bytes in the same order; TCP_INFO of a real connection and of
arbitrary bytes."""

from __future__ import annotations

import math
import socket
import struct

from hypothesis import given
from hypothesis import strategies as st

from commbench.features.tcp.connection import (
    INFO_BYTES,
    INFO_FIELDS,
    MAX_VIEWS,
    UNKNOWN,
    io_vectors,
    parse_info,
    remaining,
)


@given(st.lists(st.binary(max_size=9), max_size=3000))
def test_a_vector_is_what_one_call_may_move(messages: list[bytes]) -> None:
    vectors = io_vectors([memoryview(message) for message in messages])
    assert b"".join(bytes(view) for vector in vectors for view in vector.views) == b"".join(
        messages
    )
    assert all(0 < len(vector.views) <= MAX_VIEWS for vector in vectors)
    assert all(
        vector.size_bytes == sum(len(view) for view in vector.views) > 0 for vector in vectors
    )


@given(st.lists(st.binary(max_size=9), max_size=30), st.integers(0, 300))
def test_the_remaining_views_are_all_but_the_first_bytes(messages: list[bytes], done: int) -> None:
    left = list(remaining([memoryview(message) for message in messages], done))
    assert b"".join(left) == b"".join(messages)[done:]
    assert all(len(view) for view in left)


@given(st.binary(max_size=INFO_BYTES))
def test_any_bytes_give_numbers_that_are_finite_and_not_negative(raw: bytes) -> None:
    fields = parse_info(raw)
    assert set(fields) <= set(INFO_FIELDS)
    assert all(math.isfinite(value) and value >= 0 for value in fields.values())


@given(st.binary(min_size=INFO_BYTES, max_size=INFO_BYTES), st.integers(0, INFO_BYTES))
def test_a_shorter_struct_gives_fewer_fields_with_the_same_values(raw: bytes, length: int) -> None:
    whole = parse_info(raw)
    part = parse_info(raw[:length])
    assert part.items() <= whole.items()
    assert all(
        INFO_FIELDS[name][0] + struct.calcsize(INFO_FIELDS[name][1]) <= length for name in part
    )


def test_values_lie_where_the_kernel_writes_them() -> None:
    raw = bytearray(232)
    struct.pack_into("=I", raw, 68, 1500)
    struct.pack_into("=I", raw, 80, 10)
    struct.pack_into("=I", raw, 100, 7)
    struct.pack_into("=Q", raw, 120, 2**40)
    struct.pack_into("=I", raw, 148, UNKNOWN)
    fields = parse_info(bytes(raw))
    assert (fields["rtt_s"], fields["cwnd"], fields["retransmits"], fields["bytes_acked"]) == (
        0.0015,
        10,
        7,
        2**40,
    )
    assert "min_rtt_s" not in fields, "no sample yet"


def test_a_real_connection_counts_what_was_moved() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        other, _ = server.accept()
        with other:
            client.sendall(b"x" * 10_000)
            assert len(other.recv(10_000, socket.MSG_WAITALL)) == 10_000
            other.sendall(b"y" * 10)  # carries the acknowledgement
            client.recv(10, socket.MSG_WAITALL)
            sender = parse_info(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES))
            receiver = parse_info(other.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES))
            mss = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    assert set(sender) == set(INFO_FIELDS), "this kernel has them all"
    assert 10_000 <= sender["bytes_acked"] <= 10_001  # the SYN counts as one
    assert receiver["bytes_received"] == 10_000
    assert sender["mss"] == mss
    assert 0 < sender["rtt_s"] < 10
    assert sender["cwnd"] >= 1
