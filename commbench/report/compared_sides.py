"""The sides of a comparison as text: what each has, what else differs between them, and whether
they ran in turn."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commbench.analysis.compared_case import ComparedCase
from commbench.analysis.machines import nodes_of
from commbench.analysis.sides import ComparedVariable, Side
from commbench.core.texts import some_of
from commbench.core.units import plural
from commbench.results.fact_scopes import MISSING, is_unknown, scope_of
from commbench.results.row import Measured

LONGEST_LIST = 20
LONGEST_FACT = 60  # characters
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
        states = Counter(row.status for row in side.rows).most_common()
        bad = "".join(f", {count} {status}" for status, count in states if status != "ok")
        launches: dict[str, int] = {}  # of each run: of one of timing=rigorous several
        for row in side.rows:
            launches.setdefault(row.run_id, 1)
            if isinstance(row, Measured):
                launches[row.run_id] = max(launches[row.run_id], len(row.launch_medians))
        count = plural(sum(launches.values()), "launch", "launches")
        lines.append(f"{side.name:4} {side.label}: {count}, {len(side.rows)} rows{bad}")
        hosts = sorted({row.hosts for row in side.rows if row.hosts is not None})
        if len(hosts) > 1:
            lines.append(
                f"     note: its launches ran on {len(hosts)} sets of hosts and are taken together:"
                f" {'; '.join(some_of(hosts))}"
            )
        lines += [f"     note: {problem}" for problem in side.problems]
    return lines


def provenance_lines(base: Side, new: Side, by: Sequence[ComparedVariable]) -> list[str]:
    """What else differs between the sides, and what weakens the comparison."""
    common = {row.run_id for row in base.rows} & {row.run_id for row in new.rows}
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
    sides = [[(run, compared_facts(run)) for run in runs] for runs in (base, new)]
    differing = []
    for key in sorted({key for side in sides for _, facts in side for key in facts}):
        values = []
        for side in sides:
            known = [facts for run, facts in side if not _is_unread(key, run, facts)]
            values.append(tuple(sorted({facts.get(key, MISSING) for facts in known})))
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
    by_key = dict[str, set[str]]()
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


def drift_text(cases: Iterable[ComparedCase], base: Side, new: Side) -> str:
    """What weakens a verdict of launches that were not taken in turn; empty without either."""
    certain = any(case.verdict in ("SLOWER", "FASTER") for case in cases)
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
