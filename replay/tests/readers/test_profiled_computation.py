"""What counts as computation of a rank, and that text which is only skimmed says the same."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from loops import for_each

from commbench_replay.readers.profiled_computation import (
    Computation,
    EventKind,
    cpu_kind,
    kernel_computes,
)

Event = tuple[str, int | str, int, int]  # name, thread, start and duration in us
ALL_US = 1_000


@for_each(
    ("name", "kind"),
    [
        ("aten::mm", "computation"),
        ("torch::distributed::reducer::copy_", "computation"),
        ("fsdp::all_gather_copy_in", "computation"),
        ("c10d::allreduce_", "communication"),
        ("_c10d_functional::wait_tensor", "communication"),
        ("record_param_comms", "communication"),
        ("gloo:all_reduce", "communication"),
        ("vllm::all_reduce", "communication"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "neither"),
        ("_AllGatherBackward", "neither"),
        ("Torch-Compiled Region: 0/0", "neither"),
    ],
)
def test_an_event_of_the_cpu_is_known_by_its_name(name: str, kind: EventKind) -> None:
    assert cpu_kind(name) == kind


@for_each(
    ("name", "computes"),
    [
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(Params)", True),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", False),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", False),
        ("void deep_ep::intranode::dispatch<8>(int)", False),
    ],
)
def test_a_kernel_of_a_communication_library_is_no_computation(name: str, computes: bool) -> None:
    assert kernel_computes(name) == computes


def busy_us(computation: Computation) -> int:
    busy = computation.busy_times(0, on_gpu=False)
    return 0 if busy is None else busy.within(0, ALL_US * 1000) // 1000


def added(events: Sequence[Event], most_pending: int = 100) -> Computation:
    computation = Computation(most_pending)
    for name, thread, start, duration in events:
        computation.add_cpu_event(name, thread, start * 1000, duration * 1000)
    return computation


def test_an_operation_with_a_call_in_it_may_wait_so_only_those_within_it_count() -> None:
    events: list[Event] = [
        ("mine::gather_and_multiply", 1, 0, 100),
        ("aten::copy_", 1, 5, 10),
        ("c10d::_allgather_base_", 1, 20, 30),
        ("aten::copy_", 1, 25, 10),  # by the library
        ("aten::mm", 1, 60, 20),
        ("aten::add", 2, 70, 20),  # of another thread
    ]
    assert busy_us(added(events)) == 10 + 30


def test_kernels_are_the_computation_of_a_rank_that_has_them() -> None:
    computation = added([("aten::mm", 1, 0, 100)])
    assert computation.busy_times(0, on_gpu=True) is None
    computation.add_kernel(0, 500, computes=False)
    assert busy_us(computation) == 0
    computation.add_kernel(20_000, 5_000, computes=True)
    assert busy_us(computation) == 5
    assert Computation().busy_times(0, on_gpu=False) is None


NAMES = st.sampled_from(["aten::mm", "aten::add", "c10d::allreduce_", "MmBackward0", 'x::"a"'])
EVENTS = st.lists(
    st.tuples(NAMES, st.sampled_from([1, "t 2"]), st.integers(0, 60), st.integers(1, 30)),
    max_size=12,
)


def naive_us(events: Sequence[Event]) -> int:
    calls = [event for event in events if cpu_kind(event[0]) == "communication"]
    times: set[int] = set()
    for name, thread, start, duration in events:
        beside_call = any(
            other == thread and first < start + duration and start < first + length
            for _, other, first, length in calls
        )
        if cpu_kind(name) == "computation" and not beside_call:
            times |= set(range(start, start + duration))
    return len(times)


@given(events=EVENTS, most_pending=st.integers(1, 6))
def test_computation_is_what_counting_every_microsecond_finds_however_early_it_settles(
    events: list[Event], most_pending: int
) -> None:
    """A profile has the events of a thread in the order of their starts, longer ones first."""
    in_order = sorted(
        events, key=lambda event: (event[2], -event[3], event[0] != "c10d::allreduce_")
    )
    assert busy_us(added(in_order, most_pending)) == naive_us(in_order)


def written(event: Event, keys: Sequence[str]) -> str:
    name, thread, start, duration = event
    values = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 3, "tid": thread}
    values |= {"ts": start + 0.5, "dur": duration, "args": {"External id": 5}}
    return json.dumps({key: values[key] for key in keys})


ORDER = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")


@given(events=EVENTS, keys=st.sampled_from([ORDER, ORDER[::-1]]))
def test_text_that_is_skimmed_says_what_its_events_do_or_says_that_it_must_be_parsed(
    events: list[Event], keys: Sequence[str]
) -> None:
    skimmed = Computation()
    taken = skimmed.skim(",\n".join(written(event, keys) for event in events))
    usual = keys == ORDER and not any('"' in name for name, *_ in events)
    assert taken == (usual or not events)
    if taken:
        assert busy_us(skimmed) == busy_us(added(events))
    else:
        assert busy_us(skimmed) == 0


def test_times_since_the_epoch_stay_exact() -> None:
    computation = Computation()
    start = 1_712_195_495_505_583
    event = f'{{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":{start},"dur":3}}'
    assert computation.skim(event)
    busy = computation.busy_times(7, on_gpu=False)
    assert busy is not None and busy.within(start * 1000 + 7, start * 1000 + 1007) == 1000
