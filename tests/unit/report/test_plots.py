"""Figures: SVG in which names stay text, the same for the same data, with gaps where nothing is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from generated_results import run_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_cases import case_row

from commbench.analysis.combined import combine_runs
from commbench.analysis.pairs.judgement import judged_matrices
from commbench.report import plots
from commbench.report.figures import Colours
from commbench.report.numbers import lines_by_window
from commbench.report.plots import KnownCurve
from commbench.report.quantities import MEDIAN
from commbench.report.section import Figure
from commbench.report.summary import read_results

EVIL = '<script>alert("x")</script> $x_{$ & \x00'


def texts(figure: Figure) -> list[str]:
    """The texts of a drawing, which must be whole XML."""
    root = ElementTree.fromstring(figure.svg)
    return ["".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith("}text")]


def row(**values: Any) -> Any:
    times = {"median_s": 2e-6, "ci_low_s": 1.9e-6, "ci_high_s": 2.1e-6, "algbw_gb_per_s": 1.0}
    made = case_row(**({"status": "ok", "engine": "python", "ranks_per_node": 8} | times | values))
    return made


def curves(name: str = "gloo", **values: Any) -> plots.Curves:
    rows = [row(message_bytes=size, **values) for size in (8, 1024)]
    return plots.curves_of([("all_reduce", {name: rows})])


def pairs(name: str = "gloo") -> list[Figure]:
    rows = [row(pair=f"{i}-{j}") for i in range(3) for j in range(3)]
    (matrix,) = judged_matrices(rows)
    return plots.pair_matrix(matrix, name)


FIGURES: dict[str, Callable[[str], Sequence[Figure]]] = {
    "over_size": lambda name: plots.over_size(curves(name), "all_reduce", MEDIAN),
    "share_of_limit": lambda name: plots.share_of_limit(
        curves(name, efficiency=0.5, limit_gb_per_s=1.0, limit_name=name), "all_reduce"
    ),
    "pair_matrix": pairs,
    "distribution": lambda name: plots.distribution(name, [("r", np.array([1e-6, 2e-6]))]),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_whatever_a_name_is_a_figure_is_drawn_and_the_name_stays_text(kind: str) -> None:
    (figure,) = FIGURES[kind](EVIL)
    assert texts(figure) and b"<script" not in figure.svg and "\x00" not in figure.title
    (again,) = FIGURES[kind](EVIL)
    assert again == figure, "the same data, the same file"


@settings(max_examples=8, deadline=None)
@example(EVIL)
@given(st.text())
def test_any_text_is_drawn(name: str) -> None:
    (figure,) = FIGURES["over_size"](name)
    ElementTree.fromstring(figure.svg)


def test_values_without_an_interval_are_drawn() -> None:
    for values in ({"ci_low_s": None}, {"median_s": None}):
        (figure,) = plots.over_size(curves(**values), "all_reduce", MEDIAN)
        assert "gloo" in texts(figure)


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e300, 1.7e308])
def test_any_number_of_a_file_is_drawn(value: float) -> None:
    times = {"median_s": value, "ci_low_s": value, "ci_high_s": value}
    assert texts(plots.over_size(curves(**times), "all_reduce", MEDIAN)[0])
    assert texts(plots.distribution("a", [("r", np.array([value, 2e-6]))])[0])
    shares = curves(efficiency=value, limit_gb_per_s=1.0, limit_name="a")
    assert texts(plots.share_of_limit(shares, "all_reduce")[0])


def test_published_curves_are_drawn_in_the_figure_of_their_column() -> None:
    known = [
        KnownCurve("published there", "median_s", (1.0, 2.0**30), (1e-6, 1e3)),
        KnownCurve("of another column", "algbw_gb_per_s", (8.0,), (1.0,)),
    ]
    (figure,) = plots.over_size(curves(), "all_reduce", MEDIAN, known)
    shown = texts(figure)
    assert "published there" in shown and "of another column" not in shown
    assert "32 MiB" in shown, "the axis has room for it"


def test_cases_without_a_message_have_no_curve() -> None:
    assert plots.curves_of([("barrier", {"gloo": [row(message_bytes=0)]})]).rows == {}
    assert plots.share_of_limit(curves(), "all_reduce") == [], "no limit is known"


def test_layouts_are_in_their_order_whatever_that_of_the_rows(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, number) for number in (6, 0, 3)]
    rows = [row for run in runs for row in read_results([run], "all_reduce").rows]
    combined = combine_runs(rows)
    drawn = plots.curves_of((each.benchmark, each.rows) for each in lines_by_window(combined))
    smallest, largest = plots.by_layout(drawn)
    assert "8 B" in smallest.title and "2 MiB" in largest.title
    assert [text for text in texts(smallest) if text in ("1x2", "1x4", "2x2")][:3] == [
        "1x2", "1x4", "2x2",
    ]  # fmt: skip


def test_no_two_lines_of_a_figure_look_alike_however_many_the_page_has() -> None:
    colours = Colours(f"line {number}" for number in range(40))
    names = ["line 0", "line 5", "line 28"]
    assert colours.of("line 0") == colours.of("line 28")
    of_benchmark = {name: [row()] for name in names}
    drawn = list(plots.Curves({"all_reduce": of_benchmark}, colours).drawn("all_reduce"))
    assert len({(colour, str(style)) for _, _, colour, style in drawn}) == len(names)


def test_of_a_large_matrix_only_colours_are_drawn() -> None:
    (small,) = pairs()
    rows = [row(pair=f"{i}-{j}") for i in range(17) for j in range(17)]
    (large,) = plots.pair_matrix(judged_matrices(rows)[0], "gloo")
    assert texts(small).count("2.00") == 9 and "2.00" not in texts(large)
