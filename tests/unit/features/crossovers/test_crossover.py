"""Crossovers: planted ones lie in the reported bracket, and overlapping intervals decide
nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from size_rows import OCTAVES, rows_of, size_rows

import commbench
from commbench.core.errors import ConfigError
from commbench.features.crossovers.crossover import comparisons, crossovers, sentences
from commbench.features.crossovers.fastest import fastest_by_size

LINES = {"mpi": (1e-6, 1e-9), "gloo": (25e-6, 1e-10)}  # alpha in seconds, beta in seconds per byte
FIXED = (
    "timing=fixed",
    "timing.repetitions=40",
    "timing.warmup_repetitions=2",
    "timing.warmup_s=0",
)
PLANTED = 24e-6 / 0.9e-9  # bytes where the two lines meet: 26667


def lines(seed: int = 0, noise: float = 0.0) -> dict[str, list[float]]:
    random = np.random.default_rng(seed)
    return {
        name: (
            (
                (alpha + beta * np.array(OCTAVES))
                * np.exp(noise * random.standard_normal(len(OCTAVES)))
            ).tolist()
        )
        for name, (alpha, beta) in LINES.items()
    }


def texts(cases: pd.DataFrame, variable: str = "backend") -> list[str]:
    return sentences(comparisons(rows_of(cases), variable), variable)


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_crossover_is_in_its_bracket(seed: int) -> None:
    (row,) = crossovers(size_rows(lines(seed, noise=0.02), half=0.06)).to_dict("records")
    assert (row["below"], row["above"], row["benchmark"]) == ("mpi", "gloo", "all_reduce")
    assert row["low_bytes"] < PLANTED < row["high_bytes"]
    assert row["low_bytes"] < row["crossover_bytes"] < row["high_bytes"]
    assert row["crossover_bytes"] == pytest.approx(PLANTED, rel=0.15)
    assert row["high_bytes"] / row["low_bytes"] <= 4


def test_wider_intervals_widen_the_bracket() -> None:
    narrow, wide = (crossovers(size_rows(lines(), half=half)).iloc[0] for half in (0.02, 0.4))
    assert (narrow.low_bytes, narrow.high_bytes) == (1 << 14, 1 << 15)
    assert (wide.low_bytes, wide.high_bytes) == (1 << 13, 1 << 17)
    assert narrow.crossover_bytes == wide.crossover_bytes


def test_it_is_said_in_a_sentence() -> None:
    (text,) = texts(size_rows(lines(), half=0.4))
    expected = "mpi below 26.1 KiB (between 8 KiB and 128 KiB), gloo above"
    assert (
        text
        == f"all_reduce: in this run {expected} (22 sizes, 8 B .. 16 MiB; not distinguishable at 3)"
    )


def test_two_crossovers_are_two_rows_and_one_sentence() -> None:
    frame = size_rows(
        {"mpi": [1, 1, 4, 4, 9, 9], "gloo": [2, 2, 2, 2, 18, 18]}, sizes=[1, 2, 4, 8, 16, 32]
    )
    assert crossovers(frame)[["low_bytes", "high_bytes"]].to_numpy().tolist() == [[2, 4], [8, 16]]
    (text,) = texts(frame)
    assert (
        text
        == "all_reduce: in this run mpi below 3 B (between 2 B and 4 B), gloo up to 11 B (between 8"
        " B and 16 B), mpi above (6 sizes, 1 B .. 32 B)"
    )


def test_one_size_makes_no_crossover() -> None:
    frame = size_rows(
        {"mpi": [1, 1, 1, 9, 1, 1], "gloo": [2, 2, 2, 2, 2, 2]}, sizes=[1, 2, 4, 8, 16, 32]
    )
    assert crossovers(frame).empty
    assert texts(frame) == [
        "all_reduce: in this run mpi is faster than gloo where they differ (6 sizes, 1 B .. 32 B)"
    ]


def test_launches_decide_and_a_single_one_speaks_of_this_run_only() -> None:
    """1.3 x in one run each may be the luck of the launch; with six launches of each it is not."""
    times = {"mpi": [1.0, 2.0], "gloo": [1.3, 2.6]}
    runs = [
        size_rows(times, [8, 16]).assign(run_id=[f"mpi {n}"] * 2 + [f"gloo {n}"] * 2)
        for n in range(6)
    ]
    assert (
        fastest_by_size(runs[0])[["best", "launches"]].to_numpy().tolist()
        == [["not distinguishable", 1]] * 2
    )
    assert (
        fastest_by_size(pd.concat(runs))[["best", "launches"]].to_numpy().tolist()
        == [["mpi", 6]] * 2
    )
    (text,) = texts(pd.concat(runs))
    assert text == "all_reduce: mpi is faster than gloo (2 sizes, 8 B .. 16 B)"


@pytest.mark.parametrize(("mpi", "gloo"), [(4, 2), (2, 4)])
def test_the_fastest_is_that_of_this_run_where_one_side_has_few_launches(
    mpi: int, gloo: int
) -> None:
    times = {"mpi": [1.0, 2.0], "gloo": [3.0, 6.0]}
    counts = {"mpi": mpi, "gloo": gloo}
    frame = pd.concat(
        size_rows({name: times[name]}, [8, 16]).assign(run_id=f"{name} {launch}")
        for name, count in counts.items()
        for launch in range(count)
    )
    assert fastest_by_size(frame)[["best", "launches"]].to_numpy().tolist() == [["mpi", 2]] * 2
    assert texts(frame) == [
        "all_reduce: in this run mpi is faster than gloo (2 sizes, 8 B .. 16 B)"
    ]


def test_the_size_with_the_fewest_launches_counts() -> None:
    frame = pd.concat(
        size_rows({"mpi": [1.0, 2.0], "gloo": [3.0, 6.0]}, [8, 16]).assign(run_id=f"{launch}")
        for launch in range(6)
    )
    (text,) = texts(frame)
    assert text == "all_reduce: mpi is faster than gloo (2 sizes, 8 B .. 16 B)"
    one_of_16 = frame[(frame["message_bytes"] == 8) | (frame["run_id"] == "0")]
    (text,) = texts(one_of_16)
    assert text == "all_reduce: in this run mpi is faster than gloo (2 sizes, 8 B .. 16 B)"


@pytest.mark.parametrize(
    ("mpi", "gloo", "half", "words"),
    [
        ([1, 2], [3, 4], 0.02, "in this run mpi is faster than gloo (2 sizes, 8 B .. 16 B)"),
        (
            [3, 2, 2],
            [3, 1, 1],
            0.02,
            "in this run gloo is faster than mpi where they differ (3 sizes, 8 B .. 32 B; ",
        ),
        (
            [3, 2],
            [3, 1],
            0.02,
            "gloo and mpi are not distinguishable; gloo is faster at one size only (2 sizes, 8 B",
        ),
        (
            [1, 2],
            [2, 1],
            0.9,
            "gloo and mpi are not distinguishable (2 sizes, 8 B .. 16 B; not distinguishable at 2)",
        ),
        ([1, 2], [2, 1], np.nan, "gloo and mpi are not distinguishable"),
    ],
)
def test_what_does_not_cross_is_said_too(
    mpi: list[float], gloo: list[float], half: float, words: str
) -> None:
    frame = size_rows({"mpi": mpi, "gloo": gloo}, sizes=[8, 16, 32][: len(mpi)], half=half)
    assert crossovers(frame).empty
    (text,) = texts(frame)
    assert text.startswith(f"all_reduce: {words}")


def test_medians_that_cross_thrice_between_certain_sizes_have_one_crossover() -> None:
    mpi = [1, 1, 8, 8, 8, 9, 9]
    gloo = [4, 4, 7.9, 8.1, 7.9, 3, 3]
    frame = size_rows({"mpi": mpi, "gloo": gloo}, sizes=[1, 2, 4, 8, 16, 32, 64])
    (row,) = crossovers(frame).to_dict("records")
    assert (row["low_bytes"], row["high_bytes"]) == (2, 32)
    assert 4 < row["crossover_bytes"] < 16


@pytest.mark.parametrize(
    ("mpi", "place"),
    [([2.0, 4.0, 8.0], 8.0), ([4.0, 2.0, 8.0], 128**0.5), ([2.0, 8.0, 4.0], 32**0.5)],
    ids=["tie at the crossing", "tie before it", "tie after it"],
)
def test_a_tie_is_a_crossover_only_where_the_winner_changes(mpi: list[float], place: float) -> None:
    frame = size_rows(
        {"mpi": [1.0, 1.0, *mpi, 9.0, 9.0], "gloo": [4.0] * 7},
        sizes=[1, 2, 4, 8, 16, 32, 64],
        half=0.3,
    )
    (row,) = crossovers(frame).to_dict("records")
    assert (row["low_bytes"], row["high_bytes"]) == (2, 32)
    assert row["crossover_bytes"] == pytest.approx(place)


def test_a_backend_brings_its_engine_and_is_not_compared_with_itself() -> None:
    frame = pd.concat(
        [
            size_rows({"mpi": [1.0, 1.0, 9.0, 9.0]}, sizes=[8, 16, 32, 64], engine="native"),
            size_rows(
                {"mpi": [3.0, 3.0, 4.0, 4.0], "gloo": [5.0] * 4},
                sizes=[8, 16, 32, 64],
                engine="python",
            ),
        ]
    )
    assert crossovers(frame)[["below", "above"]].to_numpy().tolist() == [
        ["mpi (native)", "gloo (python)"]
    ]
    assert len(texts(frame)) == 2
    (text,) = texts(frame, "engine")
    assert text.startswith("all_reduce: in this run native below ")


def test_families_that_differ_in_more_are_not_compared() -> None:
    frame = pd.concat(
        [
            size_rows({"mpi": [1.0, 9.0]}, [8, 16]),
            size_rows({"gloo": [5.0, 5.0]}, [8, 16], layout="1x4"),
        ]
    )
    assert crossovers(frame).empty
    assert texts(frame) == []
    assert fastest_by_size(frame).empty
    both = fastest_by_size(frame, "backend", "layout")
    assert both.best.tolist() == ["mpi 1x2", "gloo 1x4"]
    assert both.ratio.tolist() == [5.0, 1.8]


def test_other_variables_are_told_where_they_differ() -> None:
    times = {"a": [1.0], "b": [2.0]}
    frame = pd.concat(
        [size_rows(times, [8], in_place=True), size_rows(times, [8], in_place=False, layout="1x4")]
    )
    labels = [text.partition(": ")[0] for text in texts(frame)]
    assert labels == ["all_reduce, 1x2, in_place True", "all_reduce, 1x4, in_place False"]


def test_an_unknown_variable_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(
        ConfigError, match="variable=speed can't be compared; allowed: benchmark, backend, layout"
    ):
        crossovers(size_rows(lines()), "speed")


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=12),
    st.floats(0, 0.5),
)
def test_exchanging_the_two_exchanges_only_the_words(
    points: list[tuple[float, float]], half: float
) -> None:
    sizes = OCTAVES[: len(points)]
    first, other = ([point[index] for point in points] for index in (0, 1))
    table = crossovers(size_rows({"a": first, "b": other}, sizes, half))
    mirrored = crossovers(size_rows({"b": first, "a": other}, sizes, half))
    assert table.below.tolist() == mirrored.above.tolist()
    assert table.crossover_bytes.to_numpy() == pytest.approx(mirrored.crossover_bytes.to_numpy())
    assert (
        (table.low_bytes <= table.crossover_bytes * 1.000001)
        & (table.crossover_bytes <= table.high_bytes * 1.000001)
    ).all()
    assert (table.low_bytes.to_numpy()[1:] >= table.high_bytes.to_numpy()[:-1]).all()


def test_two_simulated_worlds_cross_where_their_models_do(tmp_path: Path) -> None:
    """Half a round trip of 1 us + m / 1 GB/s against 10 us + m / 4 GB/s: 12 kB; one launch of each,
    so 2.4 x apart."""
    words = (
        "backend=simulated",
        "backend.model.noise=0.02",
        "benchmark=p2p_latency",
        f"sizes={OCTAVES[7:15]}",
    )
    for label, latency, bandwidth in (("near", "1e-6", 1), ("far", "10e-6", 4)):
        model = (
            f"backend.model.latency_s={latency}",
            f"backend.model.bandwidth_gb_per_s={bandwidth}",
        )
        stored = (f"label={label}", "writer=parquet", f"output={tmp_path}")
        commbench.run(*words, *FIXED, *model, *stored)
    (row,) = crossovers(commbench.load(tmp_path), "label").to_dict("records")
    assert (row["low_bytes"], row["high_bytes"]) == (2048, 65536)
    assert row["crossover_bytes"] == pytest.approx(12_000, rel=0.05)
    assert (row["below"], row["above"]) == ("label near", "label far")
