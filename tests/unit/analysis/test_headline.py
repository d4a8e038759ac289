"""The first sentences of a report: what was measured, which runs did not end, how well numbers are
known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from generated_results import run_of

from commbench.analysis.combined import combine_runs
from commbench.analysis.headline import certainty_text, scope_text
from commbench.report.summary import Summary, read_results
from commbench.runtime.folder_lock import is_measured_into, locked


def test_it_says_what_was_measured(tmp_path: Path) -> None:
    run_of(tmp_path, 0)
    cases = read_results([tmp_path], "all_reduce").rows
    over = "over gloo in 1x2 (nodes x ranks per node)"
    assert scope_text(combine_runs(cases)) == f"all_reduce {over}, 8 B to 2 MiB."
    barrier = replace(cases[0], message_bytes=0, benchmark="barrier")
    assert scope_text(combine_runs([barrier])) == f"barrier {over}."


def unfinished(folder: Path) -> list[str]:
    return Summary(read_results([folder]), is_measured_into).unfinished


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
    (sentence,) = unfinished(tmp_path)
    assert sentence.startswith(f"Run {run.name} {words}: 100 of 128 cases so far")
    assert sentence.endswith(f"commbench resume {run}")


def test_a_finished_run_needs_no_warning_and_one_that_goes_on_no_resume(tmp_path: Path) -> None:
    run_of(tmp_path, 0)
    assert unfinished(tmp_path) == []
    run = run_of(tmp_path, 1, status="running", cases=128)
    with locked(run):
        (sentence,) = unfinished(tmp_path)
    assert "is still going on: 100 of 128 cases so far" in sentence and "resume" not in sentence


def test_cases_that_need_more_visits_are_not_called_measured(tmp_path: Path) -> None:
    run_of(tmp_path, 0, status="interrupted", cases=100)
    results = read_results([tmp_path])
    rows = [
        replace(row, stop_reason="interrupted" if at < 4 else "budget")
        for at, row in enumerate(results.rows)
    ]
    begun = replace(results, rows=rows)
    (sentence,) = Summary(begun).unfinished
    assert "100 of 100 cases so far, 4 of them with fewer visits than planned" in sentence


def test_it_counts_how_well_numbers_are_known(tmp_path: Path) -> None:
    run_of(tmp_path, 0)
    rows = read_results([tmp_path], "all_reduce").rows
    widths = [0.02] * 6 + [0.2] * 3 + [3.0]
    known = [
        replace(
            row,
            ci_low_s=(row.median_s or 0.0) * (1 - min(width, 0.9)),
            ci_high_s=(row.median_s or 0.0) * (1 + width),
        )
        for row, width in zip(rows, widths, strict=True)
    ]
    text = certainty_text(known)
    assert text == "Of 10 numbers these are known: 6 to 5 %, 3 to 30 % (~), 1 less well (?)."
    assert certainty_text([]) == ""
