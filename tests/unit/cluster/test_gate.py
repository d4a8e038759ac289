"""The gate: what passes, fails and stays undecided, and how often healthy suites fail."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from healthy_runs import Change, healthy_run, slower
from places import ROOT

from commbench.cluster.baseline_store import HealthyLaunch
from commbench.cluster.baseline_writer import add_runs
from commbench.cluster.gate import (
    CaseAnswer,
    GateResult,
    GateRules,
    decide,
    judge_with_baseline,
)
from commbench.core.errors import ConfigError
from commbench.report.summary import read_results, summarise_results


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
    return judge_with_baseline(summarise_results(read_results(runs)), store, rules)


def new_runs(folder: Path, change: Change = lambda values: values, first: int = 100) -> list[Path]:
    """Four launches on four days."""
    results = folder / f"results-{first}"
    return [healthy_run(results, first + at, day=9 + at, change=change) for at in range(4)]


def of_kind(result: GateResult, kind: str) -> list[CaseAnswer]:
    return [answer for answer in result.answers if answer.kind == kind]


# ---------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("measured_s", "answer"), [(1.0, "PASS"), (1.6, "FAIL"), (1.2, "UNDECIDED"), (0.9, "PASS")]
)
def test_a_case_fails_beyond_the_limit_and_passes_where_a_loss_is_excluded(
    measured_s: float, answer: str
) -> None:
    healthy = launches([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99])
    decision = decide(healthy, launches([measured_s]), 0.01 / 40, GateRules())
    assert decision.answer == answer
    numbers = decision.numbers
    assert (numbers.measured_s > numbers.limit_s) == (answer == "FAIL")
    assert (numbers.most_loss <= 0.05) == (answer == "PASS")


@pytest.mark.parametrize(("count", "answer"), [(7, "UNDECIDED"), (8, "FAIL")])
def test_as_many_launches_as_the_rank_test_takes_find_a_small_loss(count: int, answer: str) -> None:
    rng = np.random.default_rng(3)
    healthy = launches(rng.lognormal(0, 0.01, count).tolist())
    new = launches((1.1 * rng.lognormal(0, 0.01, count)).tolist())
    decision = decide(healthy, new, 0.01 / 100, GateRules())
    assert decision.answer == answer
    needed = ("8 launches on each side would decide", "9 launches on each side would decide")
    assert answer == "FAIL" or decision.short_reason in needed


def test_a_wide_spread_does_not_let_a_loss_pass() -> None:
    healthy = launches([1.0, 1.5, 0.7, 1.2, 0.8])
    decision = decide(healthy, launches([1.1]), 0.001, GateRules())
    assert decision.answer == "UNDECIDED"
    assert "over 100 launches on each side would be needed: the margin is too" in decision.reason


def test_an_undecided_case_names_the_launches_that_decide_it_and_they_do() -> None:
    rng = np.random.default_rng(5)
    rules = GateRules()
    healthy = launches(rng.lognormal(0, 0.04, 5).tolist())
    decision = decide(healthy, launches([1.0]), 0.001, rules)
    assert decision.answer == "UNDECIDED"
    needed = int(decision.reason.split(": ")[1].split(" ")[0])
    assert 2 <= needed <= 40
    decided = [
        decide(
            launches(rng.lognormal(0, 0.04, needed).tolist()),
            launches(rng.lognormal(0, 0.04, needed).tolist()),
            0.001,
            rules,
        ).answer
        for _ in range(40)
    ]
    assert decided.count("PASS") >= 20 and decided.count("FAIL") == 0


def test_more_launches_are_asked_for_than_there_are() -> None:
    rng = np.random.default_rng(0)
    healthy = rng.lognormal(0, 0.02, 12)
    healthy[-1] = 2.0  # one healthy launch was as slow
    decision = decide(
        launches(healthy.tolist()),
        launches((1.35 * rng.lognormal(0, 0.02, 12)).tolist()),
        0.01,
        GateRules(),
    )
    needed = decision.short_reason.split(" ")[0]
    assert decision.answer == "UNDECIDED" and int(needed) > 12


def test_a_margin_moves_the_limit_by_as_much() -> None:
    healthy = launches([1.0, 1.01, 0.99, 1.02])
    narrow = decide(healthy, launches([1.0]), 0.001, GateRules(margin=0.05)).numbers
    wide = decide(healthy, launches([1.0]), 0.001, GateRules(margin=0.26)).numbers
    assert wide.limit_s / narrow.limit_s == pytest.approx(1.26 / 1.05)


def test_what_is_far_faster_than_every_healthy_launch_is_told_with_its_answer() -> None:
    healthy = launches([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99])
    fast = decide(healthy, launches([0.5]), 0.001, GateRules())
    assert fast.answer == "PASS" and "is far faster than every healthy launch" in fast.finding
    assert decide(healthy, launches([0.97]), 0.001, GateRules()).finding == ""


def documented_power() -> list[tuple[int, int, float, float, float]]:
    """The rows of the table in docs/acceptance.md: launches on each side, spread, from which loss a
    case fails, and which share of healthy cases passes."""
    text = (ROOT / "docs" / "acceptance.md").read_text()
    row = r"^\| (\d+) \| (\d+) \| ([\d.]+) % \| (\d+) % \| ([\d.]+) % \| (\d+) % \|$"
    rows = []
    for healthy, new, loss, passed, wide_loss, wide_passed in re.findall(row, text, re.MULTILINE):
        rows.append((int(healthy), int(new), 0.01, float(loss), float(passed)))
        rows.append((int(healthy), int(new), 0.03, float(wide_loss), float(wide_passed)))
    return rows


def test_the_losses_that_are_found_are_those_in_the_documentation() -> None:
    rows = documented_power()
    assert len(rows) == 14
    for healthy, new, spread, loss, passed in rows:
        rng = np.random.default_rng(0)
        decisions = [
            decide(
                launches(rng.lognormal(0, spread, healthy).tolist()),
                launches(rng.lognormal(0, spread, new).tolist()),
                0.01 / 100,
                GateRules(),
            )
            for _ in range(60)
        ]
        limits = [each.numbers.limit_s / each.numbers.healthy_s for each in decisions]
        assert 100 * (statistics.median(limits) - 1) == pytest.approx(loss, rel=0.25)
        share = 100 * sum(each.answer == "PASS" for each in decisions) / len(decisions)
        assert share == pytest.approx(passed, abs=18)  # three standard deviations


@pytest.mark.long
@pytest.mark.parametrize(("count", "noise"), [(3, "normal"), (8, "normal"), (8, "exponential")])
def test_at_most_one_healthy_suite_in_a_hundred_has_a_case_that_fails(
    count: int, noise: str
) -> None:
    rng = np.random.default_rng(count)
    suites = 300
    cases = 20
    rules = GateRules(margin=0.0)  # a tolerated loss would make it rarer
    failed = 0
    for _ in range(suites):
        shape = (cases, count + 1)
        logs = rng.normal(size=shape) if noise == "normal" else rng.exponential(size=shape)
        times_s = np.exp(0.1 * logs).tolist()
        failed += any(
            decide(launches(stored), launches([new]), rules.false_alarms / cases, rules).answer
            == "FAIL"
            for *stored, new in times_s
        )
    assert failed <= 9  # of 300 at 1 %: the probability of more is 0.1 %


# ---------------------------------------------------------------- a store and results


def test_a_healthy_suite_does_not_fail_and_a_slower_operation_fails_alone(
    store: Path, tmp_path: Path
) -> None:
    healthy = judged(store, *new_runs(tmp_path))
    assert healthy.answer in ("PASS", "UNDECIDED") and healthy.count("FAIL") == 0
    slow = judged(store, *new_runs(tmp_path, slower(1.5), first=200))
    assert slow.answer == "FAIL"
    assert {answer.answer for answer in of_kind(slow, "all_reduce")} == {"FAIL"}
    assert slow.count("FAIL") == 4
    assert "longer than the" in of_kind(slow, "all_reduce")[0].reason


def test_with_the_noise_as_margin_a_healthy_suite_passes(store: Path, tmp_path: Path) -> None:
    result = judged(store, *new_runs(tmp_path), rules=GateRules(margin=0.2))
    assert result.answer == "PASS" and result.sentence() == "PASS: of 12 cases 12 pass"


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
        "missing: the store has 10 launches of it",
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
    assert judged(store, *good, bad).count("FAIL") == 12


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
    assert {"all_reduce 1x2 512 B sum", "all_reduce 1x2 4 KiB max"} < names
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
    counts = {answer.numbers.healthy_launches for answer in result.answers if answer.numbers}
    assert counts == {9}
    assert any("are in the store as well" in note for note in result.notes)


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
    assert healthy.answer == "UNDECIDED" and healthy.count("UNDECIDED") == 12
    failed = judged(tmp_path / "store", healthy_run(tmp_path, 10, change=broken))
    assert failed.answer == "FAIL" and failed.count("FAIL") == 12
