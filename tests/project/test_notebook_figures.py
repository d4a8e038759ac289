"""Figures of the notebooks: what they draw, where, and with which ticks; drawn for real, without a
screen."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from notebook_figures import (
    bars,
    byte_axis,
    curves,
    figure,
    heat_map,
    histogram,
    rate_over_time,
)
from sample_cases import case_row
from size_rows import frame_of_rows

from commbench.report.figures import PALETTE, Colours


@pytest.fixture(autouse=True)
def no_screen() -> Iterator[None]:
    mpl.use("agg")
    with mpl.rc_context():
        yield
    plt.close("all")


def cases() -> pd.DataFrame:
    rows = [
        case_row(
            benchmark="all_reduce",
            backend=backend,
            layout="1x2",
            status="ok",
            message_bytes=size,
            median_s=size * scale,
            ci_low_s=0.9 * size * scale,
            ci_high_s=1.2 * size * scale,
            run_id="r",
            label="",
            case_id=f"{backend}{size}",
        )
        for backend, scale in (("gloo", 2e-9), ("mpi", 1e-9))
        for size in (1024, 65536, 4 * 2**20)
    ]
    return frame_of_rows(rows)


def test_curves_are_rates_with_their_intervals() -> None:
    with figure("two backends") as (made, (axes,)):
        curves(axes, cases(), ["backend"], rate=True)
        drawn = {
            line.get_label(): np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()
        }
        assert drawn["gloo"] == pytest.approx([0.5] * 3) and drawn["mpi"] == pytest.approx(
            [1.0] * 3
        )
        band = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert (band.min(), band.max()) == pytest.approx((0.5 / 1.2, 0.5 / 0.9))
        low, high = axes.get_ylim()
        assert low < 0.5 / 1.2 and high > 1 / 0.9  # the whole interval is seen
        assert axes.get_ylabel() == "algorithm bandwidth, GB/s" and axes.get_legend() is not None
        made.canvas.draw()


def test_a_name_has_its_colour_in_every_figure() -> None:
    colours = Colours(["gloo", "mpi"])
    with figure("twice", columns=2) as (_, (left, right)):
        curves(left, cases(), ["backend"], colours=colours)
        curves(right, cases()[cases().backend == "mpi"], ["backend"], colours=colours)
        assert [line.get_color() for line in left.get_lines()] == list(PALETTE[:2])
        assert [line.get_color() for line in right.get_lines()] == [PALETTE[1]]


def test_ticks_have_units() -> None:
    with figure("ticks") as (made, (axes,)):
        curves(axes, cases(), ["backend"])
        made.canvas.draw()
        sizes = [label.get_text() for label in axes.get_xticklabels()]
        times = [label.get_text() for label in axes.get_yticklabels()]
    assert "64 KiB" in sizes and all(label.split(" ")[1] in ("B", "KiB", "MiB") for label in sizes)
    assert times and all(label.split(" ")[1] in ("ns", "us", "ms") for label in times)
    assert axes.get_xlabel() == "message"


def test_one_size_is_an_axis_too() -> None:
    with figure("one") as (made, (axes,)):
        axes.plot([64], [1.0])
        byte_axis(axes, [64])
        made.canvas.draw()
        assert [label.get_text() for label in axes.get_xticklabels()] == ["64 B"]


def test_a_heat_map_writes_each_number_and_leaves_holes() -> None:
    matrix = pd.DataFrame([[1.0, 2.0], [np.nan, 4.0]], index=[0, 1], columns=[0, 1])
    with figure("pairs") as (made, (axes,)):
        heat_map(axes, matrix, "GB/s")
        made.canvas.draw()
        texts = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert texts == {((0, 0), "1"), ((1, 0), "2"), ((1, 1), "4")}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("to rank", "from rank")


def test_a_time_line_does_not_join_what_was_not_measured() -> None:
    soak = pd.DataFrame(
        {"at_s": [0.0, 0.1, 0.2, 0.9, 1.0], "rate_gb_per_s": [1.0, 1.0, 1.0, 2.0, 2.0]}
    )
    with figure("soak") as (_, (axes,)):
        rate_over_time(axes, soak)
        drawn = np.asarray(axes.get_lines()[0].get_ydata(), dtype=float)
    assert np.isnan(drawn).tolist() == [False, False, False, True, False, False]


def test_a_bin_of_a_histogram_is_around_its_number() -> None:
    """1.6 is 16 * 0.1 only almost, as are all ends of intervals."""
    with figure("times") as (_, (axes,)):
        histogram(axes, [0.1, 3 * 0.1, 0.3, 1.6, float("nan")], "s", width=0.1)
        counts = {round(bar.get_x() + 0.05, 2): bar.get_height() for bar in axes.patches}
        assert {at: count for at, count in counts.items() if count} == {0.1: 1, 0.3: 2, 1.6: 1}
        assert axes.get_ylabel() == "of 4"


def test_decimal_sizes_are_ticks_where_they_are_few() -> None:
    sizes = [40.0 * 10**power for power in range(7)]
    with figure("sizes") as (made, (axes,)):
        axes.plot(sizes, sizes)
        byte_axis(axes, sizes)
        made.canvas.draw()
        ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert ticks == ["40 B", "400 B", "4 kB", "40 kB", "400 kB", "4 MB", "40 MB"]


def test_bars_start_at_zero_and_say_their_number() -> None:
    values = pd.Series({"1 stream": 1.0, "4 streams": 2.5})
    with figure("streams") as (_, (axes,)):
        bars(axes, values, "GB/s", values * 0.9, values * 1.1)
        assert axes.get_xlim()[0] == 0
        assert [text.get_text() for text in axes.texts] == ["1", "2.5"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["1 stream", "4 streams"]
