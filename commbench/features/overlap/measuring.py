"""An overlap in a run: its cases, and how much they compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from commbench.core.case import Benchmark
from commbench.measure.measuring import Measuring

from .amounts import calibrated, compute_amount
from .overlapped import Overlapped, around, overlap_cases


def with_amount(benchmark: Benchmark, amount: Any) -> Benchmark:
    return replace(cast(Overlapped, benchmark), compute_amount=amount)


MEASURING = Measuring(
    cases=overlap_cases,
    around=around,
    calibrated=calibrated,
    decides=lambda case: case.overlap is not None,
    decision=compute_amount,
    decided=with_amount,
)
