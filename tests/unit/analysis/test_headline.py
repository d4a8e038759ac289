"""The first sentences of a report: what was measured, which runs did not end, and how many numbers
are in doubt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from generated_results import run_of

from commbench.analysis.combined import combine_runs
from commbench.analysis.headline import headline, trust
from commbench.report.summary import (
    read_results,
    soak_sentences,
    summarise_results,
    summary_text,
)
from commbench.runtime.folder_lock import is_measured_into, locked


def cases_of(tmp_path: Path, flags: dict[int, list[str]] | None = None) -> pd.DataFrame:
    """A gloo run without flags but these."""
    run_of(tmp_path, 0)
    cases = read_results([tmp_path]).cases
    return cases.assign(warnings=[(flags or {}).get(number, []) for number in range(len(cases))])


def test_it_says_what_was_measured(tmp_path: Path) -> None:
    cases = cases_of(tmp_path)
    alike = cases[cases["benchmark"] == "all_reduce"]
    assert headline(combine_runs(alike), []) == "all_reduce over gloo in 1x2, 8 B to 2 MiB."
    barrier = alike.assign(message_bytes=0, benchmark="barrier")
    assert headline(combine_runs(barrier.iloc[:1]), []) == "barrier over gloo in 1x2."


def unfinished(folder: Path) -> list[str]:
    return summarise_results(read_results([folder]), is_measured_into).unfinished


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("running", "was killed"),
        ("interrupted", "was interrupted"),
        ("broken", "lost ranks"),
    ],
)
def test_a_run_that_did_not_come_to_its_end_is_named(
    tmp_path: Path, status: str, words: str
) -> None:
    run = run_of(tmp_path, 0, status=status, cases=128)
    assert unfinished(tmp_path) == [
        f"Run {run.name} {words}: 100 of 128 cases so far; finish it with: commbench resume {run}"
    ]


def test_cases_that_need_more_visits_are_not_called_measured(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0, status="interrupted", cases=100)
    results = read_results([tmp_path])
    reasons = ["interrupted"] * 4 + ["budget"] * 96
    begun = replace(results, cases=results.cases.assign(stop_reason=reasons))
    (sentence,) = summarise_results(begun).unfinished
    said = "100 of 100 cases so far, 4 of them with fewer visits than planned"
    assert sentence.startswith(f"Run {run.name} was interrupted: {said}; finish it with")


def test_cases_that_no_figure_shows_are_named(tmp_path: Path) -> None:
    """Simulated ones beside those of gloo, and those of one rank."""
    run_of(tmp_path, 0)
    results = read_results([tmp_path], "all_reduce")
    engines = ["virtual"] * 3 + ["python"] * 7
    summary = summarise_results(replace(results, cases=results.cases.assign(engine=engines)))
    said = "3 cases simulated or of one rank, beside measured ones of several"
    assert summary.left_out() == [said]
    assert f"left out: {said}" in " ".join(summary_text(summary, 30).split())


def test_a_soak_in_doubt_says_so_with_its_interval(tmp_path: Path) -> None:
    cases = (
        cases_of(tmp_path)
        .iloc[:1]
        .assign(timing="soak", median_s=128e-6, ci_low_s=117e-6, ci_high_s=142e-6, p99_s=None)
    )
    (certain,) = soak_sentences(cases)
    assert "median 128 us, " in certain
    (doubtful,) = soak_sentences(cases.assign(warnings=[["noisy"]]))
    assert "median 128 us ! (117 us .. 142 us, in doubt: noisy), " in doubtful


def test_a_run_that_somebody_measures_is_still_going_on(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0, status="running", cases=128)
    with locked(run):
        assert unfinished(tmp_path) == [
            f"Run {run.name} is still going on: 100 of 128 cases so far"
        ]


def test_on_a_terminal_a_run_that_did_not_end_is_the_first_answer(tmp_path: Path) -> None:
    run = run_of(tmp_path, 0, status="interrupted", cases=128)
    text = summary_text(summarise_results(read_results([tmp_path])), 30)
    assert text.split("Answers\n")[1].startswith(f"  * Run {run.name} was interrupted: 100 of")


def test_a_finished_run_needs_no_warning(tmp_path: Path) -> None:
    run_of(tmp_path, 0)
    assert unfinished(tmp_path) == []


def test_doubts_are_counted_and_named_in_words(tmp_path: Path) -> None:
    cases = cases_of(
        tmp_path, {0: ["noisy", "thinned"], 1: ["noisy", "unsteady"], 2: ["zero_payload"]}
    )
    assert (
        trust(cases)
        == "2 of 100 measured cases carry a warning that casts doubt on the number, most often: the"
        " interval reaches more than 5 % from the median (noisy, 2); a warm-up reached its time"
        " limit before the times were steady (unsteady, 1)."
    )
    assert trust(cases_of(tmp_path / "none")) == ""


def test_where_most_are_in_doubt_all_are_rough(tmp_path: Path) -> None:
    cases = cases_of(tmp_path, {number: ["noisy"] for number in range(51)})
    assert trust(cases).endswith("(noisy, 51). Treat all numbers as rough.")
    assert "rough" not in trust(cases.iloc[50:])
