"""First calls and ramps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sample_cases import case_row

import commbench
from commbench.results.columns import CASES, SCHEMA_VERSION
from commbench.results.parquet import Parquet
from commbench.results.row import WORDS
from commbench.results.run_folder import write_json
from commbench.results.writer import Entry

# of the first call and the warm-up, in steady times; the rest is 1
RAMP = [100.0, 9.0, 0.9, 5.0, 4.0, 3.0]
GAP_S = 0.5  # between two phases: checks and decisions


def series(
    case_id: str, phases: dict[str, list[float]], ranks: int, late: int = 0
) -> dict[str, Any]:
    """Samples of all ranks in seconds; rank r takes 1 + r / 100 times as long, and its clock is r
    seconds ahead."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("phase", "repetition", "rank", "start_ns", "elapsed_ns")
    }
    for rank in range(ranks):
        now_s = 7.0 + rank
        for phase, times in phases.items():
            for repetition, time in enumerate(times):
                elapsed_s = time * (1 + rank / 100)
                whole = round(now_s * 1e9), round(elapsed_s * 1e9)
                for name, value in zip(
                    columns, (phase, repetition + late, rank, *whole), strict=True
                ):
                    columns[name].append(value)
                now_s += elapsed_s
            now_s += GAP_S
    table: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
    zeros = np.zeros(len(table["rank"]), dtype=np.int64)
    table |= {"phase": table["phase"].astype(object), "block": zeros, "visit": zeros}
    table |= {"end_ns": table["start_ns"] + table["elapsed_ns"]}
    texts = {"run_id": "r", "case_id": case_id}
    return table | {
        name: np.full(len(table["rank"]), text, dtype=object) for name, text in texts.items()
    }


def stored(folder: Path, samples: dict[str, Any], **more: Any) -> pd.Series[Any]:
    """The row of a run of one case."""
    texts = {
        column.name: "x" for column in CASES if column.kind == "text" and column.name not in WORDS
    } | {"layout": "1x2"}
    case = texts | {
        "run_id": "r",
        "case_id": "a",
        "trial": 0,
        "order": 0,
        "status": "ok",
        "pair": None,
        "warnings": [],
    }
    case |= {"message_bytes": 8, "operations_per_sample": 1, "block_k": 1, "env": {}}
    case |= {"headline": "max_over_ranks"} | more
    run = {"schema_version": SCHEMA_VERSION, "run_id": "r", "folder": str(folder), "cases": 1}
    write_json(folder / "run.json", run)
    writer = Parquet()
    writer.begin(run, str(folder))
    writer.cases([Entry(case_row(**case), samples)])
    writer.end(run)
    (row,) = (row for _, row in commbench.cold_start(folder).iterrows())
    return row


def test_a_planted_ramp_is_found(tmp_path: Path) -> None:
    """Repetition 2 is fast by chance: neither it nor the median of what follows may end the ramp
    alone."""
    warm = [value * 1e-3 for value in RAMP[1:]] + [1e-3] * 20
    samples = series("a", {"connect": [0.1], "warmup": warm, "measure": [1e-3] * 30}, ranks=1)
    row = stored(tmp_path, samples, median_s=1e-3, first_call_s=0.1)
    assert row.first_call_s == pytest.approx(0.1)
    assert row.steady_s == pytest.approx(1e-3)
    assert row.ramp_repetitions == len(RAMP)
    assert row.ramp_s == pytest.approx(sum(RAMP) * 1e-3)
    assert row.ramp_wall_s == pytest.approx(sum(RAMP) * 1e-3 + GAP_S)


def test_connecting_again_in_a_later_visit_is_no_ramp(tmp_path: Path) -> None:
    samples = series(
        "a",
        {"connect": [0.1, 0.2], "warmup": [2e-3] * 5 + [1e-3] * 20, "measure": [1e-3] * 30},
        ranks=1,
    )
    later = (samples["phase"] == "connect") & (samples["repetition"] == 1)
    row = stored(
        tmp_path, samples | {"visit": np.where(later, 2, 1)}, median_s=1e-3, first_call_s=0.1
    )
    assert (row.first_call_s, row.ramp_repetitions) == (pytest.approx(0.1), 6)
    assert row.ramp_s == pytest.approx(0.11)


@pytest.mark.parametrize(("share", "reached"), [(0.951, 0), (0.949, 1)])
def test_steady_means_95_percent_of_the_rate(tmp_path: Path, share: float, reached: int) -> None:
    samples = series(
        "a", {"connect": [1e-3 / share], "warmup": [1e-3] * 10, "measure": [1e-3] * 10}, ranks=1
    )
    assert stored(tmp_path, samples, median_s=1e-3).ramp_repetitions == reached


def test_one_straggler_after_the_ramp_does_not_prolong_it(tmp_path: Path) -> None:
    warm = [2e-3, 1e-3, 1e-3, 9e-3, 1e-3, 1e-3, 1e-3]
    samples = series("a", {"connect": [5e-3], "warmup": warm, "measure": [1e-3] * 10}, ranks=1)
    row = stored(tmp_path, samples, median_s=1e-3)
    assert (row.ramp_repetitions, row.ramp_s) == (2, pytest.approx(7e-3))


@pytest.mark.parametrize(
    ("headline", "pair", "scale"),
    [("max_over_ranks", None, 1.02), ("initiator", "0-2", 1.0), ("initiator", "1-0", 1.01)],
)
def test_the_ranks_of_the_headline_count(
    tmp_path: Path, headline: str, pair: str | None, scale: float
) -> None:
    samples = series(
        "a", {"connect": [4e-3], "warmup": [2e-3] + [1e-3] * 9, "measure": [1e-3] * 10}, ranks=3
    )
    row = stored(tmp_path, samples, pair=pair, headline=headline, median_s=1e-3 * scale)
    assert row.steady_s == pytest.approx(1e-3 * scale)
    assert (row.ramp_repetitions, row.ramp_s) == (2, pytest.approx(6e-3 * scale))
    assert row.ramp_wall_s == pytest.approx(6e-3 * 1.02 + GAP_S)


def test_several_operations_a_sample_are_divided(tmp_path: Path) -> None:
    """Half a round trip, and 4 of them between two stamps when measured; the clock costs 10 % of a
    single one."""
    phases = {"connect": [6e-3], "warmup": [2.2e-3] * 10, "measure": [8e-3] * 10}
    row = stored(
        tmp_path, series("a", phases, ranks=1), operations_per_sample=8, block_k=4, median_s=1e-3
    )
    assert row.steady_s == pytest.approx(1e-3)
    assert (row.ramp_repetitions, row.ramp_s) == (1, pytest.approx(6e-3))


def test_what_was_never_steady_is_null(tmp_path: Path) -> None:
    phases = {"connect": [1e-3], "warmup": [9e-3], "measure": [1e-3, 1e-3]}
    row = stored(tmp_path, series("a", phases, ranks=1), median_s=1e-3)
    assert row.steady_s == pytest.approx(1e-3)
    assert row[["ramp_repetitions", "ramp_s", "ramp_wall_s"]].isna().all()


def test_without_measured_samples_the_cases_median_is_the_steady_time(tmp_path: Path) -> None:
    """A soak keeps intervals, not samples."""
    row = stored(
        tmp_path, series("a", {"connect": [3e-3], "warmup": [1e-3] * 9}, ranks=1), median_s=1e-3
    )
    assert (row.steady_s, row.ramp_repetitions) == (1e-3, 1)


def test_a_device_clock_has_no_wall_time(tmp_path: Path) -> None:
    samples = series("a", {"connect": [3e-3], "warmup": [1e-3] * 9, "measure": [1e-3] * 9}, ranks=2)
    nothing = np.full(len(samples["rank"]), None, dtype=object)
    row = stored(tmp_path, samples | {"start_ns": nothing, "end_ns": nothing}, median_s=1.01e-3)
    assert row.ramp_s == pytest.approx(3.03e-3)
    assert np.isnan(row.ramp_wall_s)


def test_cases_that_are_not_ok_have_no_row(tmp_path: Path) -> None:
    samples = series("a", {"connect": [1e-3]}, ranks=1)
    with pytest.raises(ValueError, match="not enough values"):
        stored(tmp_path, samples, status="failed", median_s=None)
    assert list(commbench.cold_start(tmp_path).columns[:4]) == [
        "run_id",
        "trial",
        "label",
        "case_id",
    ]


@pytest.mark.long
def test_a_real_world_has_a_first_call_and_two_launches(world: Callable[..., Any]) -> None:
    words = (
        "backend=gloo",
        "benchmark=[p2p_latency,all_reduce]",
        "sizes=[8]",
        "timing=quick",
        "writer=[parquet]",
    )
    done = world("commbench", "-m", "trial=0,1", *words)
    cold = commbench.cold_start(done.output)
    cases = done.cases.set_index(["run_id", "case_id"])
    assert sorted(cold.trial) == [0, 0, 1, 1]
    for start in cold.itertuples():
        case = cases.loc[(start.run_id, start.case_id)]
        assert start.first_call_s == pytest.approx(case.first_call_s, rel=1e-9)
        assert start.steady_s == pytest.approx(case.median_s, rel=1e-9)
    reached = cold[cold.ramp_repetitions > 0]
    assert (reached.ramp_s > 0).all()
    assert (reached.ramp_wall_s >= 0.99 * reached.ramp_s).all()
    assert len(reached), "no first call was slower than the steady ones"
