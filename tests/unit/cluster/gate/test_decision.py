"""The gate: what passes, fails and stays undecided, and how often healthy suites fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from healthy_runs import Change, healthy_run, slower
from sample_cases import case_row
from suites import NOISES, GateTrial, gate_answers

from commbench.cluster.baseline.healthy_launches import HealthyLaunch
from commbench.cluster.baseline.writer import add_runs
from commbench.cluster.gate.answers import CaseAnswer, GateResult, loss_text
from commbench.cluster.gate.decision import GateCase, GateRules, suite_answers
from commbench.cluster.gate.with_baseline import judge_with_baseline
from commbench.core.errors import ConfigError
from commbench.report.summary import Summary, read_results


def launches(times_s: Sequence[float], day: str = "1") -> list[HealthyLaunch]:
    return [HealthyLaunch(time_s, str(at), "n1", day) for at, time_s in enumerate(times_s)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten healthy runs on five days."""
    folder = tmp_path_factory.mktemp("healthy")
    runs = [healthy_run(folder / "healthy", number, day=1 + number % 5) for number in range(10)]
    add_runs(folder / "store", runs)
    return folder / "store"


RULES = GateRules()


def judged(store: Path, *runs: Path, rules: GateRules = RULES) -> GateResult:
    return judge_with_baseline(Summary(read_results(runs)), store, rules)


def new_runs(folder: Path, change: Change = lambda values: values, first: int = 100) -> list[Path]:
    """Five launches on five days."""
    results = folder / f"results-{first}"
    return [healthy_run(results, first + at, day=9 + at, change=change) for at in range(5)]


def of_kind(result: GateResult, kind: str) -> list[CaseAnswer]:
    return [answer for answer in result.answers if answer.kind == kind]


# ---------------------------------------------------------------- the rule

STEADY = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99]


def decided(healthy: Sequence[HealthyLaunch], new: Sequence[HealthyLaunch]) -> CaseAnswer:
    """The answer on the only case of a suite."""
    row = case_row(case_id="case", status="ok")
    (answer,) = suite_answers([GateCase(row, [row], healthy, new, False, True)], RULES)
    return answer


@pytest.mark.parametrize(
    ("new_s", "answer"),
    [
        ([1.0] * 5, "PASS"),
        ([0.9] * 5, "PASS"),
        ([1.02] * 8, "PASS"),
        ([1.6], "SUSPECT"),
        ([1.2] * 3, "FAIL"),
        ([1.0] * 4, "UNDECIDED"),
        ([1.04] * 8, "UNDECIDED"),
        ([1.0] * 7 + [2.0], "UNDECIDED"),
    ],
)
def test_what_is_certain_fails_and_what_is_not_is_suspect(new_s: list[float], answer: str) -> None:
    assert decided(launches(STEADY), launches(new_s)).answer == answer


def test_what_varies_too_much_to_see_a_loss_is_undecided() -> None:
    answer = decided(launches([1.0, 1.5, 0.7, 1.2, 0.8]), launches([1.1]))
    assert answer.answer == "UNDECIDED" and "commbench baseline add" in answer.reason


def test_the_reason_says_what_keeps_a_case_from_passing() -> None:
    few = decided(launches(STEADY), launches([1.0]))
    assert few.reason == "1 launch can't show a loss that comes and goes: measure 5"
    wide = decided(launches(STEADY), launches([1.04] * 8))
    assert wide.reason == "may take 5.1 % longer by 8 launches: measure more, or raise --margin"
    slow = decided(launches(STEADY), launches([1.0] * 7 + [2.04]))
    assert slow.reason == "1 of 8 launches took up to 2 x the slowest healthy one"


def test_a_disturbed_launch_that_blinds_a_baseline_is_named() -> None:
    answer = decided(launches([1.0, 1.01, 12.0, 0.99, 1.0]), launches([1.0] * 5))
    assert answer.answer == "UNDECIDED"
    assert answer.reason.startswith("healthy launch 2 takes 12 x the time of the others: a loss")


def test_what_is_far_faster_than_every_healthy_launch_is_told_with_its_answer() -> None:
    fast = decided(launches(STEADY), launches([0.5] * 5))
    assert fast.answer == "PASS" and "is far faster than every healthy launch" in fast.finding
    assert decided(launches(STEADY), launches([0.97] * 5)).finding == ""


def test_days_that_differ_are_no_loss() -> None:
    """The launches of a day are alike, and days differ by as much as the new one."""
    healthy = [
        launch
        for day, time_s in enumerate([1.0, 1.1, 0.93, 1.06])
        for launch in launches([time_s, time_s * 1.001, time_s * 0.999], str(day))
    ]
    new = launches([1.2, 1.21, 1.19], "new")
    assert decided(healthy, new).answer in ("PASS", "UNDECIDED")
    of_one_day = [replace(launch, day="new") for launch in healthy]
    assert decided(of_one_day, new).answer == "FAIL"


@pytest.mark.parametrize("noise", NOISES)
def test_at_most_one_healthy_suite_in_a_hundred_has_a_case_that_fails(noise: str) -> None:
    rng = np.random.default_rng(1)
    trial = GateTrial(healthy=8, new=8, spread=0.1, noise=noise)
    failed = sum("FAIL" in gate_answers(trial, rng) for _ in range(40))
    assert failed <= 3  # of 40 at 1 %: the probability of more is 0.1 %


@pytest.mark.parametrize(
    ("trial", "answers", "least"),
    [
        (GateTrial(8, 1, 0.03, loss=0.3), {"FAIL", "SUSPECT"}, 38),
        (GateTrial(8, 1, 0.03, loss=0.3, again=10), {"FAIL"}, 38),
        (GateTrial(8, 8, 0.03, loss=0.1, slow=20), {"FAIL"}, 38),
        (GateTrial(8, 5, 0.01, loss=0.0), {"PASS"}, 40),
        (GateTrial(8, 1, 0.01, loss=0.0, again=10), {"PASS"}, 40),
    ],
)
def test_planted_losses_are_found(trial: GateTrial, answers: set[str], least: int) -> None:
    """Of 40 suites; docs/acceptance.md has the shares of many more."""
    rng = np.random.default_rng(2)
    given = [gate_answers(trial, rng)[0] for _ in range(40)]
    assert sum(answer in answers for answer in given) >= least
    assert not trial.loss or "PASS" not in given or trial.loss < 0.3


@pytest.mark.parametrize("trial", [GateTrial(8, 1, 0.01, again=5), GateTrial(8, 8, 0.01)])
@pytest.mark.parametrize("sometimes", [0.4, 0.6])
def test_a_cluster_that_is_slow_now_and_then_does_not_pass(
    trial: GateTrial, sometimes: float
) -> None:
    """Nor does each case of a suite that is: all of its launches are healthy in one of 20."""
    rng = np.random.default_rng(3)
    given = [gate_answers(replace(trial, cases=1, sometimes=sometimes), rng) for _ in range(100)]
    assert sum(answers == ["PASS"] for answers in given) <= 11


def test_a_loss_that_all_cases_share_fails_where_no_single_case_is_certain() -> None:
    trial = GateTrial(healthy=8, new=8, spread=0.1, loss=0.2, slow=12, cases=12)
    rng = np.random.default_rng(4)
    assert sum("FAIL" in gate_answers(trial, rng) for _ in range(20)) >= 19


@pytest.mark.parametrize("healthy_days", [1, 3])
def test_days_that_differ_do_not_fail_a_healthy_suite(healthy_days: int) -> None:
    trial = GateTrial(8, 8, 0.01, days=0.03, healthy_days=healthy_days, cases=12)
    rng = np.random.default_rng(5)
    failed = sum("FAIL" in gate_answers(trial, rng) for _ in range(100))
    assert failed <= 4  # of 100 at 1 %: more has a probability of 0.3 %


# ---------------------------------------------------------------- a store and results


def test_a_healthy_suite_does_not_fail_and_a_slower_operation_fails_alone(
    store: Path, tmp_path: Path
) -> None:
    healthy = judged(store, *new_runs(tmp_path))
    assert healthy.answer in ("PASS", "UNDECIDED", "SUSPECT")
    slow = judged(store, *new_runs(tmp_path, slower(1.5), first=200))
    assert slow.answer == "FAIL"
    assert {answer.answer for answer in of_kind(slow, "all_reduce")} == {"FAIL"}
    assert len(slow.of("FAIL")) == 4
    assert "longer than 10 healthy launches" in of_kind(slow, "all_reduce")[0].reason


def test_with_the_noise_as_margin_a_healthy_suite_passes(store: Path, tmp_path: Path) -> None:
    result = judged(store, *new_runs(tmp_path), rules=GateRules(margin=0.2))
    assert result.sentence().startswith("PASS: of 12 cases 12 pass; a measured loss above 2")


def test_missing_skipped_failed_and_invalid_cases_fail(store: Path, tmp_path: Path) -> None:
    def damaged(values: dict[str, Any]) -> dict[str, Any] | None:
        status = {8: None, 512: "skipped", 4096: "failed", 65536: "invalid"}
        if values["benchmark"] != "broadcast":
            return values
        of_size = status[values["message_bytes"]]
        return None if of_size is None else values | {"status": of_size, "reason": "planted"}

    result = judged(store, *new_runs(tmp_path, damaged), rules=GateRules(margin=0.3))
    answers = of_kind(result, "broadcast")
    assert [answer.answer for answer in answers] == ["FAIL"] * 4
    assert [answer.reason for answer in answers] == [
        "missing: the store has 10 healthy launches of it",
        "skipped: planted",
        "failed: planted",
        "invalid: planted",
    ]
    allowed = judged(
        store, *new_runs(tmp_path, damaged, 200), rules=GateRules(margin=0.3, allow_missing=True)
    )
    assert len(of_kind(allowed, "broadcast")) == 3
    assert "1 case of the store not in RESULTS: not judged." in allowed.notes


def test_one_launch_of_a_case_that_is_invalid_fails_it(store: Path, tmp_path: Path) -> None:
    good = new_runs(tmp_path)
    bad = healthy_run(tmp_path, 200, change=lambda values: values | {"status": "invalid"})
    assert len(judged(store, *good, bad).of("FAIL")) == 12


def test_a_case_that_no_healthy_run_could_measure_either_is_left_out(tmp_path: Path) -> None:
    def skipped(values: dict[str, Any]) -> dict[str, Any]:
        return values if values["benchmark"] != "broadcast" else values | {"status": "skipped"}

    add_runs(tmp_path / "store", [healthy_run(tmp_path, at, change=skipped) for at in range(4)])
    result = judged(tmp_path / "store", healthy_run(tmp_path, 9, change=skipped))
    assert len(result.answers) == 8
    assert "4 cases skipped, as in all healthy runs: not judged." in result.notes


def test_too_few_healthy_launches_leave_a_case_undecided(store: Path, tmp_path: Path) -> None:
    def renamed(values: dict[str, Any]) -> dict[str, Any]:
        return values | {"case_id": "other"} if values["message_bytes"] == 8 else values

    run = new_runs(
        store, lambda values: renamed(values) if values["benchmark"] == "broadcast" else values
    )
    result = judged(store, *run, rules=GateRules(margin=0.3, allow_missing=True))
    (undecided,) = [answer for answer in result.answers if answer.answer == "UNDECIDED"]
    assert undecided.reason == "0 healthy launches in the store, at least 3 are needed"


def test_a_name_has_the_variables_in_which_cases_of_its_benchmark_differ(tmp_path: Path) -> None:
    def reduced(values: dict[str, Any]) -> dict[str, Any]:
        if values["benchmark"] != "all_reduce":
            return values
        reduction = "sum" if values["message_bytes"] < 4096 else "max"
        return values | {"reduction": reduction, "in_place": True}

    add_runs(tmp_path / "store", [healthy_run(tmp_path, at, change=reduced) for at in range(3)])
    result = judged(tmp_path / "store", healthy_run(tmp_path, 9, change=reduced))
    names = {answer.name for answer in of_kind(result, "all_reduce")}
    assert {"all_reduce 1x2 512 B, sum", "all_reduce 1x2 4 KiB, max"} < names
    assert "broadcast 1x2 8 B" in {answer.name for answer in of_kind(result, "broadcast")}


def test_a_rate_above_the_limit_is_a_finding(store: Path, tmp_path: Path) -> None:
    def impossible(values: dict[str, Any]) -> dict[str, Any]:
        if values["message_bytes"] == 8:
            values |= {"warnings": ["impossible"], "busbw_gb_per_s": 14.0}
        return values

    result = judged(store, *new_runs(tmp_path, impossible), rules=GateRules(margin=0.3))
    assert result.answer == "PASS"
    above = [line for line in result.findings if "14.0 GB/s is above the limit of 12.5" in line]
    assert len(above) == 3


def test_runs_that_are_in_the_store_do_not_judge_themselves(store: Path, tmp_path: Path) -> None:
    (run, *_) = sorted((store.parent / "healthy").iterdir())
    result = judged(store, run)
    counts = {answer.comparison.launches[0] for answer in result.answers if answer.comparison}
    assert counts == {9}
    assert any("in the store as well" in note for note in result.notes)


def test_a_store_of_one_day_says_what_its_limits_lack(tmp_path: Path) -> None:
    add_runs(tmp_path / "store", [healthy_run(tmp_path, number) for number in range(5)])
    result = judged(tmp_path / "store", healthy_run(tmp_path, 9))
    assert [note.split(":")[0] for note in result.notes] == [
        "All healthy launches are of one day, 2026-01-01",
        "All healthy launches are of one set of hosts, n1",
    ]


def test_a_store_of_another_cluster_is_refused_with_both_named(store: Path, tmp_path: Path) -> None:
    node = {"host.hostname": "n1", "host.cpu_model": "Other CPU"}
    run = healthy_run(tmp_path, 1, provenance={"nodes": [node]})
    with pytest.raises(ConfigError, match="has no baseline for RESULTS: they are of Other-CPU"):
        judged(store, run)


def test_a_store_with_too_few_launches_decides_nothing_but_what_was_not_measured(
    tmp_path: Path,
) -> None:
    def broken(values: dict[str, Any]) -> dict[str, Any]:
        return values | {"status": "failed", "reason": "planted"}

    add_runs(tmp_path / "store", [healthy_run(tmp_path, number) for number in range(2)])
    healthy = judged(tmp_path / "store", healthy_run(tmp_path, 9))
    assert len(healthy.of("UNDECIDED")) == 12
    failed = judged(tmp_path / "store", healthy_run(tmp_path, 10, change=broken))
    assert len(failed.of("FAIL")) == 12


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.032, "3.2 %"), (0.9996, "0.0 %"), (0.98, "-2.0 %"), (200.0, "200 x the time")],
)
def test_a_loss_is_a_percentage_or_a_factor(ratio: float, text: str) -> None:
    assert loss_text(ratio) == text
