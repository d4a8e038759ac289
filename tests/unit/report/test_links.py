"""Coloured tables: a colour for each class of pairs, shades within it, a ring round the slow ones;
links of devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import HARDWARE_TEXTS

import commbench
from commbench.analysis.slow_pairs import ACROSS_NODES, SAME_NODE, SELF, matrices
from commbench.report import links
from commbench.report.figures import ramp
from commbench.report.links import CLASS_RAMPS, pairs_table, wiring_table
from commbench.results.load import row_dicts


def test_a_class_has_its_colour_and_its_slow_link_a_ring_and_the_darkest_shade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = commbench.run(
        "backend=simulated",
        "benchmark=p2p_latency",
        "sizes=[8]",
        "layout=2x2",
        "pairs=all",
        "writer=parquet",
        "timing=fixed",
        "timing.repetitions=20",
        "timing.warmup_s=0",
        "backend.model.slow_pair=0-2",
        "backend.model.slow_factor=3",
        f"output={tmp_path}",
    )
    (matrix,) = matrices(row_dicts(commbench.load(folder)))
    table = pairs_table(matrix)
    assert table.title == "p2p_latency 8 B, simulated 2x2: median in us"
    assert table.names == ["0", "1", "2", "3"] and table.rows[0][1].text == "2.10"
    monkeypatch.setattr(links, "LARGEST_WITH_NUMBERS", 3)
    dense = pairs_table(matrix)
    assert dense.is_dense and not table.is_dense
    assert {cell.text for row in dense.rows for cell in row} == {""}, "no room for numbers"
    assert dense.rows[0][1].tip == table.rows[0][1].tip
    cells = {
        (first, second): cell
        for first, row in enumerate(table.rows)
        for second, cell in enumerate(row)
    }
    assert len(cells) == 16
    hues = {
        name: {ramp(share / 100, stops)[0] for share in range(101)}
        for name, stops in CLASS_RAMPS.items()
    }
    for (first, second), cell in cells.items():
        assert cell.tip.startswith(f"{first} to {second}: ")
        name = SELF if first == second else SAME_NODE if first // 2 == second // 2 else ACROSS_NODES
        assert any(near(cell.fill, hue) for hue in hues[name]), (first, second, cell.fill)
    assert [pair for pair, cell in cells.items() if cell.slow] == [
        (0, 2),
        (2, 0),
    ], "a ping-pong goes both ways"
    light = {
        pair: sum(int(cell.fill[at : at + 2], 16) for at in (1, 3, 5))
        for pair, cell in cells.items()
    }
    assert max(light[0, 2], light[2, 0]) < min(
        value for pair, value in light.items() if pair not in ((0, 2), (2, 0))
    )


def near(colour: str, other: str) -> bool:
    return all(
        abs(int(colour[at : at + 2], 16) - int(other[at : at + 2], 16)) <= 3 for at in (1, 3, 5)
    )


def test_the_wiring_of_a_dgx_is_a_table() -> None:
    table = wiring_table((HARDWARE_TEXTS / "topo_dgx_a100.txt").read_text())
    assert table is not None and [*table.names[:2], table.names[-1]] == ["GPU0", "GPU1", "NIC9"]
    assert all(
        len(row) == len(table.names) and row[index].text == "X"
        for index, row in enumerate(table.rows)
    )
    assert [kind for _, kind, _ in table.legend] == ["X", "NV", "PIX", "PXB", "SYS"]


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        (None, None),
        ("no table\n", None),
        ("\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU1\tSYS\n", None),
        ("\tGPU0\tGPU1\nGPU0\tX\tSYS\nNIC0\tSYS\tX\n", None),
        ("\tGPU0\tGPU1\nGPU0\tX\tC2C\nGPU1\tC2C\tX\n", [["X", "C2C"], ["C2C", "X"]]),
    ],
)
def test_wiring_is_a_table_if_no_link_is_missing(
    text: str | None, cells: list[list[str]] | None
) -> None:
    table = wiring_table(text)
    assert (None if table is None else [[cell.text for cell in row] for row in table.rows]) == cells
