"""The figures of soaks and streams on the page of a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commbench.features.streams import over_time
from commbench.features.streams.derived import full_speed_s
from commbench.report.summary import Summary, read_results


def test_each_soak_has_a_figure_of_its_own(soaks: Path) -> None:
    (section,) = over_time.over_time(Summary(read_results([soaks])))
    titles = [figure.title for figure in section.figures()]
    assert section.title == "Over time" and not section.notes
    assert len(set(titles)) == len(titles) == 3
    assert all("p2p_latency 1x2 0-1 8 B, label" in title for title in titles)


def test_of_many_soaks_some_are_drawn_and_the_others_counted(
    soaks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_time, "MOST_SOAKS", 2)
    (section,) = over_time.over_time(Summary(read_results([soaks])))
    assert len(section.figures()) == 2
    assert section.notes == ["time lines are drawn for 2 soaks; 1 more have none"]


def test_a_soak_whose_intervals_are_lost_has_no_figure(soaks: Path) -> None:
    results = read_results([soaks])
    lost = Summary(replace(results, folders=dict.fromkeys(results.folders, soaks / "gone")))
    assert list(over_time.over_time(lost)) == []


def test_streams_have_a_histogram_of_their_times_to_full_speed(soaks: Path) -> None:
    results = read_results([soaks])
    records = [{**each, "config": {"timing": {"interval_s": 0.1}}} for each in results.records]
    rows = [replace(row, full_speed_s=1.0) for row in results.rows]
    summary = Summary(replace(results, rows=rows, records=tuple(records)))
    assert full_speed_s(summary) == pytest.approx([1.1] * 3), "the end of an interval"
    *_, section = over_time.over_time(summary)
    assert section.title == "Time to full speed of fresh connections"
    assert len(section.figures()) == 1
