"""The two sides of a comparison: reading and saving them, and what differs in their run records."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commbench.core.errors import ConfigError
from commbench.core.terminal import first_line
from commbench.core.units import plural
from commbench.core.variables import NAMES, SIZES
from commbench.results.columns import SCHEMA_VERSION, arrow_schema
from commbench.results.fact_scopes import MISSING, is_unknown, scope_of
from commbench.results.load import RUNS, Damaged, find_runs, frame_of, read_cases, table_of
from commbench.results.run_folder import publish

from .fit import launch_medians
from .machines import nodes_of

if TYPE_CHECKING:
    import pandas as pd

    Source = str | Path | pd.DataFrame

# what was moved: must be equal on both sides
PAYLOAD = ("benchmark", "dtype", *SIZES)
LONGEST_LIST = 20
LONGEST_FACT = 60  # characters
# Facts of the run itself, or derived from what is compared anyway; facts of machines:
# commbench/results/fact_scopes.py
IGNORED = {
    "run_id",
    "folder",
    "started_at",
    "finished_at",
    "overrides",
    "sweep_id",
    "launch",
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
    "config.launch",
    "processes",
    "config.label",
    "config.output",
    "config.expect",
    "config.writers",
    "reference",
    "broken_reasons",
}
IGNORED_SUFFIXES = ("_namespace", "._target_")
NODES = "provenance.nodes"


@dataclass(frozen=True)
class Side:
    """BASE, NEW or A/A. `runs`: the records (run.json); `problems`: a line for each source that was
    left out."""

    name: str
    cases: pd.DataFrame
    runs: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class ComparedVariable:
    """A variable in which BASE and NEW may differ; the values, where given, select the rows of each
    side."""

    name: str
    base: str | None = None
    new: str | None = None


def parse_by(words: Iterable[str]) -> tuple[ComparedVariable, ...]:
    """`backend` or `backend=gloo:mpi`; raises ConfigError for unknown variables and for the
    payload."""
    variables = []
    for word in filter(None, map(str.strip, words)):
        name, given, values = word.partition("=")
        allowed = ", ".join(name for name in NAMES if name not in PAYLOAD)
        if name in PAYLOAD:
            raise ConfigError(
                f"--by {name}: different payloads can't be compared; allowed: {allowed}"
            )
        if name not in NAMES:
            raise ConfigError(f"--by {name} is not a variable; allowed: {allowed}")
        base, colon, new = values.partition(":")
        if given and not (base and colon and new):
            raise ConfigError(
                f"--by {word} is not NAME or NAME=BASE:NEW, e.g. --by backend=gloo:mpi"
            )
        variables.append(ComparedVariable(name, base or None, new or None))
    return tuple(variables)


def sources_of(source: Any) -> list[Any]:
    return list(source) if isinstance(source, (list, tuple)) else [source]


def read_side(name: str, source: Source | Sequence[Source]) -> Side:
    """Read all sources of a side; raises ConfigError if none can be used."""
    tables: list[Any] = []
    runs: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    labels = []
    for given in sources_of(source):
        labels.append(str(given) if isinstance(given, (str, Path)) else "a data frame")
        if not isinstance(given, (str, Path)):
            try:
                tables.append(table_of(given))
            except Damaged as error:
                problems.append(str(error))
            continue
        path = Path(given)
        if not path.is_file() and not (path.is_dir() and find_runs(path)):
            raise ConfigError(
                f"{name}={path} is neither a folder with runs (run.json) nor a parquet file of"
                " cases"
            )
        parts, unreadable = read_cases([path])
        problems += unreadable
        for part in parts:
            problems += (
                []
                if part.has_version
                else [f"{path} names no schema version: taken as {SCHEMA_VERSION}"]
            )
            runs |= {str(record.get("run_id")): record for record in part.records}
            tables.append(part.cases)
    if not tables:
        raise ConfigError(
            f"{name} has nothing to compare: {'; '.join(problems) or 'no cases in it'}"
        )
    return Side(name, frame_of(tables), tuple(runs.values()), tuple(problems), ", ".join(labels))


def save(side: Side, target: str | Path) -> None:
    """Write the side's cases and run records as one parquet file for a later --against, without
    samples."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {b"schema_version": str(SCHEMA_VERSION), RUNS: json.dumps(side.runs)}
    schema = arrow_schema("cases")
    path = Path(target)
    aside = path.with_name(f".{path.name}.tmp")
    try:
        table = pa.Table.from_pandas(side.cases[schema.names], schema, preserve_index=False)
        pq.write_table(table.replace_schema_metadata(metadata), aside, compression="zstd")
        publish(aside, path)
    except OSError as error:
        raise ConfigError(f"--save {target} can't be written: {first_line(error)}") from error


# ---------------------------------------------------------------- what else differs


def side_lines(*sides: Side) -> list[str]:
    """A line per side with its launches and rows, and notes on what was left out or may be a
    mistake."""
    lines = []
    for side in sides:
        states = side.cases["status"].value_counts()
        bad = "".join(f", {count} {status}" for status, count in states.items() if status != "ok")
        launches: dict[str, int] = {}  # of each run: of one of timing=rigorous several
        measured = side.cases[["run_id", "median_s", "visit_medians_s", "visit_segments"]]
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
    if common and not any(variable.base for variable in by):
        lines.append(f"{plural(len(common), 'launch is', 'launches are')} on both sides")
    without_records = [side.name for side in (base, new) if not side.runs]
    if without_records:
        return [*lines, f"provenance of {' and '.join(without_records)} is unknown: no run.json"]
    facts = differing_facts(base.runs, new.runs)
    apart = [f"  {fact}" for fact in facts if fact.apart]
    mixed = [fact.key for fact in facts if not fact.apart]
    differences = apart[:LONGEST_LIST]
    differences += (
        [f"  ... and {len(apart) - LONGEST_LIST} more"] if len(apart) > LONGEST_LIST else []
    )
    differences += [f"  varies within a side: {', '.join(mixed[:LONGEST_LIST])}"] if mixed else []
    if ran_separately(base.runs, new.runs):
        differences.append(
            "  all launches of one side came before the other's: a drift of the machine looks like"
            " a change"
        )
    if not differences:
        return [*lines, "nothing else differs in the provenance"]
    return [*lines, "differs, BASE -> NEW:", *differences]


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
        if (
            not heads & IGNORED
            and not key.endswith(IGNORED_SUFFIXES)
            and scope_of(key).runs == "show"
        ):
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


def ran_separately(base: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all runs of one side came before all of the other, so that a drift of the machine
    looks like a change."""
    before, after = (
        sorted(str(run.get("started_at") or "") for run in runs) for runs in (base, new)
    )
    return bool(before[0] and after[0]) and (before[-1] < after[0] or after[-1] < before[0])
