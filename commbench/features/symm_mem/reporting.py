"""Up to which size which is fastest: NCCL, its symmetric kernels, or an algorithm on torch's
symmetric memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from commbench.analysis.best import BEST_CELLS, Best
from commbench.core.texts import size_text
from commbench.report.reporting import Reporting
from commbench.report.section import Section
from commbench.report.summary import Summary
from commbench.report.table import Table

HEADS = ("operation", "ranks", "from", "up to", "fastest")


def sections(summary: Summary) -> Iterator[Section]:
    """Of the operations that one of the algorithms was measured for."""
    combined = summary.combined
    known = {row.benchmark for row in combined.rows if row.algorithm is not None}
    lines = ranges(best for best in combined.best if best.shared.benchmark in known)
    if lines:
        yield Section("Fastest by size, with symmetric memory", tables=[Table.of(HEADS, lines)])


def ranges(compared: Iterable[Best]) -> list[tuple[str, ...]]:
    """A line for each range of measured sizes in which the same is fastest."""
    found: list[tuple[str, ...]] = []
    for (operation, ranks, fastest), alike in groupby(compared, _answer):
        sizes = [size_text(best.message_bytes) for best in alike]
        found.append((operation, ranks, sizes[0], sizes[-1], fastest))
    return found


def _answer(best: Best) -> Sequence[str]:
    return [BEST_CELLS[name](best) for name in ("benchmark", "ranks", "best")]


REPORTING = Reporting(sections={"comparisons": sections})
