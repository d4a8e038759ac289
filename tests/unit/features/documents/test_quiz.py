"""The answer of the MPI quiz, from rows with and without wrong elements."""

from __future__ import annotations

from typing import Any

from sample_cases import case_row

from commbench.features.documents.quiz import quiz_answer


def row(layout: str = "1x20", **values: Any) -> dict[str, Any]:
    quiz = {"benchmark": "exchange", "layout": layout, "message_bytes": 20, "status": "ok"}
    return case_row(**quiz | values)


def test_what_no_message_reaches_is_zero_and_the_rest_depends_on_the_buffers() -> None:
    wrong = row(buffers="shared", status="invalid", wrong_elements=12)
    answer, own, shared = quiz_answer([row(wrong_elements=0), wrong])
    assert "for i < 5" in answer and "from 5 to 19 it is 0" in answer and "undefined" in answer
    assert own.startswith("buffers=own: all that came were right")
    assert shared.startswith("buffers=shared: 12 ints that came were wrong")


def test_with_few_ranks_a_message_reaches_all() -> None:
    answer, _ = quiz_answer([row("1x4")])
    assert "for i < 4" in answer and "it is 0" not in answer


def test_a_run_that_could_not_measure_saw_nothing() -> None:
    assert len(quiz_answer([row(status="skipped")])) == 1
    assert quiz_answer([]) == []
