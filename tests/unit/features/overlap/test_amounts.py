"""How much is computed in an overlap: decided once, and the same in all of its cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_cases import CASE

from commbench.benchmarks.all_reduce import AllReduce
from commbench.core.case import Planned
from commbench.core.variables import Case
from commbench.features.overlap.amounts import compute_amount
from commbench.features.overlap.measuring import MEASURING
from commbench.measure.measuring import Decision
from commbench.results.row import Row, row_of

TOGETHER = replace(CASE, overlap="matmul", timed="together")
COMMUNICATION = replace(CASE, timed="communication")
UNITS = {"compute_units_s": {"virtual matmul": 2e-6}}
NO_UNITS: dict[str, dict[str, float]] = {"compute_units_s": {}}


def planned(case: Case) -> Planned:
    return Planned(0, case, AllReduce(), (0, 1), 1, 0, None)


def row(case: Case, median_s: float, amount: int | None = None, **more: Any) -> dict[str, Row]:
    values = {"status": "ok", "median_s": median_s, "compute_amount": amount, **more}
    return {case.case_id: row_of(vars(case) | values)}


def test_a_computation_takes_as_long_as_the_communication_alone() -> None:
    rows = row(COMMUNICATION, 1e-3)
    assert compute_amount(planned(TOGETHER), rows, UNITS) == Decision(500)


def test_a_time_that_the_user_gives_needs_no_communication() -> None:
    case = replace(TOGETHER, compute="100us")
    assert compute_amount(planned(case), {}, UNITS) == Decision(50)


def test_an_amount_is_at_least_one() -> None:
    assert compute_amount(planned(TOGETHER), row(COMMUNICATION, 1e-7), UNITS).value == 1


@pytest.mark.parametrize("timed", ["compute", "compute_beside", "together"])
def test_all_cases_of_an_overlap_keep_the_first_amount_also_in_a_resumed_run(timed: Any) -> None:
    rows = row(COMMUNICATION, 1e-3) | row(replace(TOGETHER, timed=timed), 2e-3, amount=321)
    assert compute_amount(planned(TOGETHER), rows, NO_UNITS) == Decision(321)
    other = replace(TOGETHER, compute="1ms")
    assert compute_amount(planned(other), rows, UNITS).value == 500, "another overlap"


@pytest.mark.parametrize("rows", [{}, row(COMMUNICATION, 1e-3, status="failed")])
def test_without_a_time_of_the_communication_the_reason_says_what_to_do(rows: Any) -> None:
    computed = compute_amount(planned(TOGETHER), rows, UNITS)
    assert computed.value is None
    assert str(computed.reason).endswith("give one, such as compute=100us")


def test_a_computation_that_the_backend_refused_is_skipped_with_its_name() -> None:
    computed = compute_amount(planned(TOGETHER), row(COMMUNICATION, 1e-3), NO_UNITS)
    assert "can't compute matmul on cpu" in str(computed.reason)


def test_nothing_is_decided_for_other_cases() -> None:
    assert not any(map(MEASURING.decides, (CASE, COMMUNICATION)))
    assert MEASURING.decides(TOGETHER)
