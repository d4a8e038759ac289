"""Soaks and streams in the answers of a report."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from generated_results import run_of, with_column
from sample_cases import SOAK

import commbench
from commbench.core.units import format_seconds
from commbench.features.streams.answers import answers
from commbench.report.summary import Summary, read_results

# messages that take so long that 0.4 s have few of them
LONG_SOAK = (
    *SOAK,
    "timing.duration_s=0.4",
    "timing.interval_s=0.005",
    "backend.model.latency_s=2e-4",
)


def summary_of(folder: Path) -> Summary:
    return Summary(read_results([folder]))


def test_soaks_that_differ_in_their_label_have_sentences_of_their_own(soaks: Path) -> None:
    told = [text for text in answers(summary_of(soaks)) if text.startswith("Soak")]
    assert [re.findall(r"label \w|of 2 launches", text) for text in told] == [
        ["label A"],
        ["label B", "of 2 launches"],
    ]


def test_the_round_trip_is_twice_what_a_latency_is(soaks: Path) -> None:
    summary = summary_of(soaks)
    median_s = summary.soaks.rows[0].median_s
    assert f"(round trip {format_seconds(2 * median_s)})" in " ".join(answers(summary))


@pytest.mark.parametrize(
    ("slow", "said"),
    [(0, "stable, within "), (3, "dipped once, to 50 % of its usual speed, at 0.2 s for 15.0 ms")],
)
def test_a_soak_is_stable_or_dipped_when_its_time_line_says_so(
    tmp_path: Path, slow: int, said: str
) -> None:
    """Planted in the stored time line: `slow` intervals take twice as long."""
    file = commbench.run(*LONG_SOAK, f"output={tmp_path}") / "counters.parquet"
    counters = pq.read_table(file)
    values = counters["value"].to_numpy().copy()
    busy = [at for at, name in enumerate(counters["name"].to_pylist()) if "busy_s" in name]
    values[busy[40 : 40 + slow]] *= 2
    pq.write_table(with_column(counters, "value", list(values)), file)
    sentence, _ = answers(summary_of(tmp_path))
    assert sentence.startswith("p2p_latency 1x2 0-1 8 B over ") and said in sentence


def test_many_pairs_are_a_matrix_and_have_no_sentence_each(tmp_path: Path) -> None:
    words = [word for word in SOAK if not word.startswith(("layout", "benchmark"))]
    commbench.run(
        *words, "layout=2x2", "pairs=all", "benchmark=p2p_bandwidth", f"output={tmp_path}"
    )
    assert not any(text.startswith("Soak") for text in answers(summary_of(tmp_path)))


def test_a_stream_is_at_full_speed_at_the_end_of_its_first_interval_there(tmp_path: Path) -> None:
    soaks = {"config": {"timing": {"interval_s": 0.1}}}
    cases = run_of(tmp_path, 1, full_speed_s=1.0, **soaks) / "cases.parquet"
    table = with_column(pq.read_table(cases), "timing", "soak")
    for name in ("end_gb_per_s", "first_second_gb_per_s"):
        table = with_column(table, name, 0.1)
    pq.write_table(table, cases)
    assert any("full speed after 1.1 s" in text for text in answers(summary_of(tmp_path)))


def test_damaged_intervals_of_one_run_hide_no_other(tmp_path: Path) -> None:
    words = (*LONG_SOAK, f"output={tmp_path}")
    damaged, _ = (commbench.run(*words, f"label={label}") for label in "AB")
    (damaged / "counters.parquet").write_text("damaged")
    sentence, *_ = answers(summary_of(tmp_path))
    assert "stable, within " in sentence
