"""What the traces of a job say, as text for a terminal and as a CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from itertools import compress

from commbench.core.terminal import TableColumn, Terminal, paragraphs, table_text
from commbench.core.units import (
    about_bytes,
    format_number,
    format_ranges,
    format_seconds,
    plural,
)

from .analysis import Signature, exposure, late_ranks, signatures
from .operations import RecordedCall
from .training_job import TrainingJob

MOST_NAMED_FILES = 3
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
        for call in job.calls[rank]:
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
    """What the command prints."""
    terminal = Terminal.of(sys.stdout)
    rows = signatures(job)
    total_ns = sum(row.total_ns for row in rows)
    table = _signature_table(job, rows, total_ns, terminal)
    lines = [
        _headline(job, rows),
        *([table, ""] if rows else []),
        *_time_lines(job, rows, total_ns),
        *_late_lines(job),
        *_other_libraries(job),
        *(f"not complete: {text} ({count})" for text, count in job.notes.items()),
        *_left_out_lines(left_out),
    ]
    texts = [line if line == table else paragraphs([line], terminal) for line in lines]
    return "\n".join(texts) + "\n"


def _headline(job: TrainingJob, rows: Sequence[Signature]) -> str:
    of_world = f"{len(job.ranks)} of {job.world_size or 'an unknown number of'} ranks"
    steps = f", {plural(job.steps, 'step', 'steps')} of" if job.steps else ""
    step_text = f"{steps} {format_seconds(job.step_s)}" if job.step_s is not None else ""
    groups = len({collective.group for collective in job.collectives})
    text = (
        f"{of_world}, {', '.join(job.forms)}{step_text};"
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
    share = row.total_ns / total_ns if total_ns else None
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


def _time_lines(job: TrainingJob, rows: Sequence[Signature], total_ns: int) -> list[str]:
    timed = sum(
        call.duration_ns is not None for rank_calls in job.calls.values() for call in rank_calls
    )
    lines = []
    if timed:
        known = "" if timed == job.operations else f" ({timed} of {job.operations} operations)"
        spent_s = total_ns / len(job.ranks) / max(job.steps, 1) / 1e9
        waiting_s = sum(row.waiting_ns or 0 for row in rows) / len(job.ranks) / max(job.steps, 1)
        per = "a step" if job.steps else "in all"
        text = f"communication: {format_seconds(spent_s)} {per} on each rank{known}"
        if any(row.waiting_ns is not None for row in rows):
            text += f", of which {format_seconds(waiting_s / 1e9)} waiting for the last rank"
        lines.append(f"{text}; {_exposure_text(job, timed)}")
    if any(row.is_bound for row in rows):
        lines.append(
            "<=: an upper bound with waiting in it, because not all ranks of the group have traces"
        )
    return lines


def _exposure_text(job: TrainingJob, timed: int) -> str:
    """How much of the time in `timed` operations computation of the same rank hides; waiting is
    hidden or exposed like all of it."""
    known = exposure(job)
    if known is None:
        return "how much of it computation hides is not known"
    step_ranks = len(job.computing) * max(job.steps, 1)
    hidden, exposed, once = (
        format_seconds(total_ns / step_ranks / 1e9)
        for total_ns in (known.hidden_ns, known.exposed_ns, known.exposed_once_ns)
    )
    of = "" if known.operations == timed else f" ({known.operations} of {timed} operations)"
    text = f"{hidden} of it hidden behind computation of the same rank, {exposed} exposed{of}"
    at_once = known.exposed_once_ns < known.exposed_ns
    return f"{text}, {once} if operations at the same time count once" if at_once else text


def _late_lines(job: TrainingJob) -> list[str]:
    late = late_ranks(job)
    if not late:
        return []
    worst = late[0]
    per = "a step" if job.steps else "in all"
    waited_s = worst.waiting_ns / max(job.steps, 1) / 1e9
    return [
        f"late: rank {worst.rank} is last in {worst.last} of {worst.operations} operations; the"
        f" others wait {format_seconds(waited_s)} {per}"
    ]


def _other_libraries(job: TrainingJob) -> list[str]:
    if not job.foreign:
        return []
    count = sum(job.foreign.values())
    most = sorted(job.foreign.items(), key=lambda pair: (-pair[1], pair[0]))
    named = ", ".join(f"{name:.60} ({times})" for name, times in most[:MOST_NAMED_LIBRARIES])
    named += ", ..." if len(most) > MOST_NAMED_LIBRARIES else ""
    return [
        f"other libraries: {count} collectives are not of the process groups, so they are not in"
        f" the table and its sums: {named}"
    ]


def _left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """One for each reason."""
    lines = []
    for reason in dict.fromkeys(left_out.values()):
        names = [name for name, why in left_out.items() if why == reason]
        shown = ", ".join(names[:MOST_NAMED_FILES])
        unnamed = len(names) - MOST_NAMED_FILES
        more = f" and {unnamed} more" if unnamed > 0 else ""
        lines.append(f"not read: {shown}{more}: {reason}")
    return lines
