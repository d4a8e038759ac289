"""Steps as calls of raw NCCL: matched and done on host memory, by a stand-in (nccl_on_host), for
every benchmark.

It shows that addresses, counts, blocks, groups and their order fit together, not what a real NCCL
does.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_scenes import gpu_scenes
from hypothesis import given
from hypothesis import strategies as st
from nccl_on_host import COLLECTIVES, MESSAGES, Communicator, Device, Entry, Nccl, deliver
from step_trials import SLOTS, Trials, allocated, wrong

from commbench.backends.buffers.memory import HostBuffer
from commbench.core.errors import CommunicationError, Unsupported
from commbench.core.payload import DTYPES
from commbench.core.program import (
    AllReduce,
    BufferSpec,
    Gather,
    In,
    OwnStep,
    Program,
    Recv,
    Send,
    Start,
    Step,
    View,
    WaitAll,
)
from commbench.engines.device import HostSync
from commbench.engines.lowered import Lowered, form_missing, in_groups, reduced_float8
from commbench.features.cupy.lowering import NCCL_UNSUPPORTED, CupyLowering, start_missing

SPEC = BufferSpec("data", 6, "float32", slots=3)
DATA = View("data")


class Ranks:
    """Programs of all ranks on one communicator, with buffers of host memory."""

    def __init__(self, programs: list[Program], pool: int = 1, sync: str = "none") -> None:
        self.logs: list[list[Entry]] = [[] for _ in programs]
        self.met = HostBuffer(BufferSpec("met", 8, "int8"))
        self.buffers = [
            {spec.name: HostBuffer(spec, pool) for spec in program.buffers} for program in programs
        ]
        self.runners = [
            self.runner(program, rank, len(programs), pool, sync)
            for rank, program in enumerate(programs)
        ]

    def runner(self, program: Program, rank: int, size: int, pool: int, sync: str) -> HostSync:
        log = self.logs[rank]
        device: Any = Device(log)
        held: Any = self.buffers[rank]
        lowering = CupyLowering(
            Nccl(log), Communicator(log, rank, size), device, held, self.met.address()
        )
        return HostSync(device, Lowered.of(program, sync, lowering.call), pool)

    def run(self, n: int) -> list[list[Entry]]:
        for runner in self.runners:
            runner(n)
        return self.logs


@given(gpu_scenes("none", tuple(DTYPES)), st.integers(1, 2), st.sampled_from(["none", "barrier"]))
def test_every_benchmark_is_exact(scene: Any, pool: int, sync: str) -> None:
    benchmark, case, size = scene
    programs = [benchmark.program(case, rank, size) for rank in range(size)]
    busy = max(programs, key=lambda program: len(program.steps))
    if any(isinstance(step, OwnStep) for step in busy.steps):  # it has its own calls
        return
    if any(map(reduced_float8, programs)):  # refused by the backend: CuPy has no constant for it
        return
    missing = form_missing(NCCL_UNSUPPORTED, busy) or start_missing(busy)
    if missing is not None:
        with pytest.raises(Unsupported, match=re.escape(missing)):
            Ranks(programs)
        return
    active = [rank for rank, program in enumerate(programs) if program.steps]
    idle = len(active) < size  # of a pair: they wait elsewhere, and are in no barrier
    ranks = Ranks(programs, pool, "none" if idle else sync)
    for rank in range(size):
        for name, buffer in ranks.buffers[rank].items():
            buffer.write(benchmark.fill(case, rank, size, name, 3))
    deliver(ranks.run(pool))
    for rank in range(size):
        for name, buffer in ranks.buffers[rank].items():
            wanted = benchmark.expected(case, rank, size, name, 3)
            assert wanted is None or buffer.count_wrong(wanted, pool) == 0, (rank, name)


def names(program: Program) -> list[str]:
    """What one rank of two asks of NCCL in one repetition, without the barrier before."""
    return [name for name, _ in Ranks([program, program]).run(1)[0][1:]]


def test_a_window_is_one_group_and_the_acknowledgement_comes_after_it() -> None:
    window = tuple(Start(Send(View("data", slot), 1), slot) for slot in range(3))
    program = Program((SPEC,), (*window, WaitAll((0, 1, 2)), Recv(DATA, 1)))
    assert names(program) == ["groupStart", "send", "send", "send", "groupEnd", "recv"]
    assert names(program.repeated(2)) == 2 * names(program)


def test_what_blocks_between_a_post_and_its_wait_is_in_the_group() -> None:
    """A rank's message to itself: outside of the group both ends would wait for each other."""
    program = Program((SPEC,), (Start(Recv(DATA, 0), 0), Send(View("data", 1), 0), WaitAll((0,))))
    assert names(program) == ["groupStart", "recv", "send", "groupEnd"]


STARTED = (Start(Recv(DATA, 1), 0), Start(Send(DATA, 1), 1))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((*STARTED, WaitAll((0,)), WaitAll((1,))), "completes all started messages"),
        ((*STARTED, AllReduce(DATA, DATA, "sum"), WaitAll((0, 1))), "needs a WaitAll"),
        ((Start(AllReduce(DATA, DATA, "sum"), 0), WaitAll((0,))), "can't start a AllReduce"),
    ],
)
def test_what_one_stream_can_not_start_is_refused(steps: tuple[Step, ...], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        names(Program((SPEC,), steps))


def test_a_group_goes_on_after_the_wait_of_all_ranks() -> None:
    log: list[Entry] = []
    held: Any = {"data": HostBuffer(SPEC)}
    lowering = CupyLowering(Nccl(log), Communicator(log, 0, 2), Device(log), held, 0)
    inner: Any = SimpleNamespace(comm=Communicator(log, 0, 1))
    mode: Any = SimpleNamespace(groups={(0,): inner}, engine="python")
    inside = (In((0,), AllReduce(DATA, DATA, "sum")), In((0,), Send(DATA, 0)))
    lower = in_groups(lowering, inner, mode)
    program = Program((SPEC,), (*STARTED, WaitAll((0, 1)), *inside))
    assert len(Lowered.of(program, "none", lower).steps) == 3
    between = Program((SPEC,), (*STARTED, inside[0], WaitAll((0, 1))))
    with pytest.raises(Unsupported, match="needs a WaitAll"):
        Lowered.of(between, "none", lower)


def test_messages_that_nobody_waits_for_are_refused() -> None:
    with pytest.raises(Unsupported, match="without a WaitAll"):
        Ranks([Program((SPEC,), (Start(Recv(DATA, 0), 0),))])


def test_a_call_that_fails_does_not_leave_its_group_open() -> None:
    """A later call would be added to the group, and wait for an end that never comes."""

    class Failing(Communicator):
        def send(self, *args: int) -> None:
            raise RuntimeError("unhandled cuda error")

    log: list[Entry] = []
    held: Any = {"data": HostBuffer(SPEC)}
    device: Any = Device(log)
    lowering = CupyLowering(Nccl(log), Failing(log, 0, 2), device, held, 0)
    steps = (Start(Recv(DATA, 1), 0), Start(Send(DATA, 1), 1), WaitAll((0, 1)))
    calls = Lowered.of(Program((SPEC,), steps), "barrier", lowering.call)
    with pytest.raises(CommunicationError, match="unhandled cuda error"):
        HostSync(device, calls, 1)(1)
    assert [name for name, _ in log][-3:] == ["groupStart", "recv", "groupEnd"]


def test_a_root_sends_itself_nothing_in_place() -> None:
    own = View("data", 0, 0, 3)
    gather = Program((SPEC,), (Gather(own, DATA, 0),))
    assert names(gather) == ["groupStart", "recv", "groupEnd"]


def test_uneven_blocks_are_one_group_without_the_empty_ones() -> None:
    trials = [
        Trials(rank, 3, "float32", 5, ["sum"], [0]).all_to_all_v("uneven") for rank in range(3)
    ]
    specs = [
        tuple(
            BufferSpec(name, held if isinstance(held, int) else len(held), "float32", SLOTS)
            for name, held in trial.before.items()
        )
        for trial in trials
    ]
    ranks = Ranks([Program(own, trial.steps) for own, trial in zip(specs, trials, strict=True)])
    for held, trial in zip(ranks.buffers, trials, strict=True):
        allocated(trial, lambda spec, _, held=held: held[spec.name], 1)
    deliver(ranks.run(1))
    for rank, trial in enumerate(trials):
        assert list(wrong(trial, ranks.buffers[rank], 1)) == []
    assert [name for name, _ in ranks.logs[0]].count("send") == 2, "one of three blocks is empty"


def test_arguments_are_in_ncclls_order() -> None:
    """Address, count, type, then operation or root or peer, the stream at the end; offsets in
    bytes, of the slot."""
    program = Program((SPEC,), (AllReduce(View("data", 1, 2, 4), View("data", 1, 2, 4), "max"),))
    ranks = Ranks([program, program])
    address = ranks.buffers[0]["data"].address(1) + 8
    nccl = Nccl([])
    kinds = (nccl.NCCL_FLOAT32, nccl.NCCL_MAX)  # type: ignore[attr-defined]
    expected = (address, address, 4, *kinds, Device.pointer)
    assert ranks.run(1)[0][1] == ("allReduce", expected)


def test_a_deadlock_is_one_here_too() -> None:
    """What the payload test rests on: both send first, ungrouped receives wait for ever."""
    logs = [[("recv", (0, 0, 10, 1, 7))], [("recv", (0, 0, 10, 0, 7))]]
    with pytest.raises(AssertionError, match="deadlock"):
        deliver(logs)


ARGUMENTS = """
import json, re
from cupy.cuda import nccl, runtime, Stream, Event, get_elapsed_time, alloc
import cupy
parameter = re.compile(r"[,(] ?(?:intptr_t|size_t|int) ")
methods = {name: len(parameter.findall(getattr(nccl.NcclCommunicator, name).__doc__))
           for name in NAMES}
for name in ("groupStart", "groupEnd", "get_unique_id", "get_version"):
    assert callable(getattr(nccl, name)), name
for name in CONSTANTS:
    assert isinstance(getattr(nccl, name), int), name
for name in ("setDevice", "getDeviceCount", "memcpy", "memcpyAsync", "deviceSynchronize",
             "deviceGetAttribute", "deviceGetPCIBusId", "memGetInfo"):
    assert callable(getattr(runtime, name)), name
for name in ("memcpyHostToDevice", "memcpyDeviceToHost", "memcpyDeviceToDevice",
             "streamCaptureModeThreadLocal", "cudaDevAttrClockRate"):
    assert isinstance(getattr(runtime, name), int), name
for name in ("begin_capture", "end_capture", "synchronize"):
    assert callable(getattr(Stream, name)), name
assert callable(cupy.cuda.Graph.launch) and callable(cupy.RawKernel.compile)
assert callable(Event.record)
assert isinstance(Event.done, property) or hasattr(Event.done, "__get__")
assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
assert issubclass(nccl.NcclError, RuntimeError)
print(json.dumps(methods))
"""


def test_the_real_cupy_has_all_that_is_called(tmp_path: Path) -> None:
    """Names and numbers of arguments; without a driver nothing more of it can run."""
    used = {
        "send": 5,
        "recv": 5,
        "allReduce": 6,
        "reduce": 7,
        "bcast": 5,
        "allGather": 5,
        "reduceScatter": 6,
    }
    assert set(used) == {*MESSAGES, *COLLECTIVES}
    types = [name for name, kind in DTYPES.items() if not kind.is_float8]
    constants = [f"NCCL_{name.upper()}" for name in (*types, "sum", "prod", "min", "max", "avg")]
    head = f"NAMES = {list(used)!r}\nCONSTANTS = {constants!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + ARGUMENTS], capture_output=True, text=True, timeout=120
    )
    if (
        "No module named" in done.stderr
        or "has no attribute 'nccl'" in done.stderr
        or "cannot import" in done.stderr
    ):
        pytest.skip("CuPy with NCCL is not installed (pip install 'commbench[cuda]')")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == used
