"""What the replay of a workload says, in one layout on one backend: its times, its operations, and
the causes of its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from commbench.core.layout import Layout
from commbench.core.units import about_bytes, format_factor, format_ranges, format_seconds
from commbench.results.row import Row

from .causes import Cause, causes
from .replay_times import ReplayTimes, replay_times
from .scaling import scaled
from .waiting import Waiting
from .workload import Workload, first_alike

# rows of one answer
ANSWERED = ("backend", "library", "layout", "engine", "device", "hosts", "splits")
OPERATION_HEADS = (
    "operation",
    "group",
    "calls",
    "bytes",
    "in the job",
    "alone, here",
    "here / job",
)


@dataclass(frozen=True)
class Answer:
    title: str
    times: ReplayTimes
    causes: Sequence[Cause]

    def sentences(self) -> Iterator[str]:
        yield from self.times.sentences()
        yield from self.times.part.sentences()
        yield from map(str, self.causes)

    def operation_cells(self) -> dict[int, tuple[str, ...]]:
        """Below OPERATION_HEADS, by the number of the operation; of alike ones the first."""
        part = self.times.part
        alike = first_alike(part.whole)
        cells: dict[int, tuple[str, ...]] = {}
        for number, operation in part.operations.items():
            if alike[number] != number:
                continue
            here = self.times.alone.get(number)
            job_s = operation.job_s
            bound = "<= " if operation.is_bound else ""
            cells[number] = (
                f"{operation.operation} {operation.dtype or ''}".strip(),
                group_name(part.groups[operation.group]),
                f"{max(calls.get(number, 0) for calls in part.step_calls):g}",
                about_bytes(operation.largest_bytes),
                "-" if job_s is None else f"{bound}{format_seconds(job_s)}",
                "-" if here is None else here.text(format_seconds),
                "-" if job_s is None or here is None else format_factor(here.value / job_s),
            )
        return cells


def group_name(ranks: Sequence[int]) -> str:
    return f"ranks {format_ranges(ranks)}"


def answer_of(rows: Sequence[Row], workload: Workload, waiting: Waiting | None = None) -> Answer:
    """Of rows that share ANSWERED. `waiting` is that of all ranks of the job."""
    first = rows[0]
    ranks = Layout.parse(first.layout).size
    times = replay_times(rows, scaled(workload, ranks, first.splits))
    title = f"{first.backend}, layout {first.layout}"
    return Answer(title, times, causes(times, waiting if ranks == workload.ranks else None))
