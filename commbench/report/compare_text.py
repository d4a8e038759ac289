"""A comparison as text for a terminal or the page: a table, notes on it, and a summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from commbench.analysis.compare import Rules
from commbench.analysis.compared_case import ComparedCase, Judged
from commbench.analysis.sides import ComparedVariable, variable_text
from commbench.core.annexes import registered
from commbench.core.terminal import TableColumn
from commbench.core.texts import microseconds_text, some_of
from commbench.core.units import NO_NUMBER, format_factor, format_number, format_seconds, plural
from commbench.core.variables import NAMES, SIZES
from commbench.results.columns import grouped
from commbench.stats.difference import ALPHA, launches_needed, outcomes
from commbench.stats.interval import Interval, of_formula
from commbench.stats.thresholds import FEW_LAUNCHES, SUSPECT_SPREADS
from commbench.stats.verdict import Verdict

from .compared_sides import LONGEST_LIST
from .showing import Showing
from .table import Table

# with the priority of the column: a narrow terminal drops the highest first
NUMBER_HEADS = {
    "BASE median\nus": 2,
    "NEW median\nus": 2,
    "NEW / BASE": 0,
    "±": 1,
    "threshold": 4,
    "verdict": 0,
    "p (Holm)": 5,
    "p95": 6,
    "p99": 7,
}
COMPARISON_PRIORITIES = {**NUMBER_HEADS, "launches": 3}
VERDICT_COLORS = {"SLOWER": "red", "SUSPECT": "yellow", "FASTER": "green"}
VERDICT_MEANINGS: dict[Verdict, str] = {
    "SLOWER": "certain, and slower by more than the threshold",
    "FASTER": "certain, and faster by more than the threshold",
    "SUSPECT": f"slower by more than the threshold and {SUSPECT_SPREADS:g} spreads of BASE, or its"
    " interval is; not certain",
    "SAME": "the whole interval is within the threshold",
    "UNDECIDED": "noise hides it",
}
LARGEST_ADVICE = 1000  # launches


# ---------------------------------------------------------------- the table


def comparison_table(cases: Sequence[ComparedCase]) -> Table:
    """The cases on both sides; variables that all of them share are named once, in the title.
    Columns without a value are left out."""
    both = on_both(cases)
    others = [name for name in NAMES if name != "benchmark" and name not in SIZES]
    by_benchmark = grouped(both, lambda case: case.variables.benchmark).values()
    varying = [name for name in others if any(len(_texts(own, name)) > 1 for own in by_benchmark)]
    values = {
        name: _texts(both, name) - {variable_text(None, name)}
        for name in others
        if name not in varying
    }
    shared = ", ".join(
        f"{name} {' '.join(texts)}" for name, texts in values.items() if len(texts) == 1
    )
    names = ["benchmark", *varying]
    cells = [{name: case.text(name) for name in names} | _case_cells(case) for case in both]
    heads = [head for head in cells[0] if any(own[head] != NO_NUMBER for own in cells)]
    columns = [
        TableColumn(
            head,
            right=head not in ("verdict", *names),
            priority=COMPARISON_PRIORITIES.get(head, 0),
        )
        for head in heads
    ]
    colors = {
        number: VERDICT_COLORS[case.verdict]
        for number, case in enumerate(both)
        if case.verdict in VERDICT_COLORS
    }
    return Table(columns, [[own[head] for head in heads] for own in cells], shared, colors)


def on_both(cases: Iterable[ComparedCase]) -> list[ComparedCase]:
    return [case for case in cases if case.sides == "both"]


def _texts(cases: Iterable[ComparedCase], name: str) -> set[str]:
    return {case.text(name) for case in cases}


def _case_cells(case: ComparedCase) -> dict[str, str]:
    """Heading -> cell."""
    base_launches, new_launches = case.launches
    cells = {
        "message\nB": str(case.variables.message_bytes or "-"),
        "launches": f"{base_launches} / {new_launches}",
    }
    numbers = _number_cells(case.judged) if case.judged else "-" * len(NUMBER_HEADS)
    cells |= dict(zip(NUMBER_HEADS, numbers, strict=True))
    for feature in registered(Showing):
        cells |= feature.compared_cells(case)
    return cells


def _number_cells(judged: Judged) -> tuple[str, ...]:
    """The cells below NUMBER_HEADS."""
    comparison = judged.comparison
    known = comparison.is_decidable
    return (
        microseconds_text(comparison.base_s),
        microseconds_text(comparison.new_s),
        _ratio_text(judged.ratio.value),
        judged.ratio.width_text() if known else "-",
        f"{100 * judged.delta:.1f} %",
        judged.verdict,
        f"{judged.p_holm:.2g}" if known else "-",
        _ratio_text(judged.p95_ratio),
        _ratio_text(judged.p99_ratio),
    )


def launches_text(launches: int, cases: int, paired: bool) -> str:
    """What so many launches of each side can't show, and how many could; empty if they suffice."""
    enough = launches_needed(cases, paired)
    if launches >= enough:
        return ""
    of_each = f"{plural(launches, 'launch', 'launches')} of each side"
    among = plural(cases, "case", "cases")
    return f"{of_each} can't show SLOWER or FASTER among {among}: at least {enough} are needed"


def undecidable_text(cases: Sequence[ComparedCase], rules: Rules) -> str:
    """How many cases have too few launches for SLOWER or FASTER; empty if none has."""
    judged = [case for case in cases if case.judged]
    tests = rules.tests(len(judged))
    few = [case for case in judged if not _is_decidable(case, tests, rules.paired)]
    if not few:
        return ""
    if len(few) == len(judged):
        least = min(min(case.launches) for case in few)
        return launches_text(least, tests, rules.paired)
    return f"{len(few)} of {len(judged)} cases have too few launches for SLOWER or FASTER"


def _is_decidable(case: ComparedCase, cases: int, paired: bool) -> bool:
    """Whether p can be small enough, corrected for so many cases."""
    return 2 * cases <= ALPHA * outcomes(*case.launches, paired)


def could_be(cases: Sequence[ComparedCase], word: Verdict, rules: Rules) -> bool:
    """Whether the launches of some case suffice for SLOWER or SUSPECT."""
    judged = [case for case in cases if case.judged]
    if word == "SUSPECT":
        return any(case.launches[0] >= FEW_LAUNCHES for case in judged)
    return any(_is_decidable(case, rules.tests(len(judged)), rules.paired) for case in judged)


def caption(cases: Sequence[ComparedCase], rules: Rules) -> list[str]:
    """How to read the table, and whether the launches can decide anything."""
    ratio = "median of the ratios of pairs" if rules.paired else "ratio of the medians of launches"
    lines = [f"x: NEW / BASE, {ratio}, of times of an operation; above 1 is slower"]
    halves = {case.variables.benchmark for case in cases if case.variables.is_half_round_trip}
    lines += [f"the time of {name} is half a round trip" for name in sorted(halves)]
    if any(judged.ratio.is_known for _, judged in _judged(cases)):
        pairs = " in pairs" if rules.paired else ""
        lines.append(f"±: 95 % confidence interval over launches{pairs}, for any distribution")
        test = "signed-rank test" if rules.paired else "Mann-Whitney test"
        among = f"the cases of {rules.settings} settings" if rules.settings > 1 else "all cases"
        lines.append(f"certain: p of the {test}, corrected for {among}, is at most {ALPHA}")
    if rules.noise is not None:
        lines.append("threshold: --delta, or the noise of the A/A launches (95th percentile)")
    given = {case.verdict for case in cases}
    lines += [f"{word}: {text}" for word, text in VERDICT_MEANINGS.items() if word in given]
    lines += [*_undecided_advice(cases, rules), *days_apart(cases), *uneven_launches(cases)]
    return [*lines, *filter(None, [undecidable_text(cases, rules)])]


def _undecided_advice(cases: Sequence[ComparedCase], rules: Rules) -> list[str]:
    """What would decide all UNDECIDED cases: launches, or a margin that holds the interval."""
    undecided = [
        (min(case.launches), judged.ratio, judged.delta)
        for case, judged in _judged(cases)
        if judged.verdict == "UNDECIDED" and judged.ratio.is_known
    ]
    if not undecided:
        return []
    margin = max(max(ratio.high, 1 / ratio.low) - 1 for _, ratio, _ in undecided)
    launches = max(math.ceil(_deciding_launches(*each)) for each in undecided)
    needed = max(launches, launches_needed(rules.tests(len(cases)), rules.paired))
    more = f"about {needed} launches of each side" if needed <= LARGEST_ADVICE else "less noise"
    return [f"to decide these: {more}, or --delta {math.ceil(100 * margin)}"]


def _deciding_launches(launches: int, ratio: Interval, margin: float) -> float:
    """So many that the interval, which shrinks with their root, is on one side of the margin."""
    to_margin = abs(abs(math.log(ratio.value)) - math.log1p(margin)) or math.ulp(1.0)
    return max(launches + 1, launches * (math.log(ratio.high / ratio.low) / 2 / to_margin) ** 2)


def days_apart(cases: Iterable[ComparedCase]) -> list[str]:
    """How many changes are no larger than those of days alone may be."""
    changed = [
        (judged.ratio.value, judged.day_ratio)
        for _, judged in _judged(cases)
        if judged.verdict in ("SLOWER", "FASTER") and judged.day_ratio is not None
    ]
    if not changed:
        return []
    within = sum(abs(math.log(ratio)) <= math.log(day_ratio) for ratio, day_ratio in changed)
    most = 100 * (max(day_ratio for _, day_ratio in changed) - 1)
    return [
        f"BASE and NEW are of different days, which alone may differ by up to {most:.2g} %:"
        f" {within} of {plural(len(changed), 'change is', 'changes are')} within that; commbench ab"
        " measures both in turn"
    ]


def uneven_launches(cases: Iterable[ComparedCase]) -> list[str]:
    """A line for each side of a case whose launches fall into two groups."""
    uneven = [
        f"{name}, {case.name}: {groups} as the others"
        for case, _ in _judged(cases)
        for name, side in (("BASE", case.base), ("NEW", case.new))
        if (groups := side.groups) is not None
    ]
    return _listed("launches in two groups, which no single launch shows:", uneven)


def unjoined(cases: Sequence[ComparedCase]) -> list[str]:
    """The cases of one side only, and the launches that have no number or, with --paired, no
    counterpart."""
    unused = [
        f"{case.name} (BASE {case.base.unmeasured}, NEW {case.new.unmeasured}:"
        f" {case.reason or 'no reason'})"
        for case in cases
        if case.base.unmeasured or case.new.unmeasured
    ]
    return [
        *_listed_cases("only in BASE", _with_reasons(cases, "base")),
        *_listed_cases("only in NEW", _with_reasons(cases, "new")),
        *_listed_cases("launches not used", unused),
    ]


def _with_reasons(cases: Iterable[ComparedCase], side: str) -> list[str]:
    """The cases of this side only."""
    return [
        f"{case.name} ({case.reason})" if case.reason else case.name
        for case in cases
        if case.sides == side
    ]


def _listed_cases(heading: str, names: Sequence[str]) -> list[str]:
    return _listed(f"{heading}: {plural(len(names), 'case', 'cases')}", names)


def _listed(heading: str, items: Sequence[str]) -> list[str]:
    """The heading and a line for each item; nothing where there is none."""
    return [heading, *(f"  {item}" for item in some_of(items, LONGEST_LIST))] if items else []


def comparison_summary(cases: Sequence[ComparedCase]) -> str:
    """`3 of 24 cases SLOWER, the worst all_reduce 1x2 1 MiB: 1.12 x ±3%; 21 SAME`."""
    both = on_both(cases)
    of_verdict = grouped(_judged(both), lambda each: each[1].verdict)
    parts = [
        f"{len(of_verdict[word])} {word}{_farthest_text(word, of_verdict[word])}"
        for word in VERDICT_MEANINGS
        if word in of_verdict
    ]
    if unmeasured := sum(case.judged is None for case in both):
        parts.append(f"{unmeasured} without a number on a side")
    parts += filter(None, (feature.compared_summary(both) for feature in registered(Showing)))
    count, _, rest = parts[0].partition(" ")
    return "; ".join([f"{count} of {plural(len(both), 'case', 'cases')} {rest}", *parts[1:]])


def _judged(cases: Iterable[ComparedCase]) -> list[tuple[ComparedCase, Judged]]:
    return [(case, case.judged) for case in cases if case.judged]


def quoted_changes(cases: Sequence[ComparedCase], by: Sequence[ComparedVariable]) -> list[str]:
    """What people quote of messages between pairs: the round trip of the smallest, the bandwidth of
    the largest, `A -> B: p2p_bandwidth 2x1 16 KiB: bandwidth 3.08 -> 4.43 GB/s, 1.44 x ±2%`."""
    usable = [each for each in _judged(on_both(cases)) if each[0].variables.pair is not None]
    by_benchmark = grouped(usable, lambda each: each[0].variables.benchmark)
    sides = ", ".join(" -> ".join(each.texts) for each in by if each.is_given)
    lines = filter(None, map(_quoted_change, by_benchmark.values()))
    return [f"{sides}: {line}" if sides else line for line in lines]


def _quoted_change(cases: Sequence[tuple[ComparedCase, Judged]]) -> str:
    """Of the cases of one benchmark; empty where neither is quoted."""
    case, judged = min(cases, key=_message_bytes)
    if case.variables.is_half_round_trip:
        medians_s = judged.comparison.base_s, judged.comparison.new_s
        trips = " -> ".join(format_seconds(2 * median_s) for median_s in medians_s)
        return f"{case.name}: round trip {trips}, {judged.ratio.text(_ratio_text)}"
    case, judged = max(cases, key=_message_bytes)
    gain = _bandwidth_gain(case, judged)
    base_rate = case.base.gb_per_s(judged.comparison.base_s)
    new_rate = case.new.gb_per_s(judged.comparison.new_s)
    if gain is None or base_rate is None or new_rate is None:
        return ""
    rates = f"{format_number(base_rate)} -> {format_number(new_rate)} GB/s"
    return f"{case.name}: bandwidth {rates}, {gain.text(_ratio_text)}"


def _message_bytes(each: tuple[ComparedCase, Judged]) -> int:
    return each[0].variables.message_bytes


def _bandwidth_gain(case: ComparedCase, judged: Judged) -> Interval | None:
    """Bandwidth of NEW / bandwidth of BASE, of windows of messages and streams; None for others."""
    if case.variables.window is None and not case.variables.is_stream:
        return None
    return of_formula(lambda ratio: 1 / ratio, judged.ratio)


def _farthest_text(word: Verdict, cases: Sequence[tuple[ComparedCase, Judged]]) -> str:
    """The case that differs most, for the verdicts that say that cases differ."""
    if word in ("SAME", "UNDECIDED"):
        return ""
    name, pick = ("best", min) if word == "FASTER" else ("worst", max)
    case, judged = pick(cases, key=lambda each: each[1].ratio.value)
    gain = _bandwidth_gain(case, judged)
    ratio = gain or judged.ratio
    quantity = "bandwidth " if gain else ""
    width = f" {ratio.width_text()}" if ratio.is_known else ""
    shown = f"{quantity}{_ratio_text(ratio.value)}{width}"
    return f", the {name} {case.name}: {shown}"


def _ratio_text(value: float | None) -> str:
    return "-" if value is None else f"{_factor_text(value)} x"


def _factor_text(value: float) -> str:
    """Three decimals where a few percent matter, else about three digits."""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.3f}" if value < 10 else format_factor(value).removesuffix(" x")
