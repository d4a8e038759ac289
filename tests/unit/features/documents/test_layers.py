"""What each layer of a stack adds: only layers that lie on one another are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sample_cases import case_row

from commbench.features.documents.layers import layers_of

LAYERS = {("mpi", "native"): 1e-6, ("mpi", "python"): 3e-6, ("gloo", "python"): 60e-6}


def rows(*sizes: int, **changed: Any) -> list[dict[str, Any]]:
    """MPI from Python lies on MPI from C; gloo does not lie on MPI."""
    return [
        case_row(
            **{
                "benchmark": "all_reduce",
                "backend": backend,
                "engine": engine,
                "message_bytes": size,
                "median_s": seconds * size,
                "streams": None,
                **changed,
            }
        )
        for size in sizes
        for (backend, engine), seconds in LAYERS.items()
    ]


def test_layers_of_the_smallest_and_the_largest_message_lie_on_one_another() -> None:
    smallest, largest = layers_of(rows(8, 64, 1024))
    assert smallest.title == "all_reduce, 8 B, 1x2" and "1 KiB" in largest.title
    assert [seconds for _, seconds in smallest.times] == [8e-6, 24e-6]
    assert not any("gloo" in name for name, _ in smallest.times)


def test_a_layer_that_is_faster_than_the_one_below_shows_nothing() -> None:
    faster = [replace(row, median_s=1e-9) if row.engine == "python" else row for row in rows(8)]
    assert layers_of(faster) == []


def test_a_layer_lies_on_its_own_library_only() -> None:
    libraries = {"native": "Open MPI", "python": "MPICH"}
    apart = [replace(row, library=libraries[row.engine]) for row in rows(8)]
    assert layers_of(apart) == []
    assert len(layers_of([*apart, *rows(8, library="MPICH")[:1]])) == 1


def test_several_streams_are_no_layer() -> None:
    assert layers_of(rows(8, streams=4)) == [] != layers_of(rows(8, streams=1))


def test_figures_that_differ_in_a_variable_are_named_with_it() -> None:
    titles = [each.title for each in layers_of([*rows(8), *rows(8, in_place=True)])]
    assert len(set(titles)) == 2 and any("in_place True" in title for title in titles)
