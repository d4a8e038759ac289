"""The protocol below ipc_copy: programs of any order, ranks as threads, memory files instead of a
GPU."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
from connected_ranks import connected
from hypothesis import given
from hypothesis import strategies as st
from ipc_files import FileExporter
from rank_threads import no_error, together

from commbench.core.errors import Unsupported
from commbench.core.program import (
    AllReduce,
    Barrier,
    BufferSpec,
    Copy,
    Program,
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.core.variables import Mode
from commbench.features.ipc_copy.backend import IpcCommunicator, IpcProcess
from commbench.features.ipc_copy.memory import IpcMemory
from commbench.features.ipc_copy.protocol import Mailbox, create_mailbox, mailbox_bytes

COUNT = 3
POOL = 2
MODE = Mode("python", timer="host_sync", device="cuda")


@pytest.fixture(autouse=True)
def quick_switches() -> Any:
    """Threads that spin hand the interpreter on sooner."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def communicators(size: int) -> list[IpcCommunicator]:
    path = create_mailbox(size)
    everyone = tuple(range(size))
    made = []
    for control in connected(size):
        process = IpcProcess(
            control.rank, everyone, IpcMemory(FileExporter()), Mailbox(path, everyone)
        )
        made.append(IpcCommunicator(process, control, everyone))
    path.unlink()
    return made


def program(rank: int, messages: list[tuple[int, int]], seed: int) -> Program:
    """Posts its receives and sends in some order, as far as there is one, and waits for them in two
    parts."""
    rng = random.Random(seed * 31 + rank)
    receives = [
        Start(Recv(View("recv", slot), source), slot)
        for slot, (source, to) in enumerate(messages)
        if to == rank
    ]
    shift = len(messages)
    sends = [
        Start(Send(View("send", slot), to), shift + slot)
        for slot, (source, to) in enumerate(messages)
        if source == rank
    ]
    mixed: list[Start] = [*receives, *sends]
    if all(source != to for source, to in messages):  # to oneself the receive comes first
        order = [isinstance(step.step, Recv) for step in mixed]
        rng.shuffle(order)
        queues = {True: list(receives), False: list(sends)}
        mixed = [queues[kind].pop(0) for kind in order]
    requests = [step.request for step in mixed]
    rng.shuffle(requests)
    cut = rng.randrange(len(requests) + 1)
    waits = (WaitAll(tuple(requests[:cut])), WaitAll(tuple(requests[cut:])))
    slots = len(messages)
    buffers = tuple(BufferSpec(name, COUNT, "int64", slots) for name in ("send", "recv"))
    return Program(buffers, (*mixed, *waits))


def content(source: int, slot: int, copy: int) -> np.ndarray[Any, Any]:
    return np.arange(COUNT, dtype=np.int64) + 1000 * source + 10 * slot + 100000 * copy


def words(buffer: Any, slot: int, copy: int) -> np.ndarray[Any, Any]:
    raw = buffer.allocation.download(buffer.offset(slot, copy), COUNT * 8)
    return np.array(raw.view(np.int64))


def run_rank(
    communicator: IpcCommunicator, rank_program: Program, repetitions: int
) -> dict[str, Any]:
    rank = communicator.hosted[0]
    buffers = {spec.name: communicator.allocate(spec, POOL) for spec in rank_program.buffers}
    for slot in range(rank_program.buffers[0].slots):
        for copy in range(POOL):
            send: Any = buffers["send"]
            send.allocation.upload(
                send.offset(slot, copy), content(rank, slot, copy).view(np.uint8)
            )
    runner = communicator.prepare({rank: rank_program}, {rank: buffers}, MODE)
    assert runner(repetitions).shape == (1, repetitions, 2)
    return buffers


@given(
    size=st.integers(1, 3),
    choices=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_any_order_of_posts_and_waits_moves_every_message_to_its_place(
    size: int, choices: list[tuple[int, int]], seed: int
) -> None:
    messages = [(source % size, to % size) for source, to in choices]
    ranks = communicators(size)
    held = no_error(
        together(
            lambda communicator: run_rank(
                communicator, program(communicator.hosted[0], messages, seed), 3
            ),
            ranks,
        )
    )
    for slot, (source, to) in enumerate(messages):
        for copy in range(POOL):
            assert (words(held[to]["recv"], slot, copy) == content(source, slot, copy)).all()


def test_a_receiver_that_comes_late_is_never_overwritten() -> None:
    """What was not posted is not touched: the second message stays out until its receive."""
    first, second = communicators(2)
    buffers = tuple(BufferSpec(name, COUNT, "int64", 2) for name in ("send", "recv"))
    sends = Program(
        buffers, (Send(View("send", 0), 1), Start(Send(View("send", 1), 1), 0), WaitAll((0,)))
    )
    seen = []

    def receive(communicator: IpcCommunicator) -> None:
        held = {spec.name: communicator.allocate(spec, 1) for spec in buffers}
        steps = (Recv(View("recv", 0), 0), Recv(View("recv", 1), 0))
        runner = communicator.prepare({1: Program(buffers, steps)}, {1: held}, MODE)
        held["recv"].write(None)
        mailbox = communicator._process.mailbox
        inbox = mailbox.posted(0, 1)
        wait = mailbox.wait

        def watched(index: int, wanted: int) -> None:
            if index == mailbox.sent(0, 1):
                seen.append((mailbox.counters[inbox], mailbox.counters[index]))
            wait(index, wanted)

        mailbox.wait = watched  # type: ignore[method-assign]
        runner(1)

    def send(communicator: IpcCommunicator) -> None:
        held = {spec.name: communicator.allocate(spec, 1) for spec in buffers}
        communicator.prepare({0: sends}, {0: held}, MODE)(1)

    no_error(together(lambda work: work[0](work[1]), [(send, first), (receive, second)]))
    assert all(sent <= posted for posted, sent in seen) and [posted for posted, _ in seen] == [1, 2]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            (Send(View("send"), 1),),
            "rank 0 sends 1 messages of 24 B to rank 1, which receives 0 messages",
        ),
        ((Recv(View("recv"), 1),), "rank 0 receives from rank 1, which sends nothing to it"),
        ((Send(View("send"), 0), Recv(View("recv"), 0)), "post the receive first"),
        ((AllReduce(View("send"), View("send"), "sum"),), "point to point only"),
        (
            (Start(Recv(View("recv"), 0), 0), Start(Send(View("send"), 0), 1), WaitAll((0,))),
            "without a WaitAll",
        ),
    ],
)
def test_a_program_that_can_not_be_run_is_refused_without_a_hang(
    steps: tuple[Step, ...], reason: str
) -> None:
    buffers = tuple(BufferSpec(name, COUNT, "int64") for name in ("send", "recv"))
    first, second = communicators(2)

    def prepare(communicator: IpcCommunicator) -> None:
        rank = communicator.hosted[0]
        rank_program = Program(buffers, steps) if rank == 0 else Program()
        held = {spec.name: communicator.allocate(spec, 1) for spec in rank_program.buffers}
        communicator.prepare({rank: rank_program}, {rank: held}, MODE)

    ends = together(prepare, [first, second])
    assert isinstance(ends[0], Unsupported) and reason in str(ends[0])
    assert ends[1] is None or str(ends[1]) == str(ends[0])


def test_a_failed_program_leaves_nothing_behind_for_the_next() -> None:
    """Counters that stand apart are what the next program begins from."""
    ranks = communicators(2)
    for communicator in ranks:
        mailbox = communicator._process.mailbox
        mailbox.counters[mailbox.posted(0, 1)] = 5
        mailbox.counters[mailbox.sent(0, 1)] = 3
        mailbox.counters[mailbox.arrived(0)] = 9
    messages = [(0, 1), (1, 0), (0, 1)]
    held = no_error(
        together(
            lambda communicator: run_rank(
                communicator, program(communicator.hosted[0], messages, 0), 2
            ),
            ranks,
        )
    )
    assert (words(held[1]["recv"], 2, 1) == content(0, 2, 1)).all()


def test_copies_inside_a_rank_and_views_with_an_offset() -> None:
    (communicator,) = communicators(1)
    buffers = tuple(BufferSpec(name, COUNT, "int64") for name in ("send", "recv"))
    steps = (Copy(View("send", 0, 1, 2), View("recv", 0, 0, 2)), Barrier())
    held = run_rank(communicator, Program(buffers, steps), 1)
    assert (words(held["recv"], 0, 0)[:2] == content(0, 0, 0)[1:]).all()


def test_memory_is_used_again_and_never_freed() -> None:
    memory = IpcMemory(FileExporter())
    first = memory.allocate(1000)
    address = first.address
    larger = memory.allocate(5000)
    assert larger.address != address
    del first
    again = memory.allocate(800)
    assert again.address == address, "the smallest that fits"
    assert memory.allocate(800).address not in (address, larger.address)


@given(ranks=st.integers(1, 20))
def test_no_counter_shares_a_cache_line(ranks: int) -> None:
    path = create_mailbox(ranks)
    mailbox = Mailbox(path, range(ranks))
    path.unlink()
    pairs = [(source, target) for source in range(ranks) for target in range(ranks)]
    indices = [where(*pair) for pair in pairs for where in (mailbox.posted, mailbox.sent)]
    indices += [mailbox.arrived(rank) for rank in range(ranks)]
    lines = {index * 8 // 64 for index in indices}
    assert (
        len(lines) == len(indices)
        and max(indices) * 8 + 8 <= mailbox_bytes(ranks) == len(mailbox.counters) * 8
    )
