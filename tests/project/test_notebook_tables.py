"""Tables of the notebooks: their numbers are those of `commbench report` on the same results."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_results import run_of
from notebook_tables import (
    ours_and_published,
    published_curves,
    quiz_answer,
    streams_table,
    summary_of,
)
from places import ROOT

from commbench.cli.report import report
from commbench.features.streams.derived import full_speed_s

DATA = ROOT / "notebooks" / "data"
EXPERIMENTS = (
    ("02_backends_and_layouts", "mlbench_p2p"),
    ("02_backends_and_layouts", "mvapich_cloud"),
    ("03_links_and_topology", "openbsd_pairs"),
    ("03_links_and_topology", "ec2_streams"),
    ("04_stability", "openbsd_soak"),
    ("05_compare", "ec2_enhanced"),
)


def stored(name: str) -> str:
    return str(DATA / f"{name}.parquet")


@pytest.mark.parametrize(("name", "experiment"), EXPERIMENTS)
def test_ours_and_published_are_those_of_the_report(
    name: str, experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ours_and_published(experiment, stored(name))
    assert report([stored(name), "--top", "60"]) == 0
    assert f"{experiment}: ours and published" in shown and shown in capsys.readouterr().out


def test_intervals_of_soaks_are_read_from_the_file_beside() -> None:
    counters = str(DATA / "04_stability.counters.parquet")
    with_intervals = ours_and_published("openbsd_soak", stored("04_stability"), counters)
    assert "table of throughputs" in with_intervals and "1.20 s" in with_intervals
    without = ours_and_published("openbsd_soak", stored("04_stability"))
    assert "a measured case: table of throughputs" in without


def test_the_line_of_a_stream_is_that_of_the_console() -> None:
    text = streams_table(stored("04_stability"))
    assert "full speed" in text and "A fresh connection is" in text
    times = full_speed_s(summary_of(stored("04_stability")))
    assert times and all(time > 0 for time in times), "ends of intervals"


def test_a_curve_belongs_to_the_rows_of_its_setting() -> None:
    results = stored("03_links_and_topology")
    rows = summary_of(results).results.rows
    names = {
        benchmark: {curve.name.rpartition(": ")[2] for curve in published_curves(results, own)}
        for benchmark in ("p2p_bandwidth", "p2p_multi_pair")
        for own in ([row for row in rows if row.benchmark == benchmark],)
    }
    assert names == {
        "p2p_bandwidth": {"mpi, btl_tcp_links 1", "mpi, btl_tcp_links 36"},
        "p2p_multi_pair": {"mpi, 72 pairs"},
    }


def test_results_without_runs_of_the_experiment_say_that(tmp_path: Path) -> None:
    run_of(tmp_path / "results", 0)
    text = ours_and_published("ec2_streams", str(tmp_path / "results"))
    assert text.endswith("has no run of experiment=ec2_streams with a number of its document")


def test_the_quiz_has_its_answer() -> None:
    assert "buffers=own: all that came were right" in quiz_answer(stored("02_backends_and_layouts"))
