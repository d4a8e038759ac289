"""The fastest at each size, as a frame."""

from __future__ import annotations

import numpy as np
from size_rows import size_rows

from commbench.features.crossovers.fastest import fastest_by_size


def test_the_columns_name_the_best_those_that_are_alike_and_the_second() -> None:
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
