"""What the traces of a job say, as text for a terminal and as a CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence, Sized
from itertools import compress

from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.units import (
    about_bytes,
    format_number,
    format_ranges,
    format_seconds,
    plural,
)
from commbench.features.other_tools.foreign_readers import left_out_texts

from .analysis import Exposure, Signature, exposure, signatures
from .operations import RecordedCall
from .training_job import TrainingJob
from .waiting import HEAVIEST, Late, Waiting, waiting_of

MOST_NAMED_LIBRARIES = 5
SIGNATURE_COLUMNS = (
    TableColumn("signature"),
    TableColumn("group"),
    TableColumn("calls", right=True),
    TableColumn("bytes", right=True),
    TableColumn("busiest", right=True),
    TableColumn("job us", right=True),
    TableColumn("waiting", right=True),
    TableColumn("share", right=True),
    TableColumn("exposed", right=True),
)
OPERATION_COLUMNS = (
    *("rank", "group_ranks", "group_size", "sequence", "operation", "dtype", "input_bytes"),
    *("output_bytes", "send_counts", "receive_counts", "root", "peer", "start_ns", "end_ns"),
    *("step", "beside_ns"),
)


def operations_csv(job: TrainingJob) -> str:
    """One line an operation of a rank; what is not known is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(OPERATION_COLUMNS)
    for rank in job.ranks:
        for call in job.all_calls(rank):
            writer.writerow(["" if value is None else value for value in _cells(call)])
    return out.getvalue()


def _cells(call: RecordedCall) -> list[object]:
    special: dict[str, object] = {
        "group_ranks": None if call.group.ranks is None else format_ranges(call.group.ranks),
        "group_size": call.group.size,
        "send_counts": _counts_text(call.send_counts),
        "receive_counts": _counts_text(call.receive_counts),
    }
    return [special[name] if name in special else getattr(call, name) for name in OPERATION_COLUMNS]


def _counts_text(counts: Sequence[int] | None) -> str | None:
    return None if counts is None else " ".join(map(str, counts))


def job_text(job: TrainingJob, left_out: Mapping[str, str]) -> str:
    """What the command prints: the answer, what it is of, and how it was found."""
    terminal = Terminal.of(sys.stdout)
    rows = signatures(job)
    total_ns = sum(row.total_ns for row in rows)
    waiting = waiting_of(job)
    table = _signature_table(job, rows, total_ns, terminal)
    lines = [
        *([_answer(job, total_ns, waiting)] if rows and (total_ns or job.steps) else []),
        *([_saving(job, total_ns, waiting)] if rows else []),
        _headline(job, rows),
        *([table, ""] if rows else []),
        *_time_lines(job, rows, total_ns, waiting),
        *([_late_text(job, waiting.late)] if waiting is not None else []),
        *_other_libraries(job),
        *(f"not complete: {text} ({count})" for text, count in job.notes.items()),
        *(f"not read: {text}" for text in left_out_texts(left_out)),
    ]
    texts = [line if line == table else paragraphs([line], terminal) for line in lines]
    return "\n".join(texts) + "\n"


def _answer(job: TrainingJob, total_ns: int, waiting: Waiting | None) -> str:
    """What a step costs, its exposed communication, and its late rank."""
    if not total_ns:
        return f"a step takes {format_seconds(job.step_s or 0)}; its communication has no times"
    known = exposure(job)
    if known is None:
        part = f"{_seconds_text(job, total_ns, job.ranks)} of communication, hidden or exposed"
    else:
        once = _exposure_seconds(job, known.exposed_once_ns)
        part = f"{once} of exposed communication"
    if job.step_s is None:
        text = f"the recording has {part}; its steps are not marked"
    else:
        text = f"a step takes {format_seconds(job.step_s)}, with {part}"
    late = waiting.late if waiting is not None else None
    cost = "" if late is None else _seconds_text(job, late.waiting_ns)
    return text if late is None else f"{text}; rank {late.rank} costs {cost}"


def _saving(job: TrainingJob, total_ns: int, waiting: Waiting | None) -> str:
    """What a faster network could save of a step. Where the waiting has an interval, the bound
    takes its low end."""
    known = exposure(job)
    unknown = _why_no_bound(job, total_ns, known)
    if known is None or unknown is not None:
        return f"what a faster network saves is not known: {unknown}"
    steps = len(job.computing) * max(job.steps, 1) * 1e9
    exposed_s = known.exposed_once_ns / steps
    unsure_s = waiting.seconds.value - waiting.seconds.low if waiting is not None else 0.0
    saved_s = min(exposed_s, known.moving_once_ns / steps + unsure_s)
    share = "" if job.step_s is None else f"{exposed_s / job.step_s:.0%} of a step is exposed"
    # a rank may come late to one group because of its communication in another
    groups = {each.group for each in job.collectives if each.group.size != 1}
    several = len(groups) > 1 or any(job.others.values())
    most_s = exposed_s if several else saved_s
    text = f"an infinitely fast network saves at most {format_seconds(most_s)}"
    text = f"{share} communication; {text}" if share else text
    if waiting is not None and saved_s == exposed_s:
        return text
    if waiting is None:
        return f"{text}; how much of it is waiting for ranks is not known"
    least = "at least " if waiting.is_least or unsure_s else ""
    waited = format_seconds(exposed_s - saved_s)
    if several:
        return f"{text}; {least}{waited} of it is waiting, perhaps for other groups' communication"
    return f"{text}, because {least}{waited} of the exposed time is waiting for ranks"


def _why_no_bound(job: TrainingJob, total_ns: int, known: Exposure | None) -> str | None:
    """Why nothing bounds what a faster network saves; None where something does."""
    if not total_ns:
        return "this log has no times"
    if known is None:
        return "these traces do not say when a rank computes"
    if job.is_least:
        return "times are of a part of the operations or steps"
    timed = sum(call.duration_ns is not None for rank in job.ranks for call in job.all_calls(rank))
    if known.operations < timed:
        return f"only {known.operations} of {timed} operations show if they are hidden"
    return None


def _seconds_text(job: TrainingJob, total_ns: float, ranks: Sized = (0,)) -> str:
    """A time over all steps of some ranks, as the mean of a step."""
    text = format_seconds(total_ns / len(ranks) / max(job.steps, 1) / 1e9)
    return f"at least {text}" if job.is_least else text


def _exposure_seconds(job: TrainingJob, total_ns: int) -> str:
    """The mean over the ranks of which it is known; a lower bound is the mean over all."""
    return _seconds_text(job, total_ns, job.ranks if job.is_least else job.computing)


def _headline(job: TrainingJob, rows: Sequence[Signature]) -> str:
    of_world = f"{len(job.ranks)} of {job.world_size or 'an unknown number of'} ranks"
    steps = f", {plural(job.steps, 'step', 'steps')}" if job.steps else ""
    groups = len({collective.group for collective in job.collectives})
    text = (
        f"{of_world}, {', '.join(job.forms)}{steps};"
        f" {plural(job.operations, 'operation', 'operations')} in"
        f" {plural(len(rows), 'signature', 'signatures')}, {plural(groups, 'group', 'groups')}"
    )
    return f"{text}; not known: {', '.join(job.unknown)}" if job.unknown else text


def _signature_table(
    job: TrainingJob, rows: Sequence[Signature], total_ns: int, terminal: Terminal
) -> str:
    """Without the columns of which nothing is known."""
    known = {
        "waiting": any(row.waiting_ns is not None for row in rows),
        "exposed": any(row.exposed is not None for row in rows),
    }
    shown = [known.get(column.heading, True) for column in SIGNATURE_COLUMNS]
    cells = [list(compress(_signature_cells(row, job, total_ns), shown)) for row in rows]
    return table_text(list(compress(SIGNATURE_COLUMNS, shown)), cells, terminal)


def _signature_cells(row: Signature, job: TrainingJob, total_ns: int) -> list[str]:
    waiting = row.waiting_ns
    share = row.total_ns / total_ns if total_ns and not job.is_least else None
    return [
        f"{row.operation} {row.dtype}" if row.dtype is not None else row.operation,
        _group_text(row, job),
        f"{row.calls}",
        about_bytes(row.input_bytes) if row.input_bytes is not None else "-",
        about_bytes(row.busiest_bytes) if row.busiest_bytes is not None else "-",
        _job_time_text(row),
        f"{waiting / row.total_ns:.0%}" if waiting is not None and row.total_ns else "-",
        f"{share:.0%}" if share is not None and row.total_ns else "-",
        f"{row.exposed:.0%}" if row.exposed is not None else "-",
    ]


def _group_text(row: Signature, job: TrainingJob) -> str:
    if row.groups == (None,):
        return "unknown" if row.group_size is None else f"unknown({row.group_size})"
    if row.group_size == job.world_size or row.groups == (job.ranks,):
        return f"world({row.group_size})"
    if len(row.groups) == 1 and row.groups[0] is not None:
        return f"{format_ranges(row.groups[0])}"
    return f"{len(row.groups)} x {row.group_size}"


def _job_time_text(row: Signature) -> str:
    if row.job_ns is None:
        return "-"
    least, most = (format_number(time_ns / 1000) for time_ns in row.job_ns)
    text = least if least == most else f"{least} .. {most}"
    return f"<= {text}" if row.is_bound else text


def _time_lines(
    job: TrainingJob, rows: Sequence[Signature], total_ns: int, waiting: Waiting | None
) -> list[str]:
    calls = [call for rank in job.ranks for call in job.all_calls(rank)]
    timed = sum(call.duration_ns is not None for call in calls)
    lines = []
    if timed:
        known = "" if timed == len(calls) else f" ({timed} of {len(calls)} operations)"
        spent = f"{_seconds_text(job, total_ns, job.ranks)} {job.per}"
        text = f"communication: {spent} on each rank{known}"
        if waiting is not None:
            text += f", of which {_waiting_text(waiting)} waiting for the last rank"
        lines.append(f"{text}; {_exposure_text(job, timed)}")
    if any(row.is_bound for row in rows):
        lines.append(
            "<=: an upper bound with waiting in it, because not all ranks of the group have traces"
        )
    return lines


def _waiting_text(waiting: Waiting) -> str:
    seconds = waiting.seconds
    text = seconds.ends_text if seconds.certainty else lambda number: number(seconds.value)
    return f"{'at least ' if waiting.is_least else ''}{text(format_seconds)}"


def _exposure_text(job: TrainingJob, timed: int) -> str:
    """How much of the time in `timed` operations computation of the same rank hides; waiting is
    hidden or exposed like all of it."""
    known = exposure(job)
    if known is None:
        return "how much of it computation hides is not known"
    hidden, exposed, once = (
        _exposure_seconds(job, total_ns)
        for total_ns in (known.hidden_ns, known.exposed_ns, known.exposed_once_ns)
    )
    of = "" if known.operations == timed else f" ({known.operations} of {timed} operations)"
    text = f"{hidden} of it hidden behind computation of the same rank, {exposed} exposed{of}"
    at_once = known.exposed_once_ns < known.exposed_ns
    return f"{text}, within {once}: some operations run at the same time" if at_once else text


def _late_text(job: TrainingJob, late: Late | None) -> str:
    if late is None:
        return "late: no rank is last more often than by chance"
    share = "" if job.is_least else f", {late.share:.0%} of all waiting"
    which = f"the {late.operations} operations with {HEAVIEST:.0%} of the waiting"
    return (
        f"late: rank {late.rank} is last in {late.last} of"
        f" {which if late.is_heaviest else f'{late.operations} operations'}; the others wait"
        f" {_seconds_text(job, late.waiting_ns)} {job.per} for it{share}"
    )


def _other_libraries(job: TrainingJob) -> list[str]:
    lines = []
    if others := sum(map(len, job.others.values())):
        lines.append(
            f"other libraries: {others} collectives are not of the process groups; they stand under"
            " the names of their kernels, and a replay leaves them out"
        )
    if job.foreign:
        most = sorted(job.foreign.items(), key=lambda pair: (-pair[1], pair[0]))
        named = ", ".join(f"{name:.60} ({times})" for name, times in most[:MOST_NAMED_LIBRARIES])
        named += ", ..." if len(most) > MOST_NAMED_LIBRARIES else ""
        lines.append(
            f"other libraries: {sum(job.foreign.values())} collectives without a kernel in the"
            f" trace are not in the table: {named}"
        )
    return lines
