"""How much the ranks compute in the samples of an overlap: rank 0 decides it once for all cases and
visits that are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import get_args

from commbench.core.case import Planned
from commbench.core.errors import Unsupported
from commbench.core.program import Program
from commbench.core.protocols import Communicator
from commbench.core.variables import Case, Overlap, Timed, TimerName
from commbench.measure.calibration import median_elapsed_s
from commbench.measure.measuring import Calibrated, Decision
from commbench.results.row import Row

from .overlapped import compute_step, compute_time_ns, sibling

UNITS = "compute_units_s"  # in the run's record
COMPUTE_REPETITIONS = 5
NS_S = 1e-9
CALIBRATED_AMOUNTS: Mapping[Overlap, int] = {"sleep": 1_000_000, "memory": 2**25, "matmul": 500}


def unit_name(engine: str, kind: Overlap) -> str:
    """The name of a unit of a computation: `python matmul`."""
    return f"{engine} {kind}"


def calibrated(communicator: Communicator, cases: Iterable[Planned]) -> Calibrated:
    """Seconds of a unit of each computation of the cases, by `unit_name`: of 1 ns of sleep, a byte
    to copy, a matrix to multiply. Without one that the backend refuses."""
    units = dict[str, float]()
    wanted = {
        (planned.case.engine, planned.case.overlap): planned.case.mode
        for planned in cases
        if planned.case.overlap is not None and not planned.skip
    }
    for (engine, kind), mode in wanted.items():
        assert kind is not None
        if kind == "sleep" and mode.device == "cpu":
            units[unit_name(engine, kind)] = NS_S
            continue
        amount = CALIBRATED_AMOUNTS[kind]
        program = Program(steps=(compute_step(kind, amount),))
        timer: TimerName = "host" if mode.device == "cpu" else "host_sync"
        plain = replace(mode, sync="none", timer=timer, staging="none")
        with suppress(Unsupported, MemoryError):
            runner = communicator.prepare({0: program}, {0: {}}, plain)
            runner(1)
            units[unit_name(engine, kind)] = median_elapsed_s(runner(COMPUTE_REPETITIONS)) / amount
    return {UNITS: units}


def compute_amount(planned: Planned, rows: Mapping[str, Row], known: Calibrated) -> Decision:
    """What earlier rows of this overlap have; else so much that it takes the time of the case, or
    that of the communication alone: see overlapped.compute_step. `rows`: by case_id."""
    case = planned.case
    assert case.overlap is not None
    for timed in get_args(Timed):
        earlier = rows.get(sibling(case, timed).case_id)
        if earlier is not None and earlier.compute_amount is not None:
            return Decision(earlier.compute_amount)
    if case.compute is None:
        wanted_s = _communication_s(case, rows)
    else:
        wanted_s = compute_time_ns(case.compute) * NS_S
    if wanted_s is None:
        return Decision(
            reason="no time of the communication alone, which the computation should take as well;"
            " give one, such as compute=100us"
        )
    name = unit_name(case.engine, case.overlap)
    if name not in known[UNITS]:
        return Decision(
            reason=f"{case.backend} can't compute {case.overlap} on {case.device} with"
            f" engine={case.engine}"
        )
    return Decision(max(1, round(wanted_s / known[UNITS][name])))


def _communication_s(case: Case, rows: Mapping[str, Row]) -> float | None:
    row = rows.get(sibling(case, "communication").case_id)
    if row is None or row.status != "ok" or row.median_s is None:
        return None
    return float(row.median_s)
