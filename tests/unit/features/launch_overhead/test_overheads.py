"""The cost of launching a call: what is subtracted, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from generated_results import row

from commbench.features.launch_overhead.overheads import launch_overheads, overhead_cells
from commbench.results.row import Row, row_of

WAY = ("nccl", "python", 20e-6, 100e9)


def case(mode: str, median_s: float, size: int = 1024, run: str = "r", **more: Any) -> Row:
    made = row(run, "all_reduce", WAY, "1x8", size, np.random.default_rng(0))
    return row_of(made | {"timer": mode, "median_s": median_s, "device": "cuda"} | more)


@pytest.mark.parametrize(("waited", "replayed"), [(30e-6, 10e-6), (1e-6, 1e-2)])
def test_the_difference_is_that_of_the_medians(waited: float, replayed: float) -> None:
    overheads = launch_overheads([case("host_sync", waited), case("graph", replayed)])
    (times,) = overheads
    assert (times.host_sync_s, times.graph_s, times.overhead_s) == (
        waited,
        replayed,
        pytest.approx(waited - replayed),
    )
    assert overhead_cells(overheads)[0][:2] == ("all_reduce", "nccl 1x8 float32")


def test_several_launches_are_put_together_by_their_medians() -> None:
    rows = [case("host_sync", value, run=f"r{value}") for value in (30e-6, 50e-6, 40e-6)]
    (overhead,) = launch_overheads([*rows, case("graph", 10e-6)])
    assert overhead.overhead_s == pytest.approx(30e-6)


@pytest.mark.parametrize(
    "other",
    [
        {"message_bytes": 8},
        {"dtype": "int8"},
        {"layout": "2x4"},
        {"env": {"NCCL_ALGO": "Ring"}},
        {"status": "failed"},
        {"timer": "throughput"},
        {"backend": "cupy_nccl"},
        {"label": "other"},
        {"hosts": "other"},
    ],
    ids=str,
)
def test_cases_that_differ_in_more_are_not_subtracted(other: dict[str, Any]) -> None:
    assert launch_overheads([case("host_sync", 2e-6), case("graph", 1e-6, **other)]) == []


def test_libraries_and_labels_are_named_where_they_differ() -> None:
    modes = {"host_sync": 2e-6, "graph": 1e-6}
    whose = ({"library": "NCCL 2.20", "label": "a"}, {"library": "NCCL 2.27", "label": "a"})
    rows = [case(mode, median_s, **more) for mode, median_s in modes.items() for more in whose]
    cells = overhead_cells(launch_overheads(rows))
    assert [row[1] for row in cells] == ["nccl 1x8 float32 NCCL 2.20", "nccl 1x8 float32 NCCL 2.27"]


def test_settings_are_named_where_they_differ_and_are_not_the_usual_ones() -> None:
    modes = {"host_sync": 2e-6, "graph": 1e-6}
    settings = ({"registration": "symmetric"}, {"registration": "none"})
    rows = [case(mode, median_s, **more) for mode, median_s in modes.items() for more in settings]
    named = [row[1] for row in overhead_cells(launch_overheads(rows))]
    assert named == ["nccl 1x8 float32 registration symmetric", "nccl 1x8 float32"]


def test_pairs_are_told_apart_and_null_variables_are_alike() -> None:
    modes = {"host_sync": 2e-6, "graph": 1e-6}
    rows = [
        case(mode, median_s, pair=pair)
        for mode, median_s in modes.items()
        for pair in ("0-1", "0-2")
    ]
    assert [each.row.pair for each in launch_overheads(rows)] == ["0-1", "0-2"]
