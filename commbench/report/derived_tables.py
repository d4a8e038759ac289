"""What follows from the times of several rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commbench.analysis.group_gains import GAIN_HEADS, GAIN_MEANING, group_gains
from commbench.analysis.overlaps import (
    OVERLAP_HEADS,
    OVERLAP_MEANING,
    overlap_cells,
    overlap_results,
)
from commbench.core.terminal import Terminal
from commbench.results.row import Row

from .table import Table


def derived_tables(rows: Sequence[Row], terminal: Terminal) -> Iterator[str]:
    """Each table with the meaning of its numbers."""
    gains = [gain.cells() for gain in group_gains(rows)]
    for heads, cells, meaning in (
        (OVERLAP_HEADS, overlap_cells(overlap_results(rows)), OVERLAP_MEANING),
        (GAIN_HEADS, gains, GAIN_MEANING),
    ):
        if cells:
            yield f"{Table.of(heads, cells).text(terminal)}\n{terminal.paragraph(meaning)}"
