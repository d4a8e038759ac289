"""Series over a variable whose values are ordered: cases that differ in nothing else."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from commbench.analysis.case_names import case_names, without_shared
from commbench.analysis.machines import nodes_of
from commbench.core.case import version_of
from commbench.core.errors import ConfigError
from commbench.core.suggestions import did_you_mean
from commbench.core.units import natural_key
from commbench.core.variables import MAPS, NAMES
from commbench.report.summary import Results
from commbench.results.columns import grouped
from commbench.results.row import KINDS, Measured
from commbench.stats.series import Series
from commbench.stats.thresholds import LARGEST_UNSTEADY

from .splits import Measurements

VERSION = "library_version"
VERSIONS = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+)+[\w.+]*)")
RANKS = ("layout", "node", "pair")
SIZES = ("message_bytes", "elements")
MACHINE = ("machine", "gpu.0.name", "host.cpu_model")  # facts: the first that is known
ORDERS = (VERSION, "label", "trial", "run_id", "started_at", "hosts")  # beside the variables
LEAST_SERIES = 10  # from which on it is known what all of a run have in common
TOGETHER = 1 + LARGEST_UNSTEADY  # a factor that is worth a sentence
Facts = Mapping[str, Mapping[str, Any]]  # of each run
MOST_ALIKE = 8  # values of a variable of which all are neighbours


@dataclass(frozen=True)
class AllSeries:
    """`values`: of the variable, in their order; `rows` has one of each series.

    `left`: rows that have no value. `common`: the neighbouring values at which all series step
    together, and the factor.
    """

    over: str
    values: tuple[str, ...]
    measurements: tuple[Measurements, ...]
    rows: tuple[Measured, ...]
    neighbours: tuple[tuple[int, int], ...]
    left: int
    common: Mapping[tuple[int, int], float]

    def names(self) -> list[str]:
        return case_names(without_shared(self.rows))


def all_series(results: Results, over: str) -> AllSeries:
    """Those with two values or more; raises ConfigError where `over` is no variable."""
    records = {str(record.get("run_id")): record for record in results.records}
    facts = {run: _facts(record) for run, record in records.items()}
    _check(over, facts)
    rows = [row for row in results.of_operations if isinstance(row, Measured) and row.median_s]
    rows = [row for row in rows if not row.is_soak]
    ordered = [(value, row) for row in rows if (value := _value(row, over, facts)) is not None]
    brought = {over, "library" if over in (VERSION, "backend") else over, "elements"}
    names = [name for name in NAMES if name not in brought]
    labels = () if over == "label" else ("label",)
    # labels that say the value again are no part of a series
    series = _grouped(ordered, (*names, *labels), facts) or _grouped(ordered, names, facts)
    values = sorted({value for own in series for value, _ in own}, key=natural_key)
    places = {value: number for number, value in enumerate(values)}
    measurements = [_measurements(own, places) for own in series]
    if len(series) >= LEAST_SERIES:
        measurements = _with_common(measurements)
    examples = tuple(own[0][1] for own in series)
    neighbours = tuple(_neighbours(examples, names, facts))
    return AllSeries(
        over,
        tuple(values),
        tuple(measurements),
        examples,
        neighbours,
        len(rows) - len(ordered),
        _common_steps(measurements),
    )


def _with_common(every: Sequence[Measurements]) -> list[Measurements]:
    """How far a run is from the others: the median of its series, each against its own median."""
    away = defaultdict[str, list[float]](list)
    for each in every:
        logs = each.logs - np.median(each.logs)
        for run, log in zip(each.runs, logs.tolist(), strict=True):
            away[run].append(log)
    common = {run: float(np.median(logs)) for run, logs in away.items()}
    return [replace(each, common=np.array([common[run] for run in each.runs])) for each in every]


def _common_steps(every: Sequence[Measurements]) -> dict[tuple[int, int], float]:
    """The median of the series, where it is worth a sentence: for the places that follow each other
    in any of them. Fewer than LEAST_SERIES all do it, each time that they were measured."""
    ratios = defaultdict[tuple[int, int], list[float]](list)
    for each in every:
        times = each.seconds if each.common is None else np.exp(each.common)
        for before, after in pairwise(np.unique(each.places).tolist()):
            sides = [times[each.places == at] for at in (before, after)]
            ratios[before, after].append(_ratio(*sides))
    return {
        places: float(np.median(own))
        for places, own in ratios.items()
        if min(own) > TOGETHER or max(own) < 1 / TOGETHER
    }


def _ratio(before: Series, after: Series) -> float:
    """Of the medians, or 1 where the ranges of the two overlap."""
    is_apart = before.max() < after.min() or after.max() < before.min()
    return float(np.median(after) / np.median(before)) if is_apart else 1.0


def _grouped(
    ordered: Iterable[tuple[str, Measured]], names: Sequence[str], facts: Facts
) -> list[list[tuple[str, Measured]]]:
    """Cases that share these variables, and the kind of machine, with their values: those that have
    several."""

    def key(each: tuple[str, Measured]) -> tuple[object, ...]:
        row = each[1]
        return (_kind(row, facts), *(getattr(row, name) for name in names))

    groups = grouped(ordered, key).values()
    return [own for own in groups if len({value for value, _ in own}) > 1]


def _kind(row: Measured, facts: Facts) -> str | None:
    return facts.get(row.run_id, {}).get("kind")


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's first node, and the kind of its machine."""
    nodes = nodes_of(record)
    first = dict(nodes[0]) if nodes else {}
    known = (str(first[name]) for name in MACHINE if first.get(name))
    return first | {"kind": next(known, None)}


def _check(over: str, facts: Facts) -> None:
    """Raises ConfigError."""
    allowed = (*(name for name in NAMES if name not in SIZES), *ORDERS)
    is_entry = over.partition(".")[0] in MAPS and "." in over
    if over in MAPS:
        raise ConfigError(f"--over {over} has several values a case; take one, as in {over}.NAME")
    if over in allowed or is_entry or any(over in known for known in facts.values()):
        return
    raise ConfigError(
        f"--over {over} is no variable of these results; {did_you_mean(over, allowed)}take"
        f" {', '.join(ORDERS[:3])}, a key such as interface, env.NAME, or a fact of run.json such"
        " as gpu.driver_version"
    )


def _value(row: Measured, over: str, facts: Facts) -> str | None:
    if over == VERSION:
        # torch names two: its own and that of NCCL
        found = VERSIONS.findall(row.library or "")
        return ", ".join(found) or row.library_version or version_of(row.library)
    name, _, entry = over.partition(".")
    value = getattr(row, over) if over in KINDS else None
    if name in MAPS and entry:
        value = dict(getattr(row, name)).get(entry, "unset")
    elif over not in KINDS:
        value = facts.get(row.run_id, {}).get(over)
    return None if value in (None, "") else str(value)


def _measurements(own: Sequence[tuple[str, Measured]], places: Mapping[str, int]) -> Measurements:
    """Each launch is one."""
    launches = [
        (seconds, places[value], row.run_id)
        for value, row in own
        for seconds in row.launch_medians
        if seconds > 0
    ]
    seconds, at, runs = zip(*launches, strict=True)
    return Measurements(np.array(seconds), np.array(at), runs)


def _neighbours(
    rows: Sequence[Measured], names: Sequence[str], facts: Facts
) -> Iterator[tuple[int, int]]:
    """Series that differ in one variable: in the next size, or in any other by any value. Those of
    other ranks are the next ones, too."""
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    columns["kind"] = [_kind(row, facts) for row in rows]
    columns["label"] = [row.label for row in rows]
    varied = [name for name, values in columns.items() if len(set(values)) > 1]
    for name in varied:
        if name in ("benchmark", "kind"):  # they have nothing in common
            continue
        others = [columns[each] for each in varied if each != name]
        keys = [natural_key(str(value)) for value in columns[name]]
        lines: dict[tuple[object, ...], list[int]] = {}
        for at in range(len(rows)):
            lines.setdefault(tuple(other[at] for other in others), []).append(at)
        for line in lines.values():
            is_ordered = name in (*SIZES, *RANKS) or len(line) > MOST_ALIKE
            near = sorted(line, key=keys.__getitem__)
            yield from pairwise(near) if is_ordered else combinations(near, 2)
