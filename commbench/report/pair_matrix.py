"""A matrix of pairs as plain text, and the pairs and ranks that differ from the others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from commbench.analysis.slow_pairs import (
    MATRIX_VARIABLES,
    Matrix,
    findings_in,
    told_once,
)
from commbench.analysis.symmetric_pairs import symmetry_text
from commbench.core.layout import pairs_text
from commbench.core.terminal import Terminal, paragraphs, printable
from commbench.core.texts import some_of
from commbench.core.units import format_bytes
from commbench.results.columns import grouped
from commbench.stats.thresholds import SLOW_FACTOR

from .quantities import is_stream_soak

LONGEST_PAIR_TABLE = 12  # rows; more pairs are printed as a matrix
MAX_MATRIX_RANKS = 16
WIDEST_MATRIX = 200  # characters, in a file
MAX_NAMED_PAIRS = 8
MOST_FINDINGS = 10


def is_matrix(matrix: Matrix) -> bool:
    """Whether there are too many pairs for a table, and at least half of all possible ones."""
    return len(matrix.rows) > LONGEST_PAIR_TABLE and 2 * len(matrix.rows) >= len(matrix.ranks) ** 2


def matrix_text(matrix: Matrix, named: Sequence[str], terminal: Terminal) -> str:
    """Heading, cells, a line per class, flags and failures; cells only where they fit.

    `named` are the variables to name in the heading. Messages in one direction are shown as rates,
    other cases as times.
    """
    _, unit = matrix.quantity
    shared = matrix.shared
    values = {name: getattr(shared, name) for name in MATRIX_VARIABLES if name in named}
    more = [f"{name} {value}" for name, value in values.items() if value is not None]
    head = f"{shared.benchmark}, {', '.join([format_bytes(shared.message_bytes), *more])}"
    what = "rate" if any(map(is_stream_soak, matrix.rows.values())) else "median"
    cells = _matrix_lines(matrix) if len(matrix.ranks) <= MAX_MATRIX_RANKS else []
    if not cells or max(map(len, cells)) > (terminal.width or WIDEST_MATRIX):
        cells = []
        head = f"{head}: {what} in {unit.name}"
    else:
        mark = ", ! slow" if matrix.slow else ""
        head = f"{head}: {what} in {unit.name}, senders down, receivers across{mark}"
    lines = _class_lines(matrix)
    if symmetry := symmetry_text(matrix):
        lines.append(f"  {symmetry}")
    text = [head, *cells, *map(terminal.paragraph, lines), *_note_lines(matrix)]
    return printable("\n".join(text))


def _matrix_lines(matrix: Matrix) -> list[str]:
    ranks = matrix.ranks
    cells = dict.fromkeys(itertools.product(ranks, repeat=2), ".")
    for pair, row in matrix.rows.items():
        mark = "!" if pair in matrix.slow else ""
        cells[pair] = f"{mark}{matrix.number(pair)}" if row.status == "ok" else row.status[:4]
    width = max(map(len, [*cells.values(), *map(str, ranks)]))
    side = len(str(ranks[-1]))
    lines = [[" " * side, *(f"{rank:>{width}}" for rank in ranks)]]
    lines += [
        [f"{first:>{side}}", *(cells[first, second].rjust(width) for second in ranks)]
        for first in ranks
    ]
    return [f"  {'  '.join(line)}" for line in lines]


def _class_lines(matrix: Matrix) -> list[str]:
    """Median, fastest and slowest pair of each class."""
    lines = []
    for name, times in matrix.classes.items():
        fastest, middle, slowest = matrix.extremes(name)
        lines.append(
            f"  {name}: {matrix.number(middle)} in {len(times)} pairs,"
            f" fastest {matrix.number(fastest)} {pairs_text([fastest])},"
            f" slowest {matrix.number(slowest)} {pairs_text([slowest])}"
        )
    return lines


def _note_lines(matrix: Matrix) -> list[str]:
    """The number of cases with each flag, and why cases were not measured."""
    rows = matrix.rows.values()
    flags = Counter(flag for row in rows for flag in row.warnings)
    counts = ", ".join(f"{flag} {count}" for flag, count in sorted(flags.items()))
    lines = [f"  flags: {counts}"] if flags else []
    lost = (pair for pair, row in matrix.rows.items() if row.status != "ok")
    reasons = grouped(lost, lambda pair: (matrix.rows[pair].status, matrix.rows[pair].reason))
    for (status, reason), pairs in reasons.items():
        named = some_of([pairs_text([pair]) for pair in sorted(pairs)], MAX_NAMED_PAIRS)
        lines.append(f"  {status} {' '.join(named)}: {reason}")
    return lines


def finding_lines(
    run: Mapping[str, Any], compared: Sequence[Matrix], terminal: Terminal
) -> list[str]:
    """A line for each rank and pair that differs from its class."""
    found = findings_in(compared)
    texts = [finding.text_with_host(run) for finding in told_once(found)]
    lines = [f"  {text}" for text in some_of(texts, MOST_FINDINGS)]
    if len(texts) > MOST_FINDINGS:
        lines[-1] += f": commbench.slow_pairs('{run['folder']}')"
    if any(finding.kind == "slow" for finding in found):
        lines[:0] = [
            f"slow: takes more than {SLOW_FACTOR} x the median time of the other pairs of its class"
            " (self, same node, other node)"
        ]
    return ["", paragraphs(lines, terminal)] if lines else []
