"""The sections of replayed jobs: the causes of their time, their operations, and time lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from commbench.core.layout import Layout
from commbench.report.section import Figure, Section
from commbench.report.summary import Results
from commbench.report.table import Table
from commbench.results.columns import grouped
from commbench.results.row import Row
from commbench.results.run_folder import mapping_or_empty

from .answer import ANSWERED, OPERATION_HEADS, answer_of, group_name
from .figures import Bar, time_line
from .named_workload import WORKLOAD_FILE, sequence_name, workload_named
from .replay_times import LOWER_BOUND, ReplayTimes
from .scaling import ScaledWorkload
from .schedule import ScheduledOperation, schedule

REPLAY = "replay"
MOST_DRAWN = 400
MOST_LANES = 16
MEANING = (
    "Operations one after another or at once as in the job, and each alone. A cause is named where"
    " its interval lies above zero. Times and calls are of one step of the job, or of its recording"
    " where that marks no steps."
)


def replay_sections(results: Results) -> list[Section]:
    """One for each workload in a layout on a backend, in the order of the rows."""
    rows = [row for row in results.rows if row.benchmark == REPLAY]

    def answer_key(row: Row) -> tuple[str, ...]:
        return (sequence_name(str(row.workload)), *(str(getattr(row, name)) for name in ANSWERED))

    files = list(_workload_files(results))
    return [_section(key[0], own, files) for key, own in grouped(rows, answer_key).items()]


def _workload_files(results: Results) -> Iterator[Path]:
    """Where the workloads of these runs may lie: `commbench replay --on` writes one beside the run;
    others are where the run has read them."""
    for folder in results.folders.values():
        yield folder.parent / WORKLOAD_FILE
    for record in results.records:
        given = mapping_or_empty(record.get("config")).get("workload")
        if isinstance(given, str):
            yield Path(given)


def _section(name: str, rows: Sequence[Row], files: Sequence[Path]) -> Section:
    first = rows[0]
    title = f"Replay of {name}, {first.backend}, layout {first.layout}"
    workload = workload_named(name, Layout.parse(first.layout).size, files)
    if workload is None:
        lost = "Neither time line nor causes: the workload file is not where the run has read it."
        return Section(title, [lost], is_on_terminal=False)
    answer = answer_of(rows, workload)
    return Section(
        title,
        list(answer.sentences()),
        [Table.of(OPERATION_HEADS, list(answer.operation_cells().values()))],
        figures=partial(_figures, title, answer.times),
        notes=[MEANING, LOWER_BOUND],
        is_on_terminal=False,
    )


def _figures(title: str, times: ReplayTimes) -> list[Figure]:
    """In the job, and with the times of the operations alone here."""
    part = times.part
    in_job = {
        number: operation.job_s
        for number, operation in enumerate(part.whole.operations)
        if operation.job_s is not None
    }
    here = {number: seconds.value for number, seconds in times.alone.items()}
    figures = []
    for heading, durations_s in (("in the job", in_job), ("each alone, here", here)):
        if set(part.operations) <= set(durations_s):
            figures += _time_line(f"{title}: {heading}", part, durations_s)
    return figures


def _time_line(title: str, part: ScaledWorkload, durations_s: Mapping[int, float]) -> list[Figure]:
    """The operations with the gaps of the job between them, a lane for each group."""
    runs = schedule(part, durations_s)[:MOST_DRAWN]
    by_ranks = grouped(runs, lambda run: run.ranks)
    lanes = sorted(by_ranks.items(), key=lambda lane: (-len(lane[0]), lane[0]))[:MOST_LANES]
    bars = [
        Bar(
            lane,
            run.begin_s,
            run.duration_s,
            part.operations[run.number].operation,
            level,
            levels,
        )
        for lane, (_, of_lane) in enumerate(lanes)
        for run, level, levels in _levels(of_lane)
    ]
    names = [group_name(ranks) for ranks, _ in lanes]
    return time_line(title, names, bars, "time, without waiting for late ranks")


def _levels(runs: Sequence[ScheduledOperation]) -> Iterator[tuple[ScheduledOperation, int, int]]:
    """Each operation with its level in the lane and the number of levels: those that run at once
    lie below one another."""
    ends_s: list[float] = []
    placed = []
    for run in runs:
        free = [level for level, end_s in enumerate(ends_s) if end_s <= run.begin_s]
        level = free[0] if free else len(ends_s)
        ends_s[level : level + 1] = [run.end_s]
        placed.append((run, level))
    for run, level in placed:
        yield run, level, len(ends_s)
