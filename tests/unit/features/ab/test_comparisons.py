"""Folders of `commbench ab` in a report: found from any of their paths, with the verdicts of
compare, or left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from generated_results import relaunched
from judged_cases import LAUNCH, compared

import commbench
from commbench.analysis.compare import Rules
from commbench.analysis.compared_case import SideOfCase
from commbench.features.ab.ab_results import AbResult, read_ab_results
from commbench.features.ab.comparisons import ab_sentence
from commbench.report.compare_text import comparison_summary, comparison_table
from commbench.report.distributions import read_raw_data
from commbench.report.sections import sections
from commbench.report.summary import Summary, read_results

SIMULATED = (
    "backend=simulated",
    "writer=[parquet]",
    "benchmark=all_reduce",
    "sizes=[8,64KiB]",
    "timing=quick",
    "timing.warmup_s=0",
)
FAST = "backend.model.latency_s=2e-6"
SLOW = "backend.model.latency_s=4e-6"
AB_LAUNCHES = 6


def test_the_sentence_says_what_new_adds_and_how_often_it_was_launched() -> None:
    six = SideOfCase(launches=(LAUNCH,) * 6)
    cases = compared({"base": six, "new": six})
    result = AbResult(Path("ab"), ("streams=4",), (), Rules(paired=True), tuple(cases))
    assert ab_sentence(result) == "ab: NEW is BASE with streams=4; 6 launches of each side in turn."


@pytest.fixture(scope="module")
def ab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `commbench ab` leaves it: NEW has twice the latency."""
    folder = tmp_path_factory.mktemp("results") / "ab"
    overrides = {"base": (*SIMULATED, FAST), "new": (*SIMULATED, SLOW)}
    for side, words in overrides.items():
        run = commbench.run(*words, "trial=0", f"label={side}", f"output={folder / side}")
        for launch in range(1, AB_LAUNCHES):
            relaunched(run, launch)
    record = {**overrides, "by": ["backend_options"], "seed": 0, "order": []}
    (folder / "ab.json").write_text(json.dumps(record))
    return folder


@pytest.mark.long
@pytest.mark.parametrize("place", ["..", "base", "link"])
def test_it_is_found_from_above_and_from_a_side(
    ab_folder: Path, place: str, tmp_path: Path
) -> None:
    (tmp_path / "ab").symlink_to(ab_folder)
    (result,), problems = read_ab_results([tmp_path if place == "link" else ab_folder / place])
    assert problems == []
    changed = f"{SLOW} instead of {FAST}"
    assert (
        ab_sentence(result)
        == f"ab: NEW is BASE with {changed}; {AB_LAUNCHES} launches of each side in turn."
    )
    suspect = "2 of 2 cases SUSPECT, the worst all_reduce 1x2 8 B: 2.000 x ±0%"
    assert comparison_summary(result.cases) == suspect
    table = comparison_table(result.cases)
    verdict = table.heads.index("verdict")
    assert [row[verdict] for row in table.rows] == ["SUSPECT"] * 2, "p = 0.06 of 2 cases"


@pytest.mark.long
def test_the_verdict_is_the_first_answer_and_has_a_table(ab_folder: Path) -> None:
    summary = Summary(read_results([ab_folder]))
    answers, comparison, *_ = sections(summary, read_raw_data(summary.results))
    assert "ab: NEW is BASE with" in answers.sentences[0]
    assert "2 of 2 cases SUSPECT" in answers.sentences[0]
    assert not any("no choice" in text or "several runs" in text for text in answers.sentences)
    (table,) = comparison.tables
    assert {"all_reduce", "4.00", "8.00", "2.000 x", "SUSPECT"} <= set(table.rows[0])


@pytest.mark.long
def test_another_benchmark_has_no_comparison(ab_folder: Path) -> None:
    assert read_ab_results([ab_folder], "broadcast") == ([], [])


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"base": [], "new": [], "by": ["message_bytes"], "seed": 0}']
)
def test_a_damaged_folder_is_left_out_and_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "ab.json").write_text(text)
    results, (problem,) = read_ab_results([tmp_path])
    assert results == [] and problem.startswith(f"comparison of {tmp_path}: ")
