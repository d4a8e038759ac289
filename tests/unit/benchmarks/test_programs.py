"""Every benchmark of conf/benchmark in the simulated world: what its steps move is what it says
must come out.

A new YAML in conf/benchmark is tested here without a new test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmark_trials import BenchmarkTrial, case_of
from composed import every_benchmark, settings_of
from loops import for_each

from commbench.core.case import Benchmark
from commbench.core.program import (
    PERIOD,
    AllGather,
    AllToAll,
    AllToAllV,
    BufferSpec,
    Copy,
    Gather,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Start,
    Step,
    View,
    WaitAll,
    operation_of,
)
from commbench.core.variables import Case

BENCHMARKS = every_benchmark()
WORLDS = [
    (name, size)
    for size in range(1, 6)
    for name, benchmark in BENCHMARKS.items()
    if size >= benchmark.min_ranks
]
WITH_PAYLOAD = [(name, size) for name, size in WORLDS if BENCHMARKS[name].blocks(size)]
ALL_EQUAL = {"all_reduce", "all_gather", "broadcast", "concurrent"}  # what a rank ends with
WITHOUT_MESSAGE = {"barrier", "communicator_init", "communicator_split"}
ROOT_ONLY = {"reduce", "gather"}
WITH_OWN = [
    (name, size) for name, size in WITH_PAYLOAD if size > 1 and name not in ALL_EQUAL | ROOT_ONLY
]
WITH_BLOCKS = [
    (name, size)
    for name, size in WITH_PAYLOAD
    if BENCHMARKS[name].blocks(size) > 1 or "window" in BENCHMARKS[name].axes
]
LONG = 257
COUNTS = (1, LONG)
REDUCTIONS = ("sum", "prod", "min", "max", "avg")


def axes_of(
    benchmark: Benchmark, size: int, reductions: tuple[str, ...] = ("sum", "max")
) -> list[dict[str, Any]]:
    """Every combination of the axes that the benchmark has; of more than 3 ranks, the pairs of the
    last one."""
    single = [
        f"{a}-{b}" for a in range(size) for b in range(size) if size <= 3 or size - 1 in (a, b)
    ]
    rounds = [["0-1 2-3", "3-0 1-2", "2-2 0-1", "0-0 1-1 3-3"], ["4-0 1-3"]][: max(size - 3, 0)]
    together = [*single[:2], *itertools.chain(*rounds)]
    values: dict[str, list[Any]] = {
        "pair": single + together, "pairs": single + together, "window": [1, 3], "buffers": ["own"],
        "in_place": [False, True],
        "reduction": list(reductions), "payload": [None],
        "root": list(range(size)), "staging": ["none", "pinned"],
        "groups": ["all_reduce@world + all_gather@world"],
        "workload": [None], "gaps": [None, "sleep"], "late": [None, "1:2us"],
        "splits": [None], "stream_threads": ["one"],
        "until": ["open", "first_call"], "split": [1, 2],
        "traffic": ["uniform", "incast", "outcast", "moe tokens=3 hidden=2 experts=120 top_k=3"],
    }  # fmt: skip
    names = ["pair" if axis == "pairs" else axis for axis in benchmark.axes]
    return [
        dict(zip(names, point, strict=True))
        for point in itertools.product(*(values[x] for x in benchmark.axes))
    ]


def root_of(case: Case) -> int:
    return case.root or 0


def keeps(case: Case, size: int, rank: int) -> bool:
    """Nothing has to come to this rank for its buffers to be right."""
    if case.benchmark == "broadcast":
        return rank == root_of(case)
    if case.in_place:
        return size == 1 or (case.benchmark == "scatter" and rank == root_of(case))
    return False


def test_all_is_every_file_of_the_group() -> None:
    assert settings_of("benchmark=all").benchmarks == tuple(BENCHMARKS.values())


# ---------------------------------------------------------------- payload


@for_each(("name", "size"), WORLDS)
def test_every_rank_ends_with_what_is_expected(name: str, size: int) -> None:
    """Every reduction with three ranks: others add nothing to a program but its ranks."""
    benchmark = BENCHMARKS[name]
    reductions = REDUCTIONS if size == 3 else REDUCTIONS[:1]
    for axes, count in itertools.product(axes_of(benchmark, size, reductions), COUNTS):
        case = case_of(benchmark, size, count, **axes)
        world = BenchmarkTrial(benchmark, case, size, salt=count % 3)
        world.run(2)
        assert set(world.wrong().values()) == (set() if name in WITHOUT_MESSAGE else {0}), (
            axes,
            count,
            world.wrong(),
        )


@for_each(("name", "size"), WITH_PAYLOAD)
def test_no_buffer_is_right_before_anything_ran(name: str, size: int) -> None:
    """Not even in a world of one: only the root of a broadcast has its data already."""
    benchmark = BENCHMARKS[name]
    for axes in axes_of(benchmark, size):
        case = case_of(benchmark, size, 1, **axes)
        right = {
            rank
            for (rank, _), wrong in BenchmarkTrial(benchmark, case, size).wrong().items()
            if wrong == 0
        }
        assert right == ({root_of(case)} if name == "broadcast" else set()), axes


@for_each(("name", "size"), WITH_PAYLOAD)
def test_a_library_that_does_nothing_is_seen_on_every_rank(name: str, size: int) -> None:
    """Where the input has been copied into place, and nothing happened to it."""
    benchmark = BENCHMARKS[name]
    for axes in axes_of(benchmark, size, REDUCTIONS):
        case = case_of(benchmark, size, LONG, **axes)
        world = BenchmarkTrial(
            benchmark,
            case,
            size,
            change=lambda rank, program: replace(program, steps=program.reset, reset=()),
        )
        world.run(1)
        right = {rank for (rank, _), wrong in world.wrong().items() if wrong == 0}
        assert right == {rank for rank, _ in world.expected if keeps(case, size, rank)}, axes


@for_each(("name", "size"), WITH_PAYLOAD)
def test_a_wrong_element_is_counted_wherever_it_is(name: str, size: int) -> None:
    benchmark = BENCHMARKS[name]
    for axes in axes_of(benchmark, size, ("sum", "avg")):
        world = BenchmarkTrial(benchmark, case_of(benchmark, size, 7, **axes), size)
        world.run(1)
        for rank, buffer_name in world.expected:
            buffer = world.buffers[rank][buffer_name]
            for slot, place in itertools.product(
                range(buffer.spec.slots), range(buffer.spec.count)
            ):
                buffer.words(slot)[place] += 1
                assert world.count(rank, buffer_name) == 1, (axes, rank, buffer_name, slot, place)
                buffer.words(slot)[place] -= 1
            assert world.count(rank, buffer_name) == 0


@for_each(("name", "size"), WITH_BLOCKS)
def test_blocks_at_each_others_place_are_seen(name: str, size: int) -> None:
    """Blocks of a period: they would be alike if they just went on."""
    benchmark = BENCHMARKS[name]
    for axes in axes_of(benchmark, size):
        world = BenchmarkTrial(benchmark, case_of(benchmark, size, PERIOD, **axes), size)
        world.run(1)
        for rank, buffer_name in world.expected:
            parts = list(blocks_of(world.buffers[rank][buffer_name], PERIOD))
            for first, second in itertools.combinations(parts, 2):
                exchanged(first, second)
                assert world.count(rank, buffer_name) > PERIOD, (axes, rank)
                exchanged(first, second)


@for_each(("name", "size"), WITH_OWN)
def test_another_ranks_block_is_seen(name: str, size: int) -> None:
    benchmark = BENCHMARKS[name]
    for axes in axes_of(benchmark, size):
        world = BenchmarkTrial(benchmark, case_of(benchmark, size, PERIOD, **axes), size)
        world.run(1)
        for (rank, its), (other, others) in itertools.combinations(world.expected, 2):
            mine = world.buffers[rank][its]
            theirs = world.buffers[other][others]
            if its != others or mine.spec != theirs.spec:
                continue
            exchanged(mine.words(), theirs.words())
            assert world.count(rank, its) > 0 and world.count(other, others) > 0, (
                axes,
                rank,
                other,
            )
            exchanged(mine.words(), theirs.words())


def blocks_of(buffer: Any, count: int) -> Iterator[Any]:
    if buffer.spec.count % count == 0:  # an acknowledgement has no blocks
        for slot, start in itertools.product(
            range(buffer.spec.slots), range(0, buffer.spec.count, count)
        ):
            yield buffer.words(slot)[start : start + count]


def exchanged(first: Any, second: Any) -> None:
    kept = first.copy()
    first[:] = second
    second[:] = kept


# ---------------------------------------------------------------- steps


def views_of(step: Step, case: Case, rank: int) -> list[View]:
    """What a lowering may touch: a view that counts on the root only is nothing elsewhere."""
    step = operation_of(step)
    views = [view for view in vars(step).values() if isinstance(view, View)]
    if rank != root_of(case):
        if isinstance(step, Reduce | Gather):
            views.remove(step.recv)
        if isinstance(step, Scatter):
            views.remove(step.send)
    return views


def length(view: View, specs: dict[str, BufferSpec]) -> int:
    return specs[view.buffer].count - view.offset if view.count is None else view.count


def programs(benchmark: Benchmark, size: int, count: int = 7) -> Iterator[tuple[Case, Any]]:
    for axes in axes_of(benchmark, size):
        case = case_of(benchmark, size, count, **axes)
        yield case, [benchmark.program(case, rank, size) for rank in range(size)]


@for_each(("name", "size"), WORLDS)
def test_who_is_active_and_the_buffers_are_those_of_the_programs(name: str, size: int) -> None:
    benchmark = BENCHMARKS[name]
    for case, ranks in programs(benchmark, size):
        active = [rank for rank, program in enumerate(ranks) if program.steps]
        assert list(benchmark.active(case, size)) == active, case
        assert [benchmark.buffers(case, rank, size) for rank in range(size)] == [
            program.buffers for program in ranks
        ], case


@for_each(("name", "size"), WORLDS)
def test_steps_stay_inside_the_buffers_of_their_rank(name: str, size: int) -> None:
    """And a rank allocates nothing that it does not use."""
    for case, ranks in programs(BENCHMARKS[name], size):
        for rank, program in enumerate(ranks):
            specs = {spec.name: spec for spec in program.buffers}
            views = [
                view
                for step in (*program.reset, *program.steps)
                for view in views_of(step, case, rank)
            ]
            assert {view.buffer for view in views} == set(specs), case
            for view in views:
                assert 0 <= view.slot < specs[view.buffer].slots
                assert (
                    view.offset >= 0
                    and view.offset + length(view, specs) <= specs[view.buffer].count
                )
            assert {(view.buffer, view.slot) for view in views} == {
                (spec.name, slot) for spec in program.buffers for slot in range(spec.slots)
            }


@for_each(("name", "size"), [each for each in WITH_PAYLOAD if each[0] != "concurrent"])
def test_in_place_one_buffer_is_named_twice_and_the_small_view_is_the_ranks_block(
    name: str, size: int
) -> None:
    whole = View("data")
    for case, ranks in programs(BENCHMARKS[name], size):
        for rank, program in enumerate(ranks):
            step: Any = program.steps[0] if program.steps else None
            one_way = isinstance(step, Gather | Scatter) and rank != root_of(case)
            if one_way or not hasattr(step, "recv"):
                assert program.reset == ()
                continue
            assert (step.send.buffer == step.recv.buffer) == bool(case.in_place)
            assert bool(program.reset) == bool(case.in_place)
            if case.in_place:
                own = (
                    whole
                    if name in ("reduce", "all_reduce", "all_to_all")
                    else replace(whole, offset=7 * rank, count=7)
                )
                assert {step.send, step.recv} == {whole, own}
                assert isinstance(step, AllGather | Gather) == (step.send == own and own != whole)


@for_each(("name", "size"), WORLDS)
def test_only_a_rank_without_a_pair_is_idle(name: str, size: int) -> None:
    for case, ranks in programs(BENCHMARKS[name], size):
        busy = {rank for pair in case.pairs for rank in pair} if case.pair else set(range(size))
        assert {rank for rank, program in enumerate(ranks) if program.steps} == busy
        assert all(program == Program() for rank, program in enumerate(ranks) if rank not in busy)


WHOLE = {
    (AllGather, "recv"), (Gather, "recv"), (Scatter, "send"), (ReduceScatter, "send"),
    (AllToAll, "send"), (AllToAll, "recv"),
}  # fmt: skip


@for_each(("name", "size"), WITH_PAYLOAD)
def test_blocks_are_as_long_as_the_case_says(name: str, size: int) -> None:
    for case, ranks in programs(BENCHMARKS[name], size):
        for rank, program in enumerate(ranks):
            specs = {spec.name: spec for spec in program.buffers}
            for step in program.steps:
                if isinstance(step, AllToAllV):  # its own lengths: test_all_to_all_v.py
                    continue
                allowed = views_of(step, case, rank)
                for field, view in vars(operation_of(step)).items():
                    if view in allowed and view.buffer != "ack":
                        blocks = size if (type(step), field) in WHOLE else 1
                        assert length(view, specs) == blocks * case.elements, (case, rank, step)
                        assert specs[view.buffer].dtype == case.dtype


@for_each(("name", "size"), WORLDS)
def test_messages_meet_a_receive_of_their_length_and_requests_are_waited_for(
    name: str, size: int
) -> None:
    for _, ranks in programs(BENCHMARKS[name], size):
        sent: dict[tuple[int, int], list[int]] = {}
        received: dict[tuple[int, int], list[int]] = {}
        for rank, program in enumerate(ranks):
            specs = {spec.name: spec for spec in program.buffers}
            requests: list[int] = []
            for step in program.steps:
                operation = operation_of(step)
                if isinstance(operation, Send):
                    sizes = sent.setdefault((rank, operation.peer), [])
                    sizes.append(length(operation.data, specs))
                if isinstance(operation, Recv):
                    sizes = received.setdefault((operation.peer, rank), [])
                    sizes.append(length(operation.data, specs))
                if isinstance(step, Start):
                    requests.append(step.request)
                if isinstance(step, WaitAll):
                    assert sorted(step.requests) == sorted(requests) == list(range(len(requests)))
                    requests = []
            assert requests == []
        assert sent == received


@for_each(("name", "size"), WORLDS)
def test_a_sample_counts_the_messages_that_its_program_sends(name: str, size: int) -> None:
    """Of one pair, of all pairs, or of one rank; a collective is one operation on the whole
    message."""
    benchmark = BENCHMARKS[name]
    for case, ranks in programs(benchmark, size):
        shape = benchmark.shape(case, size)
        steps = [operation_of(step) for program in ranks for step in program.steps]
        sends: list[Step] = [s for s in steps if isinstance(s, Send) and s.data.buffer != "ack"]
        sends += [step for step in steps if isinstance(step, Copy)]
        if not sends:
            if name != "replay":  # its workload decides
                assert shape.moved_bytes == case.message_bytes
            assert shape.operations == 1
            continue
        if "pair" in benchmark.axes:
            first = case.pairs[0]
            of_pair = (step for rank in set(first) for step in ranks[rank].steps)
            sends = [step for step in map(operation_of, of_pair) if step in sends]
        share = size if shape.headline == "max_over_ranks" else 1
        assert shape.operations == len(sends) // share
        assert shape.moved_bytes == shape.operations * case.message_bytes


@for_each("name", BENCHMARKS)
def test_a_world_of_thousands_costs_a_rank_no_more_than_its_peers(name: str) -> None:
    """Steps and segments at most in proportion to the ranks, and one period of values for all of
    them."""
    size = 4096
    benchmark = BENCHMARKS[name]
    pairs = " ".join(f"{rank}-{rank + size // 2}" for rank in range(size // 2))
    window = 64 if "window" in benchmark.axes else None
    case = case_of(
        benchmark, size, 3, pair=pairs, window=window, in_place=True, reduction="sum", root=5
    )
    for rank in (0, 5, size - 1):
        program = benchmark.program(case, rank, size)
        assert len(program.steps) <= 2 * size
        for spec, pattern_of in itertools.product(
            program.buffers, (benchmark.fill, benchmark.expected)
        ):
            pattern = pattern_of(case, rank, size, spec.name, 0)
            if pattern is not None:
                assert pattern.count == spec.count * spec.slots
                assert len(pattern.segments) <= size
                assert len({id(segment.period) for segment in pattern.segments}) <= 2


# ---------------------------------------------------------------- one buffer for all messages


@for_each("name", ["p2p_bandwidth", "p2p_bibandwidth", "p2p_multi_pair"])
def test_shared_buffers_are_one_for_all_messages(name: str) -> None:
    benchmark = BENCHMARKS[name]
    own, shared = (
        case_of(benchmark, 2, 100, pair="0-1", window=5, buffers=buffers)
        for buffers in ("own", "shared")
    )
    for rank in range(2):
        slots = {
            spec.name: spec.slots
            for spec in benchmark.program(shared, rank, 2).buffers
            if spec.name != "ack"
        }
        assert set(slots.values()) == {1}
        assert len(benchmark.program(shared, rank, 2).steps) == len(
            benchmark.program(own, rank, 2).steps
        )
    assert benchmark.shape(shared, 2) == benchmark.shape(own, 2)


@for_each("name", [name for name, each in BENCHMARKS.items() if {"pair", "pairs"} & set(each.axes)])
def test_the_buffers_of_a_pair_are_those_of_every_pair(name: str) -> None:
    """A plan of thousands of ranks computes those of one pair."""
    benchmark = BENCHMARKS[name]
    size = 8
    case = case_of(benchmark, size, count=16, pair="0-1 3-2 6-7 5-5")
    buffers = [benchmark.buffers(case, rank, size) for rank in range(size)]
    assert buffers[0] == buffers[3] == buffers[6] != ()
    assert buffers[1] == buffers[2] == buffers[7] != ()
    assert benchmark.program(case, 4, size) == Program() and buffers[4] == ()
