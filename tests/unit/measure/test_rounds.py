"""The rows of a round are those that its pairs would have if each were recorded by itself."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from commbench.cli.run import run_one
from commbench.measure import recorder
from commbench.results.load import read_rows

WORDS = (
    "backend=simulated",
    "layout=2x2",
    "benchmark=[p2p_latency,p2p_bandwidth]",
    "schedule=rounds",
    "sizes=[8,64KiB]",
    "window=4",
    "backend.model.noise=0.1",
    "backend.model.slow_pair=1-3",
    "backend.model.slow_factor=3",
    "backend.model.other_node_factor=2",
)
FIXED = ("timing=fixed", "timing.repetitions=20", "timing.visits=2")  # however fast the machine is
OF_THE_RUN = ["run_id", "started_at", "visits_s", "warmup_s"]
PLACES = ["case_id", "phase", "block", "repetition", "rank"]


def tables(folder: Path, pairs: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows and the samples of a run, without what differs from run to run."""
    run = run_one(*WORDS, *FIXED, f"pairs={pairs}", f"output={folder}")
    cases = read_rows([run], "cases").drop(columns=OF_THE_RUN)
    samples = read_rows([run], "samples").drop(columns=["run_id"])
    in_order = samples.sort_values(PLACES, ignore_index=True)
    return cases.sort_values("case_id", ignore_index=True), in_order


@pytest.mark.parametrize(("pairs", "count"), [("all", 16), ("[[0,1],[2,2],[3,1]]", 3)])
def test_a_round_has_the_rows_and_the_samples_of_its_pairs(
    pairs: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = tables(tmp_path / "together", pairs)
    monkeypatch.setattr(recorder, "is_recorded_together", lambda planned, outcome: False)
    one_by_one = tables(tmp_path / "one_by_one", pairs)
    assert len(together[0]) == 2 * 2 * count
    for own, shared in zip(one_by_one, together, strict=True):
        pd.testing.assert_frame_equal(own, shared)


def test_a_round_of_gloo_has_the_times_of_its_pairs(tmp_path: Path) -> None:
    words = ("backend=gloo", "layout=1x4", "benchmark=p2p_latency", "pairs=all", "sizes=[8]")
    run = run_one(*words, "schedule=rounds", "timing=fixed", f"output={tmp_path}")
    cases = read_rows([run], "cases").query("status == 'ok'")
    assert len(cases) == 12, "gloo sends no message to the same rank"
    assert cases.skew_s.gt(0).all()
    samples = read_rows([run], "samples").query("phase == 'measure'")
    for row in cases.itertuples():
        assert row.pair == f"{row.source}-{row.destination}"
        own = samples[samples.case_id == row.case_id]
        assert {*own["rank"]} == {row.source, row.destination}
        round_trips = own[own["rank"] == row.source]
        assert round_trips.elapsed_ns.median() * 1e-9 / 2 == pytest.approx(row.median_s)
