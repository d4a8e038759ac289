"""A benchmark's own programs and payload on all ranks of the simulated world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sample_cases import CASE

from commbench.core.case import Benchmark
from commbench.core.program import Pattern, Program
from commbench.core.variables import Case
from commbench.features.simulated.backend import Simulated
from commbench.features.simulated.model import Model
from commbench.runtime.control import hosted_world

Held = tuple[int, str]  # rank, buffer


class BenchmarkTrial:
    """Buffers are allocated and filled; `change` may plant a fault in the program of a rank."""

    def __init__(
        self,
        benchmark: Benchmark,
        case: Case,
        size: int,
        salt: int = 0,
        change: Callable[[int, Program], Program] = lambda rank, program: program,
        model: Model | None = None,
    ) -> None:
        communicator = Simulated(model or Model()).open(*hosted_world(1, size))
        programs = {rank: change(rank, benchmark.program(case, rank, size)) for rank in range(size)}
        self.buffers: dict[int, dict[str, Any]] = {
            rank: {spec.name: communicator.allocate(spec, 1) for spec in program.buffers}
            for rank, program in programs.items()
        }
        self.expected: dict[Held, Pattern] = {}
        for rank, name, buffer in self.held():
            buffer.write(benchmark.fill(case, rank, size, name, salt))
            pattern = benchmark.expected(case, rank, size, name, salt)
            if pattern is not None:
                self.expected[rank, name] = pattern
        self.run = communicator.prepare(programs, self.buffers, case.mode)

    def held(self) -> Iterator[tuple[int, str, Any]]:
        return (
            (rank, name, buffer)
            for rank, named in self.buffers.items()
            for name, buffer in named.items()
        )

    def wrong(self) -> dict[Held, int]:
        """Wrong elements of every buffer that is checked."""
        return {(rank, name): self.count(rank, name) for rank, name in self.expected}

    def count(self, rank: int, name: str) -> int:
        return int(self.buffers[rank][name].count_wrong(self.expected[rank, name], 1))


def case_of(benchmark: Benchmark, size: int, count: int, **axes: Any) -> Case:
    """As the plan makes it: no bytes and no dtype where there is no message."""
    blocks = benchmark.blocks(size)
    dtype, count = ("float32", count) if blocks else ("none", 0)
    sizes = {"elements": count, "message_bytes": 4 * blocks * count}
    variables = {"benchmark": benchmark.name, "dtype": dtype, "layout": f"1x{size}"}
    return next(iter(benchmark.variants(replace(CASE, **variables, **sizes, **axes), size)))
