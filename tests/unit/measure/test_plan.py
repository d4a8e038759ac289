"""Settings x world -> cases: exact sizes, honest skips, one order for every rank, and nothing
allocated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from composed import settings_of
from hypothesis import given
from hypothesis import strategies as st
from two_steps import GATHER, REDUCE, Steps

from commbench.backends.buffers.memory import PART_BYTES, buffer_bytes, slot_bytes
from commbench.benchmarks.all_reduce import AllReduce
from commbench.config.settings import Settings
from commbench.core.case import Planned, World
from commbench.core.payload import DTYPES
from commbench.core.program import AllReduce as AllReduceStep
from commbench.core.program import Barrier, BufferSpec, Program, Send, Step, View
from commbench.core.units import about_bytes
from commbench.features.cuda_copy.backend import CudaCopy
from commbench.measure.plan import (
    CONTROL_BYTES,
    LEAST_WINDOW,
    ROTATION_CAP_BYTES,
    ROTATION_CAP_VIEWS,
    WINDOW_CAP_BYTES,
    duration_s,
    pass_order,
    plan,
    plan_outline,
)
from commbench.measure.plan_facts import PlanFacts
from commbench.measure.time_limits import BATCH_K
from commbench.runtime.control import hosted_world

GIB = 2**30
FACTS = PlanFacts(memory_bytes=64 * GIB, cache_bytes=32 * 2**20, cores=8)


@dataclass(frozen=True)
class Divided(AllReduce):
    """A benchmark that divides its message among the ranks, as gathers do."""

    def blocks(self, size: int) -> int:
        return size


def simulated(*overrides: str) -> Settings:
    return settings_of("backend=simulated", *overrides)


def planned(
    *overrides: str, world: World | None = None, facts: PlanFacts = FACTS
) -> tuple[Planned, ...]:
    return plan(simulated(*overrides), world or hosted_world(1, 2)[0], facts)


@pytest.fixture(scope="module")
def every() -> Settings:
    """All benchmarks on four ranks; most tests change a field of it."""
    return simulated("benchmark=all", "layout=[1x4]", "sizes=[8,1KiB,1MiB]", "pairs=[[0,1]]")


WORLD = hosted_world(1, 4)[0]
DIVIDED: tuple[Any, ...] = (Divided(),)


# ---------------------------------------------------------------- sizes


@given(
    st.lists(st.integers(1, 2**40), min_size=1, max_size=5, unique=True),
    st.sampled_from(sorted(DTYPES)),
    st.integers(1, 9),
)
def test_sizes_are_exact(every: Settings, counts: list[int], dtype: str, ranks: int) -> None:
    """A message is as large as asked for, or the largest one that its blocks divide; the row says
    which."""
    itemsize = DTYPES[dtype].itemsize
    requested = tuple(count * itemsize for count in counts)
    layout = replace(every.layouts[0], ranks_per_node=ranks)
    settings = replace(every, layouts=(layout,), dtypes=(dtype,), sizes=(requested,))
    for benchmark in every.benchmarks:
        unit = itemsize * benchmark.blocks(ranks)
        if not unit:
            continue  # no message: see below
        jobs = plan(
            replace(settings, benchmarks=(benchmark,)),
            hosted_world(1, ranks)[0],
            PlanFacts(2**62, 0, 1),
        )
        sizes = {job.case.message_bytes for job in jobs}
        assert sizes == {size // unit * unit or size for size in requested}
        assert all(job.case.elements == job.case.message_bytes // unit for job in jobs)


def test_traffic_with_bytes_of_its_own_is_one_case_whatever_the_sizes() -> None:
    traffic = "traffic=[ring,moe tokens=4 hidden=8]"
    jobs = planned("benchmark=all_to_all_v", "layout=[1x2]", "sizes=[8,64]", traffic)
    sizes = Counter((job.case.traffic, job.case.message_bytes) for job in jobs)
    own_bytes = 4 * 2 * (2 * 8)  # tokens x ranks x bytes of a token: top 8 of 256 has some on both
    assert sizes == {("ring", 8): 1, ("ring", 64): 1, ("moe tokens=4 hidden=8", own_bytes): 1}


def test_traffic_that_does_not_fit_the_layout_is_skipped_with_the_reason() -> None:
    layout = "layout=[1x3]"
    (job,) = planned(
        "benchmark=all_to_all_v", layout, "traffic=moe", "sizes=[8]", world=hosted_world(1, 3)[0]
    )
    assert job.skip == (
        "traffic=moe: 256 experts can't be shared evenly by 3 ranks; take a multiple of 3"
    )


def test_memory_is_that_of_the_ranks_of_the_fullest_node() -> None:
    """Incast: rank 0 receives what three others send."""
    size = 4 * 2**20
    words = ("backend=gloo", "benchmark=all_to_all_v", "layout=[2x2]", f"sizes=[{size}]")
    (job,) = planned(*words, "cache=warm", "traffic=incast", world=hosted_world(2, 2)[0])
    counts = (1, 3 * size // 4, size // 4, 1)  # elements that ranks 0 and 1 send and receive
    buffers = sum(buffer_bytes(BufferSpec("", count, "float32"), 1) for count in counts)
    assert job.node_bytes == 2 * CONTROL_BYTES + buffers


def test_each_type_has_its_own_sizes() -> None:
    jobs = planned("benchmark=all_reduce", "dtype=[float32,int8]", "sizes=decades", "layout=1x2")
    sizes = {(job.case.dtype, job.case.message_bytes) for job in jobs}
    assert sizes == {
        (name, width * 10**k) for name, width in (("float32", 4), ("int8", 1)) for k in range(1, 8)
    }


def test_sizes_that_become_equal_are_one_case(every: Settings) -> None:
    settings = replace(every, benchmarks=DIVIDED, dtypes=("int8",), sizes=((8, 9, 11, 12),))
    jobs = plan(settings, WORLD, FACTS)
    assert sorted((job.case.message_bytes, job.case.elements) for job in jobs) == [(8, 2), (12, 3)]


def test_too_few_elements_for_all_ranks_are_a_skip(every: Settings) -> None:
    jobs = plan(replace(every, benchmarks=DIVIDED, sizes=((8, 12, 16),)), WORLD, FACTS)
    skips = {job.case.message_bytes: job.skip for job in jobs}
    assert skips == {
        size: f"{size} B of float32 can't be divided among 4 ranks" for size in (8, 12)
    } | {16: None}


def test_all_of_the_memory_may_be_allowed() -> None:
    assert planned("benchmark=all_reduce", "sizes=[8]", "layout=[1x2]", "budget.memory_share=1.0")


@pytest.mark.parametrize(
    ("size", "requested", "window"),
    [
        ("1KiB", 64, 64),
        ("4MiB", 64, 64),
        ("8MiB", 64, 32),
        ("100MiB", 64, 2),
        ("1GiB", 64, 2),
        ("1GiB", 1, 1),
    ],
)
def test_a_window_shrinks_under_its_cap_but_not_below_two(
    size: str, requested: int, window: int
) -> None:
    (job,) = planned(
        "benchmark=p2p_bandwidth", f"sizes=[{size}]", f"window={requested}", "layout=1x2"
    )
    assert job.case.window == window
    assert window <= LEAST_WINDOW or window * job.case.message_bytes <= WINDOW_CAP_BYTES


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("size", ["8", "1KiB", "100kB", "1MiB", "32MiB"])
@pytest.mark.parametrize("cache_mib", [0, 1, 32])
def test_rotation_walks_through_twice_the_cache_unless_a_cap_says_less(
    size: str, cache_mib: int
) -> None:
    facts = replace(FACTS, cache_bytes=cache_mib * 2**20)
    (job,) = planned(
        "benchmark=p2p_bandwidth", "cache=rotate", f"sizes=[{size}]", "layout=1x2", facts=facts
    )
    spec, _ = job.benchmark.program(job.case, 0, 2).buffers
    one_copy = slot_bytes(spec) * spec.slots
    wanted = 2 * max(facts.cache_bytes, job.case.message_bytes)

    def within_caps(pool: int) -> bool:
        return (
            pool * one_copy <= ROTATION_CAP_BYTES["cpu"] and pool * spec.slots <= ROTATION_CAP_VIEWS
        )

    assert job.pool * one_copy >= wanted or not within_caps(job.pool + 1)
    assert job.pool == 1 or (within_caps(job.pool) and (job.pool - 1) * one_copy < wanted)


def test_each_pass_has_an_order_of_its_own_and_the_first_is_the_plan() -> None:
    words = "layout=1x2", "sizes=octaves"
    settings = simulated(*words)
    jobs = planned(*words)
    orders = [
        [job.order for job in pass_order(jobs[::-1], settings, number)] for number in (1, 2, 3)
    ]
    assert orders[0] == [*range(len(jobs))]
    assert (
        len({tuple(order) for order in orders}) == 3
        and [sorted(order) for order in orders] == [orders[0]] * 3
    )
    assert orders[1] == [job.order for job in pass_order(jobs, settings, 2)], (
        "the same on all ranks"
    )


def test_a_warm_cache_needs_no_pool() -> None:
    (job,) = planned("benchmark=p2p_bandwidth", "cache=warm", "sizes=[1KiB]", "layout=1x2")
    assert (job.pool, job.case.cache) == (1, "warm")


def test_memory_is_counted_on_the_fullest_node() -> None:
    world = World(0, 6, ((0, 1), (2, 3, 4, 5)), (0,))
    words = ("backend=gloo", "benchmark=all_reduce", "sizes=[4MiB]", "layout=[2x2]")
    (job,) = planned(*words, world=world)
    specs = job.benchmark.program(job.case, 0, 4).buffers
    assert job.node_bytes == 2 * sum(buffer_bytes(spec, 1) for spec in specs) + 4 * CONTROL_BYTES


def test_memory_of_a_simulated_world_is_counted_over_all_its_nodes() -> None:
    (job,) = planned(
        "benchmark=all_reduce", "sizes=[4MiB]", "layout=[4x2]", world=hosted_world(4, 2)[0]
    )
    specs = job.benchmark.program(job.case, 0, 8).buffers
    assert job.node_bytes == 8 * sum(buffer_bytes(spec, 1) for spec in specs) + CONTROL_BYTES


def test_one_byte_decides_what_fits() -> None:
    arguments = ("benchmark=all_reduce", "sizes=[4MiB]", "layout=[1x2]", "budget.memory_share=0.5")
    needed = planned(*arguments)[0].node_bytes
    fits, misses = (
        planned(*arguments, facts=replace(FACTS, memory_bytes=2 * (needed - k)))[0].skip
        for k in (0, 1)
    )
    assert fits is None
    assert misses == (
        f"needs {about_bytes(needed)} on a node, allowed are {about_bytes(needed)}"
        f" (budget.memory_share=0.5 of the {about_bytes(2 * needed)} that were free at the start)"
    )


def test_what_no_machine_can_hold_is_refused_without_trying() -> None:
    jobs = planned(
        "benchmark=[all_reduce,p2p_latency,p2p_bandwidth]", "sizes=[1024TiB]", "layout=[1x2]"
    )
    settings = simulated()
    assert len(jobs) == 3
    for job in jobs:
        assert (job.skip or "").startswith("needs ")
        assert duration_s(settings, job) == 0


# ---------------------------------------------------------------- skips


def test_a_layout_that_does_not_fit_is_a_skip_and_the_others_run() -> None:
    jobs = planned("benchmark=all_reduce", "sizes=[8]", "layout=[1x1,1x2,1x4,2x1]")
    skips = {job.case.layout: job.skip for job in jobs}
    assert (skips["1x1"], skips["1x2"]) == (None, None)
    for layout in ("1x4", "2x1"):
        assert (
            skips[layout]
            == f"layout {layout} does not fit into this world of 1 node(s) with 2 rank(s)"
        )


def test_a_pair_needs_two_ranks_and_both_must_be_there() -> None:
    jobs = planned("benchmark=p2p_latency", "sizes=[8]", "layout=[1x1,1x2]", "pairs=[[0,1],[1,5]]")
    skips = {(job.case.layout, job.case.pair): job.skip for job in jobs}
    assert skips["1x2", "0-1"] is None
    assert skips["1x2", "1-5"] == "pair 1-5 needs rank 5, layout 1x2 has ranks 0 to 1"
    assert skips["1x1", "0-1"] == "pair 0-1 needs rank 1, layout 1x1 has ranks 0 to 0"
    (alone,) = planned("benchmark=p2p_latency", "sizes=[8]", "layout=1x1")
    assert (
        alone.skip
        == "p2p_latency needs 2 ranks, layout 1x1 has 1; a rank with itself: pairs=[[0,0]]"
    )


@pytest.mark.parametrize(
    ("benchmark", "staging", "host", "device"),
    [
        ("copy_h2d", "none", 1, 1),
        ("copy_d2h", "pinned", 1, 1),
        ("copy_h2d_d2h", "none", 2, 2),
        ("copy_d2d", "none", 0, 2),
    ],
)
def test_memory_of_a_copy_is_where_its_buffers_are(
    benchmark: str, staging: str, host: int, device: int
) -> None:
    size = 2**30
    words = ["sizes=[1GiB]", "layout=1x1", "device=cuda", "cache=warm", "budget.memory_share=1.0"]
    simulation = simulated(f"benchmark={benchmark}", f"staging={staging}", *words)
    settings = replace(
        simulation,
        backend=CudaCopy(),
        axes={**simulation.axes, "timer": ("host_sync",)},
    )
    facts = replace(FACTS, gpu_bytes=device * (size + 2**20), memory_bytes=2**40)
    world = hosted_world(1, 1)[0]
    (job,) = plan(settings, world, facts)
    host_bytes = job.node_bytes - CONTROL_BYTES
    assert job.skip is None and host * size <= host_bytes < host * size + 5 * PART_BYTES
    (full,) = plan(settings, world, replace(facts, gpu_bytes=device * size))
    assert "on a GPU, allowed are" in str(full.skip)


@pytest.mark.parametrize(("backend", "vectors"), [("nccl", 0), ("mpi", 1)])
@pytest.mark.parametrize(("ranks", "machine"), [(1, 4), (2, 4), (4, 8), (8, 16)])
def test_a_thousand_million_elements_fit_the_machines_of_the_document(
    backend: str, vectors: int, ranks: int, machine: int
) -> None:
    """n1-standard-4, 8 and 16 have 3.75 GB for each core, a K80 has 11.2 GiB for each GPU: nccl
    needs no vector on the host, mpi one for each rank."""
    words = (f"backend={backend}", "device=cuda", f"layout=[{8 // ranks}x{ranks}]")
    settings = settings_of("experiment=mlbench_allreduce", *words)
    world = World(0, 8, tuple(tuple(range(at, at + ranks)) for at in range(0, 8, ranks)), (0,))
    facts = replace(
        FACTS, memory_bytes=int(3.4 * machine * GIB), gpu_bytes=int(11.2 * GIB), gpus=ranks
    )
    largest = max(plan(settings, world, facts), key=lambda job: job.case.message_bytes)
    assert largest.case.message_bytes == 4 * 10**9 and largest.skip is None
    rank_bytes = largest.node_bytes / ranks - CONTROL_BYTES - vectors * 4 * 10**9
    assert 0 <= rank_bytes < 5 * PART_BYTES


def test_only_some_backends_copy_within_a_rank() -> None:
    (job,) = planned("benchmark=copy_h2d", "backend=gloo", "sizes=[8]", "layout=1x1")
    assert (
        job.skip
        == "gloo sends messages between ranks; it does not measure copies between host and device"
    )


@pytest.mark.parametrize(
    "benchmark", ["p2p_latency", "p2p_bandwidth", "p2p_bibandwidth", "p2p_multi_pair"]
)
@pytest.mark.parametrize("pairs", ["pairs=[[0,0]]", "pairs=all"])
def test_a_rank_alone_can_send_to_itself(benchmark: str, pairs: str) -> None:
    (job,) = planned(f"benchmark={benchmark}", "sizes=[8]", "layout=1x1", pairs)
    if benchmark == "p2p_multi_pair" and pairs == "pairs=all":
        assert (
            job.skip
            == "p2p_multi_pair needs 2 ranks, layout 1x1 has 1; a rank with itself: pairs=[[0,0]]"
        )
    else:
        assert job.skip is None and job.case.pair == "0-0"


@pytest.mark.parametrize(
    ("benchmark", "mode", "value", "sync"),
    [
        ("p2p_latency", "host_sync", "barrier", "none"),
        ("p2p_latency", "device_event", "barrier", "barrier"),
        ("p2p_bandwidth", "throughput", "none", "barrier"),
        ("p2p_bandwidth", "graph", "none", "barrier"),
        ("all_reduce", "device_event", "none", "barrier"),
        ("all_reduce", "host_sync", "none", "none"),
    ],
)
def test_ranks_meet_behind_the_hold_of_a_gpu(
    benchmark: str, mode: str, value: str, sync: str
) -> None:
    words = [
        f"benchmark={benchmark}",
        f"timer={mode}",
        f"sync={value}",
        "device=cuda",
        "sizes=[8]",
        "layout=1x2",
    ]
    (job,) = planned(*words)
    assert job.case.sync == sync


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["engine=native"], "simulated has no native engine; it has: virtual"),
        (["device=cuda"], "simulated does not run on cuda"),
        (["backend=gloo", "in_place=false"], "torch.distributed reduces in place only"),
    ],
)
def test_what_a_backend_can_not_do_is_a_skip(overrides: list[str], reason: str) -> None:
    (job,) = planned("benchmark=all_reduce", "sizes=[8]", "layout=1x2", *overrides)
    assert job.skip == reason


def test_a_step_that_a_backend_lacks_is_a_skip_whatever_the_benchmark_is_called() -> None:
    settings = replace(
        settings_of("backend=gloo", "benchmark=all_reduce", "layout=1x2"),
        benchmarks=(Steps((REDUCE, AllReduceStep(View("source"), View("data"), "sum"))),),
    )
    world, _ = hosted_world(1, 2)
    reasons = {job.skip for job in plan(settings, world, FACTS)}
    assert reasons == {"torch.distributed reduces in place only"}


@pytest.mark.parametrize(
    ("steps", "staging"),
    [
        ((REDUCE, GATHER), "library"),
        ((REDUCE, Send(View("data"), 1)), "pinned"),
        ((REDUCE, Barrier()), "library"),
        ((Barrier(), Barrier()), "none"),
    ],
)
def test_who_copies_follows_from_the_steps(steps: tuple[Step, ...], staging: str) -> None:
    settings = replace(
        settings_of("backend=gloo", "benchmark=all_reduce", "layout=1x2"),
        device="cuda",
        benchmarks=(Steps(steps),),
    )
    world, _ = hosted_world(1, 2)
    assert {job.case.staging for job in plan(settings, world, FACTS)} == {staging}


@pytest.mark.parametrize("benchmark", ["exchange", "p2p_bandwidth"])
def test_a_plan_builds_one_program_and_not_those_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch, benchmark: str
) -> None:
    settings = settings_of(
        "backend=simulated",
        f"benchmark={benchmark}",
        "layout=1x64",
        "sizes=[64kB]",
        "pairs=[[0,1]]",
    )
    (kind,) = (type(each) for each in settings.benchmarks)
    built = []
    program = kind.program

    def counted(benchmark: Any, case: Any, rank: int, size: int) -> Program:
        built.append(rank)
        return program(benchmark, case, rank, size)

    monkeypatch.setattr(kind, "program", counted)
    world, _ = hosted_world(1, 64)
    (job,) = plan(settings, world, FACTS)
    assert job.active == (tuple(range(64)) if benchmark != "p2p_bandwidth" else (0, 1))
    assert built == [0]


def test_skips_keep_their_place_in_the_order(every: Settings) -> None:
    jobs = plan(every, hosted_world(1, 2)[0], FACTS)
    assert [job.order for job in jobs] == list(range(len(jobs)))
    assert all(job.skip for job in jobs)


# ---------------------------------------------------------------- pairs and axes


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("neighbours", ["0-1", "1-2", "2-3"]),
        ("all", [f"{a}-{b}" for a in range(4) for b in range(4)]),
        ("[[3,0],[1,1]]", ["1-1", "3-0"]),
    ],
)
def test_pairs(pairs: str, expected: list[str]) -> None:
    jobs = planned(
        "benchmark=p2p_latency", "sizes=[8]", "layout=[1x4]", f"pairs={pairs}", world=WORLD
    )
    assert sorted(job.case.pair or "" for job in jobs) == expected


def test_axes_multiply_and_only_where_a_benchmark_has_them() -> None:
    jobs = planned(
        "benchmark=[all_reduce,p2p_latency,p2p_bandwidth]",
        "sizes=[8,64]",
        "layout=1x2",
        "dtype=[float32,int8]",
        "reduction=[sum,max]",
        "in_place=[true,false]",
        "window=[2,4,8]",
    )
    counts = {
        name: sum(job.case.benchmark == name for job in jobs)
        for name in {job.case.benchmark for job in jobs}
    }
    assert counts == {"all_reduce": 4 * 2 * 2, "p2p_latency": 4, "p2p_bandwidth": 4 * 3}
    latency = next(job.case for job in jobs if job.case.benchmark == "p2p_latency")
    assert (latency.window, latency.in_place, latency.reduction) == (None, None, None)


def test_auto_is_resolved_before_a_case_is_named() -> None:
    jobs = {
        job.case.benchmark: job.case
        for job in planned("benchmark=[p2p_bandwidth,all_reduce]", "layout=1x2", "sizes=[8]")
    }
    assert {case.engine for case in jobs.values()} == {"virtual"}
    assert {case.timer for case in jobs.values()} == {"host"}
    assert {name: case.cache for name, case in jobs.items()} == {
        "p2p_bandwidth": "rotate",
        "all_reduce": "warm",
    }
    assert {name: case.sync for name, case in jobs.items()} == {
        "p2p_bandwidth": "none",
        "all_reduce": "barrier",
    }


# ---------------------------------------------------------------- order


def ids(settings: Settings) -> list[str]:
    return [job.case.case_id for job in plan(settings, WORLD, FACTS)]


def test_the_order_is_shuffled_by_seed_and_launch(every: Settings) -> None:
    first = ids(every)
    assert first == ids(every)
    others = [ids(replace(every, seed=1)), ids(replace(every, trial=1))]
    assert first != others[0] != others[1] != first
    assert sorted(first) == sorted(others[0]) == sorted(others[1])


def test_the_order_is_not_the_order_of_the_sizes() -> None:
    sizes = [
        job.case.message_bytes
        for job in planned("benchmark=all_reduce", "sizes=decades", "layout=1x2")
    ]
    assert sizes != sorted(sizes) and sizes != sorted(sizes, reverse=True)


def test_every_rank_makes_the_same_plan(every: Settings) -> None:
    plans = [plan(every, replace(WORLD, rank=rank, hosted=(rank,)), FACTS) for rank in range(4)]
    assert plans[0] == plans[1] == plans[2] == plans[3]


def ranks_of(jobs: tuple[Planned, ...]) -> Iterator[tuple[int, ...]]:
    return (job.members for job in jobs if not job.skip)


def test_members_are_world_ranks_of_the_layout() -> None:
    world = World(0, 6, ((0, 1, 2), (3, 4, 5)), (0,))
    jobs = planned("benchmark=all_reduce", "sizes=[8]", "layout=[2x2]", world=world)
    assert list(ranks_of(jobs)) == [(0, 1, 3, 4)]


def test_the_estimate_grows_with_memory_and_budget() -> None:
    settings = simulated("timing=quick")
    small = planned("benchmark=all_reduce", "sizes=[8]", "layout=1x2")[0]
    large = planned(
        "benchmark=all_reduce", "sizes=[1GiB]", "layout=1x2")[0]  # fmt: skip
    assert duration_s(settings, small) < duration_s(settings, large)
    longer = replace(settings, timing=replace(settings.timing, case_s=60.0))
    assert duration_s(longer, small) >= duration_s(settings, small) + 59


# ---------------------------------------------------------------- axes that only some operations
# have


def test_an_operation_without_a_message_is_one_case() -> None:
    jobs = planned(
        "benchmark=barrier", "sizes=[8,1MiB]", "dtype=[float32,int8]", "cache=rotate", "layout=1x2"
    )
    assert [
        (job.case.message_bytes, job.case.elements, job.case.dtype, job.skip) for job in jobs
    ] == [(0, 0, "none", None)]


def test_roots_are_cases_and_one_outside_the_layout_is_a_skip() -> None:
    jobs = planned(
        "benchmark=[broadcast,all_reduce]",
        "root=[0,2]",
        "sizes=[8]",
        "layout=[1x2,1x3]",
        world=WORLD,
    )
    skips = {(job.case.benchmark, job.case.layout, job.case.root): job.skip for job in jobs}
    assert skips == {
        ("broadcast", "1x2", 0): None,
        ("broadcast", "1x2", 2): "root 2 is not in layout 1x2, which has ranks 0 to 1",
        ("broadcast", "1x3", 0): None,
        ("broadcast", "1x3", 2): None,
        ("all_reduce", "1x2", None): None,
        ("all_reduce", "1x3", None): None,
    }


def test_in_place_follows_the_operation_unless_it_is_asked_for() -> None:
    words = (
        "benchmark=[all_reduce,reduce,all_gather,all_to_all,broadcast]",
        "sizes=[800]",
        "layout=1x2",
    )
    in_place = {job.case.benchmark: job.case.in_place for job in planned(*words)}
    assert in_place == {
        "all_reduce": True,
        "reduce": True,
        "all_gather": False,
        "all_to_all": False,
        "broadcast": None,
    }
    both = {
        (job.case.benchmark, job.case.in_place) for job in planned(*words, "in_place=[true,false]")
    }
    assert len(both) == 9


@pytest.mark.parametrize(
    ("pairs", "size", "expected"),
    [
        ("neighbours", 4, "0-2 1-3"),
        ("all", 5, "0-2 1-3"),
        ("[[0,1],[3,2]]", 4, "0-1 3-2"),
    ],
)
def test_pairs_at_once_are_halves_or_those_listed(pairs: str, size: int, expected: str) -> None:
    world = hosted_world(1, size)[0]
    (job,) = planned(
        "benchmark=p2p_multi_pair", f"pairs={pairs}", "sizes=[8]", f"layout=1x{size}", world=world
    )
    assert (job.case.pair, job.case.schedule, job.skip) == (expected, None, None)


def test_pairs_at_once_that_share_a_rank_are_a_skip() -> None:
    (job,) = planned(
        "benchmark=p2p_multi_pair", "pairs=[[0,1],[1,2]]", "sizes=[8]", "layout=1x3", world=WORLD
    )
    assert job.skip == "pairs 0-1 1-2 run at once, but share a rank"


def test_rounds_hold_every_pair_once_and_start_together() -> None:
    jobs = planned(
        "benchmark=p2p_latency",
        "pairs=all",
        "schedule=rounds",
        "sizes=[8]",
        "layout=1x4",
        world=WORLD,
    )
    assert sorted(pair for job in jobs for pair in job.case.pairs) == [
        (a, b) for a in range(4) for b in range(4)
    ]
    assert len(jobs) == 7
    assert all(job.case.sync == "barrier" and job.case.schedule == "rounds" for job in jobs)
    serial = planned("benchmark=p2p_latency", "pairs=all", "sizes=[8]", "layout=1x4", world=WORLD)
    assert len(serial) == 16
    assert all(job.case.sync == "none" and job.case.schedule == "serial" for job in serial)


# ---------------------------------------------------------------- GPUs


@pytest.mark.parametrize(
    ("gpus", "free_mib", "reason"),
    [
        (2, 100, None),
        # two ranks share it
        (1, 100, "needs 76.3 MiB on a GPU, allowed are 50 MiB"),
        (2, 70, "needs 38.1 MiB on a GPU, allowed are 35 MiB"),
        (1, 200, None),
    ],
)
def test_a_gpu_must_have_room_for_the_ranks_that_share_it(
    gpus: int, free_mib: int, reason: str | None
) -> None:
    words = [
        "backend=gloo",
        "device=cuda",
        "benchmark=broadcast",
        "dtype=int8",
        "sizes=[40MB]",
        "layout=1x2",
    ]
    (job,) = planned(*words, facts=replace(FACTS, gpu_bytes=free_mib * 2**20, gpus=gpus))
    assert reason == (None if job.skip is None else job.skip.partition(" (")[0])


def test_a_gpu_has_modes_and_an_engine_of_its_own_and_a_graph_walks_through_its_copies() -> None:
    words = [
        "backend=gloo",
        "device=cuda",
        "benchmark=p2p_latency",
        "sizes=[1MiB]",
        "layout=1x2",
        "cache=rotate",
    ]
    (job,) = planned(*words, facts=replace(FACTS, cache_bytes=50 * 2**20))
    assert (job.case.timer, job.case.engine, job.case.device) == (
        "host_sync",
        "python",
        "cuda",
    )
    graph_words = ["backend=nccl", *words[1:], "timer=graph"]
    (graph,) = planned(*graph_words, facts=replace(FACTS, cache_bytes=50 * 2**20))
    assert job.pool > BATCH_K == graph.pool


def test_sizes_per_rank_are_those_of_a_block() -> None:
    """64 B of gather on 3 ranks can't be divided; 64 B of each rank are 192 B."""
    words = (
        "benchmark=[gather,all_reduce,p2p_latency]",
        "layout=[1x3]",
        "sizes=[64]",
        "dtype=int8",
        "pairs=[[0,1]]",
    )
    world = hosted_world(1, 3)[0]
    per_rank = {
        job.case.benchmark: job.case for job in planned(*words, "sizes_per=rank", world=world)
    }
    assert {name: case.message_bytes for name, case in per_rank.items()} == {
        "gather": 192, "all_reduce": 64, "p2p_latency": 64
    }  # fmt: skip
    assert per_rank["gather"].elements == 64
    in_total = {job.case.benchmark: job.case for job in planned(*words, world=world)}
    assert (in_total["gather"].message_bytes, in_total["gather"].elements) == (63, 21)


def test_one_buffer_is_warm_and_its_window_does_not_shrink() -> None:
    words = (
        "benchmark=p2p_bandwidth",
        "buffers=[own,shared]",
        "sizes=[64MiB]",
        "window=64",
        "layout=[1x2]",
    )
    cases = {job.case.buffers: job.case for job in planned(*words)}
    assert (cases["own"].window, cases["own"].cache) == (4, "rotate")
    assert (cases["shared"].window, cases["shared"].cache) == (64, "warm")


# ---------------------------------------------------------------- counted instead of made


@pytest.mark.parametrize("layout", ["[1x1]", "[1x4]", "[3x1]", "[2x3]", "[1x2,2x2]"])
@pytest.mark.parametrize("pairs", ["all", "neighbours", "[[0,1],[1,0],[0,1],[2,2],[7,0]]"])
@pytest.mark.parametrize("schedule", ["serial", "rounds"])
def test_an_outline_has_the_cases_times_and_memory_of_the_plan(
    layout: str, pairs: str, schedule: str
) -> None:
    """Also where some cases do not fit the memory, or can't be measured."""
    settings = settings_of(
        "backend=gloo",
        "benchmark=[p2p_latency,p2p_bandwidth,p2p_multi_pair,all_reduce]",
        f"layout={layout}",
        f"pairs={pairs}",
        f"schedule={schedule}",
        "sizes=[8,1MiB,16MiB]",
        "window=[2,64]",
    )
    nodes = max(each.nodes for each in settings.layouts)
    world, _ = hosted_world(nodes, max(each.ranks_per_node for each in settings.layouts))
    facts = replace(FACTS, memory_bytes=GIB)

    def key(job: Planned) -> tuple[Any, ...]:
        case = job.case
        at_once = len(case.pairs)
        return (case.benchmark, case.layout, case.message_bytes, case.window, at_once, job.skip)

    counts = Counter[Any]()
    node_bytes = Counter[Any]()
    for job in plan(settings, world, facts):
        counts[key(job)] += 1
        node_bytes[key(job)] = max(node_bytes[key(job)], job.node_bytes)
    outlined = Counter[Any]()
    outlined_bytes = Counter[Any]()
    for alike in plan_outline(settings, world, facts):
        outlined[key(alike.planned)] += alike.cases
        outlined_bytes[key(alike.planned)] = max(
            outlined_bytes[key(alike.planned)], alike.planned.node_bytes
        )
    assert outlined == counts
    assert outlined_bytes == node_bytes


def test_an_exchange_with_its_own_buffers_keeps_its_identity() -> None:
    settings = settings_of("backend=simulated", "benchmark=exchange", "layout=1x4", "sizes=[20B]")
    axes = {**settings.axes, "buffers": ("own", "shared")}
    own, shared = plan(replace(settings, axes=axes), hosted_world(1, 4)[0], FACTS)
    assert (own.case.buffers, shared.case.buffers) == (None, "shared")
    assert own.case.case_id != shared.case.case_id
