"""What a part of commbench that can be deleted adds to what is measured. A folder of `features`
that does has a module `measuring` with its MEASURING; no other code knows it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.core.annexes import registered
from commbench.core.case import Benchmark, Planned
from commbench.core.protocols import Backend, Communicator, Runner
from commbench.core.variables import Case
from commbench.results.row import Row

from .strategies import ByStopRule, TimingStrategy
from .visit_setup import VisitSetup

Calibrated = Mapping[str, Mapping[str, float]]
Probed = Mapping[str, Any]  # values by column
NodeOf = Callable[[int], int]
Merges = Mapping[str, Callable[[Sequence[Any]], Any]]
Call = Callable[[Runner, int], None]  # as many repetitions, on all ranks


@dataclass(frozen=True)
class Decision:
    """What rank 0 has decided for a visit, as JSON has it; None for the `reason`."""

    value: Any = None
    reason: str | None = None


@dataclass(frozen=True)
class Measuring:
    """What a feature adds to measuring.

    cases: the cases that a case stands for.
    around: the benchmark of a case, with what goes on beside the operation.
    calibrated: what rank 0 measures alone before the first case; part of the run's record.
    decides: whether rank 0 decides something before each visit of a case. Such cases come last in
        the first pass.
    decision: what rank 0 decides, from the rows of the run by case_id and from `calibrated`.
    decided: the benchmark of a case with the value of the decision, on all ranks.
    strategy: how long a visit goes on; None for the stop rule of its settings.
    of_case: values of columns that the case and the node of each rank of the world tell.
    probe: on rank 0, values of columns that further calls find after the first visit of a launch.
        All ranks make the same calls.
    columns: how the values of several launches become that of the row, by column.
    """

    cases: Callable[[Case], Iterable[Case]] = lambda case: (case,)
    around: Callable[[Benchmark, Case, Backend], Benchmark] = lambda benchmark, *_: benchmark
    calibrated: Callable[[Communicator, Sequence[Planned]], Calibrated] = lambda *_: {}
    decides: Callable[[Case], bool] = lambda case: False
    decision: Callable[[Planned, Mapping[str, Row], Calibrated], Decision] = lambda *_: Decision()
    decided: Callable[[Benchmark, Any], Benchmark] = lambda benchmark, value: benchmark
    strategy: Callable[[VisitSetup], TimingStrategy | None] = lambda setup: None
    of_case: Callable[[Planned, NodeOf], Mapping[str, Any]] = lambda *_: {}
    probe: Callable[[VisitSetup, Call], Probed] = lambda *_: {}
    columns: Merges = field(default_factory=dict)


def cases_of(case: Case) -> list[Case]:
    """Those that it stands for."""
    cases = [case]
    for feature in registered(Measuring):
        cases = [each for case in cases for each in feature.cases(case)]
    return cases


def around(benchmark: Benchmark, case: Case, backend: Backend) -> Benchmark:
    for feature in registered(Measuring):
        benchmark = feature.around(benchmark, case, backend)
    return benchmark


def calibrated(communicator: Communicator, cases: Sequence[Planned]) -> Calibrated:
    found = dict[str, Mapping[str, float]]()
    for feature in registered(Measuring):
        found.update(feature.calibrated(communicator, cases))
    return found


def deciding_on(case: Case) -> Measuring | None:
    """The feature that decides something before each visit of the case."""
    return next((feature for feature in registered(Measuring) if feature.decides(case)), None)


def strategy_of(setup: VisitSetup) -> TimingStrategy:
    own = (feature.strategy(setup) for feature in registered(Measuring))
    return next(filter(None, own), None) or ByStopRule(setup)


def case_columns(planned: Planned, node_of: NodeOf) -> dict[str, Any]:
    """The columns of a row that its case tells."""
    return {
        name: value
        for feature in registered(Measuring)
        for name, value in feature.of_case(planned, node_of).items()
    }


def merges() -> Merges:
    """Of all columns of features."""
    return {
        name: merged
        for feature in registered(Measuring)
        for name, merged in feature.columns.items()
    }


def with_merge(findings: Probed) -> Probed:
    """Raises TypeError for a finding whose launches can't become one."""
    if unknown := findings.keys() - merges():
        raise TypeError(f"{min(unknown)} was found, but is not in MEASURING.columns")
    return findings


def found_columns(findings: Sequence[Probed]) -> dict[str, Any]:
    """The columns of a row, from the findings of its visits, most of which have none. Those of
    earlier launches are what their row has."""
    columns = {}
    for name, merged in merges().items():
        values = [each[name] for each in findings if each.get(name) is not None]
        if values:
            columns[name] = merged(values)
    return columns
