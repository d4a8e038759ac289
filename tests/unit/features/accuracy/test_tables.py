"""The section on accuracy and bits, and the sentences in it."""

from __future__ import annotations

from typing import Any

from sample_cases import case_row

from commbench.core.terminal import Terminal
from commbench.features.accuracy.tables import HEADS, derived, sentences, share_text, sums_of
from commbench.results.row import Row

FOUND = {
    "status": "ok",
    "benchmark": "all_reduce",
    "payload": "rounding",
    "layout": "1x4",
    "message_bytes": 1024,
    "median_s": 1e-6,
    "error_ulp_max": 1.5,
    "error_ulp_rms": 0.31,
    "other_bits_again": 0.0,
    "other_bits_on_ranks": 0.0,
    "other_bits_in_halves": 0.33,
    "result_hash": "aa",
    "launch_hashes": ["aa"],
}

BITS = ("again, on all ranks", "in two halves 33 %")


def row(**more: Any) -> Row:
    return case_row(**FOUND | more)


def test_a_case_has_a_line_with_its_errors_and_what_its_bits_depend_on() -> None:
    table = derived([row()]).table
    assert [column.heading for column in table.columns] == list(HEADS)
    assert table.rows == [
        ("all_reduce 1x4 1 KiB", "gloo", "float32", "1.50", "0.310", *BITS),
    ]


def test_a_sentence_is_of_all_sizes() -> None:
    rows = [row(), row(message_bytes=2048, other_bits_in_halves=0.21, error_ulp_max=2.0)]
    assert sentences(sums_of(rows)) == [
        "all_reduce, gloo, 1x4, float32: same bits again and on all ranks; other bits in two halves"
        " 21 % to 33 %; error at most 2.00 ulp"
    ]


def test_launches_of_all_runs_are_told_by_their_hashes() -> None:
    alike = [row(run_id="a", launch_hashes=["aa", "aa"]), row(run_id="b")]
    (sentence,) = sentences(sums_of(alike))
    assert "same bits again, on all ranks and in 3 launches;" in sentence
    (sentence,) = sentences(sums_of([row(run_id="a"), row(run_id="b", launch_hashes=["bb"])]))
    assert "other bits in launches (2 different of 2);" in sentence


def test_the_launches_that_differ_most_are_those_of_one_size() -> None:
    rows = [row(), row(message_bytes=2048, launch_hashes=["aa", "bb", "cc", "aa"])]
    (sentence,) = sentences(sums_of(rows))
    assert "other bits in launches (3 different of 4);" in sentence


def test_results_that_are_not_finite_do_not_break_it() -> None:
    table = derived([row(error_ulp_max=float("inf"), error_ulp_rms=float("nan"))]).table
    assert "inf" in table.rows[0][3]


def test_a_few_elements_are_not_none() -> None:
    assert [share_text(share) for share in (0.0, 1e-6, 0.005, 0.333)] == [
        "0 %", "< 0.1 %", "0.5 %", "33 %",
    ]  # fmt: skip


def test_rows_of_usual_payloads_make_no_section() -> None:
    assert not derived([case_row(status="ok", benchmark="all_reduce")]).table.rows


def test_each_sentence_and_the_meaning_have_a_paragraph() -> None:
    rows = [row(), row(dtype="bfloat16")]
    text = derived(rows).text(Terminal(0))
    assert len([line for line in text.splitlines() if line.startswith("all_reduce, gloo")]) == 2
