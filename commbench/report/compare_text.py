"""A comparison as text for a terminal or the page: what else differs between the sides, a table,
notes on it, and a summary.

The folders of `commbench ab` record what to compare; they are compared like with `commbench compare
--paired`.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.analysis.compare import (
    ComparedVariable,
    Rules,
    Side,
    compare_sides,
    parse_by,
    read_side,
    variable_text,
)
from commbench.analysis.machines import nodes_of
from commbench.core.errors import CommbenchError
from commbench.core.states import Row
from commbench.core.terminal import TableColumn, Terminal, table_text
from commbench.core.texts import microseconds_text, some_of
from commbench.core.units import format_factor, format_number, format_seconds, plural
from commbench.core.variables import NAMES, SIZES
from commbench.results.columns import case_text, grouped
from commbench.results.fact_scopes import MISSING, is_unknown, scope_of
from commbench.results.load import Paths, flat_paths, row_dicts
from commbench.results.run_folder import walk
from commbench.stats.difference import ALPHA, launches_needed, outcomes
from commbench.stats.interval import Interval, of_formula
from commbench.stats.launches import FEW_LAUNCHES, launch_medians
from commbench.stats.thresholds import SMALLEST_CHANGE, SUSPECT_SPREADS
from commbench.stats.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

# of the columns that a narrow terminal may lack, and that are left out where they are empty
COMPARISON_PRIORITIES = {
    "±": 1,
    "BASE median\nus": 2,
    "NEW median\nus": 2,
    "launches": 3,
    "threshold": 4,
    "p (Holm)": 5,
    "p95": 6,
    "p99": 7,
}
LONGEST_LIST = 20
LONGEST_FACT = 60  # characters
VERDICT_COLORS = {"SLOWER": "red", "SUSPECT": "yellow", "FASTER": "green"}
VERDICT_MEANINGS: dict[Verdict, str] = {
    "SLOWER": "certain, and slower by more than the threshold",
    "FASTER": "certain, and faster by more than the threshold",
    "SUSPECT": f"slower by more than the threshold and {SUSPECT_SPREADS:g} spreads of BASE, or its"
    " interval is; not certain",
    "SAME": "the whole interval is within the threshold",
    "UNDECIDED": "none of these: noise hides it",
}
LARGEST_ADVICE = 1000  # launches
AB_FILE = "ab.json"
AB_SIDES = ("base", "new")  # in the folder of `commbench ab`


# ---------------------------------------------------------------- the table


def comparison_table(frame: pd.DataFrame) -> str:
    """The table of the cases on both sides; variables that all of them share are named once, in the
    title."""
    shared, heads, lines = comparison_cells(frame)
    texts = {"verdict", *NAMES}
    columns = [
        TableColumn(head, right=head not in texts, priority=COMPARISON_PRIORITIES.get(head, 0))
        for head in heads
    ]
    verdicts = (line[heads.index("verdict")] for line in lines)
    styles = {
        number: VERDICT_COLORS[verdict]
        for number, verdict in enumerate(verdicts)
        if verdict in VERDICT_COLORS
    }
    terminal = Terminal.of(sys.stdout)
    return f"{terminal.paragraph(shared)}\n{table_text(columns, lines, terminal, styles)}"


def comparison_cells(frame: pd.DataFrame) -> tuple[str, list[str], list[tuple[str, ...]]]:
    """The variables that all cases on both sides share, then the headings and rows of their
    table."""
    both = frame[frame["sides"] == "both"]
    variables = both[[name for name in NAMES if name not in SIZES]].apply(
        lambda column: column.map(variable_text)
    )
    varies = variables.groupby("benchmark").nunique().gt(1).any()
    names = ["benchmark", *varies.index[varies]]
    values = {name: set(variables[name]) - {"none"} for name in variables if name not in names}
    shared = ", ".join(
        f"{name} {' '.join(texts)}" for name, texts in values.items() if len(texts) == 1
    )
    cells = [_row_cells(row) for row in row_dicts(both)]
    lines = [
        (*texts, *row.values())
        for texts, row in zip(variables[names].to_numpy().tolist(), cells, strict=True)
    ]
    return shared, [*names, *cells[0]], lines


def _row_cells(row: Row) -> dict[str, str]:
    """Heading -> cell."""
    return {
        "message\nB": str(row["message_bytes"] or "-"),
        "launches": f"{row['base_launches']} / {row['new_launches']}",
        "BASE median\nus": microseconds_text(row["base_median_s"]),
        "NEW median\nus": microseconds_text(row["new_median_s"]),
        "NEW / BASE": _ratio_text(row["ratio"]),
        "±": "-" if row["ratio_low"] is None else _ratio(row).width_text(),
        "threshold": "-" if row["delta"] is None else f"{100 * row['delta']:.1f} %",
        "verdict": row["verdict"] or "-",
        "p (Holm)": "-" if row["p_holm"] is None else f"{row['p_holm']:.2g}",
        "p95": _ratio_text(row["p95_ratio"]),
        "p99": _ratio_text(row["p99_ratio"]),
    }


def launches_text(launches: int, cases: int, paired: bool) -> str:
    """What so many launches of each side can't show, and how many could; empty if they suffice."""
    enough = launches_needed(cases, paired)
    if launches >= enough:
        return ""
    of_each = f"{plural(launches, 'launch', 'launches')} of each side"
    among = plural(cases, "case", "cases")
    return f"{of_each} can't show SLOWER or FASTER among {among}: at least {enough} are needed"


def undecidable_text(frame: pd.DataFrame, rules: Rules) -> str:
    """How many cases have too few launches for SLOWER or FASTER; empty if none has."""
    rows = row_dicts(frame[frame["ratio"].notna()])
    few = [row for row in rows if not _is_decidable(row, rules.tests(len(rows)), rules.paired)]
    if not few:
        return ""
    launches = [min(row["base_launches"], row["new_launches"]) for row in few]
    if len(few) == len(rows):
        return launches_text(min(launches), rules.tests(len(rows)), rules.paired)
    return f"{len(few)} of {len(rows)} cases have too few launches for SLOWER or FASTER"


def _is_decidable(row: Row, cases: int, paired: bool) -> bool:
    """Whether p can be small enough, corrected for so many cases."""
    return 2 * cases <= ALPHA * outcomes(row["base_launches"], row["new_launches"], paired)


def could_be(frame: pd.DataFrame, word: Verdict, rules: Rules) -> bool:
    """Whether the launches of some case suffice for SLOWER or SUSPECT."""
    rows = row_dicts(frame[frame["ratio"].notna()])
    if word == "SUSPECT":
        return any(row["base_launches"] >= FEW_LAUNCHES for row in rows)
    return any(_is_decidable(row, rules.tests(len(rows)), rules.paired) for row in rows)


def caption(frame: pd.DataFrame, rules: Rules) -> list[str]:
    """How to read the table, and whether the launches can decide anything."""
    ratio = "median of the ratios of pairs" if rules.paired else "ratio of the medians of launches"
    lines = [f"NEW / BASE, p95, p99: {ratio}, of times of an operation; above 1 is slower"]
    if (frame["benchmark"] == "p2p_latency").any():
        lines.append("the time of p2p_latency is half a round trip")
    if frame["ratio_low"].notna().any():
        pairs = " in pairs" if rules.paired else ""
        lines.append(f"±: 95 % confidence interval over launches{pairs}, for any distribution")
        test = "signed-rank test" if rules.paired else "Mann-Whitney test"
        cases = f"the cases of {rules.settings} settings" if rules.settings > 1 else "all cases"
        lines.append(f"certain: p of the {test}, corrected for {cases}, is at most {ALPHA}")
    if rules.noise is not None:
        lines.append("threshold: --delta, or the noise of the A/A launches (95th percentile)")
    given = set(frame["verdict"].dropna())
    lines += [f"{word}: {text}" for word, text in VERDICT_MEANINGS.items() if word in given]
    lines += _undecided_advice(frame, rules)
    few = undecidable_text(frame, rules)
    lines += days_apart(frame)
    return [*lines, *uneven_launches(frame), *([few] if few else [])]


def _undecided_advice(frame: pd.DataFrame, rules: Rules) -> list[str]:
    """What would decide all UNDECIDED cases: launches, as the width of an interval shrinks with
    their root, or a margin that holds the interval."""
    undecided = frame["verdict"] == "UNDECIDED"
    rows = row_dicts(frame[undecided & frame["ratio_low"].notna()])
    if not rows:
        return []
    deltas = [max(row["ratio_high"], 1 / row["ratio_low"]) - 1 for row in rows]
    launches = [
        min(row["base_launches"], row["new_launches"])
        * (math.log(row["ratio_high"] / row["ratio_low"]) / 2 / math.log1p(row["delta"])) ** 2
        for row in rows
    ]
    needed = max(math.ceil(max(launches)), launches_needed(rules.tests(len(frame)), rules.paired))
    more = f"about {needed} launches of each side" if needed <= LARGEST_ADVICE else "less noise"
    return [f"to decide these: {more}, or --delta {math.ceil(100 * max(deltas))}"]


def days_apart(frame: pd.DataFrame) -> list[str]:
    """How many changes are no larger than those of days alone may be."""
    changed = [
        row
        for row in row_dicts(frame)
        if row["verdict"] in ("SLOWER", "FASTER") and row["day_ratio"] is not None
    ]
    if not changed:
        return []
    within = sum(abs(math.log(row["ratio"])) <= math.log(row["day_ratio"]) for row in changed)
    most = 100 * (max(row["day_ratio"] for row in changed) - 1)
    return [
        f"BASE and NEW are of different days, which alone may differ by up to {most:.2g} %:"
        f" {within} of {plural(len(changed), 'change is', 'changes are')} within that; commbench ab"
        " measures both in turn"
    ]


def uneven_launches(frame: pd.DataFrame) -> list[str]:
    """A line for each side of a case whose launches fall into two groups."""
    uneven = [
        f"{side.upper()}, {case_text(row)}: {row[f'{side}_groups']} as the others"
        for row in row_dicts(frame)
        for side in AB_SIDES
        if row[f"{side}_groups"] is not None
    ]
    return _listed("launches in two groups, which no single launch shows:", uneven)


def unjoined(frame: pd.DataFrame) -> list[str]:
    """The cases of one side only, and the launches that have no number or, with --paired, no
    counterpart."""
    rows = row_dicts(frame)
    unused = [
        f"{case_text(row)} (BASE {row['base_unmeasured']}, NEW {row['new_unmeasured']}:"
        f" {row['reason'] or 'no reason'})"
        for row in rows
        if row["base_unmeasured"] or row["new_unmeasured"]
    ]
    of_side = {
        side: [_with_reason(row) for row in rows if row["sides"] == side] for side in AB_SIDES
    }
    return [
        *_listed_cases("only in BASE", of_side["base"]),
        *_listed_cases("only in NEW", of_side["new"]),
        *_listed_cases("launches not used", unused),
    ]


def _with_reason(row: Row) -> str:
    return f"{case_text(row)} ({row['reason']})" if row["reason"] else case_text(row)


def _listed_cases(heading: str, names: Sequence[str]) -> list[str]:
    return _listed(f"{heading}: {plural(len(names), 'case', 'cases')}", names)


def _listed(heading: str, items: Sequence[str]) -> list[str]:
    """The heading and a line for each item; nothing where there is none."""
    return [heading, *(f"  {item}" for item in some_of(items, LONGEST_LIST))] if items else []


def comparison_summary(frame: pd.DataFrame) -> str:
    """`3 of 24 cases SLOWER, the worst all_reduce 1x2 1 MiB: 1.12 x ±3%; 21 SAME`."""
    both = row_dicts(frame[frame["sides"] == "both"])
    of_verdict = grouped(both, lambda row: row["verdict"])
    parts = []
    for word in VERDICT_MEANINGS:
        rows = of_verdict.get(word, [])
        if rows:
            parts.append(f"{len(rows)} {word}{_farthest_text(word, rows)}")
    if unmeasured := of_verdict.get(None, []):
        parts.append(f"{len(unmeasured)} without a number on a side")
    count, _, rest = parts[0].partition(" ")
    return "; ".join([f"{count} of {plural(len(both), 'case', 'cases')} {rest}", *parts[1:]])


def quoted_changes(frame: pd.DataFrame, by: Sequence[ComparedVariable]) -> list[str]:
    """What people quote of messages between pairs: the round trip of the smallest, the bandwidth of
    the largest, `A -> B: p2p_bandwidth 2x1 16 KiB: bandwidth 3.08 -> 4.43 GB/s, 1.44 x ±2%`."""
    usable = frame[(frame["sides"] == "both") & frame["ratio"].notna() & frame["pair"].notna()]
    by_benchmark = grouped(row_dicts(usable), lambda row: row["benchmark"])
    sides = ", ".join(" -> ".join(each.texts) for each in by if each.is_given)
    lines = filter(None, map(_quoted_change, by_benchmark.values()))
    return [f"{sides}: {line}" if sides else line for line in lines]


def _quoted_change(rows: Sequence[Row]) -> str:
    """Of the rows of one benchmark; empty where neither is quoted."""
    smallest = min(rows, key=lambda row: int(row["message_bytes"]))
    largest = max(rows, key=lambda row: int(row["message_bytes"]))
    if smallest["benchmark"] == "p2p_latency":
        trips = " -> ".join(format_seconds(2 * smallest[f"{side}_median_s"]) for side in AB_SIDES)
        return f"{case_text(smallest)}: round trip {trips}, {_ratio(smallest).text(_ratio_text)}"
    gain = _bandwidth_gain(largest)
    if gain is None:
        return ""
    rates = " -> ".join(format_number(largest[f"{side}_gb_per_s"]) for side in AB_SIDES)
    return f"{case_text(largest)}: bandwidth {rates} GB/s, {gain.text(_ratio_text)}"


def _bandwidth_gain(row: Row) -> Interval | None:
    """Bandwidth of NEW / bandwidth of BASE, of windows of messages and streams; None for others."""
    if row["window"] is None and row["stream_threads"] is None:
        return None
    return of_formula(lambda ratio: 1 / ratio, _ratio(row))


def _farthest_text(word: Verdict, rows: Sequence[Row]) -> str:
    """The case that differs most, for the verdicts that say that cases differ."""
    if word in ("SAME", "UNDECIDED"):
        return ""
    name, pick = ("best", min) if word == "FASTER" else ("worst", max)
    row = pick(rows, key=lambda row: float(row["ratio"]))
    gain = _bandwidth_gain(row)
    ratio = gain or _ratio(row)
    quantity = "bandwidth " if gain else ""
    width = f" {ratio.width_text()}" if ratio.is_known else ""
    return f", the {name} {case_text(row)}: {quantity}{_ratio_text(ratio.value)}{width}"


def _ratio_text(value: float | None) -> str:
    return "-" if value is None else f"{_factor_text(value)} x"


def _ratio(row: Row) -> Interval:
    """Time of NEW / time of BASE; without an interval where the launches are too few."""
    launches = min(row["base_launches"], row["new_launches"])
    if row["ratio_low"] is None:
        return Interval(row["ratio"], n=launches, of="launches")
    return Interval(
        row["ratio"], row["ratio_low"], row["ratio_high"], 1 - ALPHA, launches, "launches"
    )


def _factor_text(value: float) -> str:
    """Three decimals where a few percent matter, else about three digits."""
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.3f}" if value < 10 else format_factor(value).removesuffix(" x")


# ---------------------------------------------------------------- what else differs

# Facts of the run itself, or derived from what is compared anyway; facts of machines:
# commbench/results/fact_scopes.py
IGNORED = {
    "run_id",
    "folder",
    "started_at",
    "finished_at",
    "closing",
    "overrides",
    "sweep_id",
    "trial",
    "timing",
    "layouts",
    "cases",
    "at_most_s",
    "memory",
    "calibration",
    "reason",
    "exit_status",
    "config_dir",
    "world.ranks",
    "config.trial",
    "processes",
    "config.label",
    "config.output",
    "config.expect",
    "config.expect_by",
    "config.writers",
    "reference",
    "broken_reasons",
}
NODES = "provenance.nodes"


def side_lines(*sides: Side) -> list[str]:
    """A line per side with its launches and rows, and notes on what was left out or may be a
    mistake."""
    lines = []
    for side in sides:
        states = side.cases["status"].value_counts()
        bad = "".join(f", {count} {status}" for status, count in states.items() if status != "ok")
        launches: dict[str, int] = {}  # of each run: of one of timing=rigorous several
        measured = side.cases[["run_id", "median_s", "visit_medians_s", "visit_launches"]]
        for run_id, *medians in measured.itertuples(index=False):
            launches[run_id] = max(launches.get(run_id, 1), len(launch_medians(*medians)))
        count = plural(sum(launches.values()), "launch", "launches")
        lines.append(f"{side.name:4} {side.label}: {count}, {len(side.cases)} rows{bad}")
        hosts = sorted(set(side.cases["hosts"].dropna()))
        if len(hosts) > 1:
            listed = "; ".join(hosts[:3]) + ("; ..." if len(hosts) > 3 else "")
            lines.append(
                f"     note: its launches ran on {len(hosts)} sets of hosts and are taken together:"
                f" {listed}"
            )
        lines += [f"     note: {problem}" for problem in side.problems]
    return lines


def provenance_lines(base: Side, new: Side, by: Sequence[ComparedVariable]) -> list[str]:
    """What else differs between the sides, and what weakens the comparison."""
    common = set(base.cases["run_id"]) & set(new.cases["run_id"])
    lines = []
    if common and not any(variable.is_given for variable in by):
        lines.append(f"{plural(len(common), 'launch is', 'launches are')} on both sides")
    without_records = [side.name for side in (base, new) if not side.runs]
    if without_records:
        return [*lines, f"provenance of {' and '.join(without_records)} is unknown: no run.json"]
    facts = differing_facts(base.runs, new.runs)
    differences = some_of([str(fact) for fact in facts if fact.apart], LONGEST_LIST)
    mixed = [fact.key for fact in facts if not fact.apart]
    if mixed:
        differences.append(f"varies within a side: {', '.join(some_of(mixed, LONGEST_LIST))}")
    if not differences:
        return [*lines, "nothing else differs in the provenance"]
    return [*lines, "differs, BASE -> NEW:", *(f"  {text}" for text in differences)]


@dataclass(frozen=True)
class DifferingFact:
    """A fact with its values on each side, as texts; `apart`: the sides have no value in common."""

    key: str
    base: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def apart(self) -> bool:
        return not set(self.base) & set(self.new)

    def __str__(self) -> str:
        return f"{self.key}: {_values_text(self.base)} -> {_values_text(self.new)}"


def _values_text(values: Sequence[str]) -> str:
    shown = [
        value if len(value) <= LONGEST_FACT else f"{value[: LONGEST_FACT - 3]}..."
        for value in values[:3]
    ]
    return (
        " | ".join([*shown, *([f"... ({len(values)} values)"] if len(values) > 3 else [])])
        or "empty"
    )


def differing_facts(
    base: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> list[DifferingFact]:
    """Facts of run.json whose values differ between the sides. Runs that could not read a fact do
    not count."""
    facts_of_run = {id(run): compared_facts(run) for run in (*base, *new)}
    differing = []
    for key in sorted({key for facts in facts_of_run.values() for key in facts}):
        values = []
        for runs in (base, new):
            known = [run for run in runs if not _is_unread(key, run, facts_of_run[id(run)])]
            texts = {facts_of_run[id(run)].get(key, MISSING) for run in known}
            values.append(tuple(sorted(texts)))
        if all(values) and values[0] != values[1]:
            differing.append(DifferingFact(key, *values))
    return differing


def _is_unread(key: str, run: Mapping[str, Any], facts: Mapping[str, str]) -> bool:
    """Whether no node of the run has the fact, and one of them could not read it."""
    return key not in facts and any(is_unknown(key, node) for node in nodes_of(run))


def compared_facts(run: Mapping[str, Any]) -> dict[str, str]:
    """Dotted name -> text of its value; a fact of nodes has the values of all nodes."""
    values = {
        key: {_json_text(value)} for key, value in _flat_facts("", run) if not key.startswith(NODES)
    }
    by_key: dict[str, set[str]] = {}
    for node in nodes_of(run):
        for key, value in node.items():
            if value is None:
                continue
            by_key.setdefault(key, set()).add(_json_text(value))
    compared = {}
    for key, texts in (values | by_key).items():
        heads = set(itertools.accumulate(key.split("."), "{}.{}".format))
        if not heads & IGNORED and not key.endswith("._target_") and scope_of(key).runs == "show":
            compared[key] = ", ".join(sorted(texts))
    return compared


def _flat_facts(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, nested in value.items():
            yield from _flat_facts(f"{prefix}.{name}" if prefix else str(name), nested)
    else:
        yield prefix, value


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def drift_text(frame: pd.DataFrame, base: Side, new: Side) -> str:
    """What weakens a verdict of launches that were not taken in turn; empty without either."""
    certain = frame["verdict"].isin(["SLOWER", "FASTER"]).any()
    if not certain or not base.runs or not new.runs or not ran_separately(base.runs, new.runs):
        return ""
    return (
        "not taken in turn: all launches of one side came before the other's, so a drift of the"
        " machine, or another day, can be what is SLOWER or FASTER; commbench ab takes turns"
    )


def ran_separately(base: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all runs of one side came before all of the other, so that a drift of the machine
    looks like a change."""
    before = sorted(str(run.get("run_id") or "") for run in base)
    after = sorted(str(run.get("run_id") or "") for run in new)
    return bool(before[0] and after[0]) and (before[-1] < after[0] or after[-1] < before[0])


# ---------------------------------------------------------------- folders of commbench ab


@dataclass(frozen=True, eq=False)
class AbResult:
    """A folder of `commbench ab`: the overrides in which NEW differs from BASE, and the
    comparison."""

    folder: Path
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    rules: Rules
    frame: pd.DataFrame

    def sentence(self) -> str:
        """What was compared."""
        instead = f" instead of {' '.join(self.replaced)}" if self.replaced else ""
        launches = plural(int(self.frame["new_launches"].max()), "launch", "launches")
        return (
            f"{self.folder.name}: NEW is BASE with {' '.join(self.added)}{instead}; {launches} of"
            " each side in turn."
        )

    def summary(self) -> str:
        """How many cases are slower, faster, the same or undecided."""
        return f"{comparison_summary(self.frame)}."

    def notes(self) -> list[str]:
        """How to read the table, and what is not in it."""
        return [*caption(self.frame, self.rules), *unjoined(self.frame)]


def read_ab_results(
    paths: Iterable[Paths], benchmark: str | None = None
) -> tuple[list[AbResult], list[str]]:
    """All ab folders at or below the paths or directly above a side, and why others were left out.

    `benchmark`: only its cases, and only the folders that have some.
    """
    flat = flat_paths(paths)
    below = [
        folder / AB_FILE for path in flat for folder, _, names in walk(path) if AB_FILE in names
    ]
    above = [path.absolute().parent / AB_FILE for path in flat if path.name in AB_SIDES]
    folders = {file.parent.resolve(): file.parent for file in (*below, *above) if file.is_file()}
    results = []
    problems = []
    for folder in sorted(folders.values(), key=lambda folder: folder.name):
        try:
            result = _ab_result(folder, benchmark)
        except (CommbenchError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            problems.append(
                f"comparison of {folder}: {type(error).__name__ if not str(error) else error}"
            )
            continue
        if (result.frame["sides"] == "both").any():
            results.append(result)
    return results, problems


def _ab_result(folder: Path, benchmark: str | None) -> AbResult:
    """Raises CommbenchError for sides that can't be compared, and what a damaged record makes json
    and dict raise."""
    record = json.loads((folder / AB_FILE).read_text())
    base, new = (list(map(str, record[side])) for side in AB_SIDES)
    added = tuple(word for word in new if word not in base)
    replaced = tuple(word for word in base if word not in new)
    delta = float(record.get("delta", SMALLEST_CHANGE))  # not in older files
    rules = Rules(parse_by(record["by"]), paired=True, delta=delta, seed=int(record["seed"]))
    base_side = read_side("BASE", folder / "base")
    new_side = read_side("NEW", folder / "new")
    frame = compare_sides(base_side, new_side, rules)
    if benchmark is not None:
        frame = frame[frame["benchmark"] == benchmark]
    return AbResult(folder, added, replaced, rules, frame)
