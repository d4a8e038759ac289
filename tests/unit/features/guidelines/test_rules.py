"""Performance guidelines: a world that violates one is named with it, one that violates none is
not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from places import ROOT
from sample_cases import CASE
from size_rows import rows_of

import commbench
from commbench.cli.report import report
from commbench.core.layout import Layout
from commbench.features.guidelines.rules import (
    DIVIDED_COLLECTIVES,
    GUIDELINES,
    GuidelineResult,
    check_guidelines,
)
from commbench.report.summary import read_results

ALPHA_S = 2e-6
BETA_S_PER_BYTE = 1e-9
SIZES = (64, 4096, 262144)
LAYOUTS = {"1x2": ("0-1", "1-0"), "2x2": ("0-1", "1-0", "1-2")}
VISITS = 10
# of the time of a message: costs that follow every rule
COSTS = {
    "broadcast": 1.0,
    "reduce": 1.0,
    "gather": 1.0,
    "scatter": 1.0,
    "all_to_all": 1.2,
    "reduce_scatter": 1.2,
    "all_gather": 1.4,
    "all_reduce": 1.6,
    "barrier": 0.5,
    "p2p_latency": 1.0,
    "p2p_bandwidth": 1.0,
}
ACROSS_NODES = 2.0  # of a pair


@dataclass(frozen=True)
class Point:
    """What the planted time of a case depends on."""

    benchmark: str
    layout: str
    size: int
    pair: str | None

    @property
    def is_within_a_node(self) -> bool:
        per_node = Layout.parse(self.layout).ranks_per_node
        return len({int(rank) // per_node for rank in str(self.pair).split("-")}) == 1


def points() -> Iterable[Point]:
    for layout, pairs in LAYOUTS.items():
        for benchmark in COSTS:
            sizes = (0,) if benchmark == "barrier" else SIZES
            of_pairs = pairs if benchmark.startswith("p2p") else (None,)
            for size, pair in itertools.product(sizes, of_pairs):
                yield Point(benchmark, layout, size, pair)


def consistent_s(point: Point) -> float:
    """A time that no rule objects to."""
    link = ACROSS_NODES if point.pair and not point.is_within_a_node else 1.0
    nodes = 1.0 if point.layout.startswith("1x") or point.pair else 1.2
    message_s = ALPHA_S + BETA_S_PER_BYTE * point.size
    return COSTS[point.benchmark] * link * nodes * message_s


def one_second(point: Point) -> float:
    """As near to a violation as can be: all times are equal."""
    return 1.0


def in_proportion_to_size_s(point: Point) -> float:
    """As near as can be to k small messages that are faster than one."""
    return 1e-6 * max(point.size, 1)


def cases_of(seconds: Callable[[Point], float]) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """The rows of a run without visits, and their true times [rows]."""
    rows = []
    for point in points():
        is_pair = point.pair is not None
        case = replace(
            CASE,
            benchmark=point.benchmark,
            layout=point.layout,
            pair=point.pair,
            dtype="float32" if point.size else "none",
            message_bytes=point.size,
            in_place=None if is_pair else point.benchmark not in DIVIDED_COLLECTIVES,
            root=0 if point.benchmark in ("broadcast", "reduce", "gather", "scatter") else None,
            reduction="sum" if "reduce" in point.benchmark else None,
            sync="none" if point.benchmark == "barrier" or is_pair else "barrier",
            schedule="serial" if is_pair else None,
            window=64 if point.benchmark == "p2p_bandwidth" else None,
        )
        variables = {name: getattr(case, name) for name in case.__dataclass_fields__}
        fixed = {"env": {}, "backend_options": {}, "case_id": case.case_id, "label": ""}
        identity = {"run_id": "r", "hosts": "a", "library": "x", "status": "ok", "warnings": []}
        rows.append(variables | fixed | identity | {"median_s": seconds(point)})
    frame = pd.DataFrame(rows)
    return frame, frame["median_s"].to_numpy(dtype=np.float64)


def with_visits(
    cases: pd.DataFrame, medians_s: NDArray[np.float64], launches: list[float] | None = None
) -> pd.DataFrame:
    """The rows with these medians of visits [rows, visits], by default of one launch."""
    same = [0.0] * medians_s.shape[1] if launches is None else launches
    return cases.assign(
        median_s=np.median(medians_s, axis=1),
        visit_medians_s=medians_s.tolist(),
        visit_launches=[same] * len(cases),
    )


def noisy(
    true_s: NDArray[np.float64], rng: np.random.Generator, spread: float, visits: int = VISITS
) -> NDArray[np.float64]:
    return true_s[:, None] * rng.lognormal(0, spread, (true_s.size, visits))


def checked(frame: pd.DataFrame) -> GuidelineResult:
    return check_guidelines(rows_of(frame))


def violated(result: GuidelineResult) -> list[str]:
    return list(dict.fromkeys(violation.guideline.name for violation in result.violations))


# ---------------------------------------------------------------- planted violations


def slower(benchmark: str, factor: float, **more: float) -> Callable[[Point], float]:
    """Factors of whole operations."""
    factors = {benchmark: factor, **more}
    return lambda point: factors.get(point.benchmark, 1.0)


def reduce_64_bytes(point: Point) -> float:
    return 4.0 if point.benchmark == "reduce" and point.size == 64 else 1.0


def reduce_256_kib(point: Point) -> float:
    return 2.0 if point.benchmark == "reduce" and point.size == 262144 else 1.0


def reduce_scatter_of_two_nodes(point: Point) -> float:
    return 0.3 if point.benchmark == "reduce_scatter" and point.layout == "2x2" else 1.0


def latency_within_a_node(point: Point) -> float:
    is_planted = point.benchmark == "p2p_latency" and point.is_within_a_node
    return 3.0 if is_planted else 1.0


def one_direction(point: Point) -> float:
    return 1.5 if point.benchmark == "p2p_bandwidth" and point.pair == "1-0" else 1.0


PLANTED: dict[str, Callable[[Point], float]] = {
    "all_reduce <= reduce + broadcast": slower("reduce", 0.2),
    "all_reduce <= reduce_scatter + all_gather": slower("all_reduce", 1.2, reduce_scatter=0.1),
    "all_gather <= gather + broadcast": slower("all_gather", 1.7),
    "reduce_scatter <= all_reduce": slower("reduce_scatter", 1.6),
    "broadcast <= scatter + all_gather": slower("broadcast", 2.8),
    "gather <= all_to_all": slower("gather", 1.5),
    "scatter <= all_to_all": slower("scatter", 1.5),
    "barrier <= all_reduce of one element": slower("barrier", 5.0),
    "the time does not fall with the size": reduce_64_bytes,
    "k small messages are not faster than one of k times the size": reduce_256_kib,
    "more nodes are not faster than fewer": reduce_scatter_of_two_nodes,
    "a message within a node is not slower than between nodes": latency_within_a_node,
    "both directions of a pair are alike": one_direction,
}


@pytest.mark.parametrize("name", [guideline.name for guideline in GUIDELINES])
def test_a_planted_violation_is_the_only_one_that_is_named(name: str) -> None:
    factor = PLANTED[name]
    cases, true_s = cases_of(lambda point: factor(point) * consistent_s(point))
    result = checked(with_visits(cases, noisy(true_s, np.random.default_rng(1), 0.02)))
    assert violated(result) == [name]


def test_the_documentation_has_every_rule() -> None:
    text = (ROOT / "docs" / "guidelines.md").read_text()
    assert [each.name for each in GUIDELINES if f"| {each.name} |" not in text] == []


def test_a_consistent_world_violates_nothing_and_says_how_much_was_compared() -> None:
    cases, true_s = cases_of(consistent_s)
    result = checked(with_visits(cases, noisy(true_s, np.random.default_rng(1), 0.02)))
    assert result.violations == () and result.rules == len(GUIDELINES)
    (sentence,) = result.sentences()
    assert sentence.startswith(f"0 of {len(GUIDELINES)} guidelines violated, by 1")


SIMULATED = (
    "backend=simulated",
    "writer=parquet",
    "timing.pass_s=0",
    "timing.warmup_s=0",
    "timing.target=0.5",
    "backend.model.noise=0.02",
)


def test_a_simulated_world_with_a_slow_direction_and_a_fast_network_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = commbench.run(
        *SIMULATED,
        "timing=quick",
        "timing.visits=5",
        "benchmark=[p2p_bandwidth]",
        "sizes=[4KiB]",
        "window=16",
        "layout=[1x2,2x1]",
        "pairs=[[0,1],[1,0]]",
        "backend.model.slow_pair=0-1",
        "backend.model.slow_factor=2",
        "backend.model.other_node_factor=0.5",
        f"output={tmp_path}",
    )
    capsys.readouterr()
    page = tmp_path / "report.html"
    assert report([str(folder), "--html", str(page)]) == 0
    assert report([str(folder)]) == 0
    terminal = " ".join(capsys.readouterr().out.split())
    for shown in (terminal, page.read_text()):
        assert "2 of 2 guidelines violated, by 3 comparisons." in shown
        assert "both directions of a pair are alike: " in shown
        assert "Usual cause: a faulty cable or port" in shown
        assert "a message within a node is not slower than between nodes: " in shown


@pytest.mark.long
def test_the_experiment_finds_the_ring_and_the_tree_of_the_simulated_world(tmp_path: Path) -> None:
    """Of four ranks, an all_reduce as a ring takes 6 steps where two trees take 4; a broadcast as a
    tree moves the message twice where scatter and all_gather move it one and a half times."""
    words = ("experiment=guidelines", "part=1", "layout=1x4", "sizes=[4,1KiB,1MiB]")
    folder = commbench.run(*words, *SIMULATED, f"output={tmp_path}")
    result = check_guidelines(read_results([folder]).rows)
    assert result.rules == 11
    assert set(violated(result)) == {
        "all_reduce <= reduce + broadcast",
        "broadcast <= scatter + all_gather",
    }


# ---------------------------------------------------------------- what is enough for a violation


def slow_gather(factor: float) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """A world in which gather takes 1.5 times as long where the factor is 1.5."""
    return cases_of(lambda point: slower("gather", factor)(point) * consistent_s(point))


def test_too_few_visits_decide_nothing_and_the_number_that_would_is_named() -> None:
    cases, true_s = slow_gather(3.0)
    medians_s = noisy(true_s, np.random.default_rng(1), 0.01, visits=6)
    result = checked(with_visits(cases, medians_s))
    assert result.violations == () and result.comparisons == 0
    (sentence,) = result.sentences()
    assert sentence.startswith("6 comparisons look as if") and "timing.visits=8 are" in sentence
    enough = noisy(true_s, np.random.default_rng(1), 0.01, visits=8)
    assert violated(checked(with_visits(cases, enough))) == ["gather <= all_to_all"]


def test_nothing_is_said_of_a_run_without_a_sign_of_a_violation_and_with_few_visits() -> None:
    cases, true_s = cases_of(consistent_s)
    result = checked(with_visits(cases, noisy(true_s, np.random.default_rng(1), 0.01, 6)))
    assert result.sentences() == []


@pytest.mark.parametrize(("launches_with_it", "named"), [(2, True), (1, False)])
def test_each_launch_must_show_a_violation(launches_with_it: int, named: bool) -> None:
    cases, slow_s = slow_gather(1.5)
    _, true_s = slow_gather(1.0)
    rng = np.random.default_rng(1)
    of_launches = [
        noisy(slow_s if launch < launches_with_it else true_s, rng, 0.02) for launch in range(2)
    ]
    launches = [0.0] * VISITS + [1.0] * VISITS
    result = checked(with_visits(cases, np.hstack(of_launches), launches))
    assert violated(result) == ["gather <= all_to_all"] * named
    assert all(violation.basis == "in 2 launches" for violation in result.violations)


def test_many_launches_of_one_visit_each_are_compared_as_launches() -> None:
    cases, true_s = slow_gather(1.5)
    medians_s = noisy(true_s, np.random.default_rng(1), 0.02, visits=9)
    result = checked(with_visits(cases, medians_s, [float(at) for at in range(9)]))
    assert violated(result) == ["gather <= all_to_all"]


def test_times_of_different_runs_are_not_compared() -> None:
    cases, true_s = slow_gather(1.5)
    measured = with_visits(cases, noisy(true_s, np.random.default_rng(1), 0.02))
    elsewhere = measured.assign(
        run_id=np.where(measured["benchmark"] == "gather", "another run", "r")
    )
    assert violated(checked(elsewhere)) == []


def test_a_message_that_was_rounded_down_to_whole_blocks_is_the_same_message() -> None:
    """5 ranks divide 4,080 B of 4 KiB; the next larger size would allow 64 times as long."""
    name = "all_reduce <= reduce_scatter + all_gather"
    factor = PLANTED[name]
    cases, true_s = cases_of(lambda point: factor(point) * consistent_s(point))
    sizes = cases["message_bytes"]
    is_rounded = cases["benchmark"].isin(DIVIDED_COLLECTIVES) & (sizes > SIZES[0])
    rounded = cases.assign(message_bytes=sizes.where(~is_rounded, sizes - sizes % 20))
    medians_s = noisy(true_s, np.random.default_rng(1), 0.02)
    violations = checked(with_visits(rounded, medians_s)).violations
    assert [violation.guideline.name for violation in violations] == [name] * len(LAYOUTS)
    assert all(violation.sizes == violation.compared == len(SIZES) for violation in violations)


# ---------------------------------------------------------------- worlds without a violation


def share_named(
    seconds: Callable[[Point], float], runs: int, spread: float, levels: bool, seed: int
) -> float:
    """The share of runs in which any rule is named, though none is violated.

    levels: three visits of ten are a third slower, as where a machine has two levels; each
    operation has a spread of its own.
    """
    cases, true_s = cases_of(seconds)
    rng = np.random.default_rng(seed)
    named = 0
    for _ in range(runs):
        spreads = spread * rng.lognormal(0, 0.7, (true_s.size, 1))
        luck = rng.normal(0, spreads, (true_s.size, VISITS))
        if levels:
            luck += 0.3 * (rng.random(luck.shape) < 0.3)
        result = checked(with_visits(cases, true_s[:, None] * np.exp(luck)))
        named += bool(result.violations)
    return named / runs


NULL_WORLDS = [one_second, in_proportion_to_size_s, consistent_s]


@pytest.mark.parametrize("seconds", NULL_WORLDS)
def test_a_world_on_the_edge_of_all_rules_is_seldom_named(
    seconds: Callable[[Point], float],
) -> None:
    assert share_named(seconds, 20, 0.05, levels=True, seed=3) <= 0.05


@pytest.mark.long
@pytest.mark.parametrize(("spread", "levels"), [(0.05, True), (0.2, False)])
@pytest.mark.parametrize("seconds", NULL_WORLDS)
def test_a_world_on_the_edge_of_all_rules_is_named_in_at_most_5_percent_of_runs(
    seconds: Callable[[Point], float], spread: float, levels: bool
) -> None:
    assert share_named(seconds, 200, spread, levels, seed=5) <= 0.05
