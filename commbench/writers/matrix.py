"""All pairs of one benchmark and size as a matrix on the console: senders down, receivers across."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from statistics import median

from commbench.core.pairs import Pair, pairs_text
from commbench.core.slow_pairs import MATRIX_VARIABLES, Matrix, Row
from commbench.core.units import format_bytes, format_rate, format_seconds

LEAST_CELLS = 12  # a table of more pairs is no longer read
LARGEST_RANKS = 16  # of a matrix that fits a terminal
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
NAMED_PAIRS = 8


def is_matrix(matrix: Matrix) -> bool:
    """More cells than a table should have, and at least half of all there can be."""
    return len(matrix.rows) > LEAST_CELLS and 2 * len(matrix.rows) >= len(matrix.ranks) ** 2


def matrix_text(matrix: Matrix, slow: Collection[Pair], told: Sequence[str], width: int) -> str:
    """Head, cells, a line a class, and what went wrong; the cells only where they fit into `width` columns.

    `told` are the variables to name in the head. Messages in flight are judged by their rate, others by their time.
    """
    rate = matrix.shared["window"] is not None
    unit = "GB/s" if rate else _time_unit(matrix)
    more = [
        f"{name} {matrix.shared[name]}" for name in MATRIX_VARIABLES if name in told and matrix.shared[name] is not None
    ]
    head = f"{matrix.shared['benchmark']}, {', '.join([format_bytes(matrix.shared['message_bytes']), *more])}"
    cells = _cells(matrix, slow, unit)
    if len(matrix.ranks) > LARGEST_RANKS or max(map(len, cells)) > width:
        cells, head = [], f"{head}: median in {unit}"
    else:
        mark = ", ! slow" if slow else ""
        head = f"{head}: median in {unit}, senders down, receivers across{mark}"
    return "\n".join([head, *cells, *_classes(matrix, unit), *_notes(matrix)])


def _cells(matrix: Matrix, slow: Collection[Pair], unit: str) -> list[str]:
    ranks = matrix.ranks
    lines = [["", *map(str, ranks)]]
    lines += [[str(first), *(_cell(matrix, (first, second), slow, unit) for second in ranks)] for first in ranks]
    side = max(len(line[0]) for line in lines)
    width = max(len(cell) for line in lines for cell in line[1:])
    return ["  " + "  ".join([line[0].rjust(side), *(cell.rjust(width) for cell in line[1:])]) for line in lines]


def _cell(matrix: Matrix, pair: Pair, slow: Collection[Pair], unit: str) -> str:
    row = matrix.rows.get(pair)
    if row is None or row["status"] != "ok":
        return "." if row is None else str(row["status"])[:4]
    return ("!" if pair in slow else "") + _number(row, unit)


def _number(row: Row, unit: str) -> str:
    return format_rate(row["algbw_gb_per_s"] if unit == "GB/s" else row["median_s"] / SECONDS[unit])


def _time_unit(matrix: Matrix) -> str:
    """The unit that fits the median of all cells."""
    times = [time for cells in matrix.classes.values() for time in cells.values()]
    return format_seconds(median(times)).split()[1] if times else "us"


def _classes(matrix: Matrix, unit: str) -> list[str]:
    """Median, fastest and slowest pair of each class."""
    lines = []
    for name, times in matrix.classes.items():
        order = sorted(times, key=lambda pair: (times[pair], pair))
        ends = [f"{_number(matrix.rows[pair], unit)} {pairs_text([pair])}" for pair in (order[0], order[-1])]
        middle = _number(matrix.rows[order[(len(order) - 1) // 2]], unit)
        lines.append(f"  {name}: {middle} in {len(order)} pairs, fastest {ends[0]}, slowest {ends[1]}")
    return lines


def _notes(matrix: Matrix) -> list[str]:
    """How often each flag was raised, and the reasons of what was not measured."""
    rows = matrix.rows.values()
    flags = Counter(flag for row in rows for flag in row["flags"] or ())
    reasons: dict[tuple[str, str], list[Pair]] = {}
    for pair, row in matrix.rows.items():
        if row["status"] != "ok":
            reasons.setdefault((row["status"], row["reason"]), []).append(pair)
    lines = ["  flags: " + ", ".join(f"{flag} {count}" for flag, count in sorted(flags.items()))] if flags else []
    for (status, reason), pairs in reasons.items():
        rest = f" and {len(pairs) - NAMED_PAIRS} more" if len(pairs) > NAMED_PAIRS else ""
        lines.append(f"  {status} {pairs_text(sorted(pairs)[:NAMED_PAIRS])}{rest}: {reason}")
    return lines
