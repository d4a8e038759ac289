"""NCCL's own log of calls (NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL), and RCCL's: no times.

An all_to_all of torch is in it as sends and receives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from commbench.workloads.operations import (
    ITEM_BYTES,
    POINT_TO_POINT,
    RankGroup,
    RankTrace,
    numbered,
    operation_named,
    rank_bytes,
)
from commbench.workloads.trace_files import TraceFile

from .protocol import rank_of

CALL_MARK = b" opCount "
COMMUNICATOR_MARK = b" nranks "
# values of ncclDataType_t
NCCL_TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
MESSAGE_MARK = b" NCCL INFO "
LONGEST_MESSAGE = 4096  # bytes; NCCL cuts its messages earlier
PROCESS = re.compile(rb"(?<![^\s:])([^\s:]+:\d+):\d+ \[\d+\]")
CALL = re.compile(
    rb"(?P<operation>\w+): opCount [0-9a-f]+ .*?count (?P<count>\d{1,18})"
    rb" datatype (?P<type>\d{1,2}) op \d+ root (?P<root>-?\d{1,9}) comm (?P<comm>\w+)"
    rb" \[nranks=(?P<ranks>\d{1,7})\](?:.* globalrank (?P<rank>\d{1,7}))?"
)
COMMUNICATOR = re.compile(
    rb".*?comm (?P<comm>0x\w+) rank (?P<rank>\d{1,7})"
    rb" nranks (?P<ranks>\d{1,7}) .*?commId (?P<id>0x\w+)"
)
NO_COMMUNICATOR = (
    "calls of communicators whose beginning is not in the log (NCCL_DEBUG_SUBSYS=INIT)"
)
UNKNOWN_CALLS = "calls of NCCL that commbench does not know"


@dataclass
class _Process:
    """What the log of one process says."""

    # address -> rank, ranks, id
    communicators: dict[bytes, tuple[int, int, str]] = field(default_factory=dict)
    calls: list[tuple[bytes, dict[str, Any]]] = field(default_factory=list)
    rank: int | None = None
    notes: Counter[str] = field(default_factory=Counter)


class NcclCalls:
    form = "NCCL log"

    def recognises(self, file: TraceFile) -> bool:
        return b" NCCL INFO " in file.head or b" NCCL version" in file.head

    def read(self, file: TraceFile) -> list[RankTrace]:
        processes: dict[bytes, _Process] = {}
        for name, message in _messages(file):
            if CALL_MARK in message:
                match = CALL.match(message)
                if match is not None:
                    _add_call(processes.setdefault(name, _Process()), match)
            elif COMMUNICATOR_MARK in message:
                match = COMMUNICATOR.match(message)
                if match is not None:
                    process = processes.setdefault(name, _Process())
                    process.communicators[match["comm"]] = (
                        int(match["rank"]),
                        int(match["ranks"]),
                        match["id"].decode(),
                    )
        alone = len(processes) == 1
        return [_process_trace(self.form, file, process, alone) for process in processes.values()]


def _messages(file: TraceFile) -> Iterator[tuple[bytes, bytes]]:
    """The process and the text of each message; a line may have those of several ranks."""
    for line in file.lines():
        for before, message in pairwise(line.split(MESSAGE_MARK)):
            names = PROCESS.findall(before[-LONGEST_MESSAGE:])
            if names:
                yield names[-1], message[:LONGEST_MESSAGE]


def _add_call(process: _Process, match: re.Match[bytes]) -> None:
    operation = operation_named(match["operation"].decode())
    number = int(match["type"])
    if operation is None or number >= len(NCCL_TYPES):
        process.notes[UNKNOWN_CALLS] += 1
        return
    if match["rank"] is not None:
        process.rank = int(match["rank"])
    dtype = NCCL_TYPES[number]
    ranks = int(match["ranks"])
    size = int(match["count"]) * ITEM_BYTES[dtype]
    input_bytes, output_bytes = rank_bytes(operation, size, ranks)
    root = int(match["root"])
    fields: dict[str, Any] = {
        "operation": operation,
        "dtype": dtype,
        "input_bytes": input_bytes,
        "output_bytes": output_bytes,
        "group": RankGroup("", None, ranks),
    }
    if operation in POINT_TO_POINT:
        fields["peer"] = root
    elif operation in ("broadcast", "reduce", "gather", "scatter"):
        fields["root"] = root
    process.calls.append((match["comm"], fields))


def _process_trace(form: str, file: TraceFile, process: _Process, alone: bool) -> RankTrace:
    """Its rank is that in its largest communicator, which is the world's."""
    largest = max(process.communicators.values(), key=lambda entry: entry[1], default=None)
    recorded = process.rank if largest is None else largest[0]
    rank = rank_of(file, recorded if recorded is not None or alone else None)
    fields = []
    for address, call in process.calls:
        entry = process.communicators.get(address)
        if entry is None:
            process.notes[NO_COMMUNICATOR] += 1
        name = address.decode() if entry is None else entry[2]
        fields.append({**call, "group": RankGroup(name, None, call["group"].size)})
    world = None if largest is None else largest[1]
    return RankTrace(file.name, form, rank, numbered(fields, rank), world, notes=process.notes)
