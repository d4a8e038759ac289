"""Notebooks on results of their experiments' full scale, of several runs: lines have names of their
own, panels what is there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from generated_results import row
from matplotlib.axes import Axes
from places import ROOT

from commbench.results.columns import arrow_schema

NATIVE = ("mpi", "native", 2e-6, 1e9)
SIZES = (8, 1024, 1024**2)
RUNS = ("20260101T000000.000000-0000", "20260102T000000.000000-0000")
INTERVALS = 5


@pytest.fixture(autouse=True)
def no_screen() -> Iterator[None]:
    mpl.use("agg")
    with mpl.rc_context():
        yield
    plt.close("all")


def rows_of(
    benchmark: str,
    layout: str,
    runs: Sequence[str] = RUNS,
    sizes: Sequence[int] = SIZES,
    **more: Any,
) -> list[dict[str, Any]]:
    """Rows of a benchmark in several runs; `more` are columns."""
    noise = np.random.default_rng(0)
    made = []
    for (trial, run), size in product(enumerate(runs), sizes):
        own = row(run, benchmark, NATIVE, layout, size, noise)
        busbw = None if own["pair"] else 1.5 * own["algbw_gb_per_s"]
        made.append(own | {"trial": trial, "busbw_gb_per_s": busbw} | more)
    return made


def stored(file: Path, rows: Sequence[dict[str, Any]], table: str = "cases") -> str:
    """The path of a parquet file with these rows, each a case of its own."""
    numbered = [{"case_id": str(number)} | each for number, each in enumerate(rows)]
    if table == "cases":
        numbered = [each | {"case_id": str(number)} for number, each in enumerate(rows)]
    pq.write_table(pa.Table.from_pylist(numbered, arrow_schema(table)), file)
    return str(file)


def axes_of(name: str, **paths: str) -> list[list[Axes]]:
    """The drawn axes of each figure of a notebook, whose paths are replaced by these."""
    book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    space: dict[str, Any] = {}
    for cell in book.cells:
        source = str(cell.source)
        for variable, path in paths.items():
            source = re.sub(rf"^{variable} = .*$", f"{variable} = {path!r}", source, flags=re.M)
        if cell.cell_type == "code":
            exec(compile(source, name, "exec"), space)
    figures = [plt.figure(number) for number in plt.get_fignums()]
    return [[axes for axes in figure.axes if axes.axison] for figure in figures]


def names_in(axes: Axes) -> list[str]:
    return [str(line.get_label()) for line in axes.get_lines()]


def clouds() -> list[dict[str, Any]]:
    """One MPI library against another: two labels, which bring the library along."""
    rows = []
    for label in ("openmpi", "mpich"):
        own = {"label": label, "library": label}
        rows += rows_of("p2p_latency", "2x1", **own)
        rows += rows_of("p2p_bandwidth", "2x1", window=64, **own)
        for benchmark, layout in product(("all_reduce", "broadcast", "gather"), ("32x36", "8x44")):
            rows += rows_of(benchmark, layout, **own)
    return rows


def test_backends_and_layouts_have_a_line_or_a_panel_each(tmp_path: Path) -> None:
    fixed = {"timing": "fixed"}
    rows = [*clouds(), *rows_of("exchange", "10x2", sizes=(20,))]
    for device in ("cpu", "cuda"):
        rows += rows_of("p2p_latency", "2x1", device=device, **fixed)
    for used in ("on", "off"):
        rows += rows_of("p2p_latency", "1x2", device="cuda", cuda_ipc=used, **fixed)
    for backend, layout in product(("nccl", "mpi"), ("8x1", "4x2", "2x4", "1x8")):
        rows += rows_of("all_reduce", layout, backend=backend, device="cuda", **fixed)
    p2p, reduce, cloud, collectives = axes_of(
        "02_backends_and_layouts", RESULTS=stored(tmp_path / "02.parquet", rows)
    )
    assert sorted(names_in(p2p[0])) == [
        "1x2, cuda, cuda_ipc off",
        "1x2, cuda, cuda_ipc on",
        "2x1, cpu, cuda_ipc auto",
        "2x1, cuda, cuda_ipc auto",
    ]
    assert [axes.get_title() for axes in reduce] == [
        f"layout {layout}" for layout in ("1x8", "2x4", "4x2", "8x1")
    ]
    assert all(sorted(names_in(axes)) == ["mpi", "nccl"] for axes in reduce)
    assert sorted(names_in(cloud[0])) == ["mpich", "openmpi"]
    assert sorted(names_in(collectives[0])) == [
        f"{label}, {layout}" for label, layout in product(("mpich", "openmpi"), ("32x36", "8x44"))
    ]


def soaks(tmp_path: Path, pairs: Sequence[str]) -> dict[str, str]:
    """A long soak of these pairs, and two short ones with other buffers; their intervals."""
    options = {"buffer_bytes": "null", "no_delay": "true"}
    kinds = [(RUNS[0], pair, options, INTERVALS) for pair in pairs]
    kinds += [(RUNS[1], "0-1", options | {"buffer_bytes": "16384"}, INTERVALS - 2)]
    kinds += [("20260103T000000.000000-0000", "0-1", options, INTERVALS - 2)]
    rows, counters = [], []
    for number, (run, pair, used, intervals) in enumerate(kinds):
        more = {"timing": "soak", "pair": pair, "backend": "tcp", "backend_options": used}
        ramp = {"end_gb_per_s": 1.0, "first_second_gb_per_s": 0.5, "full_speed_s": 0.1 * number}
        rows += rows_of("stream", "4x1", [run], (262144,), streams=1, **more, **ramp)
        for at in range(intervals):
            place = {"run_id": run, "case_id": str(number), "rank": 0, "t_ns": at * 10**8}
            values = {"repetitions": 90.0 + number + at, "busy_s": 0.1, "median_s": 1e-3}
            counters += [
                place | {"name": f"interval.{name}", "value": value}
                for name, value in values.items()
            ]
    return {
        "RESULTS": stored(tmp_path / "04.parquet", rows),
        "COUNTERS": stored(tmp_path / "04.counters.parquet", counters, "counters"),
    }


@pytest.mark.parametrize("count", [1, 16])
def test_each_pair_of_a_soak_has_a_line_over_time(tmp_path: Path, count: int) -> None:
    pairs = [f"{first}-{second}" for first, second in product(range(4), repeat=2)]
    over_time, times = axes_of("04_stability", **soaks(tmp_path, pairs[:count]))
    assert [axes.get_title() for axes in over_time] == [f"ranks {pair}" for pair in pairs[:count]]
    assert all(len(axes.get_lines()[0].get_xdata()) == INTERVALS for axes in over_time)
    assert times[0].get_ylabel() == f"of {count + 2}"


@pytest.mark.parametrize("labels", [("sriov", "plain"), ("base", "new")])
def test_two_settings_are_compared_whatever_their_labels(
    tmp_path: Path, labels: tuple[str, str]
) -> None:
    rows = []
    for label, options in zip(labels, ({"mtu": "9000"}, {"mtu": "1500"}), strict=True):
        more = {"timing": "soak", "label": label, "backend_options": options}
        rows += rows_of("p2p_bandwidth", "2x1", sizes=(16384,), window=64, **more)
        rows += rows_of("p2p_latency", "2x1", sizes=(8,), **more)
    ratios, launches = axes_of("05_compare", RESULTS=stored(tmp_path / "05.parquet", rows))
    assert len(ratios[0].get_yticks()) == 2
    assert {text.get_text() for text in launches[0].get_legend().get_texts()} == set(labels)
