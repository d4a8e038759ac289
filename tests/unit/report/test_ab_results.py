"""Folders of `commbench ab` in a report: found from any of their paths, with the verdicts of compare, or left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import commbench
from commbench.report.ab_results import read_ab_results
from commbench.report.distributions import read_raw_data
from commbench.report.page import page
from commbench.report.summary import read_results, summarise_results, summary_text

pytestmark = pytest.mark.long  # its runs take ten seconds

SIMULATED = ("backend=simulated", "writer=[parquet]", "benchmark=all_reduce", "sizes=[8,64KiB]", "timing=quick",
             "timing.warmup_s=0")  # fmt: skip
SLOW = "backend.model.latency_s=4e-6"
LAUNCHES = 6


@pytest.fixture(scope="module")
def ab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `commbench ab` leaves it: NEW has twice the latency."""
    folder = tmp_path_factory.mktemp("results") / "ab"
    overrides = {"base": SIMULATED, "new": (*SIMULATED, SLOW)}
    for launch in range(LAUNCHES):
        for side, words in overrides.items():
            commbench.run(*words, f"launch={launch}", f"label={side}", f"output={folder / side}")
    record = {**overrides, "by": ["backend_options"], "seed": 0, "order": []}
    (folder / "ab.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize("below", ["..", ".", "base", "new"])
def test_it_is_found_at_above_and_below_itself(ab_folder: Path, below: str) -> None:
    (result,), problems = read_ab_results([ab_folder / below])
    assert problems == []
    assert result.sentence() == f"ab: NEW is BASE with {SLOW}; {LAUNCHES} launches of each side in turn."
    assert result.summary() == "2 of 2 cases SLOWER (not certain), worst all_reduce 1x2 8 B: 2.000 x (2.000 .. 2.000)."
    heads, rows = result.cells()
    assert [dict(zip(heads, row, strict=True))["verdict"] for row in rows] == ["SLOWER ?"] * 2  # p = 0.06 of 2 cases


def test_the_verdict_is_on_the_terminal_and_on_the_page(ab_folder: Path) -> None:
    summary = summarise_results(read_results([ab_folder]))
    text = " ".join(summary_text(summary, 30).split())
    assert f"Comparisons ab: NEW is BASE with {SLOW}" in text and "2 of 2 cases SLOWER" in text
    html = page(summary, read_raw_data(summary.results))
    sections = re.findall(r'<section id="([a-z]+)"', html)
    assert sections[:2] == ["answers", "comparisons"]
    section = html[html.index('<section id="comparisons"') :]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", section[: section.index("</section>")])
    assert cells[:6] == ["all_reduce", "8 B", "4.00 us", "8.00 us", "2.000 x", "2.000 .. 2.000"]


def test_what_was_replaced_is_named(ab_folder: Path) -> None:
    record = json.loads((ab_folder / "ab.json").read_text())
    record["base"].append("backend.model.latency_s=2e-6")
    changed = ab_folder.parent / "changed"
    changed.mkdir()
    for side in ("base", "new"):
        (changed / side).symlink_to(ab_folder / side)
    (changed / "ab.json").write_text(json.dumps(record))
    (result,), _ = read_ab_results([changed])
    assert f"NEW is BASE with {SLOW} instead of backend.model.latency_s=2e-6;" in result.sentence()


def test_another_benchmark_has_no_comparison(ab_folder: Path) -> None:
    assert read_ab_results([ab_folder], "broadcast") == ([], [])


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"base": [], "new": [], "by": ["message_bytes"], "seed": 0}'])
def test_a_damaged_folder_is_left_out_and_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "ab.json").write_text(text)
    results, (problem,) = read_ab_results([tmp_path])
    assert results == [] and problem.startswith(f"comparison of {tmp_path}: ")
