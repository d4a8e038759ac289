"""The first sentences of a report: extremes that the tables have too, and how many numbers are in
doubt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from generated_results import run_of

from commbench.report.combined import combine_runs
from commbench.report.headline import headline, trust
from commbench.report.summary import read_results
from commbench.report.texts import size_text


def cases_of(tmp_path: Path, flags: dict[int, list[str]] | None = None) -> pd.DataFrame:
    """A gloo run without flags but these."""
    run_of(tmp_path, 0)
    cases = read_results([tmp_path]).cases
    return cases.assign(warnings=[(flags or {}).get(number, []) for number in range(len(cases))])


def headline_of(cases: pd.DataFrame, **changed: Any) -> str:
    return headline(combine_runs(cases.assign(**changed)), [])


def test_each_extreme_has_its_benchmark_size_and_backend(tmp_path: Path) -> None:
    cases = cases_of(tmp_path)
    fastest = cases.loc[cases["median_s"].idxmin()]
    widest = cases.loc[cases["algbw_gb_per_s"].idxmax()]
    text = headline_of(cases)
    for row in (fastest, widest):
        assert f"({row.benchmark} {size_text(row.message_bytes)}, gloo python" in text


def test_it_leaves_out_numbers_that_are_no_extreme_and_says_so(tmp_path: Path) -> None:
    cases = cases_of(tmp_path)
    plain = headline_of(cases)
    fastest = int(cases["median_s"].idxmin())
    widest = int(cases["algbw_gb_per_s"].idxmax())
    flagged = cases.copy()
    flagged.at[fastest, "warnings"] = ["timer_limited"]
    flagged.at[widest, "warnings"] = ["in_cache"]
    kept = headline_of(flagged)
    assert (
        "not counting" not in plain
        and "; not counting shorter ones down to" in kept
        and ": timer_limited)" in kept
    )
    assert "; not counting higher ones up to" in kept and ": in_cache)" in kept
    every = [["timer_limited"]] * len(cases)
    assert headline_of(cases, warnings=every) == plain  # better than nothing


def test_a_message_of_a_window_is_no_shortest_time(tmp_path: Path) -> None:
    cases = cases_of(tmp_path)
    windowed = cases["benchmark"] == cases.loc[cases["median_s"].idxmin(), "benchmark"]
    text = headline_of(cases, window=[64 if is_windowed else None for is_windowed in windowed])
    assert "; not counting shorter ones down to" in text and ": many messages in flight)" in text


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
