"""The operations that add, with payload=rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from commbench.benchmarks.all_reduce import AllReduce
from commbench.benchmarks.collective import Collective, reduction_of
from commbench.benchmarks.each_node import OnEachNode
from commbench.benchmarks.reduce import Reduce
from commbench.benchmarks.reduce_scatter import ReduceScatter
from commbench.config.settings import Settings
from commbench.core.case import Benchmark
from commbench.core.errors import ConfigError
from commbench.core.program import Group, Pattern
from commbench.core.protocols import Backend
from commbench.core.variables import Case

from .exact import SIGNIFICAND_BITS
from .values import summands, sums_and_bound

LEAST_GROUP = 2  # ranks of each of two groups that reduce at once


class Rounding(Collective):
    """A reduction of other values, whose result may be any number within the bound of its error."""

    def refusal(self, case: Case, size: int) -> str | None:
        if case.timed is not None or case.node is not None:
            key = "overlap" if case.timed else "nodes=each"
            return f"payload=rounding compares results of all ranks; leave out {key}"
        reason = type_refusal(case.dtype) or reduction_refusal(reduction_of(case))
        return reason or super().refusal(case, size)

    def fill(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        pattern = super().fill(case, rank, size, name, salt)
        if pattern is None:
            return None
        period = summands(case.dtype, rank, salt)
        return Pattern(tuple(replace(each, period=period) for each in pattern.segments))

    def expected(self, case: Case, rank: int, size: int, name: str, salt: int) -> Pattern | None:
        pattern = super().expected(case, rank, size, name, salt)
        if pattern is None:
            return None
        period = summands(case.dtype, rank, salt)
        segments = [replace(each, period=period) for each in pattern.segments]
        sums, bound = sums_and_bound(case.dtype, size, salt)
        # the other blocks of a reduce_scatter in place are the input still
        own = rank if len(segments) > 1 else 0
        segments[own] = replace(segments[own], period=sums.high, tolerance=bound)
        return Pattern(tuple(segments))


class RoundingAllReduce(Rounding, AllReduce):
    def groups(self, case: Case, size: int) -> Sequence[Group]:
        """The first half of the ranks and as many others; none where they are too few."""
        half = size // 2
        if half < LEAST_GROUP:
            return ()
        return tuple(range(half)), tuple(range(half, 2 * half))


class RoundingReduce(Rounding, Reduce):
    pass


class RoundingReduceScatter(Rounding, ReduceScatter):
    pass


ROUNDING: dict[type[Benchmark], Benchmark] = {
    AllReduce: RoundingAllReduce(),
    Reduce: RoundingReduce(),
    ReduceScatter: RoundingReduceScatter(),
}


def type_refusal(kind: str) -> str | None:
    if kind in SIGNIFICAND_BITS:
        return None
    allowed = ", ".join(SIGNIFICAND_BITS)
    return f"payload=rounding has no values of {kind}; use dtype={allowed}"


def reduction_refusal(reduction: str) -> str | None:
    if reduction == "sum":
        return None
    return f"payload=rounding is for sums, {reduction} is not one; use reduction=sum"


def check(settings: Settings) -> None:
    """Raises ConfigError where no case could be measured with payload=rounding."""
    if "rounding" not in settings.axes["payload"]:
        return
    if not any("payload" in each.axes for each in settings.benchmarks):
        raise ConfigError(
            f"payload=rounding is for operations that add, {settings.benchmarks[0].name} does not;"
            " use benchmark=[all_reduce,reduce,reduce_scatter]"
        )
    of_types = [type_refusal(kind) for kind in settings.dtypes]
    of_reductions = [reduction_refusal(name) for name in settings.axes["reduction"]]
    for reasons in (of_types, of_reductions):
        if all(reasons):
            raise ConfigError(str(reasons[0]))


def around(benchmark: Benchmark, case: Case, backend: Backend) -> Benchmark:
    """The benchmark of a case, with other values where it asks for them."""
    if case.payload is None:
        return benchmark
    if isinstance(benchmark, OnEachNode):  # which is refused by the inner one
        return replace(benchmark, inner=around(benchmark.inner, case, backend))
    return ROUNDING.get(type(benchmark), benchmark)
