"""Base classes of the operations in which all ranks take part at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from commbench.core.case import Benchmark, Shape
from commbench.core.payload import contribution, dtype, reduced
from commbench.core.program import BufferSpec, Copy, Pattern, View
from commbench.core.variables import Cache, Case, ReductionName

SOURCE = View("source")
DATA = View("data")  # the input, which no call writes to, and the buffer that is checked


@dataclass(frozen=True)
class Collective(Benchmark):
    """One call per sample on all ranks. `input` and `result` are the contents of `source` and
    `data`."""

    name: ClassVar[str]
    axes: ClassVar[tuple[str, ...]] = ()
    cache: ClassVar[Cache] = "warm"
    min_ranks: ClassVar[int] = 1
    self_synchronising: ClassVar[bool] = False

    def blocks(self, size: int) -> int:
        return 1

    def refusal(self, case: Case, size: int) -> str | None:
        is_exact = size & (size - 1) == 0
        if case.reduction != "avg" or is_exact or not dtype(case.dtype).is_float8:
            return None
        return (
            f"{case.dtype} has too few bits to tell a wrong average of {size} ranks; use"
            " reduction=sum, or 2, 4, 8, ... ranks"
        )

    def shape(self, case: Case, size: int) -> Shape:
        return Shape(1, case.message_bytes, "max_over_ranks", "collective")

    def bus_factor(self, case: Case, size: int) -> float | None:
        """1: every byte leaves one rank once and enters another once (nccl-tests src/broadcast.cu,
        reduce.cu)."""
        return 1.0 if size > 1 else None

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.input(case, rank, size, salt) if name == "source" else None

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        return self.result(case, rank, size, salt) if name == "data" else None

    def input(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        """The input of this rank; None if it has none."""
        return None

    def result(self, case: Case, rank: int, size: int, salt: int) -> Pattern | None:
        """The contents of `data` after the call; None if they are undefined."""
        return None


class DividedCollective(Collective):
    """A collective whose message has one block per rank; a rank's own block is not transferred."""

    def blocks(self, size: int) -> int:
        return size

    def bus_factor(self, case: Case, size: int) -> float | None:
        """(n-1)/n: all blocks except one enter or leave a rank (nccl-tests doc/PERFORMANCE.md,
        src/gather.cu)."""
        return (size - 1) / size if size > 1 else None


def source_and_data(
    case: Case, source_blocks: int = 1, data_blocks: int = 1
) -> tuple[BufferSpec, BufferSpec]:
    source = BufferSpec("source", source_blocks * case.elements, case.dtype)
    return source, BufferSpec("data", data_blocks * case.elements, case.dtype)


def input_and_reset(case: Case, place: View = DATA) -> tuple[View, tuple[Copy, ...]]:
    """The view that the call reads, and the untimed reset before it, which in place copies the
    input to `place`."""
    return (place, (Copy(SOURCE, place),)) if case.in_place else (SOURCE, ())


def block_of(rank: int, case: Case) -> View:
    """The block of `rank` in `data`, where that buffer holds one block per rank."""
    return View("data", offset=rank * case.elements, count=case.elements)


def root_of(case: Case) -> int:
    return case.root or 0


def reduction_of(case: Case) -> ReductionName:
    return case.reduction or "sum"


def contribution_of(case: Case, rank: int, size: int, salt: int, shift: int = 0) -> Pattern:
    """One block of what a rank contributes to a reduction."""
    most = dtype(case.dtype).most
    return contribution(rank, size, salt, reduction_of(case), case.elements, shift, most)


def reduced_of(case: Case, size: int, salt: int, shift: int = 0) -> Pattern:
    """The same block of the result."""
    most = dtype(case.dtype).most
    return reduced(size, salt, reduction_of(case), case.elements, shift, most)
