"""How much the ranks compute in the samples of an overlap: rank 0 decides it once for all cases and
visits that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from commbench.core.case import Planned
from commbench.core.overlap import compute_time_ns, sibling
from commbench.core.variables import Case, Overlap, Timed
from commbench.results.row import Row

UnitSeconds = Mapping[str, float]  # by `unit_name`


@dataclass(frozen=True)
class ComputeAmount:
    """`amount` as in core.overlap.compute_step; None for the `reason`."""

    amount: int | None = None
    reason: str | None = None


def unit_name(engine: str, kind: Overlap) -> str:
    """The name of a unit of a computation: `python matmul`."""
    return f"{engine} {kind}"


def compute_amount(planned: Planned, rows: Mapping[str, Row], unit_s: UnitSeconds) -> ComputeAmount:
    """What earlier rows of this overlap have; else so much that it takes the time of the case, or
    that of the communication alone. `rows`: by case_id; `unit_s`: how long a unit takes on rank
    0."""
    case = planned.case
    if case.overlap is None:
        return ComputeAmount()
    for timed in get_args(Timed):
        earlier = rows.get(sibling(case, timed).case_id)
        if earlier is not None and earlier.compute_amount is not None:
            return ComputeAmount(earlier.compute_amount)
    wanted_ns = compute_time_ns(case.compute)
    wanted_s = _communication_s(case, rows) if wanted_ns is None else wanted_ns * 1e-9
    if wanted_s is None:
        return ComputeAmount(
            reason="no time of the communication alone, which the computation should take as well;"
            " give one, such as compute=100us"
        )
    name = unit_name(case.engine, case.overlap)
    if name not in unit_s:
        return ComputeAmount(
            reason=f"{case.backend} can't compute {case.overlap} on {case.device} with"
            f" engine={case.engine}"
        )
    return ComputeAmount(max(1, round(wanted_s / unit_s[name])))


def _communication_s(case: Case, rows: Mapping[str, Row]) -> float | None:
    row = rows.get(sibling(case, "communication").case_id)
    if row is None or row.status != "ok" or row.median_s is None:
        return None
    return float(row.median_s)
