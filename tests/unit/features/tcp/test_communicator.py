"""Ranks as threads with real sockets on loopback: payload, streams, deadlocks, strangers, deaths,
leaks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from connected_ranks import connected
from hypothesis import given
from hypothesis import strategies as st
from rank_threads import SOON_S, no_error, together
from tcp_ranks import Rank, content, enter, opened

from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.program import (
    AllReduce,
    Barrier,
    BufferSpec,
    In,
    Program,
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.features.tcp.backend import Tcp, TcpCommunicator
from commbench.features.tcp.lowering import barrier_partners, cut

MIB = 1 << 20
Work = Callable[[TcpCommunicator], Any]


@pytest.fixture(autouse=True)
def default_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMBENCH_TCP_INTERFACE", raising=False)


def window(rank: int, count: int, slots: int, both: bool) -> Program:
    """Rank 0 sends a window to rank 1, or both do; then a blocking message back."""
    specs = tuple(BufferSpec(name, count, "uint8", slots) for name in ("send", "recv"))
    ack = BufferSpec("ack", 4, "uint8")
    receives = tuple(Start(Recv(View("recv", slot), 1 - rank), slot) for slot in range(slots))
    sends = tuple(Start(Send(View("send", slot), 1 - rank), slots + slot) for slot in range(slots))
    steps = (*receives, *sends) if both else (sends if rank == 0 else receives)
    last = Recv(View("ack"), 1) if rank == 0 else Send(View("ack"), 0)
    return Program((*specs, ack), (*steps, WaitAll(tuple(step.request for step in steps)), last))


def exchanged(
    communicators: list[TcpCommunicator], count: int, slots: int, streams: int = 1
) -> list[bool]:
    """Both of two ranks send a window, twice; whether each has received what the other sent."""

    def work(rank: int) -> bool:
        runner = Rank(communicators[rank], window(rank, count, slots, both=True), streams)
        runner.run(2)
        return runner.received(1 - rank)

    return no_error(together(work, range(2)))


# ---------------------------------------------------------------- how messages are cut and who
# meets whom


@given(st.binary(max_size=300), st.integers(1, 64))
def test_parts_are_contiguous_and_nearly_equal(message: bytes, parts: int) -> None:
    pieces = cut(memoryview(message), parts)
    assert len(pieces) == parts
    assert b"".join(pieces) == message
    sizes = [len(part) for part in pieces]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 70))
def test_after_a_barrier_everybody_has_heard_of_everybody(size: int) -> None:
    """Simulate the rounds: what a rank knows when it leaves."""
    known = [{rank} for rank in range(size)]
    rounds = [barrier_partners(rank, size) for rank in range(size)]
    for number in range(len(rounds[0])):
        before = [set(ranks) for ranks in known]
        for rank in range(size):
            onward, back = rounds[rank][number]
            assert rounds[onward][number][1] == rank, "who is sent a byte expects it"
            known[rank] |= before[back]
    assert known == [set(range(size))] * size
    assert len(rounds[0]) == (size - 1).bit_length()


# ---------------------------------------------------------------- payload


@pytest.mark.parametrize(
    "streams", [1, 7, *(pytest.param(streams, marks=pytest.mark.long) for streams in (2, 64))]
)
@pytest.mark.parametrize("both", [False, True], ids=["one-way", "both-ways"])
def test_windows_of_every_size_arrive_exactly(streams: int, both: bool) -> None:
    with opened(2) as communicators:
        for count in (1, 3, 63, 64, 65, 4096, 70_001, 2 * MIB):

            def work(rank: int, count: int = count) -> bool:
                runner = Rank(communicators[rank], window(rank, count, 3, both), streams, pool=2)
                runner.run(3)
                return (rank == 0 and not both) or runner.received(1 - rank, copies=2)

            assert no_error(together(work, range(2))) == [True, True], count


def test_a_window_of_messages_of_4_mib_both_ways_does_not_deadlock() -> None:
    with opened(2) as communicators:
        assert exchanged(communicators, 4 * MIB, 16) == [True, True]


@pytest.mark.parametrize("count", [5, 3 * MIB])
@pytest.mark.parametrize("streams", [1, 3])
def test_an_exchange_of_all_with_all_and_with_oneself(count: int, streams: int) -> None:
    size = 4

    def program(rank: int) -> Program:
        specs = (BufferSpec("send", count, "uint8"), BufferSpec("recv", count, "uint8", size))
        receives = tuple(Start(Recv(View("recv", peer), peer), peer) for peer in range(size))
        sends = tuple(Start(Send(View("send"), peer), size + peer) for peer in range(size))
        return Program(specs, (*receives, *sends, WaitAll(tuple(range(2 * size)))))

    with opened(size) as communicators:

        def work(rank: int) -> bool:
            runner = Rank(communicators[rank], program(rank), streams)
            runner.run(3)
            recv = runner.buffers["recv"]
            return all(
                (recv.words(peer) == content(peer, 0, 0, count)).all() for peer in range(size)
            )

        assert no_error(together(work, range(size))) == [True] * size


@pytest.mark.parametrize("count", [8, 4 * MIB])
def test_blocking_sends_that_cross_go_on_while_receives_are_posted(count: int) -> None:
    def program(rank: int) -> Program:
        specs = (BufferSpec("send", count, "uint8"), BufferSpec("recv", count, "uint8"))
        steps = (
            Start(Recv(View("recv"), 1 - rank), 0),
            Send(View("send"), 1 - rank),
            WaitAll((0,)),
        )
        return Program(specs, steps)

    with opened(2) as communicators:

        def work(rank: int) -> bool:
            runner = Rank(communicators[rank], program(rank))
            runner.run(3)
            return runner.received(1 - rank)

        assert no_error(together(work, range(2))) == [True, True]


def test_more_messages_than_one_call_can_name() -> None:
    with opened(2) as communicators:
        assert exchanged(communicators, 3, 2500, streams=2) == [True, True]


@pytest.mark.parametrize(
    "backend", [Tcp(buffer_bytes=4096, timeout_s=SOON_S), Tcp(no_delay=False, timeout_s=SOON_S)]
)
def test_small_buffers_and_nagle_change_no_byte(backend: Tcp) -> None:
    with opened(2, backend) as communicators:
        if backend.buffer_bytes:
            assert communicators[0].facts()["sndbuf_bytes"] == 2 * backend.buffer_bytes, (
                "the kernel doubles it"
            )
        assert exchanged(communicators, 50_000, 2, streams=2) == [True, True]


# ---------------------------------------------------------------- ranks


def test_a_subset_counts_its_own_ranks() -> None:
    with opened(4) as communicators:

        def work(rank: int) -> bool:
            inner = communicators[rank].subset((3, 1))
            if rank in (0, 2):
                return inner is None
            assert inner is not None and inner.hosted == ((0,) if rank == 3 else (1,))
            runner = Rank(inner, window(inner.hosted[0], 1000, 2, both=True))
            runner.run(2)
            assert all(
                name.startswith(f"tcp.peer{1 - inner.hosted[0]}.stream0.")
                for name in inner.counters()
            )
            return runner.received(1 - inner.hosted[0])

        assert no_error(together(work, range(4))) == [True] * 4


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_nobody_leaves_a_barrier_before_the_last_one_came(size: int) -> None:
    with opened(size) as communicators:

        def work(rank: int) -> tuple[int, int]:
            runner = Rank(communicators[rank], Program((), (Barrier(),)))
            runner.run(1)
            time.sleep(0.05 * rank)
            start, end = runner.run(1)[0, 0]
            return int(start), int(end)

        stamps = no_error(together(work, range(size)))
    assert min(end for _, end in stamps) >= max(start for start, _ in stamps)


def test_counters_and_facts_are_those_of_the_kernel() -> None:
    with opened(2) as communicators:

        def work(rank: int) -> dict[str, float]:
            runner = Rank(communicators[rank], window(rank, 30_000, 4, both=False), streams=3)
            runner.run(2)
            return communicators[rank].counters()

        counters = no_error(together(work, range(2)))
        facts = communicators[0].facts()
    received = [counters[1][f"tcp.peer0.stream{stream}.bytes_received"] for stream in range(3)]
    assert sum(received) >= 2 * 4 * 30_000
    assert {"retransmits", "cwnd", "rtt_s"} <= {name.split(".")[-1] for name in counters[0]}
    assert facts["transport"] == "tcp" and facts["library"] == f"kernel {os.uname().release} tcp"
    assert facts["address"] == "127.0.0.1" and facts["mss_bytes"] > 0
    assert facts["congestion_control"] and facts["sndbuf_bytes"] > 0 and facts["rcvbuf_bytes"] > 0


def test_what_sockets_have_no_word_for_is_unsupported() -> None:
    data = View("send")
    spec = BufferSpec("send", 4, "uint8")
    with opened(1) as (alone,):
        with pytest.raises(Unsupported, match="point to point only"):
            Rank(alone, Program((spec,), (AllReduce(data, data, "sum"),)))
        with pytest.raises(Unsupported, match="without a WaitAll"):
            Rank(alone, Program((spec,), (Start(Send(data, 0), 0),)))
        with pytest.raises(Unsupported, match="between a send and the wait"):
            Rank(
                alone,
                Program(
                    (spec,), (Start(Recv(data, 0), 0), Send(data, 0), Barrier(), WaitAll((0,)))
                ),
            )


TO_SELF = (Start(Recv(View("data"), 0), 0), Start(Send(View("data"), 0), 1))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((*TO_SELF, WaitAll((0,)), WaitAll((1,))), "all started messages in one WaitAll"),
        ((*TO_SELF, Recv(View("data"), 0), WaitAll((0, 1))), "can't complete a Recv before"),
        ((Start(Barrier(), 0), WaitAll((0,))), "can't start a Barrier"),
        ((In((0,), Barrier()),), "sockets have no collectives"),
    ],
)
def test_what_a_wait_can_not_keep_is_refused(steps: tuple[Step, ...], reason: str) -> None:
    with opened(1) as (alone,), pytest.raises(Unsupported, match=reason):
        Rank(alone, Program((BufferSpec("data", 4, "uint8"),), steps))


# ---------------------------------------------------------------- trouble


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("count", [100, 4 * MIB])
def test_a_peer_that_dies_is_named_at_once(count: int, streams: int) -> None:
    with opened(2) as communicators:
        dead = threading.Event()

        def work(rank: int) -> Any:
            runner = Rank(communicators[rank], window(rank, count, 8, both=True), streams)
            runner.run(1)
            if rank == 1:
                communicators[rank].close(abort=True)
                dead.set()
                return None
            assert dead.wait(SOON_S)
            begin = time.monotonic()
            with pytest.raises(CommunicationError, match="rank 1, connection"):
                runner.run(2)
            return time.monotonic() - begin

        waited_s, _ = no_error(together(work, range(2)))
    assert waited_s < 5


def test_a_peer_that_is_silent_is_named_after_the_timeout() -> None:
    named = threading.Event()
    with opened(2, Tcp(timeout_s=1.0)) as communicators:

        def work(rank: int) -> Any:
            program = window(rank, 100, 2, both=True)
            runner = Rank(communicators[rank], Program(program.buffers, program.steps))
            if rank == 1:
                assert named.wait(SOON_S)
                return None
            with pytest.raises(
                CommunicationError, match=r"rank 1, connection .*no byte moved for 1 s"
            ):
                runner.run(1)
            named.set()
            return None

        no_error(together(work, range(2)))


@pytest.mark.parametrize("streams", [1, 3])
def test_after_a_failure_everywhere_the_next_case_has_new_connections(streams: int) -> None:
    """Also rank 2, which took no part in the failed case; and no byte of it is left."""
    with opened(3, Tcp(timeout_s=1.5)) as communicators:
        turns = threading.Barrier(3)

        def fails(rank: int) -> bool:
            """Messages arrive, but fewer than are waited for: the rest of the case stays on its
            way."""
            inner = communicators[rank].subset((0, 1))
            if inner is not None:
                specs = tuple(BufferSpec(name, 8, "uint8") for name in ("send", "recv"))
                receives = (Recv(View("recv"), 1 - rank),) * (3 if rank else 2)
                runner = Rank(
                    inner, Program(specs, (Send(View("send"), 1 - rank), *receives)), streams
                )
                with pytest.raises(CommunicationError, match=f"rank {1 - rank}, connection"):
                    runner.run(1)
            return True

        def works(rank: int, ranks: tuple[int, int], count: int) -> bool:
            inner = communicators[rank].subset(ranks)
            if inner is None:
                return True
            runner = Rank(inner, window(inner.hosted[0], count, 2, both=True), streams)
            runner.run(2)
            return runner.received(1 - inner.hosted[0])

        def work(rank: int) -> list[bool]:
            seen = []
            for case in (
                lambda: works(rank, (2, 0), 1000),
                lambda: fails(rank),
                lambda: works(rank, (2, 0), 1007),
                lambda: works(rank, (1, 0), 1009),
            ):
                turns.wait(SOON_S)
                seen.append(case())
            return seen

        assert no_error(together(work, range(3))) == [[True] * 4] * 3


def sockets() -> set[str]:
    targets = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the directory's own
            targets.add(str(link.readlink()))
    return {name for name in targets if name.startswith("socket:")}


def own_threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith("commbench-tcp")
    ]


@pytest.mark.parametrize("abort", [False, True])
def test_nothing_is_left_after_closing(abort: bool) -> None:
    controls = connected(2)
    before = sockets()
    communicators = enter(Tcp(), controls)
    assert exchanged(communicators, MIB, 2, streams=4) == [True, True]
    assert len(own_threads()) >= 2 * (1 + 7), "a listener, and a thread for each flow but one"
    assert len(sockets() - before) >= 2 * (3 + 4 + 1), (
        "the listener's three, four streams, the barrier"
    )
    for communicator in communicators:
        communicator.close(abort)
        communicator.close(abort)
    assert own_threads() == []
    assert sockets() == before
