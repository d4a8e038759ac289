"""Hockney's model: planted lines and protocol switches are found, noise is not split."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from size_rows import rows_of

import commbench
from commbench.analysis.families import families
from commbench.features.hockney.model import pieces
from commbench.results.row import plain_values

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
