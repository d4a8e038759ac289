"""Launches: the cases of a run are visited again in fresh worlds, and a run that ended early is
continued."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import commbench
from commbench.results.load import ROW_KEYS, find_runs, load_run

TIMING = ("timing=quick", "timing.launches=2", "timing.warmup_s=0")
WORDS = ("benchmark=all_reduce", "sizes=[8]", *TIMING)
LONG = pytest.mark.long


def repetition_medians_s(case: pd.Series[Any], samples: pd.DataFrame) -> list[float]:
    """Of each visit, from the samples of one case of all_reduce."""
    slowest = (
        samples[samples.phase == "measure"].groupby(["visit", "repetition"]).elapsed_ns.max() * 1e-9
    )
    return list((slowest / case.operations_per_sample).groupby(level="visit").median())


@pytest.mark.parametrize("visits", [2, pytest.param(5, marks=LONG)])
def test_a_second_launch_is_a_fresh_world_and_the_row_is_over_the_visits_of_both(
    world: Callable[..., Any], visits: int
) -> None:
    run = world(
        "commbench",
        *WORDS,
        f"timing.visits={visits}",
        "timing.case_s=0.4",
        "writer=[console,parquet]",
    )
    (case,) = (row for _, row in run.cases.iterrows())
    launches = list(case.visit_launches)
    assert case.visits == len(launches) >= 2 * visits
    assert launches == sorted(launches) and min(launches.count(0), launches.count(1)) >= visits
    assert case.interval_of == "visits" and case.stop_reason != "interrupted"
    assert repetition_medians_s(case, run.samples) == pytest.approx(list(case.visit_medians_s))
    assert case.median_s == pytest.approx(float(np.median(case.visit_medians_s)))
    measured = run.samples[(run.samples.phase == "measure") & (run.samples["rank"] == 0)]
    assert sorted(measured.repetition) == list(range(case.repetitions)), (
        "each repetition once, over both launches"
    )
    assert not run.samples.duplicated(ROW_KEYS["samples"]).any()
    slowest_s = (
        run.samples[run.samples.phase == "measure"].elapsed_ns.max()
        * 1e-9
        / case.operations_per_sample
    )
    assert case.max_s == pytest.approx(slowest_s)
    assert run.stdout.count("results: ") == 1 and run.stdout.count("all_reduce") <= 3, "one table"
    assert "launch 1 of 2: 1 case," in run.stderr and "launch 2 of 2: 1 case," in run.stderr
    record = run.record
    assert (record["status"], record["exit_status"], record["launches"]["began"]) == (
        "done",
        0,
        [0, 1],
    )
    assert [start["status"] for start in record["starts"]] == ["running"]
    assert {file.name for file in run.output.rglob("*.parquet")} >= {
        "cases.parquet",
        "samples.parquet",
    }
    assert not list(run.output.rglob("parts")), "merged after each launch"


def test_a_simulated_run_makes_all_its_launches_and_each_has_noise_of_its_own(
    tmp_path: Path,
) -> None:
    def visit_medians_s(*words: str) -> list[float]:
        folder = commbench.run(
            *("backend=simulated", "backend.model.noise=0.1", "benchmark=all_reduce", "sizes=[8]"),
            *("timing=rigorous", "timing.pass_s=0", "timing.target=0.9"),
            *("writer=parquet", f"output={tmp_path}", *words),
        )
        (case,) = commbench.load(folder).to_dict("records")
        began = load_run(folder)["launches"]["began"]
        assert (case["visits"], len(began), load_run(folder)["status"]) == (18, 6, "done")
        assert list(case["visit_launches"]) == [launch for launch in range(6) for _ in range(3)]
        assert (case["interval_of"], case["interval_level"]) == ("launches", 0.96875)
        return list(case["visit_medians_s"])

    first, same, other = (visit_medians_s(*words) for words in ((), (), ("seed=1",)))
    assert first == same
    assert len({*first}) > 12 and len({*first, *other}) > 24


@LONG
@pytest.mark.parametrize("launch", [1, 2])
def test_an_interrupted_launch_is_continued_and_loses_no_visit(
    tmp_path: Path, warm_executable: Path, launch: int
) -> None:
    words = [
        "benchmark=[all_reduce,broadcast]",
        "sizes=[2MiB]",
        *TIMING,
        "timing.case_s=2",
        "timing.target=1e-6",
    ]
    command = [str(warm_executable), "-m", "commbench"]
    output = tmp_path / "results"
    seen = False
    with subprocess.Popen(
        [*command, *words, f"output={output}"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # until one of the cases is done in this launch
            seen = seen or line.startswith(f"launch {launch} of 2")
            if seen and line.startswith("[1/2]"):
                break
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(30) == 130
    (folder,) = find_runs(output)
    before = commbench.load(folder)
    assert "interrupted" in set(before.stop_reason) and (
        launch == 2 or len(set(before.stop_reason)) == 1
    )
    record = load_run(folder)
    assert (record["status"], len(record["launches"]["began"])) == ("interrupted", launch)
    begin = time.monotonic()
    again = subprocess.run(
        [*command, "resume", str(folder)], capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 0, again.stderr
    assert time.monotonic() - begin < 30
    cases = commbench.load(folder)
    assert set(cases.status) == {"ok"} and "interrupted" not in set(cases.stop_reason)
    for case_id, row in cases.set_index("case_id").iterrows():
        earlier = before.set_index("case_id").visit_medians_s[case_id]
        assert list(row.visit_medians_s[: len(earlier)]) == pytest.approx(list(earlier), rel=1e-6)
        assert 6 <= row.visits <= 8, "three in each launch, and no launch twice"
    assert json.loads((folder / "run.json").read_text())["launches"]["began"] == (
        [0, 2] if launch == 1 else [0, 1]
    )
    samples = commbench.load(folder, table="samples")
    assert not samples.duplicated(["case_id", "phase", "repetition", "rank"]).any()
