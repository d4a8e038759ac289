"""Tables of numbers: sorted, by size, with the names that distinguish, and folded where they are
large."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from generated_results import run_of

from commbench.analysis.combined import combine_runs
from commbench.report.figures import Colours
from commbench.report.page_parts import (
    Curves,
    by_variables,
    curves_of,
    layout_pictures,
    size_panels,
)
from commbench.report.summary import read_results


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """By number: three ways to communicate, then the same in the next layout."""
    folder = tmp_path_factory.mktemp("runs")
    return [run_of(folder, number) for number in range(7)]


def test_cases_are_in_an_order_that_does_not_depend_on_that_of_the_rows(runs: list[Path]) -> None:
    cases = read_results([runs[0], runs[1], runs[3]]).cases
    choice = combine_runs(cases.sample(frac=1, random_state=0))
    order = sorted(choice.cases.to_dict("records"), key=lambda row: by_variables(choice, row))
    keys = [
        (row["benchmark"], row["backend"], row["layout"], row["message_bytes"]) for row in order
    ]
    assert keys == sorted(keys) and len(keys) == 300


def test_layouts_are_in_their_order_whatever_that_of_the_rows(runs: list[Path]) -> None:
    cases = [read_results([runs[number]], "all_reduce").cases for number in (6, 0, 3)]
    combined = combine_runs(pd.concat(cases, ignore_index=True))
    picture = layout_pictures(curves_of(combined, ()))[0]
    at = [picture.svg.index(f">{layout}</text>") for layout in ("1x2", "1x4", "2x2")]
    assert at == sorted(at)


def test_no_two_lines_of_a_figure_look_alike_however_many_the_page_has(runs: list[Path]) -> None:
    colours = Colours(f"line {number}" for number in range(40))
    drawn = ["line 0", "line 5", "line 28"]
    assert colours.of("line 0") == colours.of("line 28")
    combined = combine_runs(read_results([runs[0]], "all_reduce").cases)
    (rows,) = combined.lines()["all_reduce"].values()
    lines = {"all_reduce": dict.fromkeys(drawn, rows[:1])}
    short = {"all_reduce": {name: name for name in drawn}}
    (panel,) = size_panels(Curves(lines, short, frozenset(), colours))
    for picture in panel.pictures:
        assert len({(colour, dashes) for _, colour, dashes in picture.legend}) == len(drawn)
