"""The best at each size: of those that are compared, and in words."""

from __future__ import annotations

import numpy as np
import pandas as pd
from size_rows import rows_of, size_rows

from commbench.analysis.best import (
    BEST_CELLS,
    best_backends_and_layouts,
    best_rows,
    fastest_by_size,
)
from commbench.stats.difference import Time
from commbench.stats.interval import Interval


def measured(median_s: float, launches: int) -> Time:
    return Time(Interval(median_s, 0.9 * median_s, 1.1 * median_s), (median_s,) * launches)


def test_the_best_of_three_is_named_only_where_it_is_alone() -> None:
    frame = size_rows(
        {"a": [1.0, 2.0, 9.0], "b": [2.0, 1.99, 3.0], "c": [3.0, 3.0, 3.01]}, sizes=[8, 16, 32]
    )
    table = fastest_by_size(frame)
    assert table.best.tolist() == ["a", "not distinguishable", "not distinguishable"]
    assert table.alike.tolist() == [("a",), ("b", "a"), ("b", "c")]
    assert table.second.tolist() == ["b", "a", "c"]
    assert table.compared.tolist() == [3, 3, 3]


def test_without_intervals_nothing_is_fastest_by_size() -> None:
    table = fastest_by_size(size_rows({"a": [1.0], "b": [9.0]}, sizes=[8], half=np.nan))
    assert table[["best", "alike"]].to_numpy().tolist() == [["not distinguishable", ("a", "b")]]
    assert table[["ci_low_s", "ci_high_s"]].isna().all(axis=None)


def test_a_size_that_one_backend_has_alone_has_no_fastest_by_size() -> None:
    frame = size_rows({"a": [1.0, 2.0], "b": [2.0, 1.0]}, sizes=[8, 16])
    assert fastest_by_size(frame.iloc[:3]).message_bytes.tolist() == [8]


def test_layouts_are_compared_where_they_have_as_many_ranks() -> None:
    frame = pd.concat(
        [
            size_rows({"mpi": [1.0], "gloo": [3.0]}, [8], layout="1x4").assign(world_size=4),
            size_rows({"mpi": [9.0]}, [8], layout="2x2").assign(world_size=4),
            size_rows({"mpi": [0.1]}, [8], layout="1x2").assign(world_size=2),
        ]
    )
    (best,) = best_backends_and_layouts(rows_of(frame))
    assert [rival.name for rival in best.rivals] == ["mpi 1x4", "gloo 1x4", "mpi 2x2"]
    (cells,) = best_rows([best])
    row = dict(zip(BEST_CELLS, cells, strict=True))
    assert (row["ranks"], row["best"], row["second"]) == ("4", "mpi 1x4", "gloo 1x4")
    assert row["takes"] == "3 x" and row["based on"] == "1 launch"
