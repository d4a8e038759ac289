"""A comparison as text: what was read, what else differs in the run records, a table with units, and a summary."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commbench.core.fact_scopes import scope_of
from commbench.core.units import format_bytes, format_seconds

from .compare import Rules, case_name
from .compare_sides import NAMES, Difference, Side, text
from .compare_statistics import ALPHA, GOOD_LAUNCHES, LEAST_LAUNCHES, MOST_LAUNCHES

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 150
SIZES = ("message_bytes", "count")
ALWAYS_SHOWN = ("message", "launches", "BASE median", "NEW median", "NEW / BASE", "verdict")
LONGEST_LIST = 20
MISSING = "missing"
LONGEST_VALUE = 60  # characters
# Facts of the run itself, or derived from what is compared anyway; facts of machines: commbench/core/fact_scopes.py
IGNORED = {
    "run_id", "folder", "started_at", "finished_at", "overrides", "sweep_id", "launch", "timing", "layouts", "cases",
    "at_most_s", "memory", "calibration", "reason", "exit_status", "config_dir", "world.ranks", "config.launch",
    "processes", "config.label", "config.output", "config.expect", "config.writers",
}  # fmt: skip
IGNORED_SUFFIXES = ("_namespace", "._target_", ".environment.COMMBENCH_FOLDER")
NODES = "provenance.nodes"


def side_lines(*sides: Side) -> list[str]:
    """What was read, and what was left out."""
    lines = []
    for one in sides:
        states = one.cases["status"].value_counts()
        bad = "".join(f", {count} {status}" for status, count in states.items() if status != "ok")
        launches, rows = one.cases["run_id"].nunique(), len(one.cases)
        lines.append(f"{one.name:4} {one.label}: {plural(launches, 'launch', 'launches')}, {rows} rows{bad}")
        lines += [f"     note: {problem}" for problem in one.problems]
    return lines


def provenance_lines(base: Side, new: Side, by: Sequence[Difference]) -> list[str]:
    """What else differs between the sides, and what weakens the comparison."""
    common = set(base.cases["run_id"]) & set(new.cases["run_id"])
    lines = []
    if common and not any(one.base for one in by):
        lines.append(f"{plural(len(common), 'launch is', 'launches are')} on both sides")
    without_records = [one.name for one in (base, new) if not one.runs]
    if without_records:
        return [*lines, f"provenance of {' and '.join(without_records)} is unknown: no run.json"]
    facts = differing(base.runs, new.runs)
    apart = [fact for fact in facts if fact.apart]
    mixed = [fact.key for fact in facts if not fact.apart]
    differences = [f"  {fact}" for fact in apart[:LONGEST_LIST]]
    if len(apart) > LONGEST_LIST:
        differences.append(f"  ... and {len(apart) - LONGEST_LIST} more")
    differences += [f"  varies within a side: {', '.join(mixed[:LONGEST_LIST])}"] if mixed else []
    if ran_separately(base.runs, new.runs):
        differences.append(
            "  all launches of one side came before the other's: a drift of the machine looks like a change"
        )
    if not differences:
        return [*lines, "nothing else differs in the provenance"]
    return [*lines, "differs, BASE -> NEW:", *differences]


# ---------------------------------------------------------------- what else differs


@dataclass(frozen=True)
class Differing:
    """A fact with its values on each side, as texts; `apart`: no value is on both sides."""

    key: str
    base: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def apart(self) -> bool:
        return not set(self.base) & set(self.new)

    def __str__(self) -> str:
        return f"{self.key}: {_shown_values(self.base)} -> {_shown_values(self.new)}"


def differing(base: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Differing]:
    """Facts of run.json whose values differ between the sides; empty where a side has no records."""
    if not base or not new:
        return []
    sides = [[facts(run) for run in runs] for runs in (base, new)]
    found = []
    for key in sorted({key for runs in sides for run in runs for key in run}):
        values = [tuple(sorted({run.get(key, MISSING) for run in runs})) for runs in sides]
        if values[0] != values[1]:
            found.append(Differing(key, *values))
    return found


def facts(run: Mapping[str, Any]) -> dict[str, str]:
    """Dotted name -> text of its value; of several nodes all values."""
    found = {
        key: _fact_text(value) for key, value in _flat_facts("", run) if _is_compared(key) and not key.startswith(NODES)
    }
    by_key: dict[str, set[str]] = {}
    provenance = run.get("provenance")
    nodes = provenance.get("nodes") if isinstance(provenance, Mapping) else None
    for node in nodes if isinstance(nodes, list) else ():
        for key, value in node.items() if isinstance(node, Mapping) else ():
            by_key.setdefault(key, set()).add(_fact_text(value))
    return found | {key: ", ".join(sorted(values)) for key, values in by_key.items() if _is_compared(key)}


def ran_separately(base: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all runs of one side came before all of the other, so that a drift of the machine looks like a change."""
    times = [sorted(str(run.get("started_at") or "") for run in runs) for runs in (base, new)]
    if not all(side and side[0] for side in times):
        return False
    return times[0][-1] < times[1][0] or times[1][-1] < times[0][0]


def _flat_facts(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _flat_facts(f"{prefix}.{name}" if prefix else str(name), one)
    else:
        yield prefix, value


def _is_compared(key: str) -> bool:
    parts = key.split(".")
    heads = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return not heads & IGNORED and not key.endswith(IGNORED_SUFFIXES) and scope_of(key).runs == "show"


def _fact_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _shown_values(values: Sequence[str]) -> str:
    shown = " | ".join(one if len(one) <= LONGEST_VALUE else f"{one[: LONGEST_VALUE - 3]}..." for one in values[:3])
    return shown + (f" | ... ({len(values)} values)" if len(values) > 3 else "") or "empty"


# ---------------------------------------------------------------- the table and its summary


def table_text(frame: pd.DataFrame) -> str:
    """Of the cases on both sides; a variable that they share is told once in the title."""
    from rich.console import Console
    from rich.table import Table

    rows = [row for row in frame.to_dict("records") if row["sides"] == "both"]
    values = {name: sorted({text(row[name]) for row in rows} - {"none"}) for name in NAMES[1:] if name not in SIZES}
    texts = ["benchmark", *(name for name in values if _distinguishes(name, rows))]
    cells = [_cells(row) for row in rows]
    headings = [heading for heading in cells[0] if heading in ALWAYS_SHOWN or any(one[heading] != "-" for one in cells)]
    table = Table(box=None)
    for heading in (*texts, *headings):
        side = "left" if heading in texts or heading == "verdict" else "right"
        table.add_column(heading, justify=side, no_wrap=heading != "pair", overflow="fold")  # type: ignore[arg-type]
    for row, one in zip(rows, cells, strict=True):
        table.add_row(*(text(row[name]) for name in texts), *(one[heading] for heading in headings))
    width = max(int(os.environ.get("COLUMNS", "0")), WIDTH)
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(", ".join(f"{name} {one[0]}" for name, one in values.items() if len(one) == 1 and name not in texts))
    console.print(table)
    drawn: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in drawn.rstrip().splitlines())


def _distinguishes(name: str, rows: Sequence[dict[Any, Any]]) -> bool:
    """Whether cases of the same benchmark differ in this variable."""
    benchmarks = {row["benchmark"] for row in rows}
    return any(len({text(row[name]) for row in rows if row["benchmark"] == one}) > 1 for one in benchmarks)


def _cells(row: dict[Any, Any]) -> dict[str, str]:
    """Heading -> text, with units."""
    known = {name: None if _null(value) else value for name, value in row.items()}
    p_value = known["p_holm"]
    return {
        "message": format_bytes(known["message_bytes"]) if known["message_bytes"] else "-",
        "launches": f"{known['base_launches']} / {known['new_launches']}",
        "BASE median": format_seconds(known["base_median_s"]),
        "NEW median": format_seconds(known["new_median_s"]),
        "NEW / BASE": _times(known["ratio"]),
        "95 % interval": _interval(row),
        "threshold": "-" if known["delta"] is None else f"{100 * known['delta']:.1f} %",
        "verdict": known["verdict"] or "-",
        "p (Holm)": "-" if p_value is None else f"{p_value:.2g}" + (" ?" if _doubted(row) else ""),
        "p95": _times(known["p95_ratio"]),
        "p99": _times(known["p99_ratio"]),
        "missing": _missing(row),
    }


def _doubted(row: dict[Any, Any]) -> bool:
    """FASTER or SLOWER, but the second opinion sees no difference."""
    return row["verdict"] in ("FASTER", "SLOWER") and row["p_holm"] > ALPHA


def _missing(row: dict[Any, Any]) -> str:
    if _null(row["ratio"]):
        return "-"
    if _null(row["missing_launches"]):
        return f"over {MOST_LAUNCHES}"
    return str(row["missing_launches"])


def caption(frame: pd.DataFrame, rules: Rules) -> list[str]:
    lines = [
        "NEW / BASE, p95, p99: ratio of times of an operation, median over launches, above 1 is slower",
        "verdict: the whole interval is beyond the threshold, or within it (SAME); missing: launches a side until one",
    ]
    if (frame["verdict"].notna() & ~frame["resampled"].fillna(False)).any():
        lines.append("interval: launches resampled, without the repetitions inside them")
    if any(_doubted(row) for row in frame.to_dict("records")):
        lines.append(f"?: Mann-Whitney on launch medians, corrected for all cases, does not reach {ALPHA}")
    if rules.noise is not None:
        lines.append("threshold: the 95th percentile of the A/A launches' noise where that is larger")
    return lines


def unjoined(frame: pd.DataFrame) -> list[str]:
    """Cases of one side only, and launches without a number or, with --paired, a partner: nothing is just dropped."""
    rows = frame.to_dict("records")
    lines = []
    for where, name in (("base", "BASE"), ("new", "NEW")):
        only = [case_name(row) for row in rows if row["sides"] == where]
        lines += _listed(f"only in {name}", only)
    bad = [_unused(row) for row in rows if row["base_unmeasured"] or row["new_unmeasured"]]
    return lines + _listed("launches not used", bad)


def _unused(row: dict[Any, Any]) -> str:
    reason = "no reason" if _null(row["reason"]) else row["reason"]
    return f"{case_name(row)} (BASE {row['base_unmeasured']}, NEW {row['new_unmeasured']}: {reason})"


def _listed(heading: str, names: Sequence[str]) -> list[str]:
    more = [f"  ... and {len(names) - LONGEST_LIST} more"] if len(names) > LONGEST_LIST else []
    shown = [f"  {name}" for name in names[:LONGEST_LIST]]
    return [f"{heading}: {plural(len(names), 'case', 'cases')}", *shown, *more] if names else []


def summary(frame: pd.DataFrame) -> str:
    """3 of 24 cases SLOWER, worst all_reduce 1x2 1 MiB: 1.12 x (1.09 .. 1.15); 21 SAME."""
    both = frame[frame["sides"] == "both"]
    parts: list[tuple[int, str]] = []
    for word, extreme, pick in (("SLOWER", "worst", max), ("FASTER", "best", min)):
        rows = both[both["verdict"] == word].to_dict("records")
        if rows:
            row = pick(rows, key=lambda one: one["ratio"])
            parts.append((len(rows), f"{word}, {extreme} {case_name(row)}: {_times(row['ratio'])} ({_interval(row)})"))
    same, open_ones = both[both["verdict"] == "SAME"], both[both["verdict"] == "UNDECIDED"]
    parts += [(len(same), "SAME")] if len(same) else []
    parts += [(len(open_ones), f"UNDECIDED ({_wanted(open_ones)})")] if len(open_ones) else []
    (first, words), *others = [*parts, *_without_verdict(both)]
    cases = plural(len(both), "case", "cases")
    return "; ".join([f"{first} of {cases} {words}", *(f"{count} {words}" for count, words in others)])


def _wanted(rows: pd.DataFrame) -> str:
    """How many more launches a side, about, until a verdict."""
    known = rows["missing_launches"].dropna()
    endless = len(rows) - len(known)
    low_high = sorted({int(known.min()), int(known.max())}) if len(known) else []
    parts = [f"about {' to '.join(str(one) for one in low_high)} more launches a side"] if low_high else []
    return "; ".join([*parts, *([f"{endless} would need over {MOST_LAUNCHES}"] if endless else [])])


def _without_verdict(both: pd.DataFrame) -> list[tuple[int, str]]:
    few = both[both["verdict"].isna() & both["ratio"].notna()]
    empty = int(both["ratio"].isna().sum())
    parts = [(empty, "without a number on a side")] if empty else []
    if len(few):
        missing = plural(int(few["missing_launches"].max()), "more launch", "more launches")
        least = f"at least {LEAST_LAUNCHES}, better {GOOD_LAUNCHES}"
        parts.append((len(few), f"without a verdict: {missing} a side needed ({least})"))
    return parts


def _times(value: float | None) -> str:
    return "-" if _null(value) else f"{_factor(value)} x"


def _interval(row: dict[Any, Any]) -> str:
    return "-" if _null(row["ratio_low"]) else f"{_factor(row['ratio_low'])} .. {_factor(row['ratio_high'])}"


def _factor(value: Any) -> str:
    """Thousandths, where a few percent matter."""
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def _null(value: Any) -> bool:
    import pandas as pd

    return value is None or bool(pd.isna(value))


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
