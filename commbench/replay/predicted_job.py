"""Predict the communication of one step of a job from measured times of its operations, one after
another; with the error of such predictions for sizes that were measured."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from commbench.analysis.fit import FAMILY_VARIABLES, Family, answerable, families, key
from commbench.core.errors import CommbenchError
from commbench.core.layout import Layout
from commbench.core.units import format_bytes, format_ranges, natural_key
from commbench.core.variables import TABLE
from commbench.replay.workload import SEND_RECV, Workload, WorkloadOperation
from commbench.results.columns import grouped

from .predicted_times import time_of
from .replay_times import ZERO, Seconds

if TYPE_CHECKING:
    import pandas as pd

# measured by no benchmark of their name with a size: messages between ranks, uneven blocks, nothing
NOT_PREDICTED = (SEND_RECV, "all_to_all_v", "barrier")
# what an operation has of its own, and what may differ between the operations of a job
PER_OPERATION = (
    *(each.name for each in TABLE if each.applies_to == "operation"),
    *("benchmark", "layout", "dtype", "pair", "schedule", "staging"),
)


@dataclass(frozen=True)
class HeldOut:
    """Relative errors of times that were predicted from those of other sizes."""

    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.errors)

    @property
    def worst(self) -> float:
        return max(self.errors)


@dataclass(frozen=True)
class JobPrediction:
    """Of one step on one layout of one backend. `seconds` is None where it is withheld, for the
    reasons in `warnings`."""

    variables: Mapping[str, Any]
    layout: str
    calls: int
    seconds: Seconds | None
    held_out: HeldOut
    warnings: tuple[str, ...]


def predict_job(cases: pd.DataFrame, workload_on: Callable[[int], Workload]) -> list[JobPrediction]:
    """One for each layout whose ranks the job has, of each backend that was measured.
    `workload_on` returns the job of a number of ranks. Raises CommbenchError where nothing can be
    predicted."""
    measured = families(answerable(cases))
    shared = [name for name in FAMILY_VARIABLES if name not in PER_OPERATION]
    predictions = []
    for own in grouped(measured, lambda family: key(family.variables, PER_OPERATION)).values():
        variables = {name: own[0].variables[name] for name in shared}
        layouts = {str(family.variables["layout"]) for family in own}
        for layout in sorted(layouts, key=natural_key):
            workload = workload_on(Layout.parse(layout).size)
            if workload.ranks == Layout.parse(layout).size:
                predictions.append(_of_layout(own, variables, layout, workload))
    if not predictions:
        raise CommbenchError(
            "no layout with as many ranks as the job was measured; measure its operations with"
            " sizes=octaves"
        )
    if all(prediction.seconds is None for prediction in predictions):
        reasons = dict.fromkeys(text for each in predictions for text in each.warnings)
        raise CommbenchError(f"no prediction: {'; '.join(reasons)}")
    return predictions


def held_out(chosen: Iterable[Family]) -> HeldOut:
    """Each size between two others is predicted from all but itself."""
    errors = []
    for family in chosen:
        for place in range(1, len(family.sizes) - 1):
            others = [index for index in range(len(family.sizes)) if index != place]
            times = tuple(family.times[index] for index in others)
            without = replace(family, sizes=family.sizes[others], times=times)
            predicted_s = time_of(without, int(family.sizes[place])).seconds
            errors.append(abs(predicted_s / float(family.median_s[place]) - 1))
    return HeldOut(tuple(errors))


def _of_layout(
    own: Sequence[Family], variables: Mapping[str, Any], layout: str, workload: Workload
) -> JobPrediction:
    times: dict[int, Seconds] = {}
    used: dict[int, Family] = {}
    warnings: dict[str, None] = {}
    for number, operation in enumerate(workload.operations):
        ranks = workload.groups[operation.group]
        place = _group_layout(ranks, Layout.parse(layout))
        candidates = [
            family
            for family in own
            if family.variables["benchmark"] == operation.operation
            and family.variables["layout"] == place
        ]
        if place is None or not candidates or operation.operation in NOT_PREDICTED:
            warnings[_why_unknown(operation, ranks, place)] = None
            continue
        best = min(candidates, key=lambda family: _preference(family, operation))
        time = time_of(best, message_bytes(operation))
        if time.warning:
            warnings[f"{operation.operation}: {time.warning}"] = None
        if best.variables["dtype"] != operation.dtype:
            warnings[
                f"{best.variables['dtype']} was measured, not {operation.dtype}: equal bytes are"
                " assumed to take equal time, but the summation may differ"
            ] = None
        used[id(best)] = best
        if math.isfinite(time.seconds):
            times[number] = Seconds(time.seconds, time.low, time.high)
    calls, seconds = _longest_rank(workload, times)
    return JobPrediction(
        variables, layout, calls, seconds, held_out(used.values()), tuple(warnings)
    )


def _longest_rank(workload: Workload, times: Mapping[int, Seconds]) -> tuple[int, Seconds | None]:
    """Calls and seconds of a step of the rank that takes longest; None where the time of one of the
    operations is not known."""
    sums = []
    for order in workload.orders:
        counts = Counter(call.operation for call in order.calls)
        known = [
            times[number].times(count / workload.steps)
            for number, count in counts.items()
            if number in times
        ]
        calls = len(order.calls) // workload.steps
        sums.append((calls, sum(known, ZERO) if len(known) == len(counts) else None))
    unknown = [calls for calls, total in sums if total is None]
    if unknown:
        return max(unknown), None
    return max(sums, key=lambda each: each[1].value if each[1] is not None else 0.0)


def message_bytes(operation: WorkloadOperation) -> int:
    """As its benchmark counts it: the larger of what a rank gives and gets."""
    return max(*operation.input_bytes, *operation.output_bytes)


def _group_layout(ranks: Sequence[int], layout: Layout) -> str | None:
    """How the ranks of a group lie on the nodes; None where nodes have different numbers."""
    counts = Counter(rank // layout.ranks_per_node for rank in ranks)
    each = set(counts.values())
    return str(Layout(len(counts), each.pop())) if len(each) == 1 else None


def _why_unknown(operation: WorkloadOperation, ranks: Sequence[int], place: str | None) -> str:
    name = operation.operation
    if name in NOT_PREDICTED:
        return f"{name} is not predicted, as no benchmark measures it by size"
    if place is None:
        return f"ranks {format_ranges(ranks)} lie unevenly on the nodes"
    size_text = format_bytes(message_bytes(operation))
    return (
        f"{name} was not measured on {place}; measure it with: commbench benchmark={name}"
        f" layout={place} sizes=octaves (the job needs {size_text})"
    )


def _preference(family: Family, operation: WorkloadOperation) -> tuple[Any, ...]:
    """Families that know the size, then those of the job's type and the one with most sizes."""
    is_unknown = math.isnan(time_of(family, message_bytes(operation)).seconds)
    own_dtype = str(family.variables["dtype"])
    return is_unknown, own_dtype != operation.dtype, -len(family.sizes), own_dtype
