"""`commbench replay JOB --from RESULTS`: sums by hand, the errors, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from sample_cases import case_row
from trace_writers import Call, write_kineto

import commbench
from commbench.cli.main import main
from commbench.core.errors import CommbenchError
from commbench.results.row import Row
from commbench_replay.named_workload import listed_workloads
from commbench_replay.prediction import Prediction, predict, prediction_text, predictions

KIB = 1024
SIZES = [4**power * KIB for power in range(6)]
LAYERS = 3
# float32: a shard of 16 KiB of each of three layers on four ranks
FSDP = f"fsdp params={LAYERS * 4 * 4 * KIB} layers={LAYERS} dtype=float32"
MIB = 2**20
SIMULATED = ("backend=simulated", "writer=parquet", "timing=fixed", "timing.repetitions=20")


def measured(benchmark: str, per_byte_s: float, layout: str = "1x4", **more: Any) -> list[Row]:
    """A time of 10 us and that many seconds a byte, with intervals of -+ 10 %."""
    times = {size: 10e-6 + per_byte_s * size for size in SIZES}
    return timed(times, benchmark=benchmark, layout=layout, **{"world_size": 4} | more)


def timed(times: dict[int, float], **fixed: Any) -> list[Row]:
    """Rows with these times by size."""
    return [
        case_row(
            message_bytes=size,
            median_s=seconds,
            ci_low_s=0.9 * seconds,
            ci_high_s=1.1 * seconds,
            **{"status": "ok", "label": ""} | fixed,
        )
        for size, seconds in times.items()
    ]


def predicted(job: str, *rows: list[Row]) -> list[Prediction]:
    return predictions([*chain(*rows)], listed_workloads(job))


def only(*rows: list[Row], job: str = FSDP) -> Prediction:
    (prediction,) = predicted(job, *rows)
    return prediction


def text_of(job: str, *rows: list[Row]) -> str:
    return prediction_text([*chain(*rows)], predicted(job, *rows))


def reduced(times: dict[int, float], **more: Any) -> list[Row]:
    """all_reduce on two ranks with these times by size, and intervals of -+ 10 %."""
    return timed(times, benchmark="all_reduce", layout="1x2", world_size=2, **more)


def test_a_step_is_the_sum_of_its_operations() -> None:
    """Two all_gathers and a reduce_scatter of 64 KiB a layer, a size that was measured."""
    prediction = only(measured("all_gather", 1e-9), measured("reduce_scatter", 2e-9))
    gather_s = 10e-6 + 64 * KIB * 1e-9
    scatter_s = 10e-6 + 64 * KIB * 2e-9
    assert prediction.seconds is not None
    assert prediction.seconds.value == pytest.approx(LAYERS * (2 * gather_s + scatter_s))
    assert prediction.seconds.low == pytest.approx(0.9 * prediction.seconds.value)
    assert prediction.variables.layout == "1x4" and prediction.warnings == []
    assert {each.source for each in prediction.times.values()} == {"measured"}


def test_the_error_is_that_of_both_operations() -> None:
    prediction = only(measured("all_gather", 1e-9), measured("reduce_scatter", 2e-9))
    assert len(prediction.errors) == 2 * (len(SIZES) - 2)
    assert 0 < min(prediction.errors) < max(prediction.errors) < 1


def test_an_operation_that_was_not_measured_withholds_the_step_and_says_what_to_measure() -> None:
    with pytest.raises(CommbenchError, match="reduce_scatter was not measured on 1x4; measure it"):
        only(measured("all_gather", 1e-9))


def test_a_size_that_the_fit_cannot_carry_withholds_the_step() -> None:
    scattered = measured("reduce_scatter", 1e-9)
    small = [row for row in scattered if row.message_bytes <= 4 * KIB]
    with pytest.raises(CommbenchError, match=r"reduce_scatter: .* is over 10 times the largest"):
        only(measured("all_gather", 1e-9), small)


def test_a_group_of_some_ranks_takes_the_times_of_a_layout_like_it() -> None:
    prediction = only(
        measured("all_reduce", 1e-9, "2x2"),
        measured("all_reduce", 2e-9, "1x2", world_size=2),
        measured("all_reduce", 3e-9, "2x1", world_size=2),
        job="tp_dp ranks=4 params=65536 layers=1 hidden=64 tokens=64 dtype=float32",
    )
    # tensor groups are neighbours, the gradients go between the nodes
    expected_s = 4 * (10e-6 + 2e-9 * 16 * KIB) + 10e-6 + 3e-9 * 128 * KIB
    assert prediction.variables.layout == "2x2" and prediction.seconds is not None
    assert prediction.seconds.value == pytest.approx(expected_s, rel=0.05)


def test_messages_are_not_predicted() -> None:
    with pytest.raises(CommbenchError, match="send_recv is not predicted"):
        predicted("pipeline hidden=8", measured("all_reduce", 1e-9))


def test_buckets_are_compared_on_each_layout_and_backend_the_fastest_first() -> None:
    """8 MiB in two buckets or in eight."""
    found = predicted(
        f"ddp params={2 * MIB} dtype=float32 bucket=[1MiB,4MiB]",
        reduced({MIB: 1.0, 4 * MIB: 3.0}),
        reduced({MIB: 2.0, 4 * MIB: 2.0}, backend="mpi"),
    )
    assert [
        (each.variables.backend, each.workload[-4:], each.seconds and each.seconds.value)
        for each in found
    ] == [("mpi", "4MiB", 4.0), ("gloo", "4MiB", 6.0), ("gloo", "1MiB", 8.0), ("mpi", "1MiB", 16.0)]


def test_the_type_of_the_job_is_preferred_else_bytes_are_bytes() -> None:
    rows = [
        reduced({MIB: 1.0, 4 * MIB: 1.0}),
        reduced({MIB: 2.0}, dtype="bfloat16"),
        reduced({MIB: 3.0}, dtype="float64"),
    ]
    taken = {
        dtype: only(*rows, job=f"ddp params={MIB // size} dtype={dtype}")
        for dtype, size in (("bfloat16", 2), ("float16", 2), ("float32", 4))
    }
    assert [each.seconds and each.seconds.value for each in taken.values()] == [2.0, 1.0, 1.0]
    assert taken["bfloat16"].warnings == []
    (warning,) = taken["float16"].warnings
    assert warning.startswith("float32 was measured, not float16: equal bytes are assumed")
    # one that knows the size before the one of the type
    known = only(*rows, job=f"ddp params={MIB} dtype=bfloat16")
    assert known.seconds is not None and known.warnings


def test_runs_are_taken_together_and_what_is_left_out_is_said() -> None:
    job = f"ddp params={MIB // 4} dtype=float32"
    rows = [
        reduced({MIB: 1.0}),
        reduced({MIB: 2.0}),
        reduced({MIB: 4.0}),
        reduced({MIB: 9.0}, label="other"),
        [replace(row, world_size=1) for row in reduced({MIB: 0.1})],
        reduced({MIB: 0.1}, status="skipped"),
    ]
    text = text_of(job, *rows)
    assert "gloo, layout 1x2: operations one after another ?2.00 s -55 +120%" in text
    assert "gloo, layout 1x2, label other: operations one after another ~9.00 s" in text
    assert "left out: 1 skipped, 1 on one rank or simulated" in text
    assert "runs were taken together: the median over them and the widest interval" in text


def test_simulated_times_answer_only_among_themselves() -> None:
    job = f"ddp params={MIB // 4} dtype=float32"
    real = reduced({MIB: 2.0}, engine="native")
    simulated = reduced({MIB: 1.0}, engine="virtual")
    assert only(real, simulated, job=job).variables.engine == "native"
    assert only(simulated, job=job).variables.engine == "virtual"


def test_a_simulated_case_beside_real_ones_is_the_reason_that_is_given() -> None:
    real = measured("all_gather", 1e-9)
    simulated = measured("reduce_scatter", 1e-9, engine="virtual", backend="simulated")
    with pytest.raises(CommbenchError, match="reduce_scatter was only simulated on 1x4, and"):
        only(real, simulated)


def test_a_layout_that_was_only_simulated_beside_real_ones_is_named() -> None:
    real = reduced({MIB: 2.0})
    simulated = measured("all_reduce", 1e-9, engine="virtual", backend="simulated")
    with pytest.raises(CommbenchError, match="the job has were only simulated, on 1x4, and"):
        only(real, simulated, job=f"ddp params={MIB // 4} dtype=float32 ranks=4")


def test_the_text_says_from_which_sizes_each_time_is_and_how_far_off_it_may_be() -> None:
    rows = [measured("all_gather", 1e-9), measured("reduce_scatter", 2e-9)]
    text = " ".join(text_of(FSDP.replace("params=", "params=1"), *rows).split())
    assert "from 64 KiB and 256 KiB" in text
    assert "of 8 measured sizes of these operations, each predicted from the others" in text
    assert "nothing overlaps" in text and "in the job" not in text
    assert text_of(FSDP.replace("float32", "bfloat16"), *rows).count("float32 was") == 1


def test_the_interval_is_called_what_it_is() -> None:
    visits = {"interval_of": "visits", "interval_level": 0.75, "visits": 3, "run_id": "r"}
    text = text_of(f"ddp params={MIB // 4} dtype=float32", reduced({MIB: 1.0}, **visits))
    assert "75 % confidence interval over 3 visits" in text


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ring: 6 (1 us + m/4 / 10 GB/s) on four ranks."""
    folder = tmp_path_factory.mktemp("results")
    commbench.run(
        *SIMULATED, "benchmark=all_reduce", "layout=[1x2,1x4]", "sizes=[256KiB,1MiB,4MiB]",
        "backend.model.latency_s=1e-6", f"output={folder}",
    )  # fmt: skip
    return folder


def test_the_command_predicts_a_generated_job_on_each_layout(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = f"ddp params={250 * MIB} dtype=float32"
    assert main(["replay", *job.split(), "--from", str(results)]) == 0
    out = capsys.readouterr().out
    assert "simulated, layout 1x4: operations one after another 158 ms" in out
    assert "simulated, layout 1x2: " in out
    assert "all_reduce: extrapolated: 25 MiB is 6.25 x above the largest measured size, 4" in out
    assert main(["replay", *job.split(), "ranks=4", "--from", str(results)]) == 0
    assert "layout 1x2" not in capsys.readouterr().out
    frame = predict(commbench.load(results), job).set_index("layout")
    expected_s = 40 * 6 * (1e-6 + 25 * MIB / 4 / 10e9)
    assert frame.loc["1x4", "step_s"] == pytest.approx(expected_s, rel=1e-3)
    assert frame.loc["1x4", "low_s"] < expected_s < frame.loc["1x4", "high_s"]


def test_the_command_predicts_traces_beside_the_times_of_the_job(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_kineto([Call("0", (0, 1), "all_reduce", "float32", MIB)], tmp_path)
    assert main(["replay", str(tmp_path), "--from", str(results)]) == 0
    out = capsys.readouterr().out
    assert "\n2 of 2 ranks, torch profiler" in out
    answer = out.partition("simulated, layout 1x2: operations one after another ")[2]
    assert "in the job" in answer and "here / job" in answer and "\nwaiting: " in answer
    assert "interference" not in answer and "next:" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ddp"], "ddp: it needs params; give params=NUMBER"),
        (["ddp", "params=many"], "ddp: params=many: give a whole number"),
        (["ddp", "params=1e9", "bucket=[1MiB,]"], "ddp: "),
        (["fsdp", "params=1e9", "layers=8"], "no prediction: all_gather was not measured on 1x2"),
        (["ddp", "params=1e9", "ranks=3"], "no layout with as many ranks as the job"),
        (["ddp", "params=1e9", "--on", ""], "--from predicts what --on measures; leave one out"),
        (["ddp", "params=1e9", "--csv", "-"], "--csv - writes the operations to stdout"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_one_line(
    words: list[str], message: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *words, "--from", str(results)]) in (1, 2)
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
