"""Soaks over time as figures."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from commbench.features.streams.figures import full_speed, soak, stream, times_of, with_gaps
from commbench.report.plots import KnownCurve
from commbench.report.section import Figure

EVIL = '<script>alert("x")</script> $x_{$ & \x00'
STREAM = pd.DataFrame({"at_s": [0.0, 0.1, 0.2], "repetitions": 8.5, "busy_s": 0.1})
LINE = pd.DataFrame({"at_s": [0.0, 0.1, 5.2], "min_s": 1e-6, "median_s": 2e-6, "max_s": 3e-6})


def texts(figures: Sequence[Figure]) -> list[str]:
    """The texts of one drawing, which must be whole XML."""
    (figure,) = figures
    root = ElementTree.fromstring(figure.svg)
    return ["".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith("}text")]


def test_whatever_its_name_a_soak_is_drawn() -> None:
    for figures in (soak(EVIL, LINE), stream(EVIL, STREAM, 1 << 20)):
        assert texts(figures) and b"<script" not in figures[0].svg
        assert "\x00" not in figures[0].title
    assert soak(EVIL, LINE) == soak(EVIL, LINE), "the same data, the same file"


def test_each_time_to_full_speed_has_the_bar_of_its_interval() -> None:
    drawn = texts(full_speed([0.6, 0.7, 1.1, 1.1, 1.1, 1.5]))
    assert "streams" in drawn and "3" in drawn


def test_published_rates_are_drawn_beside_the_times_of_a_soak() -> None:
    published = KnownCurve("published there", "rate_gb_per_s", (0.1, 0.2), (1.0, 4.0))
    (times,) = times_of([published], 1000)
    assert times.values == pytest.approx((1e-6, 0.25e-6))
    assert "published there" in texts(soak("t", LINE, [times]))
    assert "published there" in texts(stream("t", STREAM, 1 << 20, [published]))


def test_a_line_is_broken_where_nothing_was_measured() -> None:
    columns = np.array([[0.0, 0.1, 0.2, 5.2], [1.0, 2.0, 3.0, 4.0]])
    assert np.isnan(with_gaps(columns, 3.0)).sum(axis=1).tolist() == [1, 1]
    assert not np.isnan(with_gaps(columns[:, :3], 3.0)).any()
