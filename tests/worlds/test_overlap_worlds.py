"""Computation beside communication in whole runs: planted truths of the simulated world, and what
gloo and MPI do here."""

from __future__ import annotations

from pathlib import Path

import pytest

from commbench.cli.main import main
from commbench.features.overlap.tables import OverlapResult, overlap_results
from commbench.results.load import read_case_rows
from commbench.results.row import Measured

QUICK = ("timing=quick", "timing.pass_s=0")
FIXED = ("timing=fixed", "timing.repetitions=10", "cache=warm")
SIMULATED = ("backend=simulated", "layout=1x2", "sizes=[64KiB]", *FIXED)


def measured(tmp_path: Path, *words: str) -> dict[str, OverlapResult]:
    """The results of a run by what was computed."""
    assert main([*words, f"output={tmp_path}"]) == 0
    return {result.overlap: result for result in overlap_results(read_case_rows([tmp_path]))}


@pytest.mark.parametrize(
    ("benchmark", "share"),
    [("all_reduce", 0.0), ("all_reduce", 0.6), ("all_reduce", 1.0), ("p2p_bandwidth", 0.6)],
)
def test_a_planted_share_and_slowdown_are_found_within_their_intervals(
    tmp_path: Path, benchmark: str, share: float
) -> None:
    factor = 1.25
    planted = (
        f"backend.model.progress_share={share}",
        f"backend.model.compute_factor={factor}",
        "backend.model.call_s=0",
    )
    words = (f"benchmark={benchmark}", "overlap=[sleep,matmul,memory]", "window=4", *planted)
    results = measured(tmp_path, *SIMULATED, *words)
    assert set(results) == {"sleep", "matmul", "memory"}
    rows = read_case_rows([tmp_path])
    alone_s = {(row.overlap, row.timed): row.median_s for row in rows if isinstance(row, Measured)}
    communication_s = alone_s[None, "communication"]
    for overlap, result in results.items():
        compute_s = alone_s[overlap, "compute"]
        beside_s = factor * compute_s
        together_s = max(beside_s, communication_s + (1 - share) * beside_s)
        hidden = max(0.0, 1 - (together_s - compute_s) / communication_s)
        assert result.hidden.low - 1e-3 <= hidden <= result.hidden.high + 1e-3
        slowdown = result.compute_slowdown
        assert slowdown is not None
        assert slowdown.low - 1e-3 <= factor <= slowdown.high + 1e-3


def test_a_computation_takes_as_long_as_the_communication_and_a_second_run_has_its_own(
    tmp_path: Path,
) -> None:
    measured(tmp_path, *SIMULATED, "benchmark=all_reduce", "overlap=matmul")
    rows = {row.timed: row for row in read_case_rows([tmp_path])}
    assert set(rows) == {"communication", "compute", "compute_beside", "together"}
    amounts = {rows[timed].compute_amount for timed in rows if timed != "communication"}
    assert len(amounts) == 1 and rows["communication"].compute_amount is None
    assert rows["compute"].median_s == pytest.approx(rows["communication"].median_s, rel=0.1)
    assert rows["communication"].algbw_gb_per_s is not None
    rates = ("algbw_gb_per_s", "busbw_gb_per_s", "message_rate_per_s", "efficiency")
    for timed in ("compute", "compute_beside", "together"):
        assert [getattr(rows[timed], name) for name in rates] == [None] * 4


def test_a_time_of_the_computation_is_kept_and_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("benchmark=all_reduce", "overlap=sleep", "compute=200us")
    measured(tmp_path, *SIMULATED, *words)
    rows = {row.timed: row for row in read_case_rows([tmp_path])}
    assert rows["compute"].median_s == pytest.approx(200e-6)
    assert rows["communication"].compute is None
    shown = capfd.readouterr().out
    assert "hidden" in shown and "sleep 200us" in shown
    assert main(["report", str(tmp_path)]) == 0
    report = capfd.readouterr().out
    assert "Communication beside computation\n" in report and "sleep 200us" in report
    assert "Nothing was measured" not in report


def test_an_operation_that_waits_in_between_is_skipped_with_a_reason(tmp_path: Path) -> None:
    words = ("benchmark=[p2p_latency,all_reduce]", "overlap=sleep")
    assert main([*SIMULATED, *words, f"output={tmp_path}"]) == 0
    rows = read_case_rows([tmp_path])
    skipped = {row.benchmark for row in rows if row.status == "skipped"}
    assert skipped == {"p2p_latency"}
    reasons = {row.reason for row in rows if row.status == "skipped"}
    assert all("nothing can be computed beside it" in str(reason) for reason in reasons)


@pytest.mark.serial
@pytest.mark.long
def test_a_sleep_hides_most_of_a_large_gloo_all_reduce_and_matmul_on_all_cores_less(
    tmp_path: Path,
) -> None:
    """docs/overlap.md: 91 % and about 0 % on two cores."""
    results = measured(
        tmp_path, "backend=gloo", "layout=1x2", "benchmark=all_reduce", "sizes=[16MiB]",
        "overlap=[sleep,matmul]", "timing=quick",
    )  # fmt: skip
    assert results["sleep"].hidden.value > 0.6
    assert results["sleep"].compute_slowdown is not None
    assert results["sleep"].compute_slowdown.value < 1.2
    assert results["matmul"].hidden.value < results["sleep"].hidden.value - 0.2


@pytest.mark.long
@pytest.mark.parametrize("engine", ["native", "python"])
def test_every_computation_beside_an_mpi_operation_has_a_result(
    tmp_path: Path, engine: str
) -> None:
    results = measured(
        tmp_path, "backend=mpi", "layout=1x2", "benchmark=all_reduce", "sizes=[64KiB]",
        "overlap=[sleep,memory,matmul]", *QUICK, f"engine={engine}",
    )  # fmt: skip
    assert set(results) == {"sleep", "memory", "matmul"}
    assert all(result.compute_slowdown is not None for result in results.values())
