"""Slow pairs, asymmetric pairs and slow ranks: every pair of ranks compared with the others of its
class.

A pair is slow if the interval of its median lies above SLOW_FACTOR x the median of the others of
its class, and above that median by more than SLOW_SPREADS of their standard deviations. The factor
leaves out differences that do not matter: a link that is always 4 % slower is significant in any
test and no reason for a repair. The spread (MAD x 1.4826, which is robust: Leys et al. 2013) keeps
the slower pairs of a class that is wide by nature, such as two sockets, from being reported. Both
compare with medians of the others, so pairs are found as long as less than half of a class is slow.
A rank of which each pair is slower by less than that is found by all of them: stats/outliers.py.

Where several sizes were measured, a neighbouring size must agree. Rows whose time includes
something other than the link (UNUSABLE) are not compared. Where the time itself is uncertain
(beyond 5 %), the factor is 2 and one size is not enough; where most rows of a class are uncertain,
none of these is slow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain, product
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from commbench.core.layout import (
    ACROSS_NODES,
    SAME_NODE,
    SELF,
    Layout,
    Link,
    Pair,
    pairs_text,
    single_pair,
)
from commbench.core.texts import setting_texts
from commbench.core.units import (
    Unit,
    bit_rate_unit,
    format_bytes,
    format_factor,
    format_seconds,
    seconds_unit,
)
from commbench.core.variables import SIZES
from commbench.results.columns import VARIABLES, grouped
from commbench.results.intervals import interval_of
from commbench.results.load import Paths, read_case_rows
from commbench.results.row import Measured, Row
from commbench.stats.interval import Interval
from commbench.stats.outliers import SlowPart, slow_parts
from commbench.stats.series import MAD_TO_SIGMA, Z95, binomial_rank
from commbench.stats.thresholds import (
    SLOW_FACTOR,
    SLOW_SPREADS,
    SLOWDOWN,
    UNCERTAIN_SLOW_FACTOR,
)

from .case_names import differing

if TYPE_CHECKING:
    import pandas as pd

UNUSABLE = frozenset({"oversubscribed", "waited", "throttled", "impossible"})
LEAST_CLASS_PAIRS = 3  # of a class: if two pairs differ, neither is known to be the slow one
CLASSES: Mapping[Link, str] = {
    SELF: "of a rank with itself",
    SAME_NODE: "on one node",
    ACROSS_NODES: "between nodes",
}
MATRIX_VARIABLES = (*(column.name for column in VARIABLES if column.name != "pair"), "label")
_variables = attrgetter(*MATRIX_VARIABLES)
FindingKind = Literal["rank", "slow", "asymmetric"]
KINDS: tuple[FindingKind, ...] = ("rank", "slow", "asymmetric")  # the most helpful first


@dataclass(frozen=True)
class Finding:
    """A slow or asymmetric pair, or a slow rank; with a ratio of 2 it takes twice as long as is
    typical.

    `pair` is None for a slow rank. `rank` is set for a slow rank and for its slow pairs.
    """

    kind: FindingKind
    run_id: str | None
    benchmark: str
    message_bytes: int
    pair: str | None
    rank: int | None
    ratio: float
    text: str
    layout: str

    def text_with_host(self, run: Mapping[str, Any]) -> str:
        """The text, followed by the rank's host if the run (run.json) has several and names them.
        Simulated nodes, which are on one host, have numbers."""
        if self.rank is None:
            return self.text
        ranks_per_node = Layout.parse(self.layout).ranks_per_node
        place = self.rank // ranks_per_node
        try:
            ranks_by_node = run["world"]["ranks"]
            nodes = zip(run["provenance"]["nodes"], ranks_by_node, strict=True)
            used = [node for node, ranks in nodes if len(ranks) >= ranks_per_node]
            host = used[place]["host.hostname"]
        except ValueError:
            host = f"node{place}"
        except (KeyError, IndexError, TypeError, AttributeError):
            return self.text
        return f"{self.text} ({host})" if len(ranks_by_node) > 1 else self.text


@dataclass(frozen=True, eq=False)
class Matrix:
    """The cases of one run that differ only in the pair, with any status. `shared` is a row
    with their other variables.

    `sizes`: this matrix and those that differ from it only in the size, in the order of their
    sizes.
    """

    run_id: str | None
    shared: Row
    rows: Mapping[Pair, Row]
    sizes: list[Matrix] = field(default_factory=list, repr=False)

    @property
    def is_one_way(self) -> bool:
        """Whether its messages go in one direction, in windows or a stream, so that they have a
        rate."""
        return self.shared.window is not None or self.shared.stream_threads is not None

    @functools.cached_property
    def quantity(self) -> tuple[str, Unit]:
        """The column that shows a pair, and its unit: for messages in one direction the rate, of
        streams in bits; for others the time."""
        if not self.is_one_way:
            return "median_s", seconds_unit(self._middle("median_s"))
        if self.shared.stream_threads is None:
            return "algbw_gb_per_s", Unit("GB/s", 1.0)
        return "algbw_gb_per_s", bit_rate_unit(self._middle("algbw_gb_per_s"))

    def _middle(self, column: str) -> float:
        values = (getattr(row, column) for row in self.rows.values())
        known = [value for value in values if value is not None]
        return float(np.median(known)) if known else 0.0

    def number(self, pair: Pair) -> str:
        """Of a pair, in the unit of `quantity`."""
        column, unit = self.quantity
        return unit.text(getattr(self.rows[pair], column))

    def number_with_unit(self, pair: Pair) -> str:
        _, unit = self.quantity
        return f"{self.number(pair)} {unit.name}"

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for pair in self.rows for rank in pair})

    @functools.cached_property
    def classes(self) -> Mapping[Link, Mapping[Pair, float]]:
        """The times (median_s) of the cases that are ok, by class and pair."""
        layout = Layout.parse(self.shared.layout)
        classes: dict[Link, dict[Pair, float]] = {link: {} for link in CLASSES}
        for pair, row in self.rows.items():
            if isinstance(row, Measured):
                classes[layout.link(pair)][pair] = row.median_s
        return {name: times for name, times in classes.items() if times}

    @functools.cached_property
    def medians(self) -> Mapping[Pair, Interval]:
        """The times of the same cases with their intervals."""
        known = ((pair, interval_of(row)) for pair, row in self.rows.items())
        return {pair: median for pair, median in known if median is not None}

    def extremes(self, name: Link) -> tuple[Pair, Pair, Pair]:
        """The pairs of a class with the shortest, the (lower) median and the longest time."""
        times = self.classes[name]
        order = sorted(times, key=lambda pair: (times[pair], pair))
        return order[0], order[(len(order) - 1) // 2], order[-1]

    @functools.cached_property
    def usable(self) -> Mapping[Link, Mapping[Pair, float]]:
        """`classes` without the rows whose flags are in UNUSABLE."""
        usable = {
            name: {
                pair: time
                for pair, time in times.items()
                if not set(self.rows[pair].warnings) & UNUSABLE
            }
            for name, times in self.classes.items()
        }
        return {name: times for name, times in usable.items() if times}

    @functools.cached_property
    def slow(self) -> Mapping[Pair, tuple[Link, float]]:
        """The class of each slow pair and the typical time of the other pairs in it, in seconds."""
        return {pair: self.slow_here[pair] for pair in self.agreed("slow_here")}

    @functools.cached_property
    def slow_here(self) -> Mapping[Pair, tuple[Link, float]]:
        """Like `slow`, judged by this size alone."""
        slow = {}
        for name, times in self.usable.items():
            if len(times) < LEAST_CLASS_PAIRS:
                continue
            values = np.array(list(times.values()))
            # the least that the median of the others can be
            least_s = np.sort(values)[(len(values) - 2) // 2]
            uncertain = {pair for pair in times if self._is_uncertain(pair)}
            spared = uncertain if 2 * len(uncertain) > len(times) else set()
            for index, pair in enumerate(times):
                low_s = self.medians[pair].low
                if pair in spared or low_s <= SLOW_FACTOR * least_s:
                    continue
                others_s = np.delete(values, index)
                factor = self._factor(pair)
                typical_s = float(np.median(others_s))
                spread_s = MAD_TO_SIGMA * float(np.median(np.abs(others_s - typical_s)))
                if low_s > max(factor * typical_s, typical_s + SLOW_SPREADS * spread_s):
                    slow[pair] = name, typical_s
        return slow

    @functools.cached_property
    def slow_ranks(self) -> Mapping[int, SlowPart]:
        """The ranks that are slow by the median of all their pairs of a class in one direction:
        beside the other ranks, and beside the pairs of the class."""
        classes = [times for name, times in self.usable.items() if name != SELF]
        tests = 2 * len(classes) * len(self.sizes)
        slow: dict[int, SlowPart] = {}
        for times, end in product(classes, (0, 1)):
            medians = {
                rank: _median_of([times[pair] for pair in pairs])
                for rank, pairs in grouped(times, itemgetter(end)).items()
                if len(pairs) >= LEAST_CLASS_PAIRS
            }
            least_s = (1 + SLOWDOWN) * float(np.median([*times.values()]))
            for rank, part in slow_parts(medians, SLOWDOWN, tests).items():
                if medians[rank].low > least_s:
                    slow[rank] = max(part, slow.get(rank, part), key=attrgetter("ratio"))
        return slow

    @functools.cached_property
    def asymmetric_here(self) -> Mapping[Pair, float]:
        """The time of the opposite direction for each pair that is slower than it, judged by this
        size alone."""
        asymmetric = {}
        for times in self.usable.values():
            for pair, there_s in times.items():
                back = pair[1], pair[0]
                if back in times:
                    is_apart = self.medians[pair].low > self.medians[back].high
                    factor = max(self._factor(pair), self._factor(back))
                    if is_apart and there_s > factor * times[back]:
                        asymmetric[pair] = times[back]
        return asymmetric

    def agreed(self, found_here: str) -> list[Pair]:
        """The pairs of a property that a neighbouring size has too, or that are certain and have
        one size only."""
        return [pair for pair in getattr(self, found_here) if self._agrees(pair, found_here)]

    def _agrees(self, pair: Pair, found_here: str) -> bool:
        measured = [
            size
            for size in self.sizes
            if size is self or any(pair in times for times in size.usable.values())
        ]
        index = measured.index(self) if self in measured else 0
        neighbours = measured[max(index - 1, 0) : index] + measured[index + 1 : index + 2]
        if not neighbours:
            only_size = sum(pair in size.rows for size in self.sizes) < 2
            return only_size and not self._is_uncertain(pair)
        return any(pair in getattr(size, found_here) for size in neighbours)

    def _is_uncertain(self, pair: Pair) -> bool:
        return self.medians[pair].certainty != ""

    def _factor(self, pair: Pair) -> float:
        return UNCERTAIN_SLOW_FACTOR if self._is_uncertain(pair) else SLOW_FACTOR


def matrices(rows: Iterable[Row]) -> list[Matrix]:
    """The cases of a single pair, grouped by all other variables; other cases are left out, and
    those without a layout, as of another tool."""
    groups: dict[tuple[Any, ...], dict[Pair, Row]] = {}
    for row in rows:
        pair = single_pair(row.pair)
        if pair is not None and row.layout:
            groups.setdefault((row.run_id, *_variables(row)), {})[pair] = row
    grouped = []
    for group in groups.values():
        first = next(iter(group.values()))
        grouped.append(Matrix(first.run_id, replace(first, pair=None), group))
    by_size: dict[tuple[Any, ...], list[Matrix]] = {}
    for matrix in sorted(grouped, key=lambda matrix: matrix.shared.message_bytes):
        others = (getattr(matrix.shared, name) for name in MATRIX_VARIABLES if name not in SIZES)
        by_size.setdefault((matrix.run_id, *others), []).append(matrix)
    for sizes in by_size.values():
        for matrix in sizes:
            matrix.sizes.extend(sizes)
    return grouped


def findings(rows: Iterable[Row]) -> list[Finding]:
    """See `findings_in`."""
    return findings_in(matrices(rows))


def findings_in(compared: Sequence[Matrix]) -> list[Finding]:
    """Ranks first, then slow pairs, then asymmetric ones; the worst of each kind first, each at its
    worst size."""
    at_sizes: dict[tuple[Any, ...], list[Finding]] = {}
    for matrix in compared:
        for finding in _findings_of(matrix, compared):
            key = (
                id(matrix.sizes[0]),
                finding.kind,
                finding.pair,
                finding.rank if finding.kind == "rank" else None,
            )
            at_sizes.setdefault((len(matrix.sizes), *key), []).append(finding)
    worst_findings = []
    for (measured, *_), same in at_sizes.items():
        worst = max(same, key=lambda finding: finding.ratio)
        where = f"; at {len(same)} of {measured} sizes" if measured > 1 else ""
        worst_findings.append(replace(worst, text=worst.text + where))
    return sorted(worst_findings, key=lambda finding: (KINDS.index(finding.kind), -finding.ratio))


def told_once(findings: Sequence[Finding]) -> list[Finding]:
    """Without the pairs of a slow rank, and without the directions of a slow pair."""
    slow = {_link(finding) for finding in findings if finding.kind == "slow"}
    return [
        finding
        for finding in findings
        if finding.kind == "rank"
        or (finding.kind == "slow" and finding.rank is None)
        or (finding.kind == "asymmetric" and _link(finding) not in slow)
    ]


def _link(finding: Finding) -> tuple[str | None, str, str, frozenset[str]]:
    """The pair of a finding without its direction, in its run, layout and benchmark."""
    ends = frozenset((finding.pair or "").split("-"))
    return finding.run_id, finding.layout, finding.benchmark, ends


def _findings_of(matrix: Matrix, compared: Sequence[Matrix]) -> Iterator[Finding]:
    shared = matrix.shared
    alike = [
        other.shared
        for other in compared
        if other.shared.benchmark == shared.benchmark
        and other.shared.message_bytes == shared.message_bytes
    ]
    distinction = setting_texts(shared, differing(alike, MATRIX_VARIABLES))
    heading = f"{shared.benchmark} {format_bytes(shared.message_bytes)}"
    blank = Finding(
        "rank",
        matrix.run_id,
        shared.benchmark,
        shared.message_bytes,
        None,
        None,
        math.nan,
        ", ".join([heading, *distinction]),
        shared.layout,
    )
    slow = matrix.slow
    ratios = {
        pair: _ratio(matrix.medians[pair].value, typical_s) for pair, (_, typical_s) in slow.items()
    }
    slow_ranks = _slow_ranks(matrix, ratios)
    for rank, (ratio, text) in sorted(slow_ranks.items()):
        yield replace(blank, rank=rank, ratio=ratio, text=f"{blank.text}: rank {rank} {text}")
    for pair, (name, typical_s) in slow.items():
        back = pair[1], pair[0]
        if back in slow and back < pair:
            continue  # one link
        ratio = max(ratios[pair], ratios.get(back, 0.0))
        directions = [pair, back] if back in slow and back != pair else [pair]
        times = [
            f"{pairs_text([direction])} takes {format_seconds(matrix.medians[direction].value)}"
            for direction in directions
        ]
        others = f"the {format_seconds(typical_s)} of the other pairs {CLASSES[name]}"
        text = f"{blank.text}: {' and '.join(times)}, {format_factor(ratio)} {others}"
        if len(directions) == 2 and not matrix.is_one_way:
            text += " (a round trip has both directions: p2p_bandwidth shows which is slow)"
        end = next((rank for rank in pair if rank in slow_ranks), None)
        yield replace(blank, kind="slow", pair=pairs_text([pair]), rank=end, ratio=ratio, text=text)
    yield from _asymmetric_pairs(matrix, blank)


def _slow_ranks(matrix: Matrix, ratios: Mapping[Pair, float]) -> dict[int, tuple[float, str]]:
    """The ratio of each slow rank, and what is said of it: more than half of its links are slow, to
    two peers or more, which one bad link can't cause; or all of them together are."""
    found = {
        rank: (
            part.ratio,
            f"takes {100 * (part.ratio - 1):.0f} % longer with its pairs than the median rank,"
            f" {part.spreads:.1f} spreads of the ranks (the limit is {part.limit:.1f}): look at the"
            " rank, not at a link; commbench locate tells more",
        )
        for rank, part in matrix.slow_ranks.items()
    }
    linked = [pair for name, times in matrix.classes.items() if name != SELF for pair in times]
    slow = [pair for pair in linked if pair in ratios]
    for rank in {rank for pair in slow for rank in pair}:
        own = [pair for pair in slow if rank in pair]
        if len({*chain(*own)}) > 2 and 2 * len(own) > sum(rank in pair for pair in linked):
            share = f"all {len(own)}" if len(own) == len(slow) else f"{len(own)} of {len(slow)}"
            text = f"is in {share} slow pairs: look at the rank, not at the link"
            found[rank] = float(np.median([ratios[pair] for pair in own])), text
    return found


def _asymmetric_pairs(matrix: Matrix, blank: Finding) -> Iterator[Finding]:
    """Pairs that are slower than the opposite direction: disjoint intervals, and medians that
    differ by the factor."""
    for pair in matrix.agreed("asymmetric_here"):
        there_s = matrix.medians[pair].value
        back_s = matrix.asymmetric_here[pair]
        ratio = _ratio(there_s, back_s)
        back = (pair[1], pair[0])
        text = (
            f"{blank.text}: {pairs_text([pair])} takes {format_factor(ratio)} the time of"
            f" {pairs_text([back])} ({format_seconds(there_s)}, {format_seconds(back_s)})"
        )
        yield replace(blank, kind="asymmetric", pair=pairs_text([pair]), ratio=ratio, text=text)


def _median_of(values: Sequence[float]) -> Interval:
    """With the lower end of its interval; the least value where these are few."""
    least = max(binomial_rank(len(values), Z95), 1)
    return Interval(float(np.median(values)), sorted(values)[least - 1])


def _ratio(slow_s: float, typical_s: float) -> float:
    return slow_s / typical_s if typical_s else math.inf


def slow_pairs(*paths: Paths) -> pd.DataFrame:
    """One row per finding, each run by itself; raises CommbenchError like load.

        commbench.slow_pairs("results").query("kind == 'slow'")

    Columns: kind (rank, slow, asymmetric), run_id, benchmark, message_bytes, pair, rank, ratio,
    text. The rule is in commbench/analysis/slow_pairs.py.
    """
    import pandas as pd

    rows = [asdict(finding) for finding in findings(read_case_rows(paths))]
    frame = pd.DataFrame(rows, columns=[field.name for field in fields(Finding)])
    return frame.astype({"rank": "Int64", "message_bytes": "int64", "ratio": "float64"})
