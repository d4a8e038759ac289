"""A benchmark of a user's whose receiver's clock counts, on the clock of a simulated world."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commbench
from commbench.cli.main import main

LATE_S = 1e-3  # of the sender, in each fourth repetition
WORDS = (
    "backend=simulated",
    "layout=1x2",
    "sizes=[8]",
    "sync=none",
    "timing=fixed",
    "timing.repetitions=20",
    "timing.warmup_repetitions=8",
    "timing.warmup_s=0",
    "backend.model.straggler_rank=0",
    "backend.model.straggler_every=4",
    f"backend.model.straggler_s={LATE_S}",
)


def measured(folder: Path, name: str, *words: str) -> tuple[Any, Callable[[str, int], Any]]:
    """The case, and the seconds of the samples of a phase on the clock of a rank."""
    (folder / "benchmark").mkdir()
    (folder / "benchmark" / "one_way.yaml").write_text(
        f"# @package benchmarks.one_way\n_target_: one_way.{name}\n"
    )
    own = ("--config-dir", str(folder), "allow=[one_way]", "benchmark=one_way")
    assert main([*own, *WORDS, *words, f"output={folder / 'runs'}"]) == 0
    (case,) = commbench.load(folder / "runs").itertuples()
    samples = commbench.load(folder / "runs", table="samples")

    def seconds(phase: str, rank: int) -> Any:
        return 1e-9 * samples[(samples.phase == phase) & (samples["rank"] == rank)].elapsed_ns

    return case, seconds


def test_the_mean_of_the_warm_up_and_the_clock_of_the_receiver_count(tmp_path: Path) -> None:
    """A receiver gets several messages at once, so the median of single ones tells nothing."""
    case, seconds = measured(tmp_path, "OneWay")
    warm_up_s = seconds("warmup", 1)
    assert warm_up_s.mean() > 100 * warm_up_s.median(), "that of those in time"
    assert case.block_k == math.ceil(10e-3 / warm_up_s.mean()) == 40, "10 ms between two stamps"
    sender_s, receiver_s = (seconds("measure", rank).median() / 40 for rank in (0, 1))
    assert case.median_s == pytest.approx(receiver_s) and receiver_s > 1.4 * sender_s


def test_a_soak_of_it_is_shown_as_a_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soak = ("timing=soak", "timing.duration_s=0.5", "timing.interval_s=0.1")
    case, _ = measured(tmp_path, "OneWay", *soak)
    assert case.block_k == 40, "10 ms of its first calls between two stamps, not 50 us"
    shown = capsys.readouterr().out
    assert "time of a stream: mean of its writes" in shown and "at the end  full speed" in shown
    assert "\n0.10  0.20 " in shown, "its intervals"
    assert main(["report", str(tmp_path / "runs")]) == 0
    report = capsys.readouterr().out
    assert "one_way 1x2 0-1 8 B: " in report and "Mb/s at the end, full speed after" in report


def test_with_an_initiator_its_own_clock_counts(tmp_path: Path) -> None:
    case, seconds = measured(tmp_path, "OfSender")
    assert case.block_k == 1, "it has no stamps 10 ms apart"
    sender_s, receiver_s = (seconds("measure", rank).median() for rank in (0, 1))
    assert case.median_s == pytest.approx(sender_s) and receiver_s > 1.4 * sender_s
