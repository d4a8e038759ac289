"""The simulated world: planted times come out exactly, and every step moves the payload as MPI
says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import sample_cases
from benchmark_trials import BenchmarkTrial
from step_trials import REDUCE, Trials, allocated, wrong

from commbench.benchmarks.all_reduce import AllReduce as AllReduceBenchmark
from commbench.benchmarks.memory_copy import CopyD2D, CopyD2H, CopyH2D, CopyH2DD2H
from commbench.benchmarks.p2p_bandwidth import ACK_BYTES, P2PBandwidth
from commbench.benchmarks.p2p_latency import P2PLatency
from commbench.core.errors import CommunicationError, ConfigError, Unsupported
from commbench.core.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    BufferSpec,
    Copy,
    Gather,
    Matmul,
    MemoryStream,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Scatter,
    Send,
    Sleep,
    Start,
    Step,
    View,
    WaitAll,
    operation_of,
)
from commbench.core.variables import Case, Mode
from commbench.features.simulated.backend import Simulated
from commbench.features.simulated.model import Model
from commbench.runtime.control import hosted_world
from commbench.stats.series import lag1

SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4])
LATENCY_S = 3e-6
GB_PER_S = 8.0
PLAIN = Model(latency_s=LATENCY_S, bandwidth_gb_per_s=GB_PER_S, call_s=0.0)
CASE = replace(sample_cases.CASE, pair="0-1", message_bytes=4000, elements=1000)
X = View("x")
Y = View("y")


class Ranks:
    """Programs of all ranks on a simulated communicator. Rank r's buffers hold 100 r + index; y is
    to be written."""

    def __init__(
        self,
        size: int,
        steps: Callable[[int], Iterable[Step]],
        counts: tuple[int, int] = (12, 12),
        dtype: str = "int32",
        model: Model = PLAIN,
        pool: int = 1,
        reset: tuple[Step, ...] = (),
    ) -> None:
        communicator = Simulated(model).open(*hosted_world(1, size))
        specs = (
            BufferSpec("x", counts[0], dtype, slots=2),
            BufferSpec("y", counts[1], dtype, slots=2),
        )
        self.programs = {rank: Program(specs, tuple(steps(rank)), reset) for rank in range(size)}
        self.buffers: dict[int, dict[str, Any]] = {
            rank: {spec.name: communicator.allocate(spec, pool) for spec in specs}
            for rank in range(size)
        }
        for rank, held in self.buffers.items():
            for copy in range(pool):
                held["x"].words(0, copy)[:] = self.start(rank, counts[0]) + 1000 * copy
        self.runner = communicator.prepare(self.programs, self.buffers, Mode("virtual"))

    @staticmethod
    def start(rank: int, count: int = 12) -> Any:
        return 100 * rank + np.arange(count)

    def of(self, rank: int, name: str = "y", slot: int = 0, copy: int = 0) -> list[int]:
        return [int(word) for word in self.buffers[rank][name].words(slot, copy)]

    def untouched(self, rank: int) -> bool:
        fresh = np.full(self.buffers[rank]["y"].payload_bytes, 0xA5, dtype=np.uint8)
        return bool((self.buffers[rank]["y"].words().view(np.uint8) == fresh).all())


def seconds(
    size: int, steps: Callable[[int], Iterable[Step]], model: Model = PLAIN, **options: Any
) -> list[float]:
    """Virtual seconds of one repetition on each rank."""
    stamps = Ranks(size, steps, model=model, **options).runner(1)
    return [float(ns) * 1e-9 for ns in stamps[:, 0, 1] - stamps[:, 0, 0]]


def measured(
    benchmark: Any, case: Case, size: int, model: Model, blocks: Iterable[int] = (1,)
) -> Any:
    """Seconds [ranks, n] of a benchmark's own program."""
    trial = BenchmarkTrial(benchmark, case, size, model=model)
    stamps = np.concatenate([trial.run(n) for n in blocks], axis=1)
    assert set(trial.wrong().values()) <= {0}
    return (stamps[..., 1] - stamps[..., 0]) * 1e-9


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("count", [1, 1000, 10**6])
@pytest.mark.parametrize("call_s", [0.0, 2e-7])
def test_a_ping_pong_takes_latency_plus_bytes_over_bandwidth(count: int, call_s: float) -> None:
    case = replace(CASE, elements=count, message_bytes=4 * count)
    times = measured(P2PLatency(), case, 2, replace(PLAIN, call_s=call_s))
    half_round_trip = times[0, 0] / P2PLatency().shape(case, 2).operations
    assert half_round_trip == pytest.approx(
        call_s + LATENCY_S + 4 * count / (GB_PER_S * 1e9), abs=1e-9
    )


@pytest.mark.parametrize("window", [1, 2, 64])
def test_a_window_shares_the_link_and_pays_latency_once_each_way(window: int) -> None:
    case = replace(CASE, benchmark="p2p_bandwidth", window=window)
    sample_s = float(measured(P2PBandwidth(), case, 2, PLAIN)[0, 0])
    assert sample_s == pytest.approx(
        2 * LATENCY_S + (window * 4000 + ACK_BYTES) / (GB_PER_S * 1e9), abs=1e-9
    )


def test_the_two_directions_of_a_pair_do_not_share_bandwidth() -> None:
    def steps(rank: int) -> Iterable[Step]:
        return Start(Recv(Y, 1 - rank), 0), Start(Send(X, 1 - rank), 1), WaitAll((0, 1))

    one_way = LATENCY_S + 4000 / (GB_PER_S * 1e9)
    assert seconds(2, steps, counts=(1000, 1000)) == pytest.approx([one_way, one_way], abs=1e-9)


COLLECTIVES: dict[str, tuple[Any, Callable[[int, float], float]]] = {
    "barrier": (Barrier(), lambda n, _: math.ceil(math.log2(n)) * LATENCY_S),
    "broadcast": (Broadcast(X, 0), lambda n, m: math.ceil(math.log2(n)) * (LATENCY_S + m)),
    "reduce": (Reduce(X, Y, "sum", 0), lambda n, m: math.ceil(math.log2(n)) * (LATENCY_S + m)),
    "all_reduce": (AllReduce(X, Y, "sum"), lambda n, m: 2 * (n - 1) * (LATENCY_S + m / n)),
    "reduce_scatter": (
        ReduceScatter(X, Y, "sum"),
        lambda n, m: (n - 1) * (LATENCY_S + m / n),
    ),
    "all_to_all": (AllToAll(X, Y), lambda n, m: (n - 1) * (LATENCY_S + m / n)),
    "scatter": (Scatter(X, Y, 0), lambda n, m: (n - 1) * (LATENCY_S + m / n)),
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_collectives_take_their_textbook_time(name: str, size: int) -> None:
    """m is the whole message: what a rank holds, or the root's buffer."""
    step, formula = COLLECTIVES[name]
    own = replace(step, recv=replace(Y, count=2400 // size)) if "scatter" in name else step
    expected = formula(size, 4 * 2400 / (GB_PER_S * 1e9))
    times = seconds(size, lambda rank: (own,), counts=(2400, 2400))
    assert times == pytest.approx([expected] * size, abs=1e-9)


@pytest.mark.parametrize(
    "step", [AllGather(View("x", count=600), Y), Gather(View("x", count=600), Y, 0)]
)
def test_gathers_count_the_whole_of_what_they_collect(step: Step) -> None:
    expected = 3 * (LATENCY_S + 4 * 600 / (GB_PER_S * 1e9))
    assert seconds(4, lambda rank: (step,), counts=(2400, 2400)) == pytest.approx(
        [expected] * 4, abs=1e-9
    )


@pytest.mark.parametrize("name", COLLECTIVES)
def test_alone_a_collective_costs_its_call(name: str) -> None:
    step = COLLECTIVES[name][0]
    assert seconds(1, lambda rank: (step,), model=replace(PLAIN, call_s=5e-6)) == pytest.approx(
        [5e-6]
    )


def test_a_collective_waits_for_the_last_rank() -> None:
    def steps(rank: int) -> Iterable[Step]:
        if rank < 2:
            yield Send(X, 1) if rank == 0 else Recv(Y, 0)
        yield Barrier()

    assert seconds(3, steps) == pytest.approx([3 * LATENCY_S + 48 / (GB_PER_S * 1e9)] * 3, abs=1e-9)


def test_idle_ranks_have_stamps_too() -> None:
    times = measured(P2PLatency(), replace(CASE, pair="1-2"), 4, PLAIN)
    assert (times[[0, 3]] == 0).all() and (times[[1, 2]] > 0).all()


def test_repetitions_follow_one_another() -> None:
    ranks = Ranks(2, lambda rank: (Barrier(),))
    stamps = np.concatenate([ranks.runner(3), ranks.runner(2)], axis=1)
    assert (stamps[:, 1:, 0] >= stamps[:, :-1, 1]).all()
    assert ranks.runner.progress[0] == 2


# ---------------------------------------------------------------- planted faults


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_noise_has_the_planted_width_and_autocorrelation_across_blocks(rho: float) -> None:
    model = replace(PLAIN, noise=0.1, rho=rho)
    logs = np.log(measured(P2PLatency(), CASE, 2, model, blocks=[10] * 500)[0])
    assert lag1(logs) == pytest.approx(rho, abs=0.05)
    assert logs.std() == pytest.approx(0.1, rel=0.2)


def test_noise_is_that_of_a_seed_a_visit_and_a_machine() -> None:
    model = replace(PLAIN, noise=0.1)

    def stamps(seed: int, visit: str, model: Model = model) -> Any:
        communicator = Simulated(model, seed).open(*hosted_world(1, 2))
        mode = Mode("virtual", visit=visit)
        return communicator.prepare({r: Program(steps=(Barrier(),)) for r in (0, 1)}, {}, mode)(5)

    assert (stamps(1, "case/0/1") == stamps(1, "case/0/1")).all()
    assert (stamps(1, "case/0/1") != stamps(2, "case/0/1")).any()
    assert (stamps(1, "case/0/1") != stamps(1, "case/0/2")).any()
    slower = replace(model, latency_s=2 * model.latency_s)
    ratio = stamps(1, "case/0/1", slower)[0, :, 1] / stamps(1, "case/0/1")[0, :, 1]
    assert np.ptp(ratio) > 0.01


def test_a_straggler_delays_everybody_in_one_of_a_hundred() -> None:
    case = replace(
        CASE, benchmark="all_reduce", pair=None, in_place=True, reduction="sum", layout="1x4"
    )
    model = replace(PLAIN, straggler_rank=2, straggler_every=100, straggler_s=5e-3)
    times = measured(AllReduceBenchmark(), case, 4, model, blocks=[30, 70, 150, 50]).max(axis=0)
    usual = PLAIN.collective_s(AllReduce(X, X, "sum"), 4, 4000)
    late = np.isclose(times, usual + 5e-3, atol=1e-9)
    assert np.flatnonzero(late).tolist() == [99, 199, 299]
    assert np.isclose(times[~late], usual, atol=1e-9).all()


LINKS = pytest.mark.parametrize(
    ("planted", "link", "factor"),
    [
        ({}, (0, 1), 1),
        ({"slow_pair": "0-1", "slow_factor": 3}, (0, 1), 3),
        ({"slow_pair": "0-1", "slow_factor": 3}, (1, 0), 1),
        ({"slow_pair": "0-1", "slow_factor": 3}, (0, 2), 1),
        ({"slow_rank": 2, "slow_factor": 4}, (2, 0), 4),
        ({"slow_rank": 2, "slow_factor": 4}, (1, 2), 4),
        ({"slow_rank": 2, "slow_factor": 4}, (0, 1), 1),
        ({"slow_rank": 0, "slow_pair": "0-1", "slow_factor": 4}, (0, 1), 4),
        ({"slow_node": 1, "slow_factor": 4}, (0, 1), 1),
        ({"slow_node": 1, "slow_factor": 4}, (2, 1), 4),
        ({"slow_node": 1, "slow_factor": 4}, (3, 2), 4),
        ({"other_node_factor": 10}, (0, 1), 1),
        ({"other_node_factor": 10}, (1, 2), 10),
        ({"other_node_factor": 10, "slow_pair": "1-2", "slow_factor": 3}, (1, 2), 30),
        ({"other_node_factor": 10, "slow_rank": 1, "slow_factor": 3}, (1, 2), 30),
    ],
)


def one_way_s(
    world: tuple[int, int],
    link: tuple[int, int],
    model: Model,
    members: tuple[int, ...] | None = None,
) -> Any:
    """Virtual seconds of one message of 4000 B, on the ranks `members` of a world of nodes x
    ranks."""
    communicator = Simulated(model).open(*hosted_world(*world))
    communicator = communicator if members is None else communicator.subset(members)
    steps: dict[int, Step] = {link[0]: Send(X, link[1]), link[1]: Recv(X, link[0])}
    spec = BufferSpec("x", 1000, "int32")
    programs = {
        rank: Program((spec,), (steps[rank],) if rank in steps else ())
        for rank in communicator.hosted
    }
    held = {rank: {"x": communicator.allocate(spec, 1)} for rank in communicator.hosted}
    stamps = communicator.prepare(programs, held, Mode("virtual"))(1)
    return float(stamps[link[1], 0, 1] - stamps[link[1], 0, 0]) * 1e-9


@LINKS
def test_a_planted_link_takes_its_factor_of_latency_and_bytes(
    planted: dict[str, Any], link: tuple[int, int], factor: float
) -> None:
    usual = LATENCY_S + 4000 / (GB_PER_S * 1e9)
    assert one_way_s((2, 2), link, replace(PLAIN, **planted)) == pytest.approx(
        factor * usual, abs=1e-9
    )


def test_nodes_are_those_of_the_world_and_planted_ranks_those_of_the_layout() -> None:
    """World ranks 0 and 2 as layout ranks 0 and 1: they live on two nodes."""
    usual = LATENCY_S + 4000 / (GB_PER_S * 1e9)
    node = replace(PLAIN, slow_node=1, slow_factor=3)
    assert one_way_s((2, 2), (0, 1), node, members=(2, 3)) == pytest.approx(3 * usual, abs=1e-9)
    model = replace(PLAIN, other_node_factor=10, slow_pair="0-1", slow_factor=3)
    assert one_way_s((2, 2), (0, 1), model, members=(0, 2)) == pytest.approx(30 * usual, abs=1e-9)
    assert one_way_s((2, 2), (1, 0), model, members=(0, 1)) == pytest.approx(usual, abs=1e-9)


@pytest.mark.parametrize(
    ("planted", "factor"),
    [
        ({"slow_rank": 1, "slow_factor": 3}, 3),
        ({"other_node_factor": 10}, 10),
        ({"slow_pair": "3-0", "slow_factor": 2}, 2),
        ({"slow_pair": "0-2", "slow_factor": 2}, 1),
    ],
)
def test_a_collective_goes_at_the_pace_of_the_slowest_link_of_its_ring(
    planted: dict[str, Any], factor: float
) -> None:
    model = replace(PLAIN, **planted)
    step = AllReduce(X, X, "sum")
    communicator = Simulated(model).open(*hosted_world(2, 2))
    spec = BufferSpec("x", 100, "int32")
    held = {rank: {"x": communicator.allocate(spec, 1)} for rank in range(4)}
    runner = communicator.prepare(
        {rank: Program((spec,), (step,)) for rank in range(4)}, held, Mode("virtual")
    )
    stamps = runner(1)
    elapsed = (stamps[:, 0, 1] - stamps[:, 0, 0]) * 1e-9
    assert elapsed == pytest.approx([factor * PLAIN.collective_s(step, 4, 400)] * 4, abs=1e-9)


@pytest.mark.parametrize(
    "planted",
    [
        {"slow_pair": "0"},
        {"slow_pair": "0-1 2-3"},
        {"slow_pair": "00-1"},
        {"slow_pair": "-1-0"},
        {"slow_factor": 0.0},
        {"slow_factor": -1.0},
        {"other_node_factor": math.inf},
        {"other_node_factor": math.nan},
    ],
)
def test_what_can_not_be_planted_is_refused(planted: dict[str, Any]) -> None:
    (name,) = planted
    with pytest.raises(ConfigError, match=f"^{name}="):
        Model(**planted)


@pytest.mark.parametrize(
    ("planted", "text"),
    [
        (
            {"slow_rank": 4, "slow_factor": 2},
            "slow_rank names rank 4; the ranks of this world are 0 to 3",
        ),
        (
            {"slow_node": 2, "slow_factor": 2},
            "slow_node names node 2; the nodes of this world are 0 to 1",
        ),
    ],
)
def test_what_is_planted_beyond_the_world_is_refused(planted: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Simulated(replace(PLAIN, **planted)).open(*hosted_world(2, 2))


@pytest.mark.parametrize(
    ("planted", "text"),
    [
        ({"slow_node": 5}, "slow_node=5 plants nothing with slow_factor=1.0; give both"),
        ({"slow_rank": 0}, "slow_rank=0 plants nothing with slow_factor=1.0; give both"),
        ({"slow_pair": "0-1"}, "slow_pair=0-1 plants nothing with slow_factor=1.0; give both"),
        ({"straggler_rank": 1}, "straggler_rank=1 plants nothing with straggler_s=0.0; give both"),
        (
            {"slow_factor": 1.5},
            "slow_factor=1.5 plants nothing without slow_pair or slow_rank or slow_node; give both",
        ),
        ({"straggler_s": 1.0}, "straggler_s=1.0 plants nothing without straggler_rank; give both"),
        ({"corrupt_bit": 0}, "corrupt_bit=0 plants nothing without corrupt_rank; give both"),
        ({"corrupt_after": 9}, "corrupt_after=9 plants nothing without corrupt_rank; give both"),
    ],
)
def test_what_would_plant_nothing_is_refused(planted: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Model(**planted)
    assert str(caught.value) == text


def test_one_wrong_element_is_planted_from_the_given_repetition_on() -> None:
    trial = BenchmarkTrial(
        P2PLatency(), CASE, 2, model=replace(PLAIN, corrupt_rank=1, corrupt_after=10)
    )
    counts = []
    for n in (10, 1, 1):
        trial.run(n)
        counts.append([trial.count(rank, "recv") for rank in (0, 1)])
    assert counts == [[0, 0], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("size", "steps", "stuck"),
    [
        (2, lambda rank: (Recv(Y, 1 - rank), Send(X, 1 - rank)), "[0, 1]"),
        (1, lambda rank: (Recv(Y, 0), Send(X, 0)), "[0]"),
        (3, lambda rank: (Barrier(),) if rank else (Barrier(), Barrier()), "[0]"),
        (2, lambda rank: (Barrier(),) if rank else (Broadcast(X, 0),), "[0, 1]"),
        (
            2,
            lambda rank: (Start(Recv(Y, 1), 0), WaitAll((0,))) if rank == 0 else (Barrier(),),
            "[0, 1]",
        ),
        (3, lambda rank: (Send(X, 1),) if rank == 0 else (Recv(Y, 0),), "[2]"),
    ],
)
def test_a_deadlock_names_the_ranks_that_wait(
    size: int, steps: Callable[[int], Iterable[Step]], stuck: str
) -> None:
    with pytest.raises(CommunicationError, match="deadlock") as caught:
        Ranks(size, steps).runner(1)
    assert stuck in str(caught.value)


def test_only_copies_can_be_reset_steps() -> None:
    with pytest.raises(Unsupported, match="reset with Barrier"):
        Ranks(2, lambda rank: (Barrier(),), reset=(Barrier(),)).runner(1)


# ---------------------------------------------------------------- payload


@pytest.mark.parametrize(
    ("size", "kind"), [*((size, "float64") for size in (1, 2, 3, 4)), (3, "int8"), (2, "bfloat16")]
)
def test_every_step_is_exact_and_writes_nothing_beside_its_data(size: int, kind: str) -> None:
    communicator = Simulated(PLAIN).open(*hosted_world(1, size))
    ranks = [Trials(rank, size, kind, 5, REDUCE, range(size)) for rank in range(size)]
    every = zip(*(rank.every() for rank in ranks), strict=True)
    programs_of_steps = zip(*(rank.programs() for rank in ranks), strict=True)
    for trials in chain(every, programs_of_steps):
        held = {
            rank: allocated(trial, communicator.allocate, 2) for rank, trial in enumerate(trials)
        }
        programs = {rank: Program(steps=trial.steps) for rank, trial in enumerate(trials)}
        communicator.prepare(programs, held, Mode("virtual"))(2)
        assert [
            line for rank, trial in enumerate(trials) for line in wrong(trial, held[rank], 2)
        ] == []


@SIZES
def test_a_window_arrives_in_order_in_its_slots_and_offsets(size: int) -> None:
    halves = [View("x", 0, 6, 6), View("x", 0, 0, 6)]
    targets = [View("y", 1, 0, 6), View("y", 1, 6)]

    def steps(rank: int) -> Iterable[Step]:
        to = (rank + 1) % size
        source = (rank - 1) % size
        yield from (Start(Recv(view, source), index) for index, view in enumerate(targets))
        yield from (Start(Send(view, to), 2 + index) for index, view in enumerate(halves))
        yield WaitAll((0, 1, 2, 3))

    ranks = Ranks(size, steps)
    ranks.runner(1)
    for rank in range(size):
        sent = Ranks.start((rank - 1) % size).tolist()
        assert ranks.of(rank, slot=1) == sent[6:] + sent[:6]
        assert ranks.untouched(rank)  # slot 0


def test_a_message_carries_what_was_there_when_it_was_sent() -> None:
    steps = {0: (Send(X, 1), Copy(Y, X)), 1: (Recv(Y, 0),)}
    ranks = Ranks(2, steps.__getitem__)
    ranks.runner(1)
    assert ranks.of(1) == Ranks.start(0).tolist() != ranks.of(0, "x")


@SIZES
def test_copies_move_parts(size: int) -> None:
    ranks = Ranks(size, lambda rank: (Copy(View("x", 0, 2, 3), View("y", 1, 9)),))
    ranks.runner(1)
    for rank in range(size):
        assert ranks.of(rank, slot=1)[9:] == Ranks.start(rank)[2:5].tolist()


@SIZES
def test_in_place_sums_start_afresh_after_a_reset(size: int) -> None:
    ranks = Ranks(size, lambda rank: (AllReduce(Y, Y, "sum"),), reset=(Copy(X, Y),))
    for _ in range(3):
        ranks.runner(2)
    total = sum(Ranks.start(rank) for rank in range(size))
    assert all(ranks.of(rank) == total.tolist() for rank in range(size))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_each_copy_of_a_pool_gets_its_own_data_once_it_was_its_turn(n: int) -> None:
    steps: dict[int, tuple[Step, ...]] = {0: (Send(X, 1),), 1: (Recv(Y, 0),)}
    ranks = Ranks(2, steps.__getitem__, pool=3)
    ranks.runner(n)
    reached = min(n, 3)
    for copy in range(reached):
        assert ranks.of(1, copy=copy) == (Ranks.start(0) + 1000 * copy).tolist()
    for copy in range(reached, 3):
        assert ranks.of(1, copy=copy) != (Ranks.start(0) + 1000 * copy).tolist()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "bfloat16", "int64"])
def test_sums_are_exact_in_small_types(dtype: str) -> None:
    case = replace(
        CASE, benchmark="all_reduce", pair=None, in_place=False, reduction="sum", dtype=dtype
    )
    # measured checks the payload
    assert measured(AllReduceBenchmark(), case, 16, PLAIN, blocks=[2]).shape == (16, 2)


# ---------------------------------------------------------------- copies within a rank


@pytest.mark.parametrize(
    "benchmark",
    [CopyH2D(), CopyD2H(), CopyD2D(), CopyH2DD2H()],
    ids=lambda benchmark: str(benchmark.name),
)
def test_a_copy_takes_its_call_and_its_bytes_and_two_at_once_no_longer(benchmark: Any) -> None:
    """Both directions at once: the second call is made while the first copy runs."""
    model = Model(call_s=2e-6, copy_gb_per_s=16.0)
    case = replace(CASE, benchmark=benchmark.name, layout="1x1", pair=None)
    stamps = BenchmarkTrial(benchmark, case, 1, model=model).run(1)
    calls = sum(
        isinstance(operation_of(step), Copy) for step in benchmark.program(case, 0, 1).steps
    )
    assert calls == (2 if benchmark.name == "copy_h2d_d2h" else 1)
    assert np.diff(stamps[0, 0])[0] == pytest.approx(1e9 * (calls * 2e-6 + 4000 / 16e9), abs=2)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_planted_share_of_what_was_started_goes_on_during_a_computation(share: float) -> None:
    started = Start(AllReduce(X, X, "sum"), 0)
    (alone_s, _) = seconds(2, lambda rank: (started, WaitAll((0,))))
    compute = Sleep(round(alone_s * 1e9))
    model = replace(PLAIN, progress_share=share)
    (together_s, _) = seconds(2, lambda rank: (started, compute, WaitAll((0,))), model)
    assert together_s == pytest.approx((2 - share) * alone_s, abs=2e-9)


def test_a_wait_that_is_tried_again_postpones_no_operation_twice() -> None:
    """Rank 0 runs first, and has to try its wait for a message again; its send has ended then."""

    def steps(rank: int) -> Iterable[Step]:
        messages = Start(Send(X, 1 - rank), 0), Start(Recv(Y, 1 - rank), 1)
        return *messages, Sleep(1_000_000), WaitAll((0, 1))

    first_s, second_s = seconds(2, steps, replace(PLAIN, progress_share=0.5))
    assert first_s == second_s


def test_a_planted_factor_slows_a_computation_only_beside_an_operation() -> None:
    started = Start(AllReduce(X, X, "sum"), 0)
    model = replace(PLAIN, compute_factor=1.5)
    (alone_s, _) = seconds(2, lambda rank: (Sleep(1_000_000),), model)
    (beside_s, _) = seconds(2, lambda rank: (started, Sleep(1_000_000), WaitAll((0,))), model)
    assert (alone_s, beside_s) == (pytest.approx(1e-3), pytest.approx(1.5e-3))


def test_only_the_steps_between_lead_and_after_are_timed() -> None:
    program = Program(steps=(Sleep(3_000),), lead=(Sleep(1_000_000),), after=(Sleep(5_000_000),))
    communicator = Simulated(PLAIN).open(*hosted_world(1, 2))
    runner = communicator.prepare({0: program, 1: program}, {0: {}, 1: {}}, Mode("virtual"))
    stamps = runner(3)
    assert (stamps[:, :, 1] - stamps[:, :, 0] == 3_000).all()
    assert (np.diff(stamps.reshape(2, -1), axis=1) >= 0).all()


@pytest.mark.parametrize("model", [{"progress_share": 1.1}, {"compute_factor": 0.0}])
def test_a_planted_share_or_factor_that_cannot_be_is_refused(model: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        replace(PLAIN, **model)


@pytest.mark.parametrize(
    ("compute", "computed_s"),
    [
        (Sleep(3_000_000), 3e-3),
        (MemoryStream(5_000_000), 5e6 / 10e9),
        (Matmul(100, 4), 4 * 2e6 / 8e9),
    ],
)
def test_a_computation_hides_what_was_started_and_is_not_slowed_by_it(
    compute: Step, computed_s: float
) -> None:
    model = replace(PLAIN, copy_gb_per_s=10.0, matmul_gflop_per_s=8.0)
    started = Start(AllReduce(X, X, "sum"), 0)
    ends_s = {}
    for name, steps in (
        ("both", (started, compute, WaitAll((0,)))),
        ("communication", (started, WaitAll((0,)))),
    ):
        stamps = Ranks(2, lambda rank, steps=steps: steps, model=model).runner(1)
        ends_s[name] = 1e-9 * (stamps[0, 0, 1] - stamps[0, 0, 0])
    expected_s = max(computed_s + model.call_s, ends_s["communication"])
    assert ends_s["both"] == pytest.approx(expected_s, abs=2e-9)
