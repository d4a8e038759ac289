"""The operations at once of a run: what a backend can do of them."""

from __future__ import annotations

from commbench.core.case import Benchmark
from commbench.core.protocols import Backend
from commbench.core.variables import Case
from commbench.measure.measuring import Measuring

from .concurrent import Concurrent, ConcurrentOn


def around(benchmark: Benchmark, case: Case, backend: Backend) -> Benchmark:
    return ConcurrentOn(backend) if isinstance(benchmark, Concurrent) else benchmark


MEASURING = Measuring(around=around)
