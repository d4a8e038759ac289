"""Slow pairs, asymmetric pairs and slow ranks: every pair of ranks against the others of its class.

A pair is slow if the interval of its median lies above FACTOR x the median of the others of its class, and above that
median by more than SPREADS of their standard deviations. The factor is what matters to a user: a steady link that is
4 % off is found by any test and repaired by nobody. The spread (MAD x 1.4826, which outliers do not move: Leys et al.
2013) keeps the upper edge of a class that is wide in itself, as with two sockets, from being called a fault.
Both compare with the others, and with medians: up to half of a class may be slow before it looks normal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import VARIABLES
from .layout import Layout
from .pairs import Pair, pairs_text
from .units import format_bytes, format_seconds

Row = Mapping[str, Any]
Found = tuple[str, Pair | None, int | None, float, str]  # kind, pair, rank, ratio, text

FACTOR = 1.2
SPREADS = 3.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution
LEAST_PAIRS = 3  # of a class: two that differ do not tell which one is wrong
SELF, SAME_NODE, OTHER_NODE = "self", "same node", "other node"
CLASSES = {SELF: "of a rank with itself", SAME_NODE: "on one node", OTHER_NODE: "between nodes"}
SHARED = tuple(column.name for column in VARIABLES if column.name != "pair")
KINDS = ("rank", "slow", "asymmetric")  # in the order in which they help


@dataclass(frozen=True)
class Finding:
    """What differs from its class; ratio 2 takes twice as long.

    `pair` is null where a rank was found. `rank` is that rank, also in the findings of its slow pairs; else null.
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

    def said(self, run: Mapping[str, Any]) -> str:
        """The text, with the host of the rank where run.json knows it."""
        host = None if self.rank is None else _host(run, self.layout, self.rank)
        return self.text if host is None else f"{self.text} ({host})"


@dataclass(frozen=True, eq=False)
class Matrix:
    """The cases of one run that differ in nothing but the pair; rows of any status. `shared` are their variables."""

    run_id: str | None
    shared: Mapping[str, Any]
    rows: Mapping[Pair, Row]

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for pair in self.rows for rank in pair})

    @functools.cached_property
    def classes(self) -> Mapping[str, Mapping[Pair, float]]:
        """Class -> pair -> median_s, of the cases that are ok."""
        found: dict[str, dict[Pair, float]] = {name: {} for name in CLASSES}
        for pair, row in self.rows.items():
            if row["status"] == "ok":
                found[_class_of(pair, int(row["ranks_per_node"]))][pair] = float(row["median_s"])
        return {name: times for name, times in found.items() if times}


def matrices(rows: Iterable[Row]) -> list[Matrix]:
    """Rows of cases by what they share, in their order; cases without a pair or with several at once are left out."""
    groups: dict[tuple[Any, ...], dict[Pair, Row]] = {}
    for row in rows:
        pair = row["pair"]
        if isinstance(pair, str) and " " not in pair:
            first, _, second = pair.partition("-")
            key = (row.get("run_id"), *(_plain(row[name]) for name in SHARED))
            groups.setdefault(key, {})[int(first), int(second)] = row
    return [Matrix(key[0], dict(zip(SHARED, key[1:], strict=True)), group) for key, group in groups.items()]


def findings(rows: Iterable[Row]) -> list[Finding]:
    """Ranks first, then slow pairs, then asymmetric ones; the worst of each kind first."""
    together = matrices(rows)
    found = [one for matrix in together for one in _findings(matrix, _varying(matrix, together))]
    return sorted(found, key=lambda one: (KINDS.index(one.kind), -one.ratio))


def slow_pairs(matrix: Matrix) -> dict[Pair, tuple[str, float]]:
    """Pair -> its class and the typical time of the others, in seconds, for the pairs that are slow."""
    slow = {}
    for name, times in matrix.classes.items():
        place, values = {pair: index for index, pair in enumerate(times)}, np.array(list(times.values()))
        for pair in _suspects(matrix, times):
            typical, limit = _expectation(np.delete(values, place[pair]))
            if _bound(matrix.rows[pair], "ci_low_s") > limit:
                slow[pair] = name, typical
    return slow


def _suspects(matrix: Matrix, times: Mapping[Pair, float]) -> list[Pair]:
    """Pairs that may be slow: those beyond the factor of the least that the median of the others can be."""
    if len(times) < LEAST_PAIRS:
        return []
    least = sorted(times.values())[(len(times) - 2) // 2]
    return [pair for pair in times if _bound(matrix.rows[pair], "ci_low_s") > FACTOR * least]


def _expectation(others: NDArray[np.float64]) -> tuple[float, float]:
    """The typical time, and the time from which on a pair is slow."""
    typical = float(np.median(others))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(others - typical)))
    return typical, max(FACTOR * typical, typical + SPREADS * spread)


def _varying(matrix: Matrix, together: Sequence[Matrix]) -> list[str]:
    """Variables that tell this matrix from the others of its benchmark and size."""
    where = ("benchmark", "message_bytes")
    alike = [one for one in together if all(one.shared[name] == matrix.shared[name] for name in where)]
    return [name for name in SHARED if len({one.shared[name] for one in alike}) > 1]


def _findings(matrix: Matrix, told: Sequence[str]) -> list[Finding]:
    slow = slow_pairs(matrix)
    ratios = {pair: _ratio(float(matrix.rows[pair]["median_s"]), typical_s) for pair, (_, typical_s) in slow.items()}
    ranks = list(_slow_ranks(matrix, ratios))
    blamed = {rank for _, _, rank, _, _ in ranks}
    pairs: list[Found] = [
        (
            "slow",
            pair,
            next((rank for rank in pair if rank in blamed), None),
            ratios[pair],
            _slow_text(matrix, pair, *why),
        )
        for pair, why in slow.items()
    ]
    return [_finding(matrix, told, *one) for one in (*ranks, *pairs, *_asymmetric(matrix))]


def _finding(
    matrix: Matrix, told: Sequence[str], kind: str, pair: Pair | None, rank: int | None, ratio: float, text: str
) -> Finding:
    benchmark, message_bytes = matrix.shared["benchmark"], int(matrix.shared["message_bytes"])
    more = [f"{name} {matrix.shared[name]}" for name in told if matrix.shared[name] is not None]
    where = ", ".join([f"{benchmark} {format_bytes(message_bytes)}", *more])
    pair_text = None if pair is None else pairs_text([pair])
    return Finding(
        kind,
        matrix.run_id,
        benchmark,
        message_bytes,
        pair_text,
        rank,
        ratio,
        f"{where}: {text}",
        matrix.shared["layout"],
    )


def _host(run: Mapping[str, Any], layout: str, rank: int) -> str | None:
    """Where a rank of the layout lives; None where one host holds all, or the record is not as ours."""
    try:
        nodes, homes = run["provenance"]["nodes"], run["world"]["ranks"]
        chosen = Layout.parse(layout)
        wide = [node for node, ranks in enumerate(homes) if len(ranks) >= chosen.ranks_per_node]
        return None if len(nodes) < 2 else str(nodes[wide[rank // chosen.ranks_per_node]]["host.hostname"])
    except (KeyError, IndexError, TypeError, AttributeError):
        return None


def _slow_text(matrix: Matrix, pair: Pair, name: str, typical_s: float) -> str:
    median_s, others = float(matrix.rows[pair]["median_s"]), len(matrix.classes[name]) - 1
    return (
        f"{pairs_text([pair])} takes {format_seconds(median_s)}, {_ratio(median_s, typical_s):.2f} x the typical "
        f"{format_seconds(typical_s)} of the {others} other pairs {CLASSES[name]}"
    )


def _slow_ranks(matrix: Matrix, ratios: Mapping[Pair, float]) -> Iterable[Found]:
    """Ranks of which more than half of the links are slow, to at least two others: one bad link can't do that."""
    linked = [pair for name, times in matrix.classes.items() if name != SELF for pair in times]
    slow = [pair for pair in linked if pair in ratios]
    for rank in matrix.ranks:
        own, bad = (sum(rank in pair for pair in pairs) for pairs in (linked, slow))
        peers = {other for pair in slow if rank in pair for other in pair} - {rank}
        if len(peers) >= 2 and 2 * bad > own:
            share = f"all {bad}" if bad == len(slow) else f"{bad} of {len(slow)}"
            ratio = float(np.median([ratios[pair] for pair in slow if rank in pair]))
            yield "rank", None, rank, ratio, f"rank {rank} is in {share} slow pairs: look at the rank, not at the link"


def _asymmetric(matrix: Matrix) -> Iterable[Found]:
    """Pairs that are slower than the way back: intervals apart, medians by more than the factor."""
    for times in matrix.classes.values():
        for pair, there_s in times.items():
            back = pair[1], pair[0]
            if back not in times or not there_s > FACTOR * times[back]:
                continue
            if _bound(matrix.rows[pair], "ci_low_s") > _bound(matrix.rows[back], "ci_high_s"):
                text = f"{pairs_text([pair])} takes {format_seconds(there_s)}, {pairs_text([back])} only "
                ratio = _ratio(there_s, times[back])
                yield "asymmetric", pair, None, ratio, f"{text}{format_seconds(times[back])} ({ratio:.2f} x)"


def _class_of(pair: Pair, ranks_per_node: int) -> str:
    first, second = pair
    if first == second:
        return SELF
    return SAME_NODE if first // ranks_per_node == second // ranks_per_node else OTHER_NODE


def _ratio(slow_s: float, typical_s: float) -> float:
    return slow_s / typical_s if typical_s else math.inf


def _bound(row: Row, name: str) -> float:
    """An end of the interval; NaN, which is neither above nor below anything, where there were too few repetitions."""
    return math.nan if row[name] is None else float(row[name])


def _plain(value: Any) -> Any:
    """A value that can be compared and hashed: mappings as sorted pairs, NaN (a null in a data frame) as None."""
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return None if value != value else value
