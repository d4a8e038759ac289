"""Rows by hand and of a simulated world, what links carry by algorithm, and why a row lies above
its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from composed import FACTS, every_benchmark, settings_of
from gpu_cases import planned as gpu_planned
from numpy.random import default_rng
from two_steps import GATHER, OWN, REDUCE, Steps
from visited import STARTED, add_visit

from commbench.backends.buffers.memory import slot_bytes
from commbench.config.settings import Settings
from commbench.core.case import Planned, World
from commbench.core.layout import Layout
from commbench.core.program import Copy, Step, View
from commbench.core.states import LimitKind
from commbench.core.variables import NAMES
from commbench.engines.device import HOST_BOUND
from commbench.hardware.expected_network import EFA
from commbench.hardware.link_limits import Limit, interface_limit, network_limit
from commbench.hardware.nccl_log import Chosen
from commbench.hardware.topology import RankGpu
from commbench.measure.calibration import core_copy_gb_per_s, empty_samples_s
from commbench.measure.case import CaseVisit
from commbench.measure.conditions import Conditions
from commbench.measure.counters import MeasuredCounters
from commbench.measure.nccl_evidence import CaseLines, NcclEvidence
from commbench.measure.plan import plan
from commbench.measure.row_samples import case_rows, sample_tables
from commbench.measure.rows import (
    RowFacts,
    impossible_reason,
    median_columns,
    rate_columns,
    row,
    time_columns,
    visit_columns,
    wire_gb_per_s,
)
from commbench.measure.samples import Block, Counts, Failure, Refused, Samples, Wrong
from commbench.measure.time_limits import max_repetitions
from commbench.measure.transports import Reported, TransportEvidence
from commbench.measure.visit_setup import VisitSetup
from commbench.measure.visits import CaseRecord, estimate
from commbench.results.columns import CASES, SAMPLES
from commbench.results.row import KINDS, Row
from commbench.runtime.control import hosted_world
from commbench.runtime.heartbeat import Progress

# these stand for several cases: replay/tests/test_benchmark.py, test_concurrent.py,
# tests/worlds/test_communicators.py
SEVERAL = ("replay", "concurrent", "communicator_init", "communicator_split")
BENCHMARKS = [name for name in every_benchmark() if name not in SEVERAL]

# method.md section 3; n is the number of ranks. Alone in its world no operation uses a bus: see
# below
BUS_FACTORS: dict[str, Callable[[int], float | None]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "p2p_latency": lambda n: 1.0,
    "p2p_bandwidth": lambda n: 1.0,
    "stream": lambda n: 1.0,
    "p2p_bibandwidth": lambda n: 1 / 2,  # 2 W S / t is both directions; a link's limit is for one
    "p2p_multi_pair": lambda n: None,  # P W S / t is many links'
    "exchange": lambda n: 1.0,  # of one rank: S (n-1) / t out, as much in
    "all_to_all_v": lambda n: (n - 1) / n,  # uniform
    "barrier": lambda n: None,
    "communicator_init": lambda n: None,
    "communicator_split": lambda n: None,
    "copy_h2d": lambda n: 1.0,
    "copy_d2h": lambda n: 1.0,
    "copy_d2d": lambda n: 1.0,
    "copy_h2d_d2h": lambda n: 1 / 2,  # 2 S / t is both directions
}
WITHOUT_MESSAGE = {"barrier", "communicator_init", "communicator_split"}
AROUND = Conditions(
    empty_sample_s={"python": 60e-9, "native": 20e-9},
    overhead_s={"python": 1e-6},
    cores=8,
    threads_per_rank=1,
    cache_bytes=2**20,
    evidence=TransportEvidence(reported=Reported(within="tcp")),
    world=World(0, 8, (tuple(range(8)),), (0,)),
)
OF_A_RUN = {"run_id", "sweep_id", "trial", "label", "launch"}  # the session adds them
NUMBERS = {column.name for column in CASES if column.role == "result"} - {
    "nodes",
    "ranks_per_node",
    "world_size",
    "transport",
}


def settings_for(benchmark: str, *overrides: str) -> Settings:
    settings = settings_of(
        "backend=simulated", "benchmark=all", "sizes=[60kB]", "until=open", *overrides
    )
    return replace(
        settings,
        benchmarks=tuple(entry for entry in settings.benchmarks if entry.name == benchmark),
    )


@cache
def planned_of(benchmark: str, ranks: int = 2, *overrides: str, engine: str = "python") -> Planned:
    settings = replace(
        settings_for(benchmark, *overrides), layouts=(Layout(1, ranks),), pairs=((0, ranks - 1),)
    )
    (planned,) = plan(settings, hosted_world(1, ranks)[0], FACTS)
    return replace(planned, case=replace(planned.case, engine=engine))


@cache
def simulated(benchmark: str, ranks: int, *overrides: str) -> tuple[Planned, Samples]:
    """A case measured on the virtual clock with noise."""
    settings = settings_for(
        benchmark, "backend.model.noise=0.05", "timing=fixed", "timing.repetitions=40", *overrides
    )
    settings = replace(settings, layouts=(Layout(1, ranks),), pairs=((0, ranks - 1),))
    world, control = hosted_world(1, ranks)
    (planned,) = plan(settings, world, FACTS)
    setup = VisitSetup(
        planned,
        settings.backend.open(world, control),
        control,
        settings,
        AROUND.empty_sample_s,
        lambda _: None,
        Progress(),
    )
    outcome = CaseVisit(setup).measure()
    assert isinstance(outcome, Samples)
    return planned, outcome


def samples(elapsed_ns: Any, block_k: int = 1, start_ns: Any = 0, wrong: int = 0) -> Samples:
    """Handmade: elapsed [ranks, n], measured in one block after a connecting repetition of 1 s."""
    elapsed = np.asarray(elapsed_ns, dtype=np.int64)
    first = np.zeros((len(elapsed), 1, 2), dtype=np.int64)
    first[:, :, 1] = 10**9
    begin = np.zeros_like(elapsed) + start_ns
    blocks = (
        Block("connect", 0, first),
        Block("measure", 1, np.stack([begin, begin + elapsed], axis=2)),
    )
    return Samples(tuple(range(len(elapsed))), blocks, block_k, "ci", wrong)


def row_of(planned: Planned, outcome: Samples | Refused | Failure, **changed: Any) -> Row:
    """The row after one visit."""
    facts = RowFacts(planned, replace(AROUND, **changed))
    if isinstance(outcome, Samples) and outcome.wrong_elements:
        return row(facts, planned.case, Wrong(outcome.wrong_elements), STARTED)
    if isinstance(outcome, Samples):
        record = CaseRecord(stop_reason=outcome.stop_reason)
        add_visit(record, planned, outcome)
        return row(facts, planned.case, record)
    return row(facts, planned.case, outcome, STARTED)


def sample_table(planned: Planned, outcome: Samples) -> Mapping[str, Any]:
    (table,) = sample_tables(case_rows(planned), outcome, "run-1")
    return table


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_rates_follow_from_bytes_and_the_median(benchmark: str, ranks: int) -> None:
    assert benchmark in BUS_FACTORS, (
        f"write the bus factor of {benchmark} down here, from method.md section 3"
    )
    planned, outcome = simulated(benchmark, ranks)
    seen = row_of(planned, outcome)
    assert seen.status == "ok"
    assert seen.message_rate_per_s == 1 / seen.median_s
    algbw = rate(planned, seen.median_s)
    factor = BUS_FACTORS[benchmark](ranks)
    assert seen.algbw_gb_per_s == algbw
    busbw = None if algbw is None or factor is None else pytest.approx(factor * algbw)
    assert seen.busbw_gb_per_s == busbw


def rate(planned: Planned, seconds: float) -> float | None:
    """In GB/s; where no byte moves there is none, not zero."""
    without = planned.case.benchmark in WITHOUT_MESSAGE
    assert (planned.case.message_bytes, planned.case.elements) == (0, 0) or not without
    return None if without else planned.case.message_bytes / seconds / 1e9


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("n", [2, 3, 5, 8, 4096])
def test_bus_factors_are_those_of_the_method(benchmark: str, n: int) -> None:
    planned = planned_of(benchmark)
    case = replace(planned.case, elements=1000 * n)  # as many for each rank
    factor = planned.benchmark.bus_factor(case, n)
    assert factor == (
        None if BUS_FACTORS[benchmark](n) is None else pytest.approx(BUS_FACTORS[benchmark](n))
    )


def test_a_row_says_how_its_traffic_is_spread_over_ranks_and_nodes() -> None:
    planned, outcome = simulated("all_to_all_v", 4, "traffic=incast")
    two_nodes = World(0, 4, ((0, 1), (2, 3)), (0,))
    seen = row_of(planned, outcome, world=two_nodes, hosts=("a", "b"))
    assert (seen.traffic, seen.message_bytes) == ("incast", 60_000)
    assert (seen.within_nodes_bytes, seen.between_nodes_bytes) == (60_000, 120_000)
    assert seen.busiest_bytes == 180_000
    assert seen.imbalance == 180_000 / ((180_000 + 3 * 60_000) / 4)
    assert seen.busbw_gb_per_s == pytest.approx(3 * seen.algbw_gb_per_s)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize(
    "benchmark", ["all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"]
)
def test_a_size_that_ranks_do_not_divide_counts_the_bytes_that_move(
    benchmark: str, ranks: int
) -> None:
    """1004 B, 251 float32: as many for each rank as fit."""
    planned, outcome = simulated(benchmark, ranks, "sizes=[1004]")
    seen = row_of(planned, outcome)
    moved = {2: 1000, 3: 996, 5: 1000}[ranks]
    assert (planned.case.message_bytes, planned.case.elements) == (moved, moved // ranks // 4)
    assert seen.algbw_gb_per_s == moved / seen.median_s / 1e9
    assert seen.busbw_gb_per_s == pytest.approx((ranks - 1) / ranks * moved / seen.median_s / 1e9)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_bounds_of_a_rate_are_those_of_the_time_swapped(benchmark: str) -> None:
    planned, outcome = simulated(benchmark, 2)
    seen = row_of(planned, outcome)
    assert seen.ci_low_s < seen.median_s < seen.ci_high_s
    assert seen.algbw_ci_low_gb_per_s == rate(planned, seen.ci_high_s)
    assert seen.algbw_ci_high_gb_per_s == rate(planned, seen.ci_low_s)
    if benchmark not in WITHOUT_MESSAGE:
        assert seen.algbw_ci_low_gb_per_s < seen.algbw_gb_per_s < seen.algbw_ci_high_gb_per_s


@pytest.mark.parametrize(
    "benchmark",
    [name for name in BENCHMARKS if not name.startswith(("p2p", "copy", "exchange", "stream"))],
)
def test_alone_there_is_no_bus_bandwidth(benchmark: str) -> None:
    planned, outcome = simulated(benchmark, 1)
    seen = row_of(planned, outcome)
    assert seen.status == "ok" and seen.median_s > 0
    assert seen.algbw_gb_per_s is None, "alone it is a copy, and in place nothing at all"
    assert seen.busbw_gb_per_s is None


@pytest.mark.parametrize(
    "benchmark", ["p2p_bandwidth", "p2p_multi_pair", "stream", "copy_h2d", "copy_h2d_d2h"]
)
def test_a_rank_alone_has_the_rate_of_its_copies_and_of_messages_to_itself(benchmark: str) -> None:
    planned, outcome = simulated(benchmark, 1)
    seen = row_of(planned, outcome)
    moved = planned.shape.moved_bytes / planned.shape.operations
    assert seen.algbw_gb_per_s == pytest.approx(moved / seen.median_s / 1e9)


def test_both_directions_of_a_pair_and_the_pairs_of_a_crowd_count_together() -> None:
    """2 W S / t and P W S / t of method.md section 3, with W = 16, P = 2, S = 60 kB and t = 1
    ms."""
    stamps = [[1_000_000] * 8, [1] * 8]
    seen = row_of(planned_of("p2p_bibandwidth", 2, "window=16"), samples(stamps))
    assert (seen.algbw_gb_per_s, seen.busbw_gb_per_s) == pytest.approx((1.92, 0.96))
    crowd = planned_of("p2p_multi_pair", 4, "window=16")
    crowd = replace(crowd, case=replace(crowd.case, pair="0-2 1-3"))
    # senders 0 and 1, receivers 2 and 3
    late = [[500_000] * 8, [1_000_000] * 8, [1] * 8, [2_000_000] * 8]
    seen = row_of(crowd, samples(late))
    assert (seen.algbw_gb_per_s, seen.message_rate_per_s) == pytest.approx((1.92, 32_000))
    seen = row_of(
        planned_of("exchange", 4), samples([[100_000] * 8, [1_000_000] * 8, [1] * 8, [1] * 8])
    )
    assert (seen.algbw_gb_per_s, seen.message_rate_per_s) == pytest.approx((0.18, 3000))


def test_the_planted_bandwidth_comes_out() -> None:
    words = [
        "backend.model.bandwidth_gb_per_s=8",
        "backend.model.latency_s=0",
        "backend.model.call_s=0",
    ]
    planned, outcome = simulated("p2p_bandwidth", 2, *words, "backend.model.noise=0")
    assert row_of(planned, outcome).busbw_gb_per_s == pytest.approx(8, rel=1e-4)


def test_a_row_has_the_empty_sample_of_its_engine_and_is_flagged_where_it_is_long() -> None:
    seen = empty_samples_s(["python", "native", "virtual"])
    assert set(seen) == {"python", "native"} and 0 < seen["native"] < seen["python"] < 2e-6
    for engine, limited in (("native", False), ("python", True)):  # 5 % of 1 us are 50 ns
        seen = row_of(
            planned_of("all_reduce", engine=engine), samples([[1000] * 10] * 2), overhead_s={}
        )
        assert ("overhead" in seen.warnings) is limited
        assert seen.empty_sample_s == AROUND.empty_sample_s[engine]


def test_a_window_is_counted_message_by_message() -> None:
    planned = planned_of("p2p_bandwidth", 2, "window=16")
    seen = row_of(planned, samples([[16_000_000] * 8, [1] * 8]))
    assert (seen.median_s, seen.operations_per_sample) == (1e-3, 16)
    assert seen.headline == planned.shape.headline
    assert seen.message_rate_per_s == 1000
    assert seen.algbw_gb_per_s == pytest.approx(60_000 / 1e-3 / 1e9)
    assert seen.first_call_s == 1
    settings = settings_for("p2p_bandwidth")
    alone = replace(planned, case=replace(planned.case, window=1))
    most = [max_repetitions(each, settings) for each in (alone, planned)]
    assert most == [10_000, 200], "messages of a window are not repetitions"


def test_several_samples_between_two_stamps_are_divided_out_and_the_first_call_is_whole() -> None:
    seen = row_of(planned_of("p2p_latency"), samples([[8_000] * 8, [1] * 8], block_k=4))
    assert (seen.median_s, seen.block_k, seen.operations_per_sample) == (1e-6, 4, 8)
    assert seen.first_call_s == 1


def test_too_few_repetitions_have_a_median_and_no_interval() -> None:
    seen = row_of(planned_of("all_reduce"), samples([[1000] * 5] * 2))
    assert seen.algbw_gb_per_s == pytest.approx(60)
    assert seen.ci_low_s is seen.algbw_ci_high_gb_per_s is seen.algbw_ci_low_gb_per_s is None


def test_the_last_rank_counts_for_a_collective_and_the_sender_for_a_message() -> None:
    elapsed = [[1000, 5000, 1000] * 2, [3000, 1000, 3000] * 2]
    assert row_of(planned_of("all_reduce"), samples(elapsed)).median_s == 3e-6
    assert row_of(planned_of("p2p_latency"), samples(elapsed)).median_s == 0.5e-6


def test_a_clock_that_saw_nothing_gives_no_rate() -> None:
    seen = row_of(planned_of("all_reduce"), samples([[0] * 10] * 2))
    assert seen.status == "ok"
    assert seen.algbw_gb_per_s is seen.busbw_gb_per_s is seen.message_rate_per_s is None


# ---------------------------------------------------------------- whole rows


def test_each_number_of_a_row_is_computed_in_one_place() -> None:
    planned, measured = simulated("p2p_latency", 2)
    record = CaseRecord()
    add_visit(record, planned, measured)
    facts = RowFacts(planned, AROUND)
    interval = estimate(record.visits)
    sources = (
        median_columns(record.visits, interval),
        time_columns(planned, record.visits),
        rate_columns(facts, interval),
        visit_columns(facts, record.visits),
        facts.operation,
    )
    computed = [name for columns in sources for name in columns]
    assert len(computed) == len(set(computed))
    skipped = row_of(planned, Refused("no memory"))
    values = row_of(planned, measured)
    changed = {name for name in KINDS if getattr(values, name) != getattr(skipped, name)}
    assert changed <= {
        *computed,
        "status",
        "stop_reason",
        "reason",
        "warnings",
    }


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (samples([[1000] * 10] * 2), "ok", None),
        (
            samples([[1000] * 10] * 2, wrong=7),
            "invalid",
            "7 elements are not what they must be; numbers are withheld",
        ),
        (Refused("no CUDA"), "skipped", "no CUDA"),
        (Failure("connection reset"), "failed", "connection reset"),
    ],
)
def test_every_outcome_is_a_row_and_only_a_good_one_has_numbers(
    outcome: Any, status: str, reason: str | None
) -> None:
    planned = planned_of("all_reduce")
    seen = row_of(planned, outcome)
    assert (seen.status, seen.reason) == (status, reason)
    assert not any(getattr(seen, name) for name in OF_A_RUN)
    numbers = {name for name in NUMBERS if getattr(seen, name) is not None}
    expected = {
        "ok": numbers | {"median_s", "algbw_gb_per_s", "repetitions"},
        "invalid": {"wrong_elements"},
    }
    assert numbers == expected.get(status, set())
    assert seen.wrong_elements == {"ok": 0, "invalid": 7}.get(status)


def test_a_row_knows_its_case_and_its_circumstances() -> None:
    planned = planned_of("all_reduce", 4)
    seen = row_of(planned, samples([[1000] * 10] * 4))
    assert all(getattr(seen, name) == getattr(planned.case, name) for name in NAMES)
    assert (seen.case_id, seen.order, seen.started_at) == (
        planned.case.case_id,
        planned.order,
        STARTED,
    )
    assert (seen.nodes, seen.ranks_per_node, seen.world_size) == (1, 4, 4)
    assert (seen.transport, seen.overhead_s, seen.stop_reason, seen.clock) == (
        "tcp",
        1e-6,
        "ci",
        "monotonic",
    )
    assert (seen.repetitions, seen.wrong_elements) == (10, 0)


def test_virtual_time_is_marked() -> None:
    seen = row_of(planned_of("all_reduce", engine="virtual"), samples([[1000] * 10] * 2))
    assert (seen.clock, seen.overhead_s) == ("virtual", None)


# ---------------------------------------------------------------- flags

CALM = np.round(1e7 * default_rng(1).lognormal(0, 0.01, (2, 100))).astype(np.int64)  # 10 ms


@pytest.mark.parametrize(
    ("flag", "benchmark", "elapsed", "changed"),
    [
        ("oversubscribed", "all_reduce", CALM, {"threads_per_rank": 5}),
        ("overhead", "all_reduce", CALM // 10_000, {"overhead_s": {}}),
        ("overhead", "all_reduce", CALM, {"overhead_s": {"python": 1.1e-3}}),
        ("in_cache", "p2p_bandwidth", CALM, {"cache_bytes": 2**30}),
    ],
)
def test_a_flag_tells_what_to_know_before_trusting_the_median(
    flag: str, benchmark: str, elapsed: Any, changed: dict[str, Any]
) -> None:
    planned = planned_of(benchmark)
    assert flag in row_of(planned, samples(elapsed), **changed).warnings
    assert flag not in row_of(planned, samples(CALM)).warnings


def test_as_many_threads_as_cores_are_not_too_many() -> None:
    planned = planned_of("all_reduce")
    assert row_of(planned, samples(CALM), threads_per_rank=4, cores=8).warnings == ()


def test_ranks_that_start_apart_are_skewed() -> None:
    apart = np.array([[0], [10**6]])  # 1 ms of 10 ms
    planned = planned_of("all_reduce")
    seen = row_of(planned, samples(CALM, start_ns=apart))
    assert "skewed" in seen.warnings and seen.skew_s == 1e-3
    seen = row_of(planned, samples(CALM, start_ns=apart // 10))
    assert seen.warnings == () and seen.skew_s == 1e-4
    seen = row_of(planned_of("p2p_latency"), samples(CALM, start_ns=apart))
    assert seen.warnings == () and seen.skew_s is None, "the receiver waits anyway"


@pytest.mark.parametrize(
    ("nodes", "layout", "flagged"),
    [({0}, Layout(1, 2), True), ({1}, Layout(1, 2), False), ({0, 1}, Layout(2, 1), False)],
)
def test_ranks_that_share_a_node_with_little_shared_memory_are_flagged(
    nodes: set[int], layout: Layout, flagged: bool
) -> None:
    settings = replace(settings_for("all_reduce"), layouts=(layout,))
    world = hosted_world(2, 2)[0]
    (planned,) = plan(settings, world, FACTS)
    planned = replace(planned, case=replace(planned.case, engine="python"))
    made = row_of(planned, samples(CALM), world=world, small_shm_nodes=frozenset(nodes))
    assert ("fallback" in made.warnings) is flagged


def test_skew_is_held_against_the_sample_and_not_against_one_of_its_messages() -> None:
    """4 % of a window of 16 messages are 64 % of a message."""
    planned = planned_of("p2p_bandwidth", 2, "window=16")
    planned = replace(planned, case=replace(planned.case, schedule="rounds", sync="barrier"))
    assert (
        "skewed" not in row_of(planned, samples(CALM, start_ns=np.array([[0], [400_000]]))).warnings
    )
    assert "skewed" in row_of(planned, samples(CALM, start_ns=np.array([[0], [600_000]]))).warnings


def test_skew_is_unknown_between_nodes_and_known_within_one() -> None:
    """Clocks of nodes are seconds apart."""
    nodes = World(0, 4, ((0, 1), (2, 3)), (0,))
    apart = np.array([[0], [0], [10**12], [10**12]])
    planned = planned_of("all_reduce", 4)
    seen = row_of(planned, samples(CALM[[0, 1, 0, 1]], start_ns=apart), world=nodes)
    assert seen.warnings == () and seen.skew_s is None
    pair = replace(
        planned,
        case=replace(planned.case, pair="0-1", schedule="rounds"),
        benchmark=planned_of("p2p_latency").benchmark,
    )
    seen = row_of(pair, samples(CALM, start_ns=apart[:2]), world=nodes)
    assert seen.warnings == () and seen.skew_s == 0


def test_a_row_has_what_a_feature_found_out_about_its_visit() -> None:
    planned = planned_of("all_reduce")
    calm = samples(CALM)
    seen = row_of(planned, replace(calm, findings={"unmeasured_s": 0.7}))
    assert seen.unmeasured_s == 0.7
    assert row_of(planned, calm).unmeasured_s is None


def test_visits_at_two_levels_are_named_with_their_spread() -> None:
    planned = planned_of("all_reduce")
    record = CaseRecord()
    for factor in (1, 1, 3):
        add_visit(record, planned, samples(CALM // 10 * factor))
    seen = row(RowFacts(planned, AROUND), planned.case, record)
    assert seen.reason == "2 levels of visits: 1.00 ms x2, 3.01 ms x1"
    assert seen.visit_spread == pytest.approx(3, rel=1e-3)
    assert (seen.visits, seen.interval_of) == (3, "visits")
    alone = row_of(planned, samples(CALM))
    assert (alone.visit_spread, alone.reason) == (None, None)


def test_the_interval_of_one_visit_has_the_level_that_was_asked_for() -> None:
    planned = planned_of("all_reduce")
    calm = samples(CALM)
    widths = {}
    for z in (1.96, 2.576):
        record = CaseRecord()
        add_visit(record, planned, calm, z=z)
        seen = row(RowFacts(planned, replace(AROUND, z=z)), planned.case, record)
        widths[round(seen.interval_level, 3)] = seen.ci_high_s - seen.ci_low_s
    assert [*widths] == [0.95, 0.99] and widths[0.99] > widths[0.95]


@pytest.mark.parametrize("engine", ["python", "native"])
def test_only_python_can_be_python_bound(engine: str) -> None:
    seen = row_of(planned_of("all_reduce", engine=engine), samples(CALM), overhead_s={engine: 5e-3})
    assert seen.warnings == (("overhead",) if engine == "python" else ())
    assert seen.overhead_s == 5e-3


@pytest.mark.parametrize(("bound", "flagged"), [(0, False), (1, False), (2, True)])
def test_events_that_began_before_the_host_was_done_are_told(bound: int, flagged: bool) -> None:
    """1 of 20 measured repetitions is not more than one in 20; those of other cases, the first
    call, the warm-up and the check of a payload do not count."""
    counter = MeasuredCounters()
    total = 3.0
    readings = []
    for t_ns, (phase, more) in enumerate(
        [("connect", 1), ("warmup", 9), ("measure", bound), ("check", 1)]
    ):
        total += more
        readings.append(
            Counts(1, t_ns, {HOST_BOUND: total} | counter.reading({HOST_BOUND: total}, phase))
        )
    planned = planned_of("all_reduce")
    calm = samples(CALM)
    seen = replace(calm, counts=(Counts(0, 1, {HOST_BOUND: 7.0}), *readings), repetitions=20)
    assert ("overhead" in row_of(planned, seen).warnings) == flagged


@pytest.mark.parametrize(("asked", "flagged"), [("symmetric", True), ("none", False)])
def test_windows_that_were_not_made_are_told_with_the_reason(asked: Any, flagged: bool) -> None:
    planned = planned_of("all_reduce")
    planned = replace(planned, case=replace(planned.case, registration=asked))
    evidence = TransportEvidence(nccl=NcclEvidence(no_windows="cuMemEnable 0"))
    seen = row_of(planned, samples(CALM), evidence=evidence)
    assert ("unregistered" in seen.warnings) == flagged
    assert ("cuMemEnable 0" in (seen.reason or "")) == flagged
    assert seen.registered == ("none" if flagged else None)


@pytest.mark.parametrize(("kind", "flagged"), [("NET/Socket", True), ("NET/IB/GDRDMA", False)])
def test_sockets_beside_another_network_are_told_with_the_cure(kind: str, flagged: bool) -> None:
    evidence = TransportEvidence(expected={0: EFA}, nccl=NcclEvidence(kinds={(0, 1): (kind,)}))
    seen = row_of(planned_of("p2p_latency"), samples(CALM), evidence=evidence)
    assert ("fallback" in seen.warnings) == flagged
    told = "messages take NET/Socket, but this machine has EFA" in (seen.reason or "")
    assert told == flagged and (EFA.cure in (seen.reason or "")) == flagged


def test_the_cache_is_judged_by_all_copies_of_the_largest_buffer() -> None:
    planned = planned_of("p2p_bandwidth", 2, "window=16")
    spec = planned.benchmark.program(planned.case, 0, 2).buffers[0]
    walked = slot_bytes(spec) * spec.slots * planned.pool
    assert "in_cache" not in row_of(planned, samples(CALM), cache_bytes=walked // 2).warnings
    assert "in_cache" in row_of(planned, samples(CALM), cache_bytes=walked // 2 + 1).warnings


def test_a_virtual_machine_of_ours_is_never_oversubscribed() -> None:
    crowded = {"threads_per_rank": 100, "cache_bytes": 2**50}
    assert (
        row_of(planned_of("p2p_bandwidth", engine="virtual"), samples(CALM), **crowded).warnings
        == ()
    )


# ---------------------------------------------------------------- raw samples


def test_the_raw_table_has_a_line_for_each_rank_and_repetition() -> None:
    planned, outcome = simulated("all_reduce", 3)
    table = sample_table(planned, outcome)
    total = sum(block.stamps.shape[1] for block in outcome.blocks)
    assert list(table) == [column.name for column in SAMPLES]
    assert {len(values) for values in table.values()} == {3 * total}
    assert set(table["run_id"]) == {"run-1"} and set(table["case_id"]) == {planned.case.case_id}
    assert (table["elapsed_ns"] == table["end_ns"] - table["start_ns"]).all()


def test_raw_repetitions_count_through_the_blocks_of_a_phase() -> None:
    stamps = np.arange(12, dtype=np.int64).reshape(2, 3, 2)
    measured = (
        Block("measure", index, stamps + 100 * index, 3 * (index - 1)) for index in (1, 2, 3)
    )
    blocks = (Block("warmup", 0, stamps), *measured)
    table = sample_table(planned_of("all_reduce"), Samples((0, 1), blocks, 1, "ci", 0))
    rows = list(
        zip(
            *(
                table[name].tolist()
                for name in ("phase", "block", "rank", "repetition", "start_ns")
            ),
            strict=True,
        )
    )
    assert rows[:6] == [
        ("warmup", 0, rank, n, 6 * rank + 2 * n) for rank in (0, 1) for n in range(3)
    ]
    assert rows[6:] == [
        ("measure", block, rank, 3 * (block - 1) + n, 100 * block + 6 * rank + 2 * n)
        for block in (1, 2, 3) for rank in (0, 1) for n in range(3)
    ]  # fmt: skip


def test_the_headline_can_be_computed_again_from_the_raw_table() -> None:
    planned, outcome = simulated("all_reduce", 3)
    table = sample_table(planned, outcome)
    chosen = table["phase"] == "measure"
    latest = [
        max(table["elapsed_ns"][chosen & (table["repetition"] == n)])
        for n in np.unique(table["repetition"][chosen])
    ]
    assert np.median(latest) * 1e-9 == pytest.approx(row_of(planned, outcome).median_s)


def test_of_a_large_world_the_raw_table_names_the_rank_that_decided() -> None:
    stamps = np.arange(12, dtype=np.int64).reshape(2, 3, 2)
    blocks = (
        Block("measure", 0, stamps),
        Block("measure", 1, stamps[:1], first=3, decided=np.array([1, 0, 1])),
    )
    table = sample_table(planned_of("all_reduce"), Samples((0, 1), blocks, 1, "ci", 0))
    assert table["rank"].tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 1]
    assert table["repetition"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    assert table["start_ns"].tolist() == [0, 2, 4, 6, 8, 10, 0, 2, 4]
    assert {"measure"} == {*table["phase"]}


def test_nothing_measured_is_an_empty_table() -> None:
    assert sample_table(planned_of("all_reduce"), Samples((0, 1), (), 1, "ci", 0)) == {}


NVLINK = Limit(370.8, "NVLink 18 x 20.6 GB/s", "nvlink")


@pytest.mark.parametrize(
    ("benchmark", "layout", "algorithm", "factor"),
    [
        ("all_reduce", "1x8", "RING", 2 * 7 / 8),
        ("all_reduce", "1x8", "Ring", 2 * 7 / 8),
        ("all_gather", "1x8", "RING", 7 / 8),
        ("all_reduce", "2x4", "RING", 2 * 7 / 8),
        ("all_reduce", "2x4", "TREE", 2.0),
        ("all_reduce", "1x8", "NVLS", 9 / 8),
        ("all_reduce", "2x4", "NVLS", None),
        ("all_gather", "1x8", "NVLS", None),
        ("all_gather", "1x8", "TREE", None),
        ("all_reduce", "2x4", "NVLS_TREE", None),
        ("all_reduce", "1x8", "COLLNET_DIRECT", None),
        ("all_reduce", "1x8", None, None),
        ("barrier", "1x8", "RING", None),
    ],
)
def test_the_load_of_a_link(
    benchmark: str, layout: str, algorithm: str | None, factor: float | None
) -> None:
    wire = wire_gb_per_s(gpu_planned(benchmark, layout), 100.0, algorithm)
    assert wire == (None if factor is None else pytest.approx(100 * factor))


def test_without_a_rate_there_is_no_load() -> None:
    assert wire_gb_per_s(gpu_planned("all_reduce", "1x8"), None, "RING") is None


@pytest.mark.parametrize(
    ("steps", "is_flagged"),
    [
        ((REDUCE, GATHER), True),
        ((REDUCE,), False),
        (
            (
                Copy(View("source", 0, 0, 1), View("data", 0, 0, 1)),
                Copy(OWN, View("data", 0, 1, 1)),
            ),
            False,
        ),
        ((Copy(View("source"), View("data", 0, 1)), Copy(OWN, View("data", 0, 0, 2))), True),
    ],
)
def test_a_buffer_that_is_written_several_times_is_flagged(
    steps: tuple[Step, ...], is_flagged: bool
) -> None:
    planned = replace(planned_of("all_reduce"), benchmark=Steps(steps))
    warnings = row_of(planned, samples([[1000] * 10] * 2)).warnings
    assert ("unchecked" in warnings) is is_flagged


def test_several_operations_have_no_load_and_no_algorithm() -> None:
    planned = replace(gpu_planned("all_reduce", "1x8"), benchmark=Steps((REDUCE, GATHER)))
    for algorithm in ("RING", "TREE", "NVLS"):
        assert wire_gb_per_s(planned, 100.0, algorithm) is None
    log = (Chosen("AllReduce", planned.case.message_bytes, "RING"),)
    evidence = TransportEvidence(nccl=NcclEvidence(lines={planned.case.case_id: CaseLines(log)}))
    assert evidence.nccl.algorithm(planned) is None


def test_nvls_is_above_the_link_in_busbw_and_below_it_on_the_wire() -> None:
    """8 x H100, as published: algbw 275, busbw 481, and 370.8 planned for a GPU's links (nccl-tests
    issue 212)."""
    planned = gpu_planned("all_reduce", "1x8")
    busbw = 275 * (planned.benchmark.bus_factor(planned.case, 8) or 0)
    wire = wire_gb_per_s(planned, 275, "NVLS")
    assert wire is not None
    assert wire < 370.8 < busbw
    text = impossible_reason(planned, busbw / 370.8, NVLINK, "NVLS")
    assert text is not None
    assert text.startswith(f"busbw is 1.3 x its limit ({NVLINK.name}): NVLS: the switch sums")
    assert "NCCL plans" in text
    # beyond any line rate
    assert "NCCL plans" not in (impossible_reason(planned, 1.4, NVLINK, "NVLS") or "")


@pytest.mark.parametrize("efficiency", [None, 0.0, 0.99, 1.0])
def test_below_the_limit_there_is_nothing_to_say(efficiency: float | None) -> None:
    assert impossible_reason(gpu_planned("all_reduce", "1x8"), efficiency, NVLINK) is None


@pytest.mark.parametrize(
    ("benchmark", "layout", "kind", "algorithm", "words", "others"),
    [
        ("all_reduce", "1x8", "nvlink", None, {"NVLS", "NCCL plans"}, {"SHARP: the network"}),
        ("all_reduce", "1x8", "nvlink", "RING", {"is wrong", "NCCL plans"}, {"NVLS", "SHARP"}),
        (
            "all_reduce",
            "1x8",
            "nvlink",
            "AllReduce_RSxLDMC_AGxSTMC",
            {"NVLS"},
            {"SHARP: the network"},
        ),
        ("all_reduce", "2x4", "network", "COLLNET_CHAIN", {"SHARP: the network"}, {"NVLS"}),
        ("all_reduce", "2x4", "network", "TREE", {"is wrong"}, {"SHARP", "NVLS", "limit="}),
        ("all_reduce", "2x4", "told", "TREE", {"limit= tells less"}, {"NVLS"}),
        ("all_gather", "1x8", "nvlink", "NVLS", {"is wrong"}, {"switch sums"}),
        ("p2p_bandwidth", "1x2", "pcie", None, {"third GPU", "NCCL plans"}, {"NVLS", "SHARP"}),
        ("p2p_bandwidth", "2x1", "network", None, {"is wrong"}, {"SHARP", "NCCL plans"}),
        ("copy_h2d", "1x1", "line", None, {"is wrong"}, {"SHARP", "NCCL plans", "third GPU"}),
    ],
)
def test_causes(
    benchmark: str,
    layout: str,
    kind: LimitKind,
    algorithm: str | None,
    words: set[str],
    others: set[str],
) -> None:
    """By the kind of the limit, not by its name."""
    limit = Limit(1.0, "NVLink by the user", kind)
    text = impossible_reason(gpu_planned(benchmark, layout), 1.2, limit, algorithm) or ""
    assert {word for word in words if word not in text} == set()
    assert {word for word in others if word in text} == set()


def test_a_tree_between_two_nodes_stays_below_the_bound() -> None:
    """Its busiest interface carries S each way: algbw is the line rate, busbw 2(n-1)/n of it, and
    that is the bound."""
    planned = gpu_planned("all_reduce", "2x4")
    line = 12.5
    limit = network_limit(
        planned, (interface_limit("eth0", 100_000.0),) * 2, lambda rank: rank // 4
    )
    assert limit is not None
    busbw = line * (planned.benchmark.bus_factor(planned.case, 8) or 0)
    assert busbw > line
    assert busbw == pytest.approx(limit.gb_per_s)


# ---------------------------------------------------------------- what a number is


def test_a_row_says_what_its_median_is_of() -> None:
    seen = {name: row_of(planned_of(name), samples(CALM)) for name in BENCHMARKS}
    assert seen["p2p_latency"].median_of == "half a round trip"
    assert seen["p2p_bandwidth"].median_of == "window / messages"
    assert seen["p2p_bibandwidth"].median_of == "window / messages in both directions"
    assert (
        seen["p2p_multi_pair"].median_of == "window of the slowest sender / messages of all pairs"
    )
    assert (
        "exchange"
        in row_of(planned_of("exchange", 3), samples(np.vstack([CALM, CALM[:1]]))).median_of
    )
    assert seen["all_reduce"].median_of == "collective"
    assert all(row.median_of != "operation" for row in seen.values())


@pytest.mark.parametrize(
    ("benchmark", "overrides", "block_k", "given"),
    [
        ("p2p_latency", (), 1, True),
        ("p2p_latency", (), 4, False),  # of four round trips together
        ("all_reduce", (), 1, True),
        ("p2p_bandwidth", (), 1, False),
        ("p2p_bandwidth", ("window=1",), 1, True),
        ("exchange", (), 1, True),  # two ranks: one message each
    ],
)
def test_percentiles_are_of_operations_or_null(
    benchmark: str, overrides: tuple[str, ...], block_k: int, given: bool
) -> None:
    seen = row_of(planned_of(benchmark, 2, *overrides), samples(CALM, block_k=block_k))
    assert (seen.p90_s is not None) == (seen.p95_s is not None) == given


def test_messages_in_one_call_are_told() -> None:
    window, latency, collective = (
        planned_of(name) for name in ("p2p_bandwidth", "p2p_latency", "all_reduce")
    )
    assert row_of(window, samples(CALM), joins_messages=True).messages_per_call == 64
    assert row_of(window, samples(CALM)).messages_per_call == 1
    assert row_of(latency, samples(CALM), joins_messages=True).messages_per_call == 1
    assert row_of(collective, samples(CALM), joins_messages=True).messages_per_call is None


def test_a_rank_with_itself_has_one_direction() -> None:
    planned = planned_of("p2p_bibandwidth")
    alone = replace(planned, case=replace(planned.case, pair="0-0"))
    seen = row_of(alone, samples(CALM[:1]))
    assert seen.busbw_gb_per_s == seen.algbw_gb_per_s
    both = row_of(planned, samples(CALM))
    assert both.busbw_gb_per_s == pytest.approx(both.algbw_gb_per_s / 2)


def test_outliers_are_counted() -> None:
    elapsed = CALM.copy()
    elapsed[:, :3] *= 5
    assert row_of(planned_of("all_reduce"), samples(elapsed)).outliers >= 3
    assert row_of(planned_of("all_reduce"), samples(np.full((2, 50), 10**7))).outliers == 0


def test_only_the_last_message_of_a_shared_buffer_is_checked_and_that_is_said() -> None:
    shared = planned_of("p2p_bandwidth", 2, "buffers=shared")
    one = planned_of("p2p_bandwidth", 2, "buffers=shared", "window=1")
    assert "unchecked" in row_of(shared, samples(CALM)).warnings
    assert "unchecked" not in row_of(planned_of("p2p_bandwidth"), samples(CALM)).warnings
    assert "unchecked" not in row_of(one, samples(CALM)).warnings


@pytest.mark.parametrize(
    ("benchmark", "total", "each"),
    [("all_gather", 60_000, 20_000), ("all_reduce", 60_000, 60_000), ("barrier", 0, None)],
)
def test_bytes_per_rank_are_those_of_a_block(benchmark: str, total: int, each: int | None) -> None:
    seen = row_of(planned_of(benchmark, 3), samples(np.vstack([CALM, CALM[:1]])))
    assert (seen.message_bytes, seen.bytes_per_rank) == (total, each)


def test_ranks_of_a_node_are_held_against_a_copy_by_a_core_which_convicts_nobody() -> None:
    planned = planned_of("p2p_bandwidth", 2, "window=1", "cache=warm")
    stamps = samples([[1000] * 10] * 2)
    around = {"cache_bytes": 2**10}
    seen = row_of(planned, stamps, core_copy_gb_per_s=10.0, **around)
    limit = (seen.limit_gb_per_s, seen.limit_name, seen.limit_kind)
    assert limit == (10.0, "measured copy by a core", "memory")
    assert seen.efficiency == pytest.approx(seen.busbw_gb_per_s / 10)
    fast = row_of(planned, stamps, core_copy_gb_per_s=seen.busbw_gb_per_s / 1.5, **around)
    assert fast.efficiency == pytest.approx(1.5)
    assert (fast.warnings, fast.reason) == (seen.warnings, seen.reason)
    assert row_of(planned, stamps).efficiency is None


def test_what_a_cache_holds_is_not_held_against_the_memory() -> None:
    planned = planned_of("p2p_bandwidth", 2, "window=1", "cache=warm")
    stamps = samples([[1000] * 10] * 2)
    message_bytes = planned.case.message_bytes or 0
    caches = {"smaller": message_bytes // 2 - 1, "larger": message_bytes}
    limits = {
        name: row_of(planned, stamps, core_copy_gb_per_s=10.0, cache_bytes=size).limit_gb_per_s
        for name, size in caches.items()
    }
    assert limits == {"smaller": 10.0, "larger": None}
    assert 0.1 < (core_copy_gb_per_s(2**20) or 0.0) < 1000


@pytest.mark.parametrize(
    ("kind", "limit_name"),
    [
        ("NET/IB/GDRDMA", "mlx5_0:1 400 Gb/s"),
        ("P2P/MNNVL", "NVLink 18 x 40.1 GB/s"),
        ("SHM/direct", None),
    ],
)
def test_a_limit_between_nodes_is_that_of_what_carried_the_bytes(
    kind: str, limit_name: str | None
) -> None:
    port = ("mlx5_0:1",)
    evidence = TransportEvidence(
        nodes=(0, 1),
        gpus=(RankGpu(0, 0, "0000:01:00.0", 100), RankGpu(1, 0, "0000:01:00.0", 100)),
        rates=({"mlx5_0:1": 400_000.0},) * 2,
        nccl=NcclEvidence(logged=True, kinds={(0, 1): (kind,)}, ports={(0, 1): port, (1, 0): port}),
    )
    planned = gpu_planned("p2p_bandwidth", "2x1")
    world = World(0, 2, ((0,), (1,)), (0,))
    seen = row_of(planned, samples([[100_000] * 10] * 2), evidence=evidence, world=world)
    assert seen.limit_name == limit_name


def test_efficiency_is_that_of_the_bus() -> None:
    """On 4 ranks the bus carries 1.5 times the message."""
    planned = planned_of("all_reduce", 4, "cache=warm")
    stamps = samples([[60_000] * 10] * 4)
    seen = row_of(planned, stamps, core_copy_gb_per_s=10.0, cache_bytes=2**10)
    assert (seen.algbw_gb_per_s, seen.busbw_gb_per_s) == pytest.approx((1.0, 1.5))
    assert seen.limit_gb_per_s is not None
    assert seen.efficiency == pytest.approx(1.5 / seen.limit_gb_per_s)
