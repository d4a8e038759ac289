"""Streams with real sockets on loopback: what arrives, who writes how much, and trouble."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
from rank_threads import SOON_S, no_error, together
from tcp_ranks import Rank, content, opened

from commbench.core.errors import CommunicationError
from commbench.core.program import BufferSpec, Program, View
from commbench.core.variables import StreamThreads
from commbench.features.tcp.backend import Tcp, TcpCommunicator
from commbench.features.tcp.connection import Connection
from commbench.features.tcp.stream_runner import (
    Lane,
    Marks,
    Read,
    Spare,
    Write,
    drain,
    feed,
    stream_runner,
    wake_up,
)

KIB = 1024
BOTH: tuple[StreamThreads, ...] = ("one", "each")


@pytest.fixture(autouse=True)
def default_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMBENCH_TCP_INTERFACE", raising=False)


def stream(rank: int, count: int, streams: int, pair: tuple[int, int] = (0, 1)) -> Program:
    first, second = pair
    ends = [name for name, end in (("send", first), ("recv", second)) if end == rank]
    slots = range(streams)
    writes = [Write(View("send", slot), second) for slot in slots if rank == first]
    reads = [Read(View("recv", slot), first) for slot in slots if rank == second]
    buffers = tuple(BufferSpec(name, count, "uint8", streams) for name in ends)
    return Program(buffers, (*writes, *reads), runner=stream_runner)


@pytest.mark.parametrize("threads", BOTH)
@pytest.mark.parametrize("streams", [1, 5])
@pytest.mark.parametrize("count", [1, 300 * KIB])
def test_all_that_is_written_arrives(count: int, streams: int, threads: StreamThreads) -> None:
    with opened(2) as communicators:

        def work(rank: int) -> Any:
            program = stream(rank, count, streams).repeated(3)
            runner = Rank(communicators[rank], program, streams, stream_threads=threads)
            stamps = np.concatenate([runner.run(n) for n in (1, 7)], axis=1)
            return stamps, rank == 0 or runner.received(0)

        (sent, _), (received, is_right) = no_error(together(work, range(2)))
    assert is_right
    for stamps in (sent, received):
        assert stamps.shape == (1, 8, 2)
        (starts, ends) = stamps[0].T
        assert (ends >= starts).all() and starts[0] < ends[0]
        assert (starts[2:] == ends[1:-1]).all(), "a block has no gap"


@pytest.mark.parametrize("threads", BOTH)
@pytest.mark.parametrize("streams", [1, 3])
def test_a_rank_can_stream_to_itself(streams: int, threads: StreamThreads) -> None:
    with opened(1) as (alone,):
        program = stream(0, 200 * KIB, streams, pair=(0, 0))
        runner = Rank(alone, program, streams, stream_threads=threads)
        (stamps,) = runner.run(20)
        assert (np.diff(stamps[:, 1]) >= 0).all()
        assert runner.received(0)


@contextmanager
def connections(count: int) -> Iterator[list[tuple[Connection, Connection]]]:
    """Both ends of each."""

    def unexpected(error: OSError) -> None:
        raise AssertionError(error)

    pairs = [socket.socketpair() for _ in range(count)]
    both = [
        [Connection((rank, stream), end, end, SOON_S, unexpected) for rank, end in enumerate(ends)]
        for stream, ends in enumerate(pairs)
    ]
    try:
        yield [(sender, receiver) for sender, receiver in both]
    finally:
        for end in chain.from_iterable(both):
            end.close()


@pytest.mark.parametrize("threads", BOTH)
def test_a_slow_connection_holds_no_other_one_up(threads: StreamThreads) -> None:
    """The receiver takes nothing of the second one before most has come over the first."""
    count = 64 * KIB
    writes = 400
    sent = Marks(writes, count, np.zeros(2, dtype=np.int64))
    spare = Spare(writes - 2)
    taken = [0, 0]
    with connections(2) as pairs:

        def take(index: int) -> None:
            memory = memoryview(bytearray(count))
            while sum(taken) < writes * count:
                if index == 0 or taken[0] > 0.8 * writes * count:
                    taken[index] += pairs[index][1].receive_some(memory)
                else:
                    time.sleep(0.01)

        lanes = [Lane(sender, memoryview(bytes(count))) for sender, _ in pairs]
        groups = [[lane] for lane in lanes] if threads == "each" else [lanes]
        jobs = [partial(feed, group, spare, sent) for group in groups]
        jobs += [partial(take, index) for index in range(2)]
        no_error(together(lambda job: job(), jobs))
    assert sum(taken) == writes * count
    assert sent.is_complete
    assert taken[1] > 0


def test_drains_end_together_though_one_connection_brought_nothing() -> None:
    received = Marks(4, KIB, np.zeros(2, dtype=np.int64))
    data = content(0, 0, 0, KIB).tobytes()
    memory = [bytearray(KIB) for _ in range(2)]
    with connections(2) as pairs, wake_up() as wake:
        lanes = [
            Lane(receiver, memoryview(own))
            for (_, receiver), own in zip(pairs, memory, strict=True)
        ]
        for _ in range(4):
            pairs[0][0].send_one(memoryview(data))
        no_error(together(lambda lane: drain([lane], received, wake), lanes))
    assert received.is_complete
    assert memory == [data, bytes(KIB)]


@pytest.mark.parametrize("threads", BOTH)
@pytest.mark.parametrize("streams", [1, 3])
def test_a_peer_that_dies_is_named_at_once(streams: int, threads: StreamThreads) -> None:
    received = threading.Event()
    with opened(2) as communicators:

        def work(rank: int) -> Any:
            program = stream(rank, 64 * KIB, streams)
            runner = Rank(communicators[rank], program, streams, stream_threads=threads)
            runner.run(1)
            if rank == 0:
                assert received.wait(SOON_S)  # what is still on its way would be lost with it
                communicators[rank].close(abort=True)
                return 0.0
            received.set()
            begin_s = time.monotonic()
            with pytest.raises(CommunicationError, match="rank 0, connection"):
                runner.run(5)
            return time.monotonic() - begin_s

        _, waited_s = no_error(together(work, range(2)))
    assert waited_s < 5


@pytest.mark.parametrize("streams", [1, 3])
def test_a_sender_that_is_silent_is_named_after_the_timeout(streams: int) -> None:
    named = threading.Event()
    with opened(2, Tcp(timeout_s=1.0)) as communicators:

        def work(rank: int) -> Any:
            runner = Rank(communicators[rank], stream(rank, KIB, streams), streams)
            if rank == 0:
                runner.run(1)
                assert named.wait(SOON_S)
                return
            with pytest.raises(CommunicationError, match=r"no byte moved for 1 s"):
                runner.run(1)
                runner.run(1)
            named.set()

        no_error(together(work, range(2)))


def ports(communicator: TcpCommunicator) -> set[int]:
    endpoint = communicator.endpoint
    return {endpoint[0, stream].outward.getpeername()[1] for stream in range(2)}


def test_a_fresh_program_has_connections_that_nothing_has_used() -> None:
    turns = threading.Barrier(2)
    with opened(2) as communicators:

        def work(rank: int) -> list[set[int]]:
            seen = []
            for fresh in (False, False, True):
                turns.wait(SOON_S)  # ranks prepare a program once all have run the one before
                program = stream(rank, KIB, 2)
                runner = Rank(communicators[rank], program, 2, fresh=fresh)
                runner.run(3)
                seen.append(ports(communicators[rank]) if rank == 1 else set())
            return seen

        _, (first, again, fresh) = no_error(together(work, range(2)))
    assert first == again
    assert not first & fresh
