"""NCCL Inspector's records, one JSON object a line: sizes and durations, no types."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from commbench.replay.json_stream import NOT_UTF8, REPLACEMENT, document_head, nanoseconds, whole
from commbench.replay.operations import (
    RankGroup,
    RankTrace,
    RecordedCall,
    operation_named,
    rank_bytes,
)
from commbench.replay.trace_files import TraceFile

NO_TYPES = "types of elements, which NCCL Inspector does not record"
LOST_RECORDS = "records between two others that NCCL Inspector has lost"
NOT_A_RECORD = "lines that are no records of NCCL Inspector"


@dataclass
class _Inspected:
    calls: list[RecordedCall] = field(default_factory=list)
    world: tuple[int, int] = (0, 0)  # ranks, rank
    notes: Counter[str] = field(default_factory=Counter)


class NcclInspector:
    form = "NCCL Inspector"

    def recognises(self, file: TraceFile) -> bool:
        return document_head(file.head)[:1] == b"{" and b'"coll_perf"' in file.head

    def read(self, file: TraceFile) -> list[RankTrace]:
        processes: dict[object, _Inspected] = defaultdict(_Inspected)
        unreadable = 0
        for line in file.lines():
            if not line.strip():
                continue
            try:
                text = line.decode(errors="replace")
                file.notes[NOT_UTF8] += text.count(REPLACEMENT)
                record = json.loads(text)
            except (ValueError, RecursionError):
                record = None
            unreadable += not _add_record(processes, record)
        return [
            _inspected_trace(self.form, file, process, unreadable) for process in processes.values()
        ]


def _add_record(processes: dict[object, _Inspected], record: object) -> bool:
    """Whether a line is a record of a collective, which is then kept."""
    document = record if isinstance(record, dict) else {}
    header, performance, metadata = (
        part if isinstance(part, dict) else {}
        for part in map(document.get, ("header", "coll_perf", "metadata"))
    )
    rank = whole(header.get("rank"))
    ranks = whole(header.get("n_ranks"), 1)
    operation = operation_named(performance.get("coll"))
    size = whole(performance.get("coll_msg_size_bytes"))
    sequence = whole(performance.get("coll_sn"))
    if rank is None or ranks is None or operation is None or size is None or sequence is None:
        return False
    process = processes[str(metadata.get("hostname")), whole(metadata.get("pid"))]
    process.world = max(process.world, (ranks, rank))
    input_bytes, output_bytes = rank_bytes(operation, size, ranks)
    process.notes[NO_TYPES] += 1
    times = performance.get("event_trace_ts")
    times = times if isinstance(times, dict) else {}
    start_ns = nanoseconds(times.get("coll_start_ts"))
    end_ns = nanoseconds(times.get("coll_stop_ts"))
    if start_ns is None or end_ns is None or end_ns < start_ns:
        start_ns = None
        end_ns = None
    process.calls.append(
        RecordedCall(
            rank,
            RankGroup(str(header.get("id")), None, ranks),
            sequence,
            operation,
            None,
            input_bytes,
            output_bytes,
            start_ns=start_ns,
            end_ns=end_ns,
            elapsed_ns=nanoseconds(performance.get("coll_exec_time_us")),
        )
    )
    return True


def _inspected_trace(form: str, file: TraceFile, process: _Inspected, unreadable: int) -> RankTrace:
    """Its rank is that in its largest communicator, which is the world's."""
    ranks, rank = process.world
    numbers: dict[RankGroup, set[int]] = defaultdict(set)
    for call in process.calls:
        numbers[call.group].add(call.sequence)
    lost = sum(max(seen) - min(seen) + 1 - len(seen) for seen in numbers.values())
    notes = Counter({**process.notes, LOST_RECORDS: lost, NOT_A_RECORD: unreadable})
    return RankTrace(
        file.name,
        form,
        rank,
        tuple(replace(call, rank=rank) for call in process.calls),
        ranks,
        notes=+notes,
    )
