"""What earlier starts have measured, read back from the files of real simulated runs, whole and
damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import commbench
from commbench.cli.rank import recorded_visits
from commbench.results.columns import arrow_schema
from commbench.results.load import read_rows

WORDS = (
    "backend=simulated",
    "backend.model.noise=0.1",
    "writer=parquet",
    "layout=1x3",
    "sizes=[400]",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three visits of cases of each headline."""
    timing = (
        "timing=quick",
        "timing.target=0.5",
        "benchmark=[all_reduce,p2p_bandwidth,p2p_latency]",
    )
    return commbench.run(*WORDS, *timing, f"output={tmp_path_factory.mktemp('run')}")


def changed(folder: Path, to: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Path:
    """A copy of the run with other samples."""
    to.mkdir()
    for name in ("run.json", "cases.parquet"):
        (to / name).write_bytes((folder / name).read_bytes())
    samples = pa.Table.from_pandas(change(read_rows([folder], "samples")), arrow_schema("samples"))
    pq.write_table(samples, to / "samples.parquet")
    return to


def shifted(samples: pd.DataFrame, visit: int) -> pd.DataFrame:
    """As an attempt that no row counts: other times, under numbers of its own."""
    return samples.assign(
        visit=samples.visit + visit,
        elapsed_ns=3 * samples.elapsed_ns,
        repetition=samples.repetition + 10_000 * visit,
        block=samples.block + 1000 * (visit + 4),
    )


def test_every_visit_is_read_as_it_was_measured(folder: Path) -> None:
    cases = commbench.load(folder).set_index("case_id")
    samples = commbench.load(folder, table="samples")
    seen = recorded_visits(folder, set(cases.index))
    assert set(seen) == set(cases.index) and len(cases) == 5
    for case_id, visits in seen.items():
        row = cases.loc[case_id]
        own = samples[samples.case_id == case_id]
        assert [float(np.median(times)) for times in visits.times] == pytest.approx(
            list(row.visit_medians_s)
        )
        assert sum(map(len, visits.times)) == row.repetitions
        assert max(map(np.max, visits.times)) == pytest.approx(row.max_s)
        assert (visits.last, visits.blocks) == (3, own.block.max() + 1)
        assert visits.repetitions["measure"] == row.repetitions
        assert set(visits.repetitions) == set(own.phase)
    assert recorded_visits(folder, ()) == {}
    assert set(recorded_visits(folder, {row.name})) == {row.name}


@pytest.mark.parametrize(
    "others", [(-3, 3), *(pytest.param(others, marks=pytest.mark.long) for others in [(3,), (-3,)])]
)
def test_visits_that_no_row_counts_are_not_taken(
    folder: Path, tmp_path: Path, others: tuple[int, ...]
) -> None:
    """Those of a case that broke the world and began anew, and one of a rank 0 that was killed
    before the row."""
    copy = changed(
        folder, tmp_path / "run", lambda own: pd.concat([own, *(shifted(own, by) for by in others)])
    )
    cases = commbench.load(folder).set_index("case_id")
    for case_id, visits in recorded_visits(copy, set(cases.index)).items():
        medians_s = [float(np.median(times)) for times in visits.times]
        assert medians_s == pytest.approx(list(cases.visit_medians_s[case_id]))
        assert visits.last == (6 if 3 in others else 3), "the next visit takes a new number"
        assert visits.blocks > 1000 and (visits.repetitions["measure"] > 10_000) == (3 in others)


def test_a_case_whose_samples_are_missing_begins_anew_under_new_numbers(
    folder: Path, tmp_path: Path
) -> None:
    copy = changed(folder, tmp_path / "run", lambda own: own[own.visit != 2])
    for visits in recorded_visits(copy, set(commbench.load(folder).case_id)).values():
        assert visits.times == () and visits.last == 3 and visits.repetitions["measure"] > 0


def test_a_case_that_failed_begins_anew_under_new_numbers(folder: Path, tmp_path: Path) -> None:
    copy = changed(folder, tmp_path / "run", lambda own: own)
    cases = read_rows([copy]).assign(status="failed", visit_medians_s=None, visit_launches=None)
    pq.write_table(pa.Table.from_pandas(cases, arrow_schema("cases")), copy / "cases.parquet")
    for visits in recorded_visits(copy, set(cases.case_id)).values():
        assert visits.times == () and visits.last == 3 and visits.blocks > 0
