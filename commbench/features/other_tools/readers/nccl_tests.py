"""What nccl-tests measures, in text and JSON alike: operations, times, rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from commbench.core.variables import TimerName
from commbench.features.other_tools.experiment import (
    DIVIDED,
    Experiment,
    RankPlace,
    bus_factor,
    layout_of,
    measured,
    size_problem,
    withheld,
)
from commbench.features.other_tools.nccl_tests import NCCL_TESTS_PROGRAMS
from commbench.features.other_tools.printed import Printed
from commbench.results.row import Row

from .protocol import ITEM_BYTES, dtype_of

TOOL = "nccl-tests"
OPERATIONS = {program: name for name, program in NCCL_TESTS_PROGRAMS.items()}
ROOTED = ("broadcast", "gather", "reduce", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
RATE_TOLERANCE = 0.03  # of the ratio of two printed rates
LEAST_RATE = 1.0  # GB/s, below which two decimals say little of a ratio
NO_REDUCTION = ("none", "")


@dataclass(frozen=True)
class Half:
    """The time and rates of one placement of the buffers; rates in GB/s, None for N/A."""

    in_place: bool
    time_s: Printed
    algbw: Printed
    busbw: Printed
    wrong: int | None = None
    deviation: float = 0.0  # `error` of versions before 2.13
    calls: dict[str, float] = field(default_factory=dict)  # columns of the calls one by one


@dataclass(frozen=True)
class TableLine:
    """A line of the table. `root`: below 0 or None for none."""

    number: int | None
    size: int
    count: int
    dtype: str
    reduction: str
    root: int | None
    halves: Sequence[Half]
    iterations: int | None = None


@dataclass
class Program:
    """One start of a program of nccl-tests, while it is read."""

    version: str | None = None
    library: str | None = None
    program: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    places: list[RankPlace] = field(default_factory=list)
    are_places_cut: bool = False
    lines: list[TableLine] = field(default_factory=list)
    blocking: str = ""
    out_of_bounds: int = 0
    is_complete: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> int | None:
        """In one operation; None where it is not known, or several groups run at once."""
        if self.are_places_cut or len({place.group for place in self.places}) != 1:
            return None
        return len(self.places)

    def experiment(self) -> Experiment | str:
        """Its numbers, or why they can't be used."""
        operation = self._operation()
        if isinstance(operation, tuple):
            names = " or ".join(NCCL_TESTS_PROGRAMS[name] for name in operation) or "none known"
            return (
                f"which operation is not said, it may be {names}; begin the name of the file with"
                " the program's, as in all_gather_perf.log"
            )
        if operation is None:
            return f"{self.program}: an operation that commbench does not have"
        rows = [row for line in self.lines for row in self._rows(operation, line)]
        layout = None if self.are_places_cut else layout_of(self.places)
        return Experiment(
            tool=TOOL,
            version=self.version,
            backend="nccl",
            library=self.library,
            rows=rows,
            ranks=self.ranks,
            layout=layout,
            places=self.places,
            settings=self.settings,
            notes=[*self.notes, *self._notes()],
            is_cut=not self.is_complete,
        )

    def _notes(self) -> list[str]:
        groups = len({place.group for place in self.places})
        if groups > 1:
            return [f"{groups} groups of ranks ran at once (NCCL_TESTS_SPLIT)"]
        return ["not all ranks are listed"] if self.are_places_cut else []

    def _operation(self) -> str | tuple[str, ...] | None:
        """By the program's name, else the only one that columns and rates allow; None for one that
        commbench has not, several where they do not decide."""
        if self.program is not None:
            return OPERATIONS.get(self.program)
        possible = [
            name
            for name in (*OPERATIONS.values(), "sendrecv")
            if all(map(self._fits(name), self.lines))
        ]
        known = tuple(name for name in possible if name != "sendrecv")
        return possible[0] if len(possible) == 1 and known else known

    def _fits(self, operation: str) -> Any:
        """Whether a line may be of an operation."""
        ranks = self.ranks

        def fits(line: TableLine) -> bool:
            if (line.reduction not in NO_REDUCTION) != (operation in REDUCING):
                return False
            if line.root is not None and (line.root >= 0) != (operation in ROOTED):
                return False
            block = line.count * ITEM_BYTES.get(line.dtype, 0)
            blocks = ranks if operation in DIVIDED else 1
            if block and blocks and line.size != block * blocks:
                return False
            factor = 1.0 if operation == "sendrecv" else bus_factor(operation, ranks)
            return factor is None or all(
                half.algbw.value < LEAST_RATE
                or abs(half.busbw.value / half.algbw.value - factor) < RATE_TOLERANCE
                for half in line.halves
            )

        return fits

    def _rows(self, operation: str, line: TableLine) -> list[Row]:
        blocks = self.ranks if operation in DIVIDED else 1
        problem = size_problem(line.size, line.count, ITEM_BYTES.get(line.dtype), blocks)
        return [self._row(operation, line, half, problem) for half in line.halves]

    def _row(self, operation: str, line: TableLine, half: Half, problem: str | None) -> Row:
        # a broadcast has one buffer in commbench, which is both
        in_place = half.in_place or False
        has_form = operation != "broadcast" or not in_place
        is_rooted = operation in ROOTED and line.root is not None and line.root >= 0
        reduction = None if line.reduction in NO_REDUCTION else line.reduction
        iterations = line.iterations or self.settings.get("iters")
        columns: dict[str, Any] = {
            "engine": "native",
            "device": "cuda",
            "timer": self._timer(),
            "dtype": line.dtype,
            "elements": line.count,
            "in_place": in_place if has_form else None,
            "reduction": reduction if operation in REDUCING else None,
            "root": line.root if is_rooted else None,
            "median_of": self._meaning(iterations),
            "operations_per_sample": iterations,
            **half.calls,
        }
        if problem is None and self.out_of_bounds and half.deviation:
            problem = (
                f"{self.out_of_bounds} values out of bounds in this start, and the file does not"
                " say in which lines"
            )
        row = measured(
            operation,
            line.size,
            half.time_s,
            ranks=self.ranks,
            rate=half.algbw.times(1e9),
            bus_rate=half.busbw.times(1e9),
            line=line.number,
            wrong=half.wrong,
            **columns,
        )
        is_good = problem is None or row.status != "ok"
        return row if is_good else withheld(row, str(problem), line.number)

    def _timer(self) -> TimerName:
        if self.settings.get("graph"):
            return "graph"
        return "host_sync" if self.blocking else "throughput"

    def _meaning(self, iterations: int | None) -> str:
        calls = f"the mean of {iterations} calls" if iterations else "the mean of calls"
        return f"{calls}, {self.blocking}" if self.blocking else f"{calls} without a wait"


def table_line(
    number: int | None,
    values: dict[str, str],
    halves: Sequence[Half],
    iterations: int | None = None,
) -> TableLine:
    """A line from the texts of its columns; raises ValueError and KeyError."""
    root = values.get("root")
    return TableLine(
        number,
        int(values["size"]),
        int(values["count"]),
        dtype_of(values["type"]) or "",
        values.get("redop", "").lower(),
        None if root is None else int(root),
        halves,
        iterations,
    )


def library_text(code: int) -> str | None:
    """NCCL 2.21.5 of 22105, as NCCL_VERSION has it since 2.9; before, of 2804."""
    if code <= 0:
        return None
    unit = 1000 if code < 10000 else 10000
    return f"NCCL {code // unit}.{code % unit // 100}.{code % 100}"
