"""Staged programs: every message goes through a twin in host memory once each way, in an order that
is right.

All benchmarks run staged in the simulated world, where the payload really moves, on every rank of
small worlds.
"""

from __future__ import annotations

import gc
import mmap
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from gpu_scenes import gpu_scenes
from hypothesis import given
from hypothesis import strategies as st

from commbench.backends.buffers.memory import HostBuffer
from commbench.backends.buffers.staging import SUFFIX, PinnedBuffer, staged_program, with_staging
from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.program import (
    PINNED,
    AllReduce,
    Barrier,
    Broadcast,
    BufferSpec,
    Copy,
    Gather,
    Program,
    Recv,
    Reduce,
    Scatter,
    Send,
    Start,
    View,
    WaitAll,
    operation_of,
)
from commbench.features.simulated.model import Model
from commbench.features.simulated.virtual import VirtualRunner

SCENES = gpu_scenes("pinned", ("float32",))
LOCAL = Copy, WaitAll, Barrier


@given(SCENES, st.integers(1, 2), st.integers(1, 2))
def test_staged_programs_move_the_right_payload(scene: Any, pool: int, k: int) -> None:
    benchmark, case, size = scene
    programs = {rank: benchmark.program(case, rank, size) for rank in range(size)}
    k = 1 if any(program.reset for program in programs.values()) else k
    moving = {rank: staged_program(program.repeated(k), rank) for rank, program in programs.items()}
    buffers = {
        rank: {spec.name: HostBuffer(spec, pool) for spec in program.buffers}
        for rank, program in moving.items()
    }
    for rank, program in programs.items():
        for spec in program.buffers:
            buffers[rank][spec.name].write(benchmark.fill(case, rank, size, spec.name, 5))
    VirtualRunner(moving, buffers, Model(), 0)(pool)
    for rank, program in programs.items():
        for spec in program.buffers:
            wanted = benchmark.expected(case, rank, size, spec.name, 5)
            assert wanted is None or buffers[rank][spec.name].count_wrong(wanted, pool) == 0, (
                rank,
                spec.name,
            )


@given(SCENES, st.integers(1, 3))
def test_what_is_sent_and_received_is_copied_once_and_nothing_else(scene: Any, k: int) -> None:
    """Told from the steps alone: a twin is sent after it was copied down, and copied up after it
    was received."""
    benchmark, case, size = scene
    for rank in range(size):
        before = benchmark.program(case, rank, size).repeated(k)
        after = staged_program(before, rank)
        messages = [step for step in after.steps if not isinstance(step, LOCAL)]
        assert len(messages) == len([step for step in before.steps if not isinstance(step, LOCAL)])
        assert after.reset == before.reset
        down, up = copies(after)
        assert down == Counter(expected_views(before, rank, sent=True))
        assert up == Counter(expected_views(before, rank, sent=False))
        in_order(after, rank)


def copies(program: Program) -> tuple[Counter[View], Counter[View]]:
    """Views of the device that are copied to their twin, and from it."""
    steps = [step for step in program.steps if isinstance(step, Copy)]
    down = [step for step in steps if step.target.buffer.endswith(SUFFIX)]
    up = [step for step in steps if step.source.buffer.endswith(SUFFIX)]
    assert len(down) + len(up) == len(steps)
    assert all(
        replace(step.source, buffer=step.source.buffer + SUFFIX) == step.target for step in down
    )
    assert all(
        replace(step.target, buffer=step.target.buffer + SUFFIX) == step.source for step in up
    )
    return Counter(step.source for step in down), Counter(step.target for step in up)


SENT = {Send: "data", Broadcast: "data"}
RECEIVED = {Recv: "data", Broadcast: "data"}
ROOT_SENDS = (Broadcast, Scatter)
ROOT_RECEIVES = (Reduce, Gather)


def expected_views(program: Program, rank: int, sent: bool) -> list[View]:
    """By the words of the contract: fields are named data, send and recv; what counts on the root
    only is in a list."""
    names, field = (SENT, "send") if sent else (RECEIVED, "recv")
    views = []
    for step in map(operation_of, program.steps):
        on_root = rank == getattr(step, "root", rank)
        root = getattr(step, "root", None)
        if root is not None and sent and isinstance(step, ROOT_SENDS) and not on_root:
            continue
        if root is not None and not sent and isinstance(step, ROOT_RECEIVES) and not on_root:
            continue
        if not sent and isinstance(step, Broadcast) and on_root:
            continue
        view = getattr(step, names.get(type(step), field), None)
        views += [] if view is None else [view]
    return views


def in_order(program: Program, rank: int) -> None:
    """Every view is on the host before its message leaves, and goes up only behind the step that
    brought it."""
    fresh: Counter[View] = Counter()  # copied down and not sent yet
    arrived: Counter[View] = Counter()  # received and not copied up yet
    pending: dict[int, list[View]] = {}
    for step in program.steps:
        if isinstance(step, Copy):
            if step.target.buffer.endswith(SUFFIX):
                fresh[step.target] += 1
            else:
                arrived[step.source] -= 1
                assert arrived[step.source] >= 0, f"{step} before anything came"
            continue
        single_step = Program(steps=(step,))
        for view in expected_views(single_step, rank, sent=True):
            fresh[view] -= 1
            assert fresh[view] >= 0, f"{step} before its copy"
        if isinstance(step, Start):
            pending[step.request] = expected_views(single_step, rank, sent=False)
        elif isinstance(step, WaitAll):
            arrived.update(view for request in step.requests for view in pending.pop(request))
        else:
            arrived.update(expected_views(single_step, rank, sent=False))
    assert not +fresh and not +arrived and not pending


def test_only_what_moves_has_a_twin() -> None:
    """In place the source is copied on the device, before each repetition: it never meets the
    host."""
    data = View("data")
    buffers = (BufferSpec("source", 4, "int32"), BufferSpec("data", 4, "int32"))
    program = Program(buffers, (AllReduce(data, data, "sum"),), (Copy(View("source"), data),))
    assert staged_program(program, 0).buffers == (
        *program.buffers,
        BufferSpec("data@host", 4, "int32", memory=PINNED),
    )
    host = View("data@host")
    assert staged_program(program, 0).steps == (
        Copy(data, host),
        AllReduce(host, host, "sum"),
        Copy(host, data),
    )


def test_a_copy_that_is_missing_is_seen_by_the_payload() -> None:
    """What the first test rests on: the twins begin with the sentinel, so a forgotten copy can't go
    unnoticed."""
    view = View("data")
    host = View("data@host")
    specs = (BufferSpec("data", 4, "float32"), BufferSpec("data@host", 4, "float32"))
    programs = {
        0: Program(specs, (Send(host, 1),)),
        1: Program(specs, (Recv(host, 0), Copy(host, view))),
    }
    buffers = {rank: {spec.name: HostBuffer(spec) for spec in specs} for rank in programs}
    buffers[0]["data"].words()[:] = 1.0
    VirtualRunner(programs, buffers, Model(), 0)(1)
    assert (buffers[1]["data"].words() != 1.0).all()
    with pytest.raises(CommunicationError, match="deadlock"):
        VirtualRunner({0: Program(specs, (Recv(host, 1),)), 1: programs[1]}, buffers, Model(), 0)(1)


# ---------------------------------------------------------------- page-locked memory

PINNED_SPEC = BufferSpec("data", 3000, "float32", slots=2)
PINNED_DATA = View("data")
PINNED_MESSAGE = Program((PINNED_SPEC,), (Send(PINNED_DATA, 1),))


class Ledger:
    """As CudaPageLock; it writes down what is locked: address -> bytes. `refuses`: it has no pages
    left."""

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
    buffer = PinnedBuffer(PINNED_SPEC, 3, ledger)
    assert ledger.locked == {buffer.address(): 3 * buffer.copy_bytes}
    assert buffer.address() % mmap.PAGESIZE == 0, "pages are locked, not bytes"
    words = buffer.words()
    del buffer
    gc.collect()
    assert ledger.locked == {}
    words[:] = 1  # the memory itself lives as long as anybody looks at it


def test_staging_buffers_have_the_pool_of_the_others() -> None:
    ledger = Ledger()
    held = {"data": HostBuffer(PINNED_SPEC, 3)}
    program, buffers = with_staging(
        PINNED_MESSAGE, 0, held, lambda spec, pool: PinnedBuffer(spec, pool, ledger)
    )
    assert set(buffers) == {"data", "data@host"} and buffers["data"] is held["data"]
    assert buffers["data@host"].pool == 3 and buffers["data@host"].spec.slots == 2
    assert program.steps == (Copy(PINNED_DATA, View("data@host")), Send(View("data@host"), 1))


def test_memory_that_can_not_be_locked_is_a_reason_for_a_skip() -> None:
    with pytest.raises(
        Unsupported,
        match="staging=pinned needs as much host memory as the buffers on the GPU: no more pages",
    ):
        with_staging(
            PINNED_MESSAGE, 0, {}, lambda spec, pool: PinnedBuffer(spec, pool, Ledger(refuses=True))
        )
