"""A job's step from measured operations: sums by hand, its error on sizes left out, and reasons."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from commbench.core.errors import CommbenchError, ConfigError
from commbench.replay.generators import generate
from commbench.replay.predict import job_prediction_text, predict_command
from commbench.replay.predicted_job import JobPrediction, predict_job
from commbench.replay.workload import Workload

KIB = 1024
SIZES = [4**power * KIB for power in range(6)]
LAYERS = 3
# float32: a shard of 16 KiB of each of three layers on four ranks
FSDP = {"params": str(LAYERS * 4 * 4 * KIB), "layers": str(LAYERS), "dtype": "float32"}


def measured(benchmark: str, per_byte_s: float, layout: str = "1x4", **more: Any) -> pd.DataFrame:
    """A time of 10 us and that many seconds a byte, with intervals of -+ 10 %."""
    frame = pd.DataFrame({"message_bytes": SIZES})
    times = 10e-6 + per_byte_s * frame.message_bytes
    fixed = {
        "benchmark": benchmark,
        "status": "ok",
        "backend": "gloo",
        "engine": "python",
        "layout": layout,
        "dtype": "float32",
        "world_size": 4,
        "label": "",
        **more,
    }
    return frame.assign(median_s=times, ci_low_s=0.9 * times, ci_high_s=1.1 * times, **fixed)


def fsdp(ranks: int) -> Workload:
    return generate("fsdp", {"ranks": str(ranks), **FSDP})


def only(*frames: pd.DataFrame) -> JobPrediction:
    (prediction,) = predict_job(pd.concat(frames), fsdp)
    return prediction


def test_a_step_is_the_sum_of_its_operations() -> None:
    """Two all_gathers and a reduce_scatter of 64 KiB a layer, a size that was measured."""
    prediction = only(measured("all_gather", 1e-9), measured("reduce_scatter", 2e-9))
    gather_s = 10e-6 + 64 * KIB * 1e-9
    scatter_s = 10e-6 + 64 * KIB * 2e-9
    assert prediction.seconds is not None
    assert prediction.seconds.value == pytest.approx(LAYERS * (2 * gather_s + scatter_s))
    assert prediction.seconds.low == pytest.approx(0.9 * prediction.seconds.value)
    assert (prediction.layout, prediction.calls, prediction.warnings) == ("1x4", 3 * LAYERS, ())


def test_each_size_between_two_others_is_predicted_from_them() -> None:
    prediction = only(measured("all_gather", 1e-9), measured("reduce_scatter", 2e-9))
    assert len(prediction.held_out.errors) == 2 * (len(SIZES) - 2)
    assert 0 < prediction.held_out.median < prediction.held_out.worst < 1


def test_an_operation_that_was_not_measured_withholds_the_step_and_says_what_to_measure() -> None:
    with pytest.raises(CommbenchError, match="reduce_scatter was not measured on 1x4; measure it"):
        only(measured("all_gather", 1e-9))


def test_a_size_that_the_fit_cannot_carry_withholds_the_step() -> None:
    small = measured("reduce_scatter", 1e-9)
    with pytest.raises(CommbenchError, match=r"reduce_scatter: .* is over 10 times the largest"):
        only(measured("all_gather", 1e-9), small[small.message_bytes <= 4 * KIB])


def test_a_group_of_some_ranks_takes_the_times_of_a_layout_like_it() -> None:
    values = {"params": "65536", "layers": "1", "hidden": "64", "tokens": "64", "dtype": "float32"}
    cases = pd.concat([
        measured("all_reduce", 1e-9, "2x2"),
        measured("all_reduce", 2e-9, "1x2", world_size=2),
        measured("all_reduce", 3e-9, "2x1", world_size=2),
    ])  # fmt: skip
    predictions = predict_job(cases, lambda _: generate("tp_dp", {"ranks": "4", **values}))
    (prediction,) = predictions
    # tensor groups are neighbours, the gradients go between the nodes
    expected_s = 4 * (10e-6 + 2e-9 * 16 * KIB) + 10e-6 + 3e-9 * 128 * KIB
    assert prediction.layout == "2x2" and prediction.seconds is not None
    assert prediction.seconds.value == pytest.approx(expected_s, rel=0.05)


def test_messages_are_not_predicted() -> None:
    pipeline = {"ranks": "4", "hidden": "8"}
    with pytest.raises(CommbenchError, match="send_recv is not predicted"):
        predict_job(measured("all_reduce", 1e-9), lambda _: generate("pipeline", pipeline))


def test_the_command_shows_the_error_beside_the_prediction() -> None:
    cases = pd.concat([measured("all_gather", 1e-9), measured("reduce_scatter", 2e-9)])
    job = f"fsdp {' '.join(f'{name}={value}' for name, value in FSDP.items())}"
    text = job_prediction_text(cases, job)
    assert "gloo (python)" in text and "of each measured size of these operations" in text
    assert job_prediction_text(cases, job.replace("float32", "bfloat16")).count("float32 was") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--job", "fsdp params=1", "--params", "7e9"], "leave out --params"),
        (["--job", "fsdp params=1", "--dtype", "float32"], "leave out --dtype"),
    ],
)
def test_numbers_beside_the_job_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predict_command(words)


def test_a_job_without_its_numbers_is_refused_by_the_name_of_the_option() -> None:
    with pytest.raises(ConfigError, match=r"^--job fsdp: it needs params, layers"):
        job_prediction_text(measured("all_gather", 1e-9), "fsdp")
