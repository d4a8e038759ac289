"""The gate on runs that were really measured, in simulated worlds: store, accept, and what both
refuse of the next cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_words import NOISY_RUN

import commbench
from commbench.cli.main import main
from commbench.cluster.baseline.command import baseline
from commbench.cluster.gate.command import accept

SUITE = (*NOISY_RUN, "benchmark=[all_reduce,p2p_latency]", "layout=2x2", "pairs=neighbours")


def run(output: Path, *words: str, seed: int) -> Path:
    return commbench.run(*SUITE, *words, f"seed={seed}", output=output)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with six launches of the suite, which the tests only read."""
    folder = tmp_path_factory.mktemp("store")
    for seed in range(6):
        run(folder / "healthy", seed=seed)
    store = str(folder / "store")
    assert baseline(["add", str(folder / "healthy"), "--baseline", store]) == 0
    return store


@pytest.mark.usefixtures("outside_any_world")
def test_equal_runs_pass_a_part_of_the_suite_fails_and_another_setting_is_not_judged(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = ["--baseline", store]
    equal = run(tmp_path, seed=10)
    assert accept([str(equal), *judged]) == 0, capsys.readouterr().out
    part = run(tmp_path, "benchmark=all_reduce", seed=11)
    capsys.readouterr()
    assert accept([str(part), *judged, "--again", "0"]) == 1
    assert "missing: the store has 6 healthy launches of it" in capsys.readouterr().out
    assert accept([str(part), *judged, "--missing", "allow"]) == 0
    other = run(tmp_path, "sizes=[16]", seed=12)
    capsys.readouterr()
    assert accept([str(other), *judged, "--missing", "allow"]) == 4
    assert "at least 3 are needed" in capsys.readouterr().out


@pytest.mark.usefixtures("outside_any_world")
def test_a_slow_rank_is_a_slower_case_and_no_other_case(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = run(tmp_path, "backend.model.slow_rank=1", "backend.model.slow_factor=2", seed=10)
    capsys.readouterr()
    assert accept([str(slow), "--baseline", store, "--again", "0"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("SUSPECT: ") and "of 8 cases 6 are suspect" in text
    assert "missing" not in text


@pytest.mark.usefixtures("outside_any_world")
def test_what_is_open_is_measured_again_and_all_launches_decide(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = run(tmp_path, "backend.model.slow_rank=1", "backend.model.slow_factor=2", seed=10)
    capsys.readouterr()
    assert accept([str(slow), "--baseline", store]) == 1
    seen = capsys.readouterr()
    text = " ".join(seen.out.split())
    assert text.startswith("FAIL: ") and "of 8 cases 6 fail, 2 pass" in text
    assert "8 open cases of RESULTS measured again in " in text
    assert "accept: 8 open cases: measured again in " in seen.err
    again = tmp_path.with_name(f"{tmp_path.name}-again")
    assert len(list(again.iterdir())) >= 5, "no part of RESULTS"
    cases = str(slow / "cases.parquet")
    assert accept([cases, "--baseline", store]) == 1
    assert "Not measured again: RESULTS are no folders of runs" in capsys.readouterr().out


@pytest.mark.long
def test_real_launches_of_gloo_do_not_fail_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("backend=gloo", "sizes=[8,64KiB]", "timing=quick", "timing.case_s=0.2")
    for launch in range(9):
        commbench.run(*words, f"trial={launch}", "writer=parquet", output=tmp_path / "runs")
    *healthy, new = sorted((tmp_path / "runs").iterdir())
    store = str(tmp_path / "store")
    assert main(["baseline", "add", *map(str, healthy), "--baseline", store]) == 0
    assert main(["accept", str(new), "--baseline", store]) in (0, 4), capsys.readouterr().out
