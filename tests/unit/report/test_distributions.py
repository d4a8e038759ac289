"""Samples as one time per repetition: they give the medians of the cases again, by the clock that
counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sample_cases import case_row
from simulated_words import NOISY_RUN

import commbench
from commbench.report.distributions import read_raw_data, times_by_case
from commbench.report.summary import read_results
from commbench.results.load import rows_of_frame


def test_samples_give_the_medians_again(tmp_path: Path) -> None:
    """Also those of pairs that run at once, by the clocks of their senders."""
    words = ("benchmark=[all_reduce,p2p_multi_pair]", "layout=1x4", "pairs=[[0,2],[1,3]]")
    folder = commbench.run(*NOISY_RUN, *words, f"output={tmp_path}")
    cases = commbench.load(folder)
    assert set(cases.status) == {"ok"} and len(cases) == 4
    times = times_by_case(folder, rows_of_frame(cases))
    assert set(times) == set(cases.case_id)
    for case in cases.itertuples():
        assert times[case.case_id].size == 40
        assert float(np.median(times[case.case_id])) == pytest.approx(case.median_s, rel=0.01)


def test_samples_that_are_in_two_files_count_once(tmp_path: Path) -> None:
    """A run that was killed while it merged its parts has them in both."""
    folder = commbench.run(*NOISY_RUN, f"output={tmp_path}")
    once = read_raw_data(read_results([folder])).distributions
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    (parts / "1.samples.parquet").write_bytes((folder / "samples.parquet").read_bytes())
    raw = read_raw_data(read_results([folder]))
    assert raw.notes == [] and raw.distributions.keys() == once.keys() != set()
    for case, launches in once.items():
        (own,), (both,) = launches, raw.distributions[case]
        assert own[1].tolist() == both[1].tolist()


@pytest.mark.parametrize(
    ("headline", "expected_s"),
    [
        ("max_over_senders", 1e-3),
        ("initiator", 1e-3),
        ("receiver", 2e-3),
        ("max_over_ranks", 2e-3),
    ],
)
def test_the_headline_tells_whose_clock_counts(
    tmp_path: Path, headline: str, expected_s: float
) -> None:
    """Rank 0 sends in 2 ms, rank 1 has it after 4 ms, two operations a sample."""
    rows = [("a", "measure", n, rank, 2_000_000 * (rank + 1)) for rank in (1, 0) for n in (0, 1)]
    rows += [("a", "warmup", 0, 0, 9_000_000), ("b", "measure", 0, 0, 1)]
    names = ["case_id", "phase", "repetition", "rank", "elapsed_ns"]
    others = {"run_id": "r", "block": 0, "start_ns": 0, "end_ns": 0}
    pd.DataFrame(rows, columns=names).assign(**others).to_parquet(tmp_path / "samples.parquet")
    case = {
        "case_id": "a",
        "pair": "0-1",
        "operations_per_sample": 2,
        "headline": headline,
    }
    times = times_by_case(tmp_path, [case_row(**case)])
    assert list(times["a"]) == pytest.approx([expected_s, expected_s])
