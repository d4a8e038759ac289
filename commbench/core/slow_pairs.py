"""Slow pairs, asymmetric pairs and slow ranks: every pair of ranks compared with the others of its class.

A pair is slow if the interval of its median lies above FACTOR x the median of the others of its class, and above that
median by more than SPREADS of their standard deviations. The factor is what matters to a user: any test finds a steady
link that is 4 % slower, and nobody repairs it. The spread (MAD x 1.4826, which outliers do not move: Leys et al. 2013)
keeps the upper edge of a class that is wide in itself, such as two sockets, from being reported as a fault. Both
compare with medians of the others, so up to half of a class may be slow before it looks normal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import VARIABLES
from .layout import Layout
from .pairs import Pair, pairs_text
from .units import format_bytes, format_seconds

Row = Mapping[str, Any]

FACTOR = 1.2
SPREADS = 3.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution
LEAST_PAIRS = 3  # of a class: if two pairs differ, neither is known to be the slow one
SELF, SAME_NODE, OTHER_NODE = "self", "same node", "other node"
CLASSES = {SELF: "of a rank with itself", SAME_NODE: "on one node", OTHER_NODE: "between nodes"}
MATRIX_VARIABLES = tuple(column.name for column in VARIABLES if column.name != "pair")
KINDS = ("rank", "slow", "asymmetric")  # the most helpful first


@dataclass(frozen=True)
class Finding:
    """What differs from its class; a ratio of 2 means that it takes twice as long.

    `pair` is None for a slow rank. `rank` is that rank, and also set for its slow pairs; None otherwise.
    """

    kind: str
    run_id: str | None
    benchmark: str
    message_bytes: int
    pair: str | None
    rank: int | None
    ratio: float
    text: str
    layout: str

    def text_with_host(self, run: Mapping[str, Any]) -> str:
        """The text, with the host of the rank if run.json, as `run`, has it."""
        host = None if self.rank is None else _host_of(self.rank, self.layout, run)
        return self.text if host is None else f"{self.text} ({host})"


@dataclass(frozen=True, eq=False)
class Matrix:
    """The cases of one run that differ only in the pair, with any status. `shared` are their other variables."""

    run_id: str | None
    shared: Mapping[str, Any]
    rows: Mapping[Pair, Row]

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for pair in self.rows for rank in pair})

    @functools.cached_property
    def classes(self) -> Mapping[str, Mapping[Pair, float]]:
        """Class -> pair -> median_s, of the cases that are ok."""
        classes: dict[str, dict[Pair, float]] = {name: {} for name in CLASSES}
        for pair, row in self.rows.items():
            if row["status"] == "ok":
                classes[_class_of(pair, int(row["ranks_per_node"]))][pair] = float(row["median_s"])
        return {name: times for name, times in classes.items() if times}


def matrices(rows: Iterable[Row]) -> list[Matrix]:
    """The rows of cases with one pair, grouped by everything else, in their order; other cases are left out."""
    groups: dict[tuple[Any, ...], dict[Pair, Row]] = {}
    for row in rows:
        pair = row["pair"]
        if isinstance(pair, str) and " " not in pair:
            first, _, second = pair.partition("-")
            key = (row.get("run_id"), *(_hashable(row[name]) for name in MATRIX_VARIABLES))
            groups.setdefault(key, {})[int(first), int(second)] = row
    return [Matrix(key[0], dict(zip(MATRIX_VARIABLES, key[1:], strict=True)), group) for key, group in groups.items()]


def findings(rows: Iterable[Row]) -> list[Finding]:
    """Ranks first, then slow pairs, then asymmetric ones; the worst of each kind first."""
    compared = matrices(rows)
    unsorted = [finding for matrix in compared for finding in _findings_of(matrix, compared)]
    return sorted(unsorted, key=lambda finding: (KINDS.index(finding.kind), -finding.ratio))


def slow_pairs(matrix: Matrix) -> dict[Pair, tuple[str, float]]:
    """Pair -> its class and the typical time of the others in seconds, for the pairs that are slow."""
    slow = {}
    for name, times in matrix.classes.items():
        index, values = {pair: index for index, pair in enumerate(times)}, np.array(list(times.values()))
        for pair in _suspects(matrix, times):
            typical_s, limit_s = _typical_and_limit_s(np.delete(values, index[pair]))
            if _interval_end(matrix.rows[pair], "ci_low_s") > limit_s:
                slow[pair] = name, typical_s
    return slow


def _suspects(matrix: Matrix, times: Mapping[Pair, float]) -> list[Pair]:
    """Pairs that may be slow: a cheap test against the least that the median of the others can be."""
    if len(times) < LEAST_PAIRS:
        return []
    least_s = sorted(times.values())[(len(times) - 2) // 2]
    return [pair for pair in times if _interval_end(matrix.rows[pair], "ci_low_s") > FACTOR * least_s]


def _typical_and_limit_s(others_s: NDArray[np.float64]) -> tuple[float, float]:
    """The typical time of the others, and the time above which a pair is slow."""
    typical_s = float(np.median(others_s))
    spread_s = MAD_TO_SIGMA * float(np.median(np.abs(others_s - typical_s)))
    return typical_s, max(FACTOR * typical_s, typical_s + SPREADS * spread_s)


def _findings_of(matrix: Matrix, compared: Sequence[Matrix]) -> Iterator[Finding]:
    shared = matrix.shared
    message_bytes = int(shared["message_bytes"])
    alike = [
        other.shared
        for other in compared
        if all(other.shared[name] == shared[name] for name in ("benchmark", "message_bytes"))
    ]
    varying = [name for name in MATRIX_VARIABLES if len({variables[name] for variables in alike}) > 1]
    distinction = [f"{name} {shared[name]}" for name in varying if shared[name] is not None]
    heading = ", ".join([f"{shared['benchmark']} {format_bytes(message_bytes)}", *distinction])
    blank = Finding(
        "", matrix.run_id, shared["benchmark"], message_bytes, None, None, math.nan, heading, shared["layout"]
    )
    slow = slow_pairs(matrix)
    ratios = {pair: _ratio(float(matrix.rows[pair]["median_s"]), typical_s) for pair, (_, typical_s) in slow.items()}
    slow_ranks = list(_slow_ranks(matrix, ratios, blank))
    blamed = {finding.rank for finding in slow_ranks}
    yield from slow_ranks
    for pair, (name, typical_s) in slow.items():
        median_s, others = float(matrix.rows[pair]["median_s"]), len(matrix.classes[name]) - 1
        text = (
            f"{heading}: {pairs_text([pair])} takes {format_seconds(median_s)}, {ratios[pair]:.2f} x the typical "
            f"{format_seconds(typical_s)} of the {others} other pairs {CLASSES[name]}"
        )
        rank = next((rank for rank in pair if rank in blamed), None)
        yield replace(blank, kind="slow", pair=pairs_text([pair]), rank=rank, ratio=ratios[pair], text=text)
    yield from _asymmetric_pairs(matrix, blank)


def _slow_ranks(matrix: Matrix, ratios: Mapping[Pair, float], blank: Finding) -> Iterator[Finding]:
    """Ranks of which more than half of the links are slow, to at least two others: one bad link can't cause that."""
    linked = [pair for name, times in matrix.classes.items() if name != SELF for pair in times]
    slow = [pair for pair in linked if pair in ratios]
    for rank in matrix.ranks:
        links, slow_links = (sum(rank in pair for pair in pairs) for pairs in (linked, slow))
        peers = {peer for pair in slow if rank in pair for peer in pair} - {rank}
        if len(peers) >= 2 and 2 * slow_links > links:
            share = f"all {slow_links}" if slow_links == len(slow) else f"{slow_links} of {len(slow)}"
            text = f"{blank.text}: rank {rank} is in {share} slow pairs: look at the rank, not at the link"
            ratio = float(np.median([ratios[pair] for pair in slow if rank in pair]))
            yield replace(blank, kind="rank", rank=rank, ratio=ratio, text=text)


def _asymmetric_pairs(matrix: Matrix, blank: Finding) -> Iterator[Finding]:
    """Pairs that are slower than the way back: their intervals are disjoint, their medians differ by the factor."""
    for times in matrix.classes.values():
        for pair, there_s in times.items():
            back = pair[1], pair[0]
            if back not in times or not there_s > FACTOR * times[back]:
                continue
            if _interval_end(matrix.rows[pair], "ci_low_s") > _interval_end(matrix.rows[back], "ci_high_s"):
                ratio = _ratio(there_s, times[back])
                text = (
                    f"{blank.text}: {pairs_text([pair])} takes {format_seconds(there_s)}, "
                    f"{pairs_text([back])} only {format_seconds(times[back])} ({ratio:.2f} x)"
                )
                yield replace(blank, kind="asymmetric", pair=pairs_text([pair]), ratio=ratio, text=text)


def _host_of(rank: int, layout: str, run: Mapping[str, Any]) -> str | None:
    """The host of a rank of the layout; None if there is only one, or if the record does not have it."""
    try:
        nodes, ranks_by_node = run["provenance"]["nodes"], run["world"]["ranks"]
        ranks_per_node = Layout.parse(layout).ranks_per_node
        used = [node for node, ranks in enumerate(ranks_by_node) if len(ranks) >= ranks_per_node]
        return None if len(nodes) < 2 else str(nodes[used[rank // ranks_per_node]]["host.hostname"])
    except (KeyError, IndexError, TypeError, AttributeError):
        return None


def _class_of(pair: Pair, ranks_per_node: int) -> str:
    first, second = pair
    if first == second:
        return SELF
    return SAME_NODE if first // ranks_per_node == second // ranks_per_node else OTHER_NODE


def _ratio(slow_s: float, typical_s: float) -> float:
    return slow_s / typical_s if typical_s else math.inf


def _interval_end(row: Row, name: str) -> float:
    """NaN, which is neither above nor below anything, where there were too few repetitions for an interval."""
    return math.nan if row[name] is None else float(row[name])


def _hashable(value: Any) -> Any:
    """Mappings as sorted pairs, NaN (a null in a data frame) as None."""
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return None if value != value else value
