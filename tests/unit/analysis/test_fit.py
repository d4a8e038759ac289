"""Families of cases, and Hockney's model: planted lines and protocol switches are found, noise is
not split."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sample_cases import case_row
from size_rows import rows_of

import commbench
from commbench.analysis.combined import combine_runs
from commbench.analysis.fit import answerable, families, ignored, key, pieces
from commbench.results.load import rows_of_frame
from commbench.results.row import Row, plain_values
from commbench.stats.interval import Interval

Series = NDArray[Any]
OCTAVES = 2 ** np.arange(3, 25)
FIXED = (
    "timing=fixed",
    "timing.repetitions=40",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
)
ALPHA = 2e-6
BETA = 1e-10
SWITCH = 1 << 14  # the first size of the second protocol


def cases(sizes: Series, times: Series, **more: Any) -> pd.DataFrame:
    columns = {
        "benchmark": "all_reduce",
        "status": "ok",
        "ci_low_s": times,
        "ci_high_s": times,
        **more,
    }
    return pd.DataFrame({"message_bytes": sizes, "median_s": times, **columns})


def fitted(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per family and piece."""
    rows = [
        plain_values(family.variables)
        | {
            "from_bytes": int(family.sizes[piece.first]),
            "to_bytes": int(family.sizes[piece.last - 1]),
            "alpha_s": piece.alpha_s,
            "beta_s_per_byte": piece.beta_s_per_byte,
            "asymptotic_gb_per_s": piece.asymptotic_gb_per_s,
            "n_half_bytes": piece.n_half_bytes,
            "largest_residual": piece.largest_residual,
            "points": piece.last - piece.first,
        }
        for family in families(rows_of(frame))
        for piece in pieces(family.sizes, family.median_s)
    ]
    return pd.DataFrame(rows)


def noisy(
    sizes: Series, seed: int, noise: float, alpha: float = ALPHA, beta: float = BETA
) -> Series:
    return (alpha + beta * sizes) * np.exp(
        noise * np.random.default_rng(seed).standard_normal(sizes.size)
    )


def switched(seed: int, noise: float) -> Series:
    """An eager protocol, then a rendezvous with a longer latency and twice the bandwidth."""
    second = noisy(OCTAVES, seed + 1, noise, alpha=8e-6, beta=BETA / 2)
    return np.where(OCTAVES < SWITCH, noisy(OCTAVES, seed, noise, beta=2 * BETA), second)


def test_a_planted_line_is_recovered_within_2_percent() -> None:
    (row,) = fitted(cases(OCTAVES, noisy(OCTAVES, 1, 0.03))).to_dict("records")
    assert row["alpha_s"] == pytest.approx(ALPHA, rel=0.02)
    assert row["beta_s_per_byte"] == pytest.approx(BETA, rel=0.02)
    assert row["asymptotic_gb_per_s"] == pytest.approx(10, rel=0.02)
    assert row["n_half_bytes"] == pytest.approx(20_000, rel=0.04)
    assert (row["from_bytes"], row["to_bytes"], row["points"]) == (8, 1 << 24, 22)
    assert 0.03 < row["largest_residual"] < 0.12


def test_the_fit_is_right_on_the_average_and_seldom_off() -> None:
    lines = [pieces(OCTAVES, noisy(OCTAVES, seed, 0.03))[0] for seed in range(100)]
    for values, truth in (
        ([x.alpha_s for x in lines], ALPHA),
        ([x.beta_s_per_byte for x in lines], BETA),
    ):
        misses = np.array(values) / truth - 1
        assert abs(misses.mean()) < 0.005
        assert (np.abs(misses) < 0.02).mean() > 0.9


@pytest.mark.parametrize("seed", range(10))
def test_a_protocol_switch_is_found_at_its_octave(seed: int) -> None:
    rows = fitted(cases(OCTAVES, switched(2 * seed, 0.03))).to_dict("records")
    assert [(row["from_bytes"], row["to_bytes"]) for row in rows] == [
        (8, SWITCH // 2),
        (SWITCH, 1 << 24),
    ]
    assert [row["alpha_s"] for row in rows] == [
        pytest.approx(ALPHA, rel=0.06),
        pytest.approx(8e-6, rel=0.25),
    ]
    assert [row["asymptotic_gb_per_s"] for row in rows] == [
        pytest.approx(5, rel=0.2),
        pytest.approx(20, rel=0.05),
    ]


def test_three_protocols_are_three_pieces() -> None:
    steps = np.select([OCTAVES < 1 << 10, OCTAVES < 1 << 17], [1.0, 4.0], 20.0)
    curve = pieces(OCTAVES, steps * noisy(OCTAVES, 3, 0.02))
    assert [(piece.first, piece.last) for piece in curve] == [(0, 7), (7, 14), (14, 22)]


@pytest.mark.parametrize(
    ("points", "noise"),
    [
        (22, 0.03),
        (6, 0.05),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((22, 0.3), (10, 0.1), (7, 0.05))
        ),
    ],
)
def test_no_piece_is_invented_from_noise(points: int, noise: float) -> None:
    sizes = OCTAVES[:: 21 // (points - 1)][:points]
    invented = sum(len(pieces(sizes, noisy(sizes, seed, noise))) > 1 for seed in range(100))
    assert invented <= 5


def test_a_step_as_small_as_the_noise_or_below_1_percent_is_no_piece() -> None:
    """With 60 sizes the first one is significant, and still not worth a piece."""
    sizes = np.arange(1, 61) * 1024
    assert (
        len(pieces(sizes, noisy(sizes, 1, 0.03, beta=1e-12) * np.where(sizes < 30_000, 1, 1.08)))
        == 1
    )
    assert (
        len(pieces(sizes, noisy(sizes, 1, 0.0, beta=1e-12) * np.where(sizes < 30_000, 1, 1.015)))
        == 1
    )
    assert (
        len(pieces(sizes, noisy(sizes, 1, 0.0, beta=1e-12) * np.where(sizes < 30_000, 1, 1.05))) > 1
    )


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_points_give_one_line_through_them(count: int) -> None:
    (piece,) = pieces(OCTAVES[:count], (ALPHA + BETA * OCTAVES)[:count])
    assert (piece.alpha_s, piece.beta_s_per_byte) == (pytest.approx(ALPHA), pytest.approx(BETA))
    assert piece.largest_residual < 1e-9


def test_a_row_of_three_launches_is_three_and_keeps_its_own_median_and_interval() -> None:
    """timing=rigorous: six visits in each of three fresh worlds."""
    visits = [1.0, 1.2, 2.0, 2.2, 3.0, 3.2]
    columns = {
        "visit_medians_s": [visits],
        "visit_launches": [[1, 1, 2, 2, 3, 3]],
        "interval_of": "launches",
    }
    frame = cases(np.array([8]), np.array([2.1]), interval_level=0.99, run_id="r", **columns)
    rows = rows_of(frame)
    for own in (rows, combine_runs(rows).rows):
        (time,) = families(own)[0].times
        assert (time.launches_s, time.run_id) == (pytest.approx((1.1, 2.1, 3.1)), "r")
        assert time.median == Interval(2.1, 2.1, 2.1, 0.99, 3, "launches")
    resumed = frame.assign(visit_launches=[[1, 1, 1, 2, 2, 2]])
    # two starts of one run are too few to go by
    assert families(rows_of(resumed))[0].times[0].launches_s == (2.1,)


def test_times_that_fall_with_the_size_show_no_bandwidth() -> None:
    (row,) = fitted(cases(np.array([8, 16]), np.array([2.0, 1.0]))).to_dict("records")
    assert row["beta_s_per_byte"] == 0
    assert (row["asymptotic_gb_per_s"], row["n_half_bytes"]) == (None, None)
    assert row["alpha_s"] == pytest.approx(1.2)  # minimises (1 - a/2)^2 + (1 - a)^2
    assert row["largest_residual"] == pytest.approx(0.4)


def test_a_time_that_grows_faster_than_the_size_has_no_latency() -> None:
    (row,) = fitted(cases(np.array([8, 16]), np.array([1.0, 4.0]))).to_dict("records")
    assert (row["alpha_s"], row["n_half_bytes"]) == (0, 0)
    assert row["beta_s_per_byte"] > 0


def test_residuals_are_those_of_each_size() -> None:
    times = switched(0, 0.03)
    curve = pieces(OCTAVES, times)
    fit = np.concatenate(
        [[piece.at(size) for size in OCTAVES[piece.first : piece.last]] for piece in curve]
    )
    assert np.concatenate([piece.residuals for piece in curve]) == pytest.approx(
        (times - fit) / times
    )
    assert max(piece.largest_residual for piece in curve) == pytest.approx(
        np.abs((times - fit) / times).max()
    )


series = st.lists(
    st.tuples(st.integers(1, 2**32), st.floats(1e-9, 1e3)),
    min_size=2,
    max_size=9,
    unique_by=lambda point: point[0],
)


@given(series, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(points: list[tuple[int, float]], random: Any) -> None:
    sizes = np.array([size for size, _ in points])
    times = np.array([time for _, time in points])
    frame = cases(sizes, times)
    shuffled = frame.iloc[random.sample(range(len(frame)), len(frame))]
    pd.testing.assert_frame_equal(fitted(frame), fitted(shuffled))


@given(series, st.integers(-20, 20))
def test_other_units_of_time_scale_alpha_and_beta(
    points: list[tuple[int, float]], exponent: int
) -> None:
    sizes = np.array([size for size, _ in points])
    times = np.array([time for _, time in points])
    before, after = (fitted(cases(sizes, times * scale)) for scale in (1.0, 2.0**exponent))
    for name in ("alpha_s", "beta_s_per_byte"):
        assert after[name].to_numpy() == pytest.approx(
            before[name].to_numpy() * 2.0**exponent, rel=1e-9
        )
    assert after.from_bytes.tolist() == before.from_bytes.tolist()


@given(series)
def test_pieces_cover_all_sizes_and_never_fall(points: list[tuple[int, float]]) -> None:
    sizes, times = (np.array(column) for column in zip(*sorted(points), strict=True))
    curve = pieces(sizes, times)
    assert [curve[0].first, *(piece.last for piece in curve)] == [
        *(piece.first for piece in curve),
        sizes.size,
    ]
    assert all(piece.alpha_s >= 0 and piece.beta_s_per_byte >= 0 for piece in curve)
    assert all(piece.alpha_s + piece.beta_s_per_byte > 0 for piece in curve)


def test_the_simulated_world_s_latency_and_bandwidth_come_back(tmp_path: Path) -> None:
    """Half a round trip is latency + call + bytes / bandwidth; all_reduce on 2 ranks twice latency
    + half the bytes."""
    words = ("benchmark=[p2p_latency,all_reduce]", f"sizes={OCTAVES[:17].tolist()}", *FIXED)
    model = (
        "backend.model.latency_s=5e-6",
        "backend.model.bandwidth_gb_per_s=2",
        "backend.model.noise=0.02",
    )
    folder = commbench.run(
        "backend=simulated", "writer=parquet", f"output={tmp_path}", *words, *model
    )
    table = fitted(commbench.load(folder)).set_index("benchmark")
    assert len(table) == 2
    assert table.alpha_s["p2p_latency"] == pytest.approx(5.1e-6, rel=0.02)
    assert table.alpha_s["all_reduce"] == pytest.approx(10e-6, rel=0.02)
    assert table.asymptotic_gb_per_s.to_numpy() == pytest.approx([2, 2], rel=0.02)
    assert table.n_half_bytes["all_reduce"] == pytest.approx(20_000, rel=0.04)


def row(**more: Any) -> Row:
    """A measured case; the interval is -+ 1 % of the median unless told otherwise."""
    names = {"benchmark": "all_reduce", "status": "ok", "label": "", "run_id": "r"}
    median_s = more.get("median_s")
    ends = {} if median_s is None else {"ci_low_s": 0.99 * median_s, "ci_high_s": 1.01 * median_s}
    return case_row(**names | {"world_size": 2} | ends | more)


def test_several_runs_give_their_median_and_the_widest_interval() -> None:
    runs = [row(run_id=f"{n}", median_s=t) for n, t in enumerate([1.0, 3, 2])]
    (family,) = families(runs)
    assert (family.median_s.tolist(), family.low_s.tolist(), family.high_s.tolist()) == (
        [2.0],
        [0.99],
        [1.01 * 3],
    )
    assert (family.launches, family.times[0].launches_s) == (3, (1.0, 3.0, 2.0))
    labelled = [replace(run, label=label) for run, label in zip(runs, ("a", "", None), strict=True)]
    # labels are kept apart
    assert sorted(family.launches for family in families(labelled)) == [1, 2]


def test_one_rank_and_simulated_cases_answer_nothing_beside_real_ones() -> None:
    rows = [row(engine="virtual"), row(engine="python"), row(world_size=1)]
    assert [each.engine for each in answerable(rows)] == ["python"]
    assert len(answerable(rows[:1])) == 1


@pytest.mark.parametrize(
    "name", ["library", "hosts", "label", "bind", "backend_options", "streams"]
)
def test_what_differs_is_not_merged(name: str) -> None:
    """Open MPI's 177 ns and MPICH's 1.02 us must not become 599 ns, a time that no library has."""
    values = {"backend_options": [{"threads": "multiple"}, {}], "streams": [1, 36]}.get(
        name, ["a", "b"]
    )
    runs = [
        row(run_id=f"{n}", median_s=t, **{name: values[n]}) for n, t in enumerate([177e-9, 1.02e-6])
    ]
    assert sorted(family.median_s[0] for family in families(runs)) == [
        177e-9,
        1.02e-6,
    ]


def test_a_run_without_an_interval_is_inside_the_others() -> None:
    unknown = {"ci_low_s": None, "ci_high_s": None}
    runs = [row(median_s=2.0), row(median_s=5.0, **unknown), row(median_s=1.0, **unknown)]
    (family,) = families(runs)
    assert (family.low_s[0], family.high_s[0]) == (1.0, 5.0)
    (alone,) = families(runs[1:])
    assert np.isnan([alone.low_s[0], alone.high_s[0]]).all()


def test_what_can_not_be_used_is_counted_by_its_reason() -> None:
    rows = [
        row(median_s=1.0),
        row(median_s=float("nan")),
        row(median_s=0.0),
        row(median_s=float("inf")),
    ]
    rows += [row(status=status) for status in ("skipped", "skipped", "invalid")]
    assert ignored(rows) == {"invalid": 1, "ok without a time": 3, "skipped": 2}
    assert [family.launches for family in families(rows)] == [1]


def test_an_operation_without_a_message_has_no_family_and_is_not_called_bad() -> None:
    barrier = [row(benchmark="barrier", message_bytes=0, median_s=1e-6)]
    assert (families(barrier), ignored(barrier)) == ([], {})


def test_another_environment_is_another_family() -> None:
    rows = [
        row(median_s=1.0),
        row(median_s=2.0, env={"A": "1"}),
        row(median_s=3.0, message_bytes=16),
    ]
    assert sorted(family.median_s.tolist() for family in families(rows)) == [
        [1.0, 3.0],
        [2.0],
    ]


def test_a_shrinking_window_stays_in_its_family() -> None:
    sizes = {8: (1, 16, 64), 1 << 23: (1, 16, 32), 1 << 25: (1, 8), 1 << 28: (1,)}
    rows = [
        row(message_bytes=size, window=window, median_s=window + 0.5)
        for size, windows in sizes.items()
        for window in windows
    ]
    medians = {family.variables.window: family.median_s.tolist() for family in families(rows)}
    assert medians == {1: [1.5] * 4, 16: [16.5, 16.5, 8.5, 1.5], 64: [64.5, 32.5, 8.5, 1.5]}


def test_the_rows_order_does_not_matter() -> None:
    rows = [
        row(backend=name, message_bytes=size, median_s=size * 1.5)
        for name in "ba"
        for size in (32, 8, 16)
    ]
    by_order = [
        [(key(family.variables), family.sizes.tolist()) for family in families(order)]
        for order in (rows, rows[::-1])
    ]
    assert by_order[0] == by_order[1]
    assert [family.variables.backend for family in families(rows)] == ["a", "b"]


def test_the_tool_s_own_windows_shrink_into_one_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commbench.measure.plan.WINDOW_CAP_BYTES", 2**20)
    words = (
        "benchmark=p2p_bandwidth",
        "sizes=[8,1KiB,64KiB]",
        "window=[4,64]",
        *FIXED,
        "timing.repetitions=6",
    )
    folder = commbench.run("backend=simulated", "writer=parquet", f"output={tmp_path}", *words)
    cases = commbench.load(folder)
    assert set(cases.window) == {4, 16, 64}
    found = families(rows_of_frame(cases))
    assert [family.sizes.tolist() for family in found] == [[8, 1024, 1 << 16]] * 2


def test_the_pieces_of_thousands_of_sizes_take_a_second() -> None:
    """Two lines that meet at the 1,000th of 4,000 sizes, with noise of 2 %."""
    sizes = np.arange(1.0, 4001.0) * 1024
    times = np.where(sizes < 1000 * 1024, 1e-5 + sizes * 1e-9, 2e-5 + sizes * 4e-10)
    times *= np.random.default_rng(1).normal(1.0, 0.02, sizes.size)
    begin_s = time.process_time()
    found = pieces(sizes, times)
    assert time.process_time() - begin_s < 20
    assert found[0].last in range(900, 1100)
    assert found[0].beta_s_per_byte == pytest.approx(1e-9, rel=0.1)
