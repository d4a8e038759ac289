"""The time of an operation between, below and above the sizes that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_cases import case_row

from commbench.analysis.families import families
from commbench.results.row import Row
from commbench.stats.interval import Interval
from commbench_replay.predicted_times import PredictedTime, size_errors, time_of

MIB = 2**20


def cases(times: dict[int, float], half: float | None = 0.1) -> list[Row]:
    """all_reduce with these seconds for each size, and intervals of -+ half."""
    return [
        case_row(
            benchmark="all_reduce",
            status="ok",
            world_size=2,
            label="",
            case_id=str(size),
            message_bytes=size,
            median_s=time,
            **_ends(time, half),
        )
        for size, time in times.items()
    ]


def _ends(time: float, half: float | None) -> dict[str, Any]:
    if half is None:
        return {}
    return {"ci_low_s": time * (1 - half), "ci_high_s": time * (1 + half)}


def predicted(rows: Sequence[Row], size: int) -> PredictedTime:
    (family,) = families(rows)
    return time_of(family, size)


def known(rows: Sequence[Row], size: int) -> Interval:
    seconds = predicted(rows, size).seconds
    assert seconds is not None
    return seconds


def test_a_measured_size_has_its_time() -> None:
    time = predicted(cases({2 * MIB: 1.0, 4 * MIB: 3.0}), 4 * MIB)
    assert time.seconds == Interval(3.0, 2.7, pytest.approx(3.3), 0.95, of="repetitions")
    assert (time.source, time.warning) == ("measured", "")


def test_between_two_sizes_the_time_is_on_the_line_in_logs_and_the_interval_holds_both_lines() -> (
    None
):
    """2 MiB is half way from 1 to 4 in logs: 3 s of 1 and 9; and a third of the way in bytes: 3.67
    s."""
    rows = cases({MIB: 1.0, 4 * MIB: 9.0})
    seconds = known(rows, 2 * MIB)
    assert seconds.value == pytest.approx(3)
    assert seconds.low == pytest.approx(0.9 * 3)
    assert seconds.high == pytest.approx(1.1 * (1 + 8 / 3))
    assert predicted(rows, 2 * MIB).source == "from 1 MiB and 4 MiB"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (32 * MIB, "extrapolated: 32 MiB is 8 x above the largest measured size, 4 MiB"),
        (MIB // 2, "extrapolated: 512 KiB is 2 x below the smallest measured size, 1 MiB"),
    ],
)
def test_outside_the_measured_sizes_the_fit_answers_with_a_warning(size: int, words: str) -> None:
    rows = cases({size: 1e-3 + size * 1e-9 for size in (MIB, 2 * MIB, 4 * MIB)})
    seconds = known(rows, size)
    assert seconds.value == pytest.approx(1e-3 + size * 1e-9)
    assert seconds.low == pytest.approx(0.9 * seconds.value)
    assert seconds.high == pytest.approx(1.1 * seconds.value)
    assert predicted(rows, size).warning == words


def test_extrapolating_a_line_that_fits_badly_widens_the_interval() -> None:
    seconds = known(cases({MIB: 1.0, 2 * MIB: 2.4, 4 * MIB: 4.0}, half=0.0), 8 * MIB)
    assert seconds.low < 0.9 * seconds.value < 1.1 * seconds.value < seconds.high


def test_beyond_a_protocol_switch_the_last_piece_answers() -> None:
    sizes = [MIB << n for n in range(10)]
    times = {
        size: 1e-3 + size * 1e-9 if n < 5 else 1e-1 + size * 1e-10 for n, size in enumerate(sizes)
    }
    expected_s = 1e-1 + (MIB << 12) * 1e-10
    assert known(cases(times), MIB << 12).value == pytest.approx(expected_s, rel=0.01)


def test_without_intervals_there_is_none() -> None:
    seconds = known(cases({MIB: 1.0}, half=None), MIB)
    assert seconds.value == 1 and not seconds.is_known


def test_a_fit_that_misses_a_size_by_30_percent_answers_nothing() -> None:
    """Of times t and 1 s at two sizes, where no byte seems to cost anything, the fit misses t by 1
    - a/t."""
    good, bad = (cases({MIB: t, 2 * MIB: 1.0}) for t in (1.5, 1.7))
    expected_s = (1 / 1.5 + 1) / (1 / 1.5**2 + 1)
    assert known(good, MIB // 2).value == pytest.approx(expected_s)
    assert "the fit misses one of them by 31 %" in predicted(bad, MIB // 2).warning


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({MIB: 1.0}, "only 1 MiB was measured"),
        ({8: 2.0, 16: 1.0}, "2 MiB is over 10 times the largest measured size, 16 B"),
        (
            {MIB: 1.0, 1536 * 1024: 9.0},
            "2 MiB is outside of the measured sizes, and the fit misses one of them by",
        ),
        (
            {MIB // 2: 1.2, MIB: 1.0},
            "2 MiB is above all measured sizes, and the measured times do not grow with the size",
        ),
    ],
)
def test_a_time_that_is_not_known_has_the_reason(times: dict[int, float], words: str) -> None:
    time = predicted(cases(times), 2 * MIB)
    assert time.seconds is None and words in time.warning


@given(st.integers(10, 24))
def test_a_time_lies_in_its_interval(exponent: int) -> None:
    seconds = known(cases({1 << 12: 1.0, 1 << 16: 1.1, 1 << 22: 20.0}), 1 << exponent)
    assert seconds.low < seconds.value < seconds.high


def test_each_size_between_two_others_is_predicted_from_them() -> None:
    """4 KiB from 1 and 16: 10 us on the line in logs, and it was 8 us."""
    (family,) = families(cases({1 << 10: 5e-6, 1 << 12: 8e-6, 1 << 14: 20e-6}))
    assert size_errors(family) == [pytest.approx(0.25)]
