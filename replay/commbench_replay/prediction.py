"""What a job's communication costs by what was measured before: its operations one after another,
and the error of such predictions for the sizes that were measured."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commbench.analysis.case_names import FAMILY_VARIABLES, differing
from commbench.analysis.families import (
    Family,
    answerable,
    families,
    ignored,
    key,
)
from commbench.core.errors import CommbenchError
from commbench.core.layout import Layout
from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.units import (
    format_bytes,
    format_ranges,
    format_seconds,
    natural_key,
    value_text,
)
from commbench.core.variables import MODEL_ENGINE, TABLE
from commbench.results.columns import grouped
from commbench.results.intervals import interval_note, interval_of
from commbench.results.load import rows_of_frame
from commbench.results.row import Row
from commbench.stats.interval import Interval

from .answer import OPERATION_HEADS, Answer
from .causes import causes
from .named_workload import NamedWorkload, WorkloadOn, listed_workloads
from .predicted_times import PredictedTime, size_errors, time_of
from .replay_times import ReplayTimes
from .scaling import scaled
from .waiting import Waiting
from .workload import SEND_RECV, WorkloadOperation

if TYPE_CHECKING:
    import pandas as pd

# measured by no benchmark of their name with a size: messages between ranks, uneven blocks, nothing
NOT_PREDICTED = (SEND_RECV, "all_to_all_v", "barrier")
# what an operation has of its own, and what may differ between the operations of a job
PER_OPERATION = (
    *(each.name for each in TABLE if each.applies_to == "operation"),
    *("benchmark", "layout", "dtype", "pair", "schedule", "staging"),
)
SHARED = tuple(name for name in FAMILY_VARIABLES if name not in PER_OPERATION)
OF_TITLE = ("backend", "layout")
# a column of the job's own times is left out where it has none
COLUMNS = (
    *(
        TableColumn(head, right=head not in ("operation", "group"), priority=int("job" in head))
        for head in OPERATION_HEADS
    ),
    TableColumn("predicted"),
)
NOT_BESIDE = "simulated times do not answer beside measured ones; give the simulated runs alone"
MEANING = (
    "alone, here: predicted from the medians of the measured sizes. A step is the operations of the"
    " busiest rank one after another; nothing overlaps, and stragglers are not in it"
)


@dataclass(frozen=True)
class Prediction:
    """Of one step of a job, named `workload`, on one layout of one backend. `times` are by the
    number of the operation; `errors` are relative, of each measured size predicted from the others.
    `reasons`: why it is withheld."""

    workload: str
    variables: Row
    answer: Answer
    times: Mapping[int, PredictedTime]
    errors: Sequence[float]
    warnings: Sequence[str]
    reasons: Sequence[str]

    @property
    def seconds(self) -> Interval | None:
        return None if self.reasons else self.answer.times.alone_sum


def predict(cases: pd.DataFrame, workload: str) -> pd.DataFrame:
    """One row for each backend and layout; raises CommbenchError where nothing can be predicted.

        predict(commbench.load("results"), "ddp params=7e9 bucket=[25MiB,100MiB]")

    `workload`: a generator with its numbers, or a workload file. Columns: workload, the variables
    of what was measured, layout, step_s with low_s and high_s (null: withheld), median_error,
    worst_error, warnings.
    """
    import pandas as pd

    return pd.DataFrame([
        {
            "workload": each.workload,
            **{name: getattr(each.variables, name) for name in (*SHARED, "layout")},
            "step_s": each.seconds and each.seconds.value,
            "low_s": each.seconds and each.seconds.low,
            "high_s": each.seconds and each.seconds.high,
            "median_error": statistics.median(each.errors) if each.errors else None,
            "worst_error": max(each.errors, default=None),
            "warnings": (*each.warnings, *each.reasons),
        }
        for each in predictions(rows_of_frame(cases), listed_workloads(workload))
    ])  # fmt: skip


def predictions(
    cases: Sequence[Row], workloads: Sequence[WorkloadOn], waiting: Waiting | None = None
) -> list[Prediction]:
    """One for each workload on each layout with as many ranks, of each backend: by layout, the
    fastest first. `waiting` is that of the traced job. Raises CommbenchError."""
    usable = answerable(cases)
    measured = families(usable)
    model_rows = [row for row in cases if row.engine == MODEL_ENGINE]
    is_left_out = not any(row.engine == MODEL_ENGINE for row in usable)
    simulated = {(row.benchmark, row.layout) for row in model_rows if is_left_out}

    def fitting(layouts: Iterable[str]) -> list[tuple[str, NamedWorkload]]:
        """The layouts with as many ranks as a workload, and that workload."""
        return [
            (layout, named)
            for layout in dict.fromkeys(layouts)
            for workload_on in workloads
            if (named := workload_on(Layout.parse(layout).size)).workload.ranks
            == Layout.parse(layout).size
        ]

    found = [
        _prediction(own, layout, named, waiting, simulated)
        for own in grouped(measured, lambda each: key(each.variables, PER_OPERATION)).values()
        for layout, named in fitting(each.variables.layout for each in own)
    ]
    if not found:
        if only_simulated := fitting(sorted(layout for _, layout in simulated)):
            raise CommbenchError(
                f"as many ranks as the job has were only simulated, on {only_simulated[0][0]}, and"
                f" {NOT_BESIDE}, or measure the job's operations with sizes=octaves"
            )
        raise CommbenchError(
            f"no layout with as many ranks as the job is among {len(cases)} cases; measure the"
            " job's operations with sizes=octaves"
        )
    if all(each.seconds is None for each in found):
        reasons = dict.fromkeys(reason for each in found for reason in each.reasons)
        raise CommbenchError(f"no prediction: {'; '.join(reasons)}")

    def place(each: Prediction) -> tuple[Any, ...]:
        value_s = float("inf") if each.seconds is None else each.seconds.value
        return natural_key(each.variables.layout), value_s

    return sorted(found, key=place)


def _prediction(
    own: Sequence[Family],
    layout: str,
    named: NamedWorkload,
    waiting: Waiting | None,
    simulated: Collection[tuple[str, str]],
) -> Prediction:
    """`own` are the families of a backend; `simulated` the benchmarks and layouts of simulated
    cases, which do not answer beside real ones."""
    variables = replace(own[0].variables, layout=layout)
    part = scaled(named.workload, named.workload.ranks)
    times: dict[int, PredictedTime] = {}
    used: dict[int, Family] = {}
    warnings: dict[str, None] = {}
    reasons = dict.fromkeys(part.reasons.values())
    for number, operation in part.operations.items():
        ranks = part.groups[operation.group]
        family = _best_family(own, operation, ranks, Layout.parse(layout), simulated)
        if isinstance(family, str):
            reasons[family] = None
            continue
        used[id(family)] = family
        time = times[number] = time_of(family, operation.largest_bytes)
        told = warnings if time.seconds is not None else reasons
        if time.warning:
            told[f"{operation.operation}: {time.warning}"] = None
        if family.variables.dtype != operation.dtype:
            warnings[
                f"{family.variables.dtype} was measured, not {operation.dtype}: equal bytes are"
                " assumed to take equal time, but the summation may differ"
            ] = None
    known = {number: time.seconds for number, time in times.items() if time.seconds is not None}
    replay = ReplayTimes(part, {}, {}, known)
    title = f"{variables.backend}, layout {layout}"
    found = [cause for cause in causes(replay, waiting) if cause.loss is not None]
    return Prediction(
        named.text,
        variables,
        Answer(title, replay, found),
        times,
        [error for family in used.values() for error in size_errors(family)],
        list(warnings),
        list(reasons),
    )


def _best_family(
    own: Sequence[Family],
    operation: WorkloadOperation,
    ranks: Sequence[int],
    layout: Layout,
    simulated: Collection[tuple[str, str]],
) -> Family | str:
    """The family that has the time of the operation in a group of these ranks, or why none does: of
    those that know the size, one of the job's type, or the one with most sizes."""
    name = operation.operation
    if name in NOT_PREDICTED:
        return f"{name} is not predicted, as no benchmark measures it by size"
    on_node = Counter(rank // layout.ranks_per_node for rank in ranks)
    if len(set(on_node.values())) > 1:
        return f"ranks {format_ranges(ranks)} lie unevenly on the nodes"
    place = str(Layout(len(on_node), max(on_node.values())))
    size = operation.largest_bytes
    candidates = [
        family
        for family in own
        if family.variables.benchmark == name and family.variables.layout == place
    ]
    if not candidates:
        if (name, place) in simulated:
            return (
                f"{name} was only simulated on {place}, and {NOT_BESIDE}, or measure it with:"
                f" commbench benchmark={name} layout={place} sizes=octaves"
            )
        return (
            f"{name} was not measured on {place}; measure it with: commbench benchmark={name}"
            f" layout={place} sizes=octaves (the job needs {format_bytes(size)})"
        )

    def preference(family: Family) -> tuple[Any, ...]:
        own_dtype = family.variables.dtype
        is_unknown = time_of(family, size).seconds is None
        return is_unknown, own_dtype != operation.dtype, -len(family.sizes), own_dtype

    return min(candidates, key=preference)


def prediction_text(cases: Sequence[Row], found: Sequence[Prediction]) -> str:
    """A table and sentences for each prediction, then what holds of all."""
    terminal = Terminal.of(sys.stdout)
    variables = [each.variables for each in found]
    shown = [name for name in differing(variables, SHARED) if name not in OF_TITLE]
    several = len({each.workload for each in found}) > 1
    parts = []
    for each in found:
        values = {name: getattr(each.variables, name) for name in shown}
        more = [f"{name} {value_text(value)}" for name, value in values.items() if value]
        title = f"{each.answer.title}{', '.join(['', *more])}"
        title = f"{each.workload}: {title}" if several else title
        parts.append(_one_text(each, title, terminal))
    return "\n".join([*parts, paragraphs(_notes(cases, found), terminal)]) + "\n"


def _one_text(each: Prediction, title: str, terminal: Terminal) -> str:
    if each.seconds is None:
        return paragraphs([f"{title}: withheld: {'; '.join(each.reasons)}", ""], terminal)
    step = each.seconds.text(format_seconds)
    sentences = [*each.answer.times.part.sentences(), *map(str, each.answer.causes)]
    cells = [
        (*cells, each.times[number].source)
        for number, cells in each.answer.operation_cells().items()
    ]
    below = [*sentences, _error_text(each.errors), *(f"warning: {text}" for text in each.warnings)]
    return "\n".join([
        paragraphs([f"{title}: operations one after another {step}"], terminal),
        table_text(COLUMNS, cells, terminal),
        paragraphs([*below, ""], terminal),
    ])  # fmt: skip


def _error_text(errors: Sequence[float]) -> str:
    if not errors:
        return "error: not known, no operation was measured at three sizes"
    return (
        f"error: {statistics.median(errors):.0%} in the median and {max(errors):.0%} at most, of"
        f" {len(errors)} measured sizes of these operations, each predicted from the others"
    )


def _notes(cases: Sequence[Row], found: Sequence[Prediction]) -> Iterator[str]:
    """What the times mean, and which rows they are from."""
    yield MEANING
    names = {each.operation for one in found for each in one.answer.times.part.operations.values()}
    rows = [row for row in cases if row.benchmark in names]
    usable = answerable(rows)
    meaning = interval_note(filter(None, map(interval_of, usable)))
    if meaning:
        yield f"{meaning}, of all medians at once, and both ways between two sizes"
    left = ignored(rows)
    left |= {"on one rank or simulated": len(rows) - len(usable)} if len(usable) < len(rows) else {}
    if left:
        yield f"left out: {', '.join(f'{count} {why}' for why, count in left.items())}"
    if any(time.median.of == "launches" for each in families(usable) for time in each.times):
        yield "runs were taken together: the median over them and the widest interval"
