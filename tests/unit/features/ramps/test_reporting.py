"""Ramps on the page of a report: a figure for each backend that had some."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from simulated_words import NOISY_RUN

import commbench
from commbench.features.ramps.reporting import costs, histogram, ramps_s
from commbench.report.summary import Summary, read_results

FIRST_S = 0.25


def planted(output: Path, first_s: float) -> Path:
    """The samples of a run whose first calls took that long."""
    folder = commbench.run(*NOISY_RUN, "benchmark=all_reduce", f"output={output}")
    file = folder / "samples.parquet"
    samples = pd.read_parquet(file)
    first = (samples["phase"] == "connect") & (samples["repetition"] == 0)
    elapsed_ns = samples["elapsed_ns"].where(~first, int(first_s * 1e9))
    samples.assign(elapsed_ns=elapsed_ns).to_parquet(file)
    return file


def test_planted_first_calls_are_told_and_a_damaged_run_hides_no_other(tmp_path: Path) -> None:
    planted(tmp_path, FIRST_S)
    planted(tmp_path, 2 * FIRST_S).write_bytes(b"damaged")
    results = read_results([tmp_path])
    (ramps,) = ramps_s(results).values()
    assert ramps == pytest.approx([FIRST_S] * 2, rel=0.01), "one of each size"
    (section,) = costs(Summary(results))
    (figure,) = section.figures()
    assert figure.title == "simulated: from the first call to 95 % of the steady rate"


def test_what_was_steady_at_once_has_no_figure(tmp_path: Path) -> None:
    planted(tmp_path, 1e-9)
    (section,) = costs(Summary(read_results([tmp_path])))
    assert section.figures() == []


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e300, 1.7e308])
def test_any_number_of_a_file_is_drawn(value: float) -> None:
    (figure,) = histogram("<script>$x_{$", (value, 0.5))
    assert b"cases" in figure.svg and b"<script" not in figure.svg
    (again,) = histogram("<script>$x_{$", (value, 0.5))
    assert again == figure, "the same data, the same file"
