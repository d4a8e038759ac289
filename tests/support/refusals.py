"""What a backend says of a case, from the program of the benchmark that the case names."""

from __future__ import annotations

from composed import every_benchmark

from commbench.core.program import Program
from commbench.core.protocols import Backend
from commbench.core.variables import Case


def program_of(case: Case, size: int) -> Program:
    """The program of rank 0."""
    return every_benchmark()[case.benchmark].program(case, 0, size)


def refusal(backend: Backend, case: Case, size: int) -> str | None:
    program = program_of(case, size)
    return program.own_refusal(backend) or backend.supports(case, size, program)
