"""The pieces of Hockney's model as a table of a report."""

from __future__ import annotations

from collections.abc import Iterator

from commbench.analysis.combined import CombinedCases
from commbench.analysis.families import answerable, families
from commbench.core.texts import size_text
from commbench.core.units import about_bytes, format_seconds
from commbench.report.reporting import Reporting
from commbench.report.section import Section
from commbench.report.summary import Summary
from commbench.report.table import Table

from .model import GOOD_FIT, Piece, pieces

MOST_FITS = 60
HEADS = ("benchmark", "case", "sizes", "alpha", "1 / beta", "n 1/2", "misses up to")
PRIORITIES = {"misses up to": 1, "n 1/2": 2}


def costs(summary: Summary) -> Iterator[Section]:
    lines = fits(summary.combined)
    yield Section(
        "Cost of a message and of its bytes: time = alpha + beta x bytes",
        tables=[Table.of(HEADS, lines, priorities=PRIORITIES)] if lines else [],
        is_folded=True,
    )


def fits(combined: CombinedCases) -> list[tuple[str, ...]]:
    """Cells below HEADS: the pieces of families with at least three sizes that miss none of them by
    more than GOOD_FIT."""
    fitting = [each for each in families(answerable(combined.rows)) if each.sizes.size > 2]
    lines = []
    for family in fitting[:MOST_FITS]:
        for piece in pieces(family.sizes, family.median_s):
            if piece.largest_residual <= GOOD_FIT:
                ends = (family.sizes[at] for at in (piece.first, piece.last - 1))
                lines.append(
                    (
                        family.variables.benchmark,
                        combined.name(family.variables),
                        " .. ".join(map(size_text, ends)),
                        *_cells(piece),
                    )
                )
    return lines[:MOST_FITS]


def _cells(piece: Piece) -> tuple[str, ...]:
    rate = piece.asymptotic_gb_per_s
    half = piece.n_half_bytes
    return (
        format_seconds(piece.alpha_s),
        "not seen" if rate is None else f"{rate:.3g} GB/s",
        "-" if half is None else about_bytes(half),
        f"{100 * piece.largest_residual:.2g} %",
    )


REPORTING = Reporting(sections={"costs": costs})
