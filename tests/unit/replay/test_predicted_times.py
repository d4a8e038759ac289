"""The data-parallel step: sums by hand, warnings outside the measured sizes, and the command's own
words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commbench
from commbench.analysis.combined import combine_runs
from commbench.core.errors import CommbenchError
from commbench.replay.predict import predict_command, prediction_text
from commbench.replay.predicted_times import TrainingStep, predict, step_of
from commbench.results.columns import CASES

MIB = 2**20
FIXED = (
    "timing=fixed",
    "timing.repetitions=20",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
)


def cases(times: dict[int, float], half: float = 0.1, **more: Any) -> pd.DataFrame:
    """all_reduce with these seconds for each size, and intervals of -+ half."""
    fixed = {
        "benchmark": "all_reduce",
        "status": "ok",
        "backend": "gloo",
        "engine": "python",
        "layout": "1x2",
    }
    fixed |= {"dtype": "float32", "world_size": 2, "label": "", **more}
    rows = [{"message_bytes": size, "median_s": time, **fixed} for size, time in times.items()]
    frame = pd.DataFrame(rows)
    return frame.assign(ci_low_s=frame.median_s * (1 - half), ci_high_s=frame.median_s * (1 + half))


def predicted(
    frame: pd.DataFrame, steps: Sequence[TrainingStep], dtype: str = "float32"
) -> dict[Any, Any]:
    (row,) = predict(frame, steps, dtype).to_dict("records")
    return row


def test_seven_billion_parameters_in_buckets_of_25_mib() -> None:
    """14e9 B / 25 MiB = 534.06: 534 full ones, and 1510400 B are left."""
    step = step_of(7 * 10**9, "bfloat16", 25 * MIB)
    assert dict(step.buckets) == {25 * MIB: 534, 14 * 10**9 - 534 * 25 * MIB: 1}
    assert (step.count, step.total_bytes) == (535, 14 * 10**9)


@given(
    st.integers(1, 10**12),
    st.sampled_from(["bfloat16", "float32", "float64"]),
    st.integers(8, 2**34),
)
def test_buckets_hold_every_parameter_once(params: int, dtype: str, bucket: int) -> None:
    itemsize = {"bfloat16": 2, "float32": 4, "float64": 8}[dtype]
    step = step_of(params, dtype, bucket)
    assert step.total_bytes == params * itemsize
    assert max(step.buckets) <= bucket
    assert step.count == math.ceil(params / (bucket // itemsize))
    assert all(size % itemsize == 0 for size in step.buckets)


def test_measured_sizes_are_summed() -> None:
    """10 MiB in buckets of 4 MiB: 2 of 3 s, and one of 2 MiB, 1 s."""
    row = predicted(
        cases({2 * MIB: 1.0, 4 * MIB: 3.0}), [step_of(10 * MIB // 4, "float32", 4 * MIB)]
    )
    assert (row["buckets"], row["step_s"], row["warnings"]) == (3, 7.0, ())
    assert (row["low_s"], row["high_s"]) == (pytest.approx(6.3), pytest.approx(7.7))
    assert row["gb_per_s"] == pytest.approx(10 * MIB / 7e9)


def test_between_two_sizes_the_time_is_on_the_line_in_logs_and_the_interval_holds_both_lines() -> (
    None
):
    """2 MiB is half way from 1 to 4 in logs: 3 s of 1 and 9; and a third of the way in bytes: 3.67
    s."""
    row = predicted(cases({MIB: 1.0, 4 * MIB: 9.0}), [TrainingStep({2 * MIB: 10})])
    assert row["step_s"] == pytest.approx(30)
    assert (row["low_s"], row["high_s"]) == (
        pytest.approx(0.9 * 30),
        pytest.approx(1.1 * 10 * (1 + 8 / 3)),
    )


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (32 * MIB, "extrapolated: 32 MiB is 8 x above the largest measured size, 4 MiB"),
        (MIB // 2, "extrapolated: 512 KiB is 2 x below the smallest measured size, 1 MiB"),
    ],
)
def test_outside_the_measured_sizes_the_fit_answers_with_a_warning(size: int, words: str) -> None:
    line = {size: 1e-3 + size * 1e-9 for size in (MIB, 2 * MIB, 4 * MIB)}
    row = predicted(cases(line), [TrainingStep({size: 2})])
    assert row["step_s"] == pytest.approx(2 * (1e-3 + size * 1e-9))
    assert (row["low_s"], row["high_s"]) == (
        pytest.approx(0.9 * row["step_s"]),
        pytest.approx(1.1 * row["step_s"]),
    )
    assert row["warnings"] == (words,)


def test_extrapolating_a_line_that_fits_badly_widens_the_interval() -> None:
    row = predicted(
        cases({MIB: 1.0, 2 * MIB: 2.4, 4 * MIB: 4.0}, half=0.0), [TrainingStep({8 * MIB: 1})]
    )
    assert row["low_s"] < 0.9 * row["step_s"] < 1.1 * row["step_s"] < row["high_s"]


def test_beyond_a_protocol_switch_the_last_piece_answers() -> None:
    sizes = [MIB << n for n in range(10)]
    times = {
        size: 1e-3 + size * 1e-9 if n < 5 else 1e-1 + size * 1e-10 for n, size in enumerate(sizes)
    }
    row = predicted(cases(times), [TrainingStep({MIB << 12: 1})])
    assert row["step_s"] == pytest.approx(1e-1 + (MIB << 12) * 1e-10, rel=0.01)


def test_each_backend_engine_layout_and_step_has_a_row() -> None:
    frame = pd.concat(
        [
            cases({MIB: 1.0}, backend=name, layout=layout)
            for name in "ab"
            for layout in ("1x2", "2x2")
        ]
    )
    table = predict(frame, [TrainingStep({MIB: 1}), TrainingStep({MIB: 5})])
    assert sorted(zip(table.backend, table.layout, table.step_s, strict=True)) == [
        (name, layout, seconds)
        for name in "ab"
        for layout in ("1x2", "2x2")
        for seconds in (1.0, 5.0)
    ]


def test_the_asked_dtype_is_preferred_else_bytes_are_bytes() -> None:
    frame = pd.concat(
        [cases({MIB: 1.0}), cases({MIB: 2.0}, dtype="bfloat16"), cases({MIB: 3.0}, dtype="float64")]
    )
    taken = {
        dtype: predicted(frame, [TrainingStep({MIB: 1})], dtype)
        for dtype in ("bfloat16", "float16", "float32")
    }
    assert {dtype: row["step_s"] for dtype, row in taken.items()} == {
        "bfloat16": 2,
        "float16": 2,
        "float32": 1,
    }
    assert taken["bfloat16"]["warnings"] == ()
    (warning,) = taken["float16"]["warnings"]
    assert warning.startswith(
        "bfloat16 was measured, not float16: equal bytes are assumed to take equal time"
    )


def test_a_dtype_that_can_not_answer_makes_way_for_one_that_can() -> None:
    frame = pd.concat([cases({MIB: 1.0, 4 * MIB: 2.0}), cases({MIB: 2.0}, dtype="bfloat16")])
    assert predicted(frame, [TrainingStep({2 * MIB: 1})], "bfloat16")["dtype"] == "float32"


def test_runs_are_taken_together_and_layouts_of_one_rank_left_out() -> None:
    frame = pd.concat(
        [cases({MIB: 1.0}), cases({MIB: 2.0}), cases({MIB: 4.0}), cases({MIB: 0.1}, world_size=1)]
    )
    row = predicted(frame, [TrainingStep({MIB: 1})])
    assert (row["step_s"], row["low_s"], row["high_s"], row["runs"]) == (2.0, 0.9, 4.4, 3)


def test_without_intervals_there_is_none() -> None:
    row = predicted(cases({MIB: 1.0}, half=math.nan), [TrainingStep({MIB: 1})])
    assert row["step_s"] == 1
    assert math.isnan(row["low_s"])
    assert math.isnan(row["high_s"])


def test_a_fit_that_misses_a_size_by_30_percent_answers_nothing() -> None:
    """Of times t and 1 s at two sizes, where no byte seems to cost anything, the fit misses t by 1
    - a/t."""
    good, bad = (cases({MIB: t, 2 * MIB: 1.0}) for t in (1.5, 1.7))
    assert predicted(good, [TrainingStep({MIB // 2: 1})])["step_s"] == pytest.approx(
        (1 / 1.5 + 1) / (1 / 1.5**2 + 1)
    )
    with pytest.raises(CommbenchError, match="the fit misses one of them by 31 %"):
        predict(bad, [TrainingStep({MIB // 2: 1})])
    line = {size: 1e-3 + size * 1e-9 for size in (MIB, 2 * MIB, 4 * MIB, 8 * MIB)}
    for factor, fits in ((1.1, 1), (2.5, 0)):
        frame = cases(line | {2 * MIB: factor * line[2 * MIB]}).reindex(
            columns=[column.name for column in CASES]
        )
        assert len(combine_runs(frame.assign(case_id=list("abcd"))).fits) == fits


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (
            cases({MIB: 1.0}, benchmark="broadcast"),
            "no usable row of all_reduce on two or more ranks among 1 cases",
        ),
        (
            cases({MIB: math.nan}),
            "no usable row of all_reduce on two or more ranks among 1 cases; measure with: comm",
        ),
        (cases({MIB: 1.0}, status="invalid"), "no usable row of all_reduce"),
        (cases({MIB: 1.0}, world_size=1), "no usable row of all_reduce"),
        (
            cases({MIB: 1.0}),
            "no prediction: only 1 MiB was measured; measure all_reduce with sizes=octaves",
        ),
        (cases({8: 2.0, 16: 1.0}), "2 MiB is over 10 times the largest measured size, 16 B"),
        (
            cases({MIB: 1.0, 1536 * 1024: 9.0}),
            "2 MiB is outside of the measured sizes, and the fit misses one of them by",
        ),
        (
            cases({MIB // 2: 1.2, MIB: 1.0}),
            "2 MiB is above all measured sizes, and the measured times do not grow with the size",
        ),
    ],
)
def test_what_can_not_be_answered_is_refused_in_one_line(frame: pd.DataFrame, words: str) -> None:
    with pytest.raises(CommbenchError, match=words) as refusal:
        predict(frame, [TrainingStep({2 * MIB: 1})])
    assert "\n" not in str(refusal.value)


@given(st.integers(1, 64), st.integers(10, 24))
def test_twice_the_buckets_take_twice_the_time(count: int, exponent: int) -> None:
    frame = cases({1 << 12: 1.0, 1 << 16: 1.1, 1 << 22: 20.0})
    single, double = predict(frame, [TrainingStep({1 << exponent: n}) for n in (count, 2 * count)])[
        "step_s"
    ]
    assert double == pytest.approx(2 * single)


def test_the_report_ranks_within_a_layout_and_says_what_is_alike() -> None:
    frame = pd.concat([
        cases({MIB: 1.0, 25 * MIB: 10.0}, backend="a"),
        cases({MIB: 2.0, 25 * MIB: 10.5}, backend="b"),
        cases({MIB: 9.0, 25 * MIB: 90.0}, backend="a", layout="2x2"),
        cases({MIB: 1.0}, backend="c", status="skipped"),
    ])  # fmt: skip
    text = prediction_text(frame, [TrainingStep({MIB: 25}), TrainingStep({25 * MIB: 1})], "float32")
    # one launch
    assert (
        "1x2, buckets of 1 MiB: a (python) and b (python) are not distinguishable, 25.0 s\n" in text
    )
    assert (
        "1x2, buckets of 25 MiB: a (python) and b (python) are not distinguishable, 10.0 s\n"
        in text
    )
    assert "2x2, buckets of 25 MiB: a (python) takes 90.0 s\n" in text
    least = (
        "buckets of 25 MiB takes least by what was measured in this run, 10.0 s; buckets of 1 MiB"
        " 2.5 x as long"
    )
    assert f"a (python) on 1x2: {least}\n" in text
    assert "left out of all_reduce: 1 skipped\n" in text
    assert "warning" not in text


def test_the_report_names_the_runs_that_it_took_together() -> None:
    frame = pd.concat([cases({MIB: 1.0}), cases({MIB: 2.0}), cases({MIB: 9.0}, label="other")])
    text = prediction_text(frame, [TrainingStep({MIB: 1})], "float32")
    assert "runs were taken together: the median over them and the widest" in text
    assert "2 launches" in text and "gloo (python, label other)" in text


def test_the_fastest_of_three_launches_is_said_to_be() -> None:
    launches = [
        cases({MIB: factor * time}, backend=name)
        for name, time in (("a", 1.0), ("b", 2.0))
        for factor in (1, 1.1, 1.2)
    ]
    text = prediction_text(pd.concat(launches), [TrainingStep({MIB: 1})], "float32")
    assert "a (python) is fastest, 1.10 s; b (python) takes 2 x as long\n" in text


def test_extrapolations_stand_apart_from_what_lies_between_measured_sizes() -> None:
    frame = cases({MIB: 1.0, 4 * MIB: 4.0})
    steps = [TrainingStep({2 * MIB: 1}), TrainingStep({8 * MIB: 1})]
    text = prediction_text(frame, steps, "float32")
    table, _, apart = text.partition("extrapolated beyond the measured sizes by the fit")
    assert str(2 * MIB) in table and str(8 * MIB) not in table
    assert str(8 * MIB) in apart and str(2 * MIB) not in apart
    assert "1x2, buckets of 2 MiB: gloo (python) takes 2.00 s" in text
    assert "1x2, buckets of 8 MiB, extrapolated: gloo (python) takes 8.00 s" in text
    assert "buckets of 2 MiB is fastest" not in text


def test_a_variable_without_a_value_has_no_name() -> None:
    """The label of one backend and the streams of the other are null."""
    named = cases({MIB: 1.0}, backend="tcp", streams=4, label="a")
    other = cases({MIB: 2.0}, backend="gloo", streams=None, label=None)
    text = prediction_text(pd.concat([named, other]), [TrainingStep({MIB: 1})], "float32")
    assert "tcp (python, streams 4, label a)" in text
    assert "gloo (python) 1.00" not in text and "nan" not in text


def test_the_interval_is_called_what_it_is() -> None:
    """quick: 3 visits; what three visits leave open, `a`'s 1.09 and `b`'s 1.12, is not taken for a
    difference."""
    visits = {"interval_of": "visits", "interval_level": 0.75, "visits": 3, "run_id": "r"}
    frame = cases({MIB: 1.0, 2 * MIB: 1.23}, half=0.1, **visits)
    text = prediction_text(frame, [TrainingStep({MIB: 1}), TrainingStep({2 * MIB: 1})], "float32")
    assert "interval: 75 % over 3 visits in this run, of the medians of all buckets at once" in text
    assert "95 %" not in text
    assert (
        "gloo (python) on 1x2: buckets of 1 MiB and buckets of 2 MiB are not distinguishable,"
        " 1.00 s\n" in text
    )
    assert predicted(frame, [TrainingStep({MIB: 1})])["interval_level"] == 0.75


def test_simulated_times_answer_only_among_themselves() -> None:
    real = cases({MIB: 2.0}, engine="native")
    simulated = cases({MIB: 1.0}, engine="virtual")
    assert predict(pd.concat([real, simulated]), [TrainingStep({MIB: 1})]).engine.tolist() == [
        "native"
    ]
    assert predict(simulated, [TrainingStep({MIB: 1})]).engine.tolist() == ["virtual"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "how large is the model? give --params 7e9, or --buckets 25MiB,25MiB,7MiB"),
        (
            "--params many",
            (
                "argument --params: 'many' is not a number above 0 and up to 1e18; see commbench"
                " predict"
            ),
        ),
        ("--params 1.5", "'1.5' is not a whole number of parameters"),
        ("--params nan", "'nan' is not a number above 0"),
        ("--params 7e99", "'7e99' is not a number above 0 and up to 1e18"),
        ("--params 7e9 --dtype float8", "dtype=float8 is unknown; allowed: float64, float32"),
        ("--params 7e9 --bucket-mb 0", "argument --bucket-mb: '0' is not a number above 0"),
        ("--params 7e9 --bucket-mb 1,,2", "argument --bucket-mb: '' is not a number above 0"),
        (
            "--params 7e9 --bucket-mb 1e-6",
            "a bucket of 1 B is smaller than one float32; give at least 4 B",
        ),
        ("--params 7e9 --bucket-mb 1e300", "is not a number above 0 and up to 1e18"),
        ("--buckets 1MiB,0", "'1MiB,0' has an empty bucket; leave it out"),
        ("--buckets 1MX", "'1MX' is not a number of bytes"),
        (
            "--buckets 1MiB --params 7e9",
            "--buckets gives all sizes; leave out --params and --bucket-mb",
        ),
        ("--parms 7e9", "unrecognized arguments: --parms"),
        (
            "--params 7e9 /nowhere",
            "no run.json below /nowhere; give the folder of a run or of several",
        ),
    ],
)
def test_wrong_words_are_refused_in_one_line(words: str, message: str) -> None:
    with pytest.raises(CommbenchError) as refusal:
        predict_command(words.split())
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_broken_result_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(CommbenchError, match=r"run\.json can't be read"):
        predict_command(["--params", "7e9", str(tmp_path)])


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        predict_command(["--help"])
    assert end.value.code == 0
    assert "--bucket-mb" in capsys.readouterr().out


def test_the_command_predicts_a_simulated_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ring on 4 ranks: 6 (1 us + m/4 / 10 GB/s); 25 MiB: 3.938 ms; 1000 MiB in 40 buckets: 157.5
    ms."""
    words = (
        "benchmark=all_reduce",
        "layout=1x4",
        "sizes=[256KiB,1MiB,4MiB]",
        "backend.model.latency_s=1e-6",
        *FIXED,
    )
    commbench.run("backend=simulated", "writer=parquet", f"output={tmp_path}", *words)
    assert predict_command(["--params", str(250 * MIB), "--bucket-mb", "25", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert (
        "float32 gradients of 262,144,000 parameters, 1.05 GB in 40 buckets: 40 of 25 MiB\n" in out
    )
    assert "1x4, buckets of 25 MiB, extrapolated: simulated (virtual) takes 158 ms\n" in out
    assert (
        "warning: simulated (virtual) 1x4: extrapolated: 25 MiB is 6.25 x above the largest"
        " measured size, 4" in out
    )
    step = 40 * 6 * (1e-6 + 25 * MIB / 4 / 10e9)
    assert predicted(commbench.load(tmp_path), [TrainingStep({25 * MIB: 40})])[
        "step_s"
    ] == pytest.approx(step, rel=1e-3)
    assert (
        predict_command(["--buckets", "[1MiB,4MiB,1MiB]", "--dtype", "bfloat16", str(tmp_path)])
        == 0
    )
    out = capsys.readouterr().out
    assert "bfloat16, 0.00629 GB in 3 buckets: 1 of 4 MiB, 2 of 1 MiB\n" in out
    assert "extrapolated" not in out
    assert "float32 was measured, not bfloat16" in out
