"""The best at each size: of those that are compared, and in words."""

from __future__ import annotations

import pandas as pd
from size_rows import rows_of, size_rows

from commbench.analysis.best import (
    BEST_CELLS,
    UNDECIDED,
    best_backends_and_layouts,
    best_of_each_size,
    best_rows,
)


def test_the_best_of_three_is_named_only_where_it_is_alone() -> None:
    frame = size_rows(
        {"a": [1.0, 2.0, 9.0], "b": [2.0, 1.99, 3.0], "c": [3.0, 3.0, 3.01]}, sizes=[8, 16, 32]
    )
    found = best_of_each_size(rows_of(frame), "backend")
    assert [best.best for best in found] == ["a", UNDECIDED, UNDECIDED]
    assert [best.alike for best in found] == [("a",), ("b", "a"), ("b", "c")]
    assert [best.second for best in found] == ["b", "a", "c"]


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
