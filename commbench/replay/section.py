"""The page's section of replayed jobs: time lines of their operations by group, a table, and the
causes of their time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from commbench.core.layout import Layout
from commbench.core.states import Row
from commbench.core.units import about_bytes, format_seconds
from commbench.report.figures import Colours, seconds_text
from commbench.report.page_parts import Picture
from commbench.report.summary import Results
from commbench.report.svg import Chart
from commbench.results.columns import grouped
from commbench.results.load import row_dicts
from commbench.results.run_folder import mapping_or_empty

from .answer import ANSWERED, answer_of, group_name
from .named_workload import WORKLOAD_FILE, sequence_name, workload_named
from .replay_times import ReplayTimes
from .scaling import ScaledWorkload
from .schedule import ScheduledOperation, schedule

REPLAY = "replay"
MOST_DRAWN = 400
MOST_LANES = 16
LANE_STEP = 30.0  # SVG units
AXES_HEIGHT = 64.0
LABELS_WIDTH = 96.0
LEAST_WIDTH = 1 / 800  # of a bar, as a share of the time line: one without time can be seen


@dataclass(frozen=True)
class ReplayView:
    """One workload in one layout on one backend; `cells` below OPERATION_HEADS. `note`: why
    something is not shown."""

    title: str
    sentences: Sequence[str]
    cells: Sequence[tuple[str, ...]]
    pictures: Sequence[Picture]
    note: str = ""


def replay_views(results: Results) -> list[ReplayView]:
    """In the order of the rows."""
    rows = row_dicts(results.cases[results.cases["benchmark"] == REPLAY])
    answered = [name for name in ANSWERED if name in results.cases]

    def answer_key(row: Row) -> tuple[str, ...]:
        return (sequence_name(str(row["workload"])), *(str(row[name]) for name in answered))

    files = list(_workload_files(results))
    return [_view(key[0], own, files) for key, own in grouped(rows, answer_key).items()]


def _workload_files(results: Results) -> Iterator[Path]:
    """Where the workloads of these runs may lie: `commbench replay --on` writes one beside the run;
    others are where the run has read them."""
    for folder in results.folders.values():
        yield folder.parent / WORKLOAD_FILE
    for record in results.records:
        given = mapping_or_empty(record.get("config")).get("workload")
        if isinstance(given, str):
            yield Path(given)


def _view(name: str, rows: Sequence[Row], files: Sequence[Path]) -> ReplayView:
    first = rows[0]
    title = f"{name}, {first['backend']}, layout {first['layout']}"
    workload = workload_named(name, Layout.parse(first["layout"]).size, files)
    if workload is None:
        note = "Neither time line nor causes: the workload file is not where the run has read it"
        return ReplayView(title, (), (), (), note)
    answer = answer_of(rows, workload)
    # waiting is known from traces only
    answer = replace(answer, causes=[each for each in answer.causes if each.name != "waiting"])
    cells = list(answer.operation_cells().values())
    return ReplayView(title, list(answer.sentences()), cells, list(_pictures(title, answer.times)))


def _pictures(title: str, times: ReplayTimes) -> Iterator[Picture]:
    """In the job, and with the times of the operations alone here."""
    part = times.part
    in_job = {
        number: operation.job_s
        for number, operation in enumerate(part.whole.operations)
        if operation.job_s is not None
    }
    here = {number: seconds.value for number, seconds in times.alone.items()}
    for heading, durations_s in (("in the job", in_job), ("each alone, here", here)):
        if set(part.operations) <= set(durations_s):
            yield time_line(title, heading, part, durations_s)


def time_line(
    title: str, heading: str, part: ScaledWorkload, durations_s: Mapping[int, float]
) -> Picture:
    """The operations with the gaps of the job between them, a lane for each group."""
    runs = schedule(part, durations_s)[:MOST_DRAWN]
    by_ranks = grouped(runs, lambda run: run.ranks)
    lanes = sorted(by_ranks.items(), key=lambda lane: (-len(lane[0]), lane[0]))[:MOST_LANES]
    end_s = max((run.end_s for _, of_lane in lanes for run in of_lane), default=0.0)
    chart = Chart(
        f"{title}: {heading}", height=len(lanes) * LANE_STEP + AXES_HEIGHT, left=LABELS_WIDTH
    )
    chart.linear("x", "time, without waiting for late ranks", [end_s], seconds_text)
    chart.axes.set_yticks([])
    chart.axes.set_ylim(len(lanes) - 0.4, -0.6)
    names = list(dict.fromkeys(part.operations[run.number].operation for run in runs))
    colours = Colours(names)
    for lane, (ranks, of_lane) in enumerate(lanes):
        chart.text(0.0, lane, group_name(ranks), offset=-8.0, anchor="right")
        for run, level, levels in _levels(of_lane):
            operation = part.operations[run.number]
            size_text = about_bytes(operation.largest_bytes)
            tip = (
                f"{operation.operation} of {size_text}, {group_name(ranks)}:"
                f" {format_seconds(run.duration_s)} at {format_seconds(run.begin_s)}"
            )
            chart.bar(
                run.begin_s,
                lane - 0.35 + level * 0.7 / levels,
                max(run.duration_s, end_s * LEAST_WIDTH),
                0.7 / levels,
                colours.of(operation.operation)[0],
                tip,
                series=operation.operation,
            )
    return Picture(
        heading, Markup(chart.svg()), [(name, colours.of(name)[0], "") for name in names]
    )


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
