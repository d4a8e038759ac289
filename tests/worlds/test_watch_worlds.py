"""`commbench watch` with real ranks, as cron would start it, and its end by Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import until

import commbench
from commbench.cluster.baseline.store import stored_runs
from commbench.cluster.watch.state import read_state
from commbench.results.load import find_runs, load_run

SUITE = (
    "backend=gloo",
    "benchmark=[all_reduce]",
    "sizes=[8]",
    "timing=fixed",
    "timing.repetitions=10",
    "timing.warmup_s=0",
)


def command(python: Path, store: Path, *options: str) -> list[str]:
    return [str(python), "-m", "commbench", "watch", "--baseline", str(store), *options, *SUITE]


def test_three_turns_of_real_ranks_make_a_store(tmp_path: Path, warm_executable: Path) -> None:
    store = tmp_path / "store"
    metrics = tmp_path / "commbench.prom"
    words = command(warm_executable, store, "--once", "--prometheus", str(metrics))
    for number in range(1, 4):
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 4, done.stdout + done.stderr
        assert "1 case has fewer than 5 healthy launches" in " ".join(done.stdout.split())
        assert len(stored_runs(store)) == number
    rows = commbench.load(store)
    assert list(rows.trial) == [0, 1, 2]
    assert set(rows.status) == {"ok"}
    text = metrics.read_text()
    assert 'benchmark="all_reduce"' in text
    assert 'verdict="undecided"} 1.0' in text


def test_ctrl_c_between_turns_ends_it_without_another_turn(
    tmp_path: Path, warm_executable: Path
) -> None:
    store = tmp_path / "store"
    output = tmp_path / "output"
    words = command(warm_executable, store, "--every", "6h")
    with output.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, cwd=tmp_path)
        try:
            until(lambda: "the next turn is in" in output.read_text(), explain=output.read_text)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 128 + signal.SIGINT
        finally:
            process.kill()
            process.wait()
    state = read_state(store)
    assert state is not None
    assert state.launches == 1
    assert len(stored_runs(store)) == 1


@pytest.mark.long
@pytest.mark.serial
def test_ctrl_c_within_a_turn_ends_it_and_the_turn_does_not_count(
    tmp_path: Path, warm_executable: Path
) -> None:
    store = tmp_path / "store"
    words = [str(warm_executable), "-m", "commbench", "watch", "--baseline", str(store), "--once"]
    words += ["backend=gloo", "timing=default", "timing.case_s=30", "benchmark=[all_reduce]"]
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    runs = store / "watch" / "runs"
    try:
        until(lambda: list(runs.glob("*/*/parts/*")))
        begun_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 128 + signal.SIGINT
        assert time.monotonic() - begun_s < 2.0
    finally:
        process.kill()
        process.wait()
    assert read_state(store) is None
    assert stored_runs(store) == []
    (run,) = find_runs(runs)
    assert load_run(run)["status"] == "interrupted"
