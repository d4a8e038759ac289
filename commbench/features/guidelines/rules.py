"""Performance guidelines: which rules that hold on any machine a run violates, without a baseline.

An operation must not take longer than another way to the same result, because the library could
take that way itself (Traeff, Gropp, Thakur). GUIDELINES is the table of these rules.

A rule compares two times of the same run. It is violated if the left one is longer than the right
one by more than GUIDELINE_MARGIN and by more than chance explains: the medians of the visits of
both are compared in the Mann-Whitney test, and Holm's correction takes account of all comparisons
of a run.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from commbench.analysis.case_names import FAMILY_VARIABLES
from commbench.analysis.combined import MATRIX_PAIRS, one_case
from commbench.analysis.families import answerable
from commbench.core.layout import ACROSS_NODES, SAME_NODE, Layout, Link, Pair, single_pair
from commbench.core.units import format_bytes, format_factor, format_seconds, plural
from commbench.core.variables import NO_DTYPE
from commbench.results.columns import grouped
from commbench.results.row import Measured, Row
from commbench.stats.difference import ALPHA, holm, launches_needed, mann_whitney
from commbench.stats.thresholds import GUIDELINE_MARGIN

MOST_GUIDELINE_ROWS = 20_000
# A message is rounded down to whole blocks, by less than this share of it.
ROUNDING = 0.01
# Where the same size was not measured, a larger one up to this factor bounds the time from above.
MOST_LARGER = 4
DIVIDED_COLLECTIVES = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
COLLECTIVES = (*DIVIDED_COLLECTIVES, "all_reduce", "broadcast", "reduce", "barrier")
# variables that belong to one operation: two operations agree in them if one does not have them
OF_OPERATION = ("dtype", "root", "reduction", "sync")
_of_operation = attrgetter(*OF_OPERATION)
UNSET = (None, NO_DTYPE, "none")
OPERATION_VARIABLES = (
    *OF_OPERATION,
    "benchmark",
    "schedule",
    "streams",
    "window",
    "in_place",
    "buffers",
)
PLACE_VARIABLES = ("layout", "hosts")
SETTING_VARIABLES = tuple(
    name
    for name in FAMILY_VARIABLES
    if name not in (*OPERATION_VARIABLES, *PLACE_VARIABLES, "pair")
)

Launch = tuple[str, int]  # run_id and its launch
Visits = Mapping[Launch, Sequence[float]]  # the median of each visit in seconds
Values = tuple[Hashable, ...]  # of variables


# ---------------------------------------------------------------- what a rule compares


@dataclass(frozen=True, eq=False)
class VisitedCase:
    """A case and the medians of its visits. `row` is that of its first run.

    `setting`, `place` and `operation` are its variables but for the pair and the size.
    """

    row: Measured
    visits: Visits
    setting: Values
    place: Values
    operation: Values

    @classmethod
    def of(cls, rows: Sequence[Measured]) -> VisitedCase:
        """The rows of the same case in several runs."""
        visits: dict[Launch, Sequence[float]] = {}
        for row in rows:
            visits |= _visit_medians(row)
        values = (
            _variable_values(rows[0], names)
            for names in (SETTING_VARIABLES, PLACE_VARIABLES, OPERATION_VARIABLES)
        )
        return cls(rows[0], visits, *values)

    @functools.cached_property
    def size_bytes(self) -> int:
        return self.row.message_bytes

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout.parse(self.row.layout)

    @functools.cached_property
    def median_s(self) -> float:
        return statistics.median(itertools.chain(*self.visits.values()))

    @functools.cached_property
    def pair(self) -> Pair | None:
        """The pair of ranks; None for a case that is not of one pair."""
        return single_pair(self.row.pair)

    @functools.cached_property
    def link(self) -> Link | None:
        return None if self.pair is None else self.layout.link(self.pair)

    @property
    def text(self) -> str:
        """Such as `all_reduce 64 KiB` or `barrier`."""
        size = f" {format_bytes(self.size_bytes)}" if self.size_bytes else ""
        return f"{self.row.benchmark}{size}"

    @property
    def text_with_pair(self) -> str:
        return f"{self.text} {self.row.pair} in {self.layout}"


def _visit_medians(row: Measured) -> dict[Launch, Sequence[float]]:
    medians = row.visit_medians_s
    launches = row.visit_launches
    if medians is None or launches is None:
        return {(row.run_id, 0): [row.median_s]}
    by_launch: dict[Launch, list[float]] = {}
    for launch, median_s in zip(launches, medians, strict=True):
        by_launch.setdefault((row.run_id, launch), []).append(median_s)
    return dict(by_launch)


def _variable_values(row: Row, names: Iterable[str]) -> Values:
    return tuple(getattr(row, name) for name in names)


@dataclass(frozen=True, eq=False)
class RuleComparison:
    """The time of `case`, named `left`, must not be longer than the sum of the times of `parts`,
    each taken `times` times, named `right`."""

    case: VisitedCase
    left: str
    parts: Sequence[VisitedCase]
    right: str
    times: int = 1

    @functools.cached_property
    def launches(self) -> list[Launch]:
        """Those in which all of it was measured: different launches are not compared."""
        return [
            launch
            for launch in self.case.visits
            if all(launch in part.visits for part in self.parts)
        ]

    def left_s(self, launch: Launch) -> Sequence[float]:
        return self.case.visits[launch]

    def right_s(self, launch: Launch) -> Sequence[float]:
        """The visits of the parts are added in their order, as many as each part has."""
        series = [part.visits[launch] for part in self.parts]
        return [self.times * sum(visits) for visits in zip(*series, strict=False)]

    def medians_s(self, side_s: Callable[[Launch], Sequence[float]]) -> list[float]:
        """The median of a side in each launch."""
        return [statistics.median(side_s(launch)) for launch in self.launches]

    @functools.cached_property
    def stated_s(self) -> tuple[float, float]:
        """The times of both sides: the medians over launches."""
        left_s = statistics.median(self.medians_s(self.left_s))
        return left_s, statistics.median(self.medians_s(self.right_s))

    @property
    def ratio(self) -> float:
        left_s, right_s = self.stated_s
        return left_s / right_s


RuleComparisons = Iterator[RuleComparison]
CompareCases = Callable[[Sequence[VisitedCase]], RuleComparisons]


def _made_of(benchmark: str, *parts: str) -> CompareCases:
    """An operation against others that do the same together."""

    def comparisons(cases: Sequence[VisitedCase]) -> RuleComparisons:
        for alike in grouped(cases, lambda case: (case.setting, case.place)).values():
            by_benchmark = grouped(alike, lambda case: case.row.benchmark)
            for case in by_benchmark.get(benchmark, ()):
                chosen = [_bound(case, by_benchmark.get(part, ())) for part in parts]
                present = [part for part in chosen if part is not None]
                if len(present) == len(parts):
                    names = " + ".join(part.text for part in present)
                    yield RuleComparison(case, case.text, present, names)

    return comparisons


def _bound(case: VisitedCase, candidates: Iterable[VisitedCase]) -> VisitedCase | None:
    """The smallest of the candidates with at least as large a message and the same other variables;
    for a barrier, the smallest of all."""
    least_bytes = (1 - ROUNDING) * case.size_bytes
    most_bytes = MOST_LARGER * case.size_bytes or np.inf
    fitting = [
        candidate
        for candidate in candidates
        if least_bytes <= candidate.size_bytes <= most_bytes and _agree(case.row, candidate.row)
    ]
    return min(
        fitting,
        key=lambda other: (
            other.size_bytes,
            other.row.in_place != case.row.in_place,
            other.row.root or 0,
        ),
        default=None,
    )


def _agree(first: Row, second: Row) -> bool:
    values = zip(_of_operation(first), _of_operation(second), strict=True)
    return all(one == other or one in UNSET or other in UNSET for one, other in values)


def _smaller_is_not_slower(cases: Sequence[VisitedCase]) -> RuleComparisons:
    for smaller, larger in _neighbouring_sizes(cases):
        yield RuleComparison(smaller, smaller.text, (larger,), format_bytes(larger.size_bytes))


def _fused_is_not_slower(cases: Sequence[VisitedCase]) -> RuleComparisons:
    for smaller, larger in _neighbouring_sizes(cases):
        count = -(-larger.size_bytes // smaller.size_bytes)
        split = f"{count} x {format_bytes(smaller.size_bytes)}"
        yield RuleComparison(larger, larger.text, (smaller,), split, count)


def _neighbouring_sizes(
    cases: Sequence[VisitedCase],
) -> Iterator[tuple[VisitedCase, VisitedCase]]:
    with_message = [case for case in cases if case.size_bytes]
    for curve in grouped(with_message, _curve).values():
        yield from itertools.pairwise(sorted(curve, key=lambda case: case.size_bytes))


def _curve(case: VisitedCase) -> Hashable:
    """What the cases of a curve over sizes share."""
    return case.setting, case.place, case.operation, case.row.pair


def _fewer_nodes_are_not_slower(cases: Sequence[VisitedCase]) -> RuleComparisons:
    collectives = [case for case in cases if case.row.benchmark in COLLECTIVES]
    groups = grouped(
        collectives,
        lambda case: (case.setting, case.operation, case.layout.ranks_per_node),
    )
    for alike in groups.values():
        by_nodes = grouped(alike, lambda case: case.layout.nodes)
        for fewer, more in itertools.pairwise(sorted(by_nodes)):
            for case in by_nodes[fewer]:
                other = _bound(case, by_nodes[more])
                if other is not None:
                    left = f"{case.text} in {case.layout}"
                    yield RuleComparison(case, left, (other,), f"{other.text} in {other.layout}")


def _within_a_node_is_not_slower(cases: Sequence[VisitedCase]) -> RuleComparisons:
    pairs = [case for case in cases if case.link in (SAME_NODE, ACROSS_NODES)]
    groups = grouped(pairs, lambda case: (case.setting, case.operation, case.size_bytes))
    for alike in groups.values():
        by_layout = grouped(alike, lambda case: case.layout)
        both = [group for group in by_layout.values() if len(_first_by_link(group)) == 2]
        for group in both or [alike]:
            by_link = _first_by_link(group)
            if len(by_link) == 2:
                near = by_link[SAME_NODE]
                far = by_link[ACROSS_NODES]
                yield RuleComparison(near, near.text_with_pair, (far,), far.text_with_pair)


def _first_by_link(cases: Iterable[VisitedCase]) -> dict[Link | None, VisitedCase]:
    """The first pair of each kind of link, by layout and ranks."""
    ordered = sorted(cases, key=lambda case: (case.layout, case.pair or ()), reverse=True)
    return {case.link: case for case in ordered}


def _directions_are_alike(cases: Sequence[VisitedCase]) -> RuleComparisons:
    one_way = [case for case in cases if case.row.benchmark == "p2p_bandwidth"]
    groups = grouped(
        one_way, lambda case: (case.setting, case.place, case.operation, case.size_bytes)
    )
    for alike in groups.values():
        by_pair = {case.pair: case for case in alike if case.pair is not None}
        for (first, second), there in by_pair.items():
            back = by_pair.get((second, first))
            if back is not None and first < second:
                slow, fast = sorted((there, back), key=lambda case: case.median_s, reverse=True)
                yield RuleComparison(slow, slow.text_with_pair, (fast,), fast.text_with_pair)


# ---------------------------------------------------------------- the rules

# docs/guidelines.md has the source of each rule, and which messages carry the same payload
TWO_CALLS = "the library's choice of an algorithm for this size: its tuning file or variable"
LINEAR_OR_COPIED = "a linear algorithm from the root, or copies through a temporary buffer"
PROTOCOL = "a change of protocol, segment size or algorithm between the two sizes"


@dataclass(frozen=True)
class Guideline:
    """A rule. `cause`: what usually is the matter where it is violated."""

    name: str
    comparisons: CompareCases
    cause: str


GUIDELINES = (
    Guideline(
        "all_reduce <= reduce + broadcast",
        _made_of("all_reduce", "reduce", "broadcast"),
        TWO_CALLS,
    ),
    Guideline(
        "all_reduce <= reduce_scatter + all_gather",
        _made_of("all_reduce", "reduce_scatter", "all_gather"),
        TWO_CALLS,
    ),
    Guideline(
        "all_gather <= gather + broadcast",
        _made_of("all_gather", "gather", "broadcast"),
        TWO_CALLS,
    ),
    Guideline(
        "reduce_scatter <= all_reduce",
        _made_of("reduce_scatter", "all_reduce"),
        LINEAR_OR_COPIED,
    ),
    Guideline(
        "broadcast <= scatter + all_gather",
        _made_of("broadcast", "scatter", "all_gather"),
        TWO_CALLS,
    ),
    Guideline(
        "gather <= all_to_all",
        _made_of("gather", "all_to_all"),
        LINEAR_OR_COPIED,
    ),
    Guideline(
        "scatter <= all_to_all",
        _made_of("scatter", "all_to_all"),
        LINEAR_OR_COPIED,
    ),
    Guideline(
        "barrier <= all_reduce of one element",
        _made_of("barrier", "all_reduce"),
        "the barrier takes another way than messages: the network, or ranks that sleep",
    ),
    Guideline(
        "the time does not fall with the size",
        _smaller_is_not_slower,
        PROTOCOL,
    ),
    Guideline(
        "k small messages are not faster than one of k times the size",
        _fused_is_not_slower,
        PROTOCOL,
    ),
    Guideline(
        "more nodes are not faster than fewer",
        _fewer_nodes_are_not_slower,
        "shared memory is off or slow, or ranks of a node share cores",
    ),
    Guideline(
        "a message within a node is not slower than between nodes",
        _within_a_node_is_not_slower,
        "shared memory or peer-to-peer copies are off, or ranks of a node share a core",
    ),
    Guideline(
        "both directions of a pair are alike",
        _directions_are_alike,
        "a faulty cable or port, another route, or ranks on different NUMA nodes or cores",
    ),
)


# ---------------------------------------------------------------- the decision


@dataclass(frozen=True)
class Violation:
    """The worst size of a rule and a curve. `sizes` of `compared` sizes violate the rule.

    `variables` are those of the left case; `basis` says what the statement covers.
    """

    guideline: Guideline
    variables: Row
    left: str
    right: str
    left_s: float
    right_s: float
    sizes: int
    compared: int
    basis: str

    @property
    def ratio(self) -> float:
        return self.left_s / self.right_s

    def text(self, name: str) -> str:
        """The violation with both times and the usual cause in a line, for a case of this name."""
        sizes = f", at {self.sizes} of {self.compared} sizes" if self.compared > 1 else ""
        named = sorted(self.variables.warnings)
        flags = f" ({', '.join(named)})" if named else ""
        left = f"{self.left} takes {format_seconds(self.left_s)}{flags}"
        right = f"{self.right} {format_seconds(self.right_s)}"
        return (
            f"{self.guideline.name}: {name}: {left}, {right}: {format_factor(self.ratio)} as long"
            f"{sizes}, {self.basis}. Usual cause: {self.guideline.cause}."
        )


@dataclass(frozen=True)
class GuidelineResult:
    """What the comparisons of all rules say, the largest violation first.

    `comparisons` by `rules` have enough visits to be decided. `undecided`: those whose sides do not
    overlap although they have too few visits; `visits`: how many are enough.
    """

    rules: int
    comparisons: int
    violations: tuple[Violation, ...]
    undecided: int
    visits: int

    def sentences(self) -> list[str]:
        """How many rules are violated; empty where nothing can be said."""
        lines = []
        if self.comparisons:
            violated = len({violation.guideline.name for violation in self.violations})
            rules = plural(self.rules, "guideline", "guidelines")
            compared = plural(self.comparisons, "comparison", "comparisons")
            lines.append(f"{violated} of {rules} violated, by {compared}.")
        if self.undecided:
            looks = plural(self.undecided, "comparison looks", "comparisons look")
            lines.append(
                f"{looks} as if a guideline were violated, but visits (measurements of a case) are"
                f" too few to be sure: timing.visits={self.visits} are enough."
            )
        return lines


class JudgedComparison(NamedTuple):
    """`p_value` is that of the comparison, corrected for all others of its runs."""

    guideline: Guideline
    comparison: RuleComparison
    p_value: float
    is_decidable: bool


def check_guidelines(rows: Iterable[Row]) -> GuidelineResult:
    """Compare the cases of a report by all rules; simulated cases count only where there are no
    others."""
    visited = _visited_cases(rows)
    compared = [
        (guideline, comparison)
        for guideline in GUIDELINES
        for comparison in guideline.comparisons(visited)
        if comparison.launches
    ]
    judged: list[JudgedComparison] = []
    visits = 0
    for of_runs in grouped(compared, lambda each: _runs(each[1])).values():
        # what one of so many comparisons takes, at the level of all of them
        needed = launches_needed(len(of_runs))
        adjusted = holm([_p_value(comparison, needed) for _, comparison in of_runs])
        visits = max(visits, needed)
        judged += [
            JudgedComparison(guideline, comparison, p_value, _is_decidable(comparison, needed))
            for (guideline, comparison), p_value in zip(of_runs, adjusted, strict=True)
        ]
    decidable = [each for each in judged if each.is_decidable or each.p_value <= ALPHA]
    unclear = [each for each in judged if each.p_value > ALPHA and _are_apart(each.comparison)]
    violations = sorted(_violations(judged), key=lambda violation: -violation.ratio)
    rules = len({each.guideline.name for each in decidable})
    return GuidelineResult(rules, len(decidable), tuple(violations), len(unclear), visits)


def _visited_cases(rows: Iterable[Row]) -> list[VisitedCase]:
    measured = [
        row
        for row in answerable(rows)
        if isinstance(row, Measured) and not row.is_soak and row.layout and row.median_s > 0
    ]
    visits = Counter[str]()
    for row in measured:
        visits[row.case_id] += 1 if row.visit_medians_s is None else len(row.visit_medians_s)
    # most reports have many cases of few visits, which decide nothing
    repeated = [row for row in measured if visits[row.case_id] >= launches_needed(1)]
    same = grouped(repeated[:MOST_GUIDELINE_ROWS], one_case)
    return _without_most_pairs([VisitedCase.of(rows_of_case) for rows_of_case in same.values()])


def _without_most_pairs(cases: Sequence[VisitedCase]) -> list[VisitedCase]:
    """Of many pairs the first within a node and the first between nodes, in both directions: the
    rules compare these, and analysis/pairs all of them with each other."""
    kept = [case for case in cases if case.pair is None]
    paired = [case for case in cases if case.pair is not None]
    groups = grouped(paired, lambda case: (case.setting, case.place, case.operation))
    for alike in groups.values():
        pairs = {case.pair for case in alike if case.pair is not None}
        if len(pairs) >= MATRIX_PAIRS:
            first = {case.pair for case in _first_by_link(alike).values() if case.pair is not None}
            pairs = first | {(receiver, sender) for sender, receiver in first}
        kept += [case for case in alike if case.pair in pairs]
    return kept


def _runs(comparison: RuleComparison) -> frozenset[str]:
    return frozenset(run_id for run_id, _ in comparison.launches)


def _p_value(comparison: RuleComparison, needed: int) -> float:
    """p that the left side takes no longer: over launches where they are enough, else the largest
    of each launch by itself, so that every launch must show it."""
    if len(comparison.launches) >= needed:
        left_s = comparison.medians_s(comparison.left_s)
        return _p_not_longer(left_s, comparison.medians_s(comparison.right_s))
    return max(
        _p_not_longer(comparison.left_s(launch), comparison.right_s(launch))
        for launch in comparison.launches
    )


def _p_not_longer(left_s: Sequence[float], right_s: Sequence[float]) -> float:
    if statistics.median(left_s) <= (1 + GUIDELINE_MARGIN) * statistics.median(right_s):
        return 1.0
    return mann_whitney(np.array(left_s), (1 + GUIDELINE_MARGIN) * np.array(right_s))


def _are_apart(comparison: RuleComparison) -> bool:
    """Whether all visits of the left side take longer than those of the right side."""
    return all(
        min(comparison.left_s(launch)) > (1 + GUIDELINE_MARGIN) * max(comparison.right_s(launch))
        for launch in comparison.launches
    )


def _is_decidable(comparison: RuleComparison, needed: int) -> bool:
    """Whether there are enough launches, or enough visits in each."""
    if len(comparison.launches) >= needed:
        return True
    return all(
        min(len(comparison.left_s(launch)), len(comparison.right_s(launch))) >= needed
        for launch in comparison.launches
    )


def _violations(judged: Iterable[JudgedComparison]) -> Iterator[Violation]:
    curves = grouped(
        judged,
        lambda each: (
            each.guideline.name,
            each.comparison.case.setting,
            each.comparison.case.place,
            each.comparison.case.operation,
        ),
    )
    for at_sizes in curves.values():
        violating = [each.comparison for each in at_sizes if each.p_value <= ALPHA]
        if not violating:
            continue
        worst = max(violating, key=lambda comparison: comparison.ratio)
        launches = len(worst.launches)
        basis = "in this run" if launches == 1 else f"in {launches} launches"
        yield Violation(
            at_sizes[0].guideline,
            worst.case.row,
            worst.left,
            worst.right,
            *worst.stated_s,
            len(violating),
            len(at_sizes),
            basis,
        )
