"""NCCL's own log of calls (NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL), and RCCL's: no times.

An all_to_all of torch is in it as sends and receives; NCCL has one of its own from 2.28 on. The
format strings of NCCL 2.5 to 2.30 are in tests/data/hardware/nccl_formats.yaml.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.foreign_readers import NotRecognised
from commbench_replay.operations import (
    ITEM_BYTES,
    POINT_TO_POINT,
    ROOTED,
    RankGroup,
    RankTrace,
    numbered,
    operation_named,
    rank_bytes,
)

from .protocol import NO_FORMAT, rank_of

MESSAGE_MARK = b" NCCL INFO "
CALL_MARK = b" opCount "
COMMUNICATOR_MARK = b" nranks "
RANKS_MARK = b"[nranks="
LONGEST_HEADER_BYTES = 1024  # host, process, thread and GPU before a message
MOST_DIGITS = 18
RANK_BEFORE = re.compile(rb"^\s*(?:\[[^][]{1,20}\]\s*)*")
NO_ID = "0x0"
# values of ncclDataType_t
NCCL_TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
NO_COMMUNICATOR = (
    "calls of communicators whose beginning is not in the log (NCCL_DEBUG_SUBSYS=INIT)"
)
NAMELESS = "calls of communicators to which NCCL before 2.16 gives no id"
NO_OWNER = "calls of a process with several ranks whose communicator is not in the log, left out"
NO_CALLS = "NCCL's log without calls: NCCL_DEBUG_SUBSYS=INIT,COLL logs them"
UNKNOWN_CALLS = "calls of NCCL that commbench does not know"

Process = tuple[bytes, bytes]  # host and number


@dataclass
class _Communicator:
    """`name` is the same on all of its ranks, and None where the log does not say one."""

    name: str | None
    has_begun: bool


@dataclass(frozen=True)
class _Message:
    """What stands before its colon, and each word of it with the word behind."""

    process: Process
    name: bytes
    values: Mapping[bytes, bytes]

    @property
    def communicator(self) -> bytes:
        """Its address."""
        return self.values.get(b"comm", b"")

    @property
    def gpu(self) -> bytes | None:
        """The PCI bus id of a communicator's."""
        return self.values.get(b"busId")

    def number(self, word: bytes) -> int | None:
        return _known_number(self.values.get(word, b""))


@dataclass(slots=True)
class _Call:
    """`fields` is empty where commbench does not know the call."""

    communicator: bytes
    ranks: int
    rank: int | None
    fields: dict[str, Any]


@dataclass
class _Log:
    """What the log of one rank says, which is that of a process or of one of its GPUs."""

    process: Process
    communicators: dict[bytes, _Communicator] = field(default_factory=dict)  # by address
    named: Counter[str] = field(default_factory=Counter)
    calls: list[dict[str, Any]] = field(default_factory=list)
    world: tuple[int, int] | None = None  # ranks, and the own one, of the largest communicator
    rank: int | None = None
    notes: Counter[str] = field(default_factory=Counter)


class NcclCalls:
    form = "NCCL log"

    def recognises(self, file: ForeignFile) -> bool:
        """Any text: a job's log may begin with much other output."""
        return MESSAGE_MARK in file.head or b"\0" not in file.head

    def read(self, file: ForeignFile) -> list[RankTrace]:
        hosts: set[bytes] = set()
        entries: list[tuple[Process, _Call | _Message]] = []
        has_messages = False
        for text in file.lines():
            has_messages = has_messages or MESSAGE_MARK in text
            if CALL_MARK in text or COMMUNICATOR_MARK in text:
                for place, message in enumerate(_messages(text)):
                    if place == 0:
                        hosts.add(message.process[0])
                    entry = _entry_of(message)
                    if entry is not None:
                        entries.append((message.process, entry))
        if not entries:
            raise NotRecognised(NO_CALLS if has_messages else NO_FORMAT)
        # only now all hosts are known, whose names may be glued to another message
        known = [((_host_in(host, hosts), number), entry) for (host, number), entry in entries]
        of_several = _processes_of_several_ranks(known)
        logs: dict[tuple[Process, bytes | None], _Log] = {}
        gpus: dict[tuple[Process, bytes], bytes | None] = {}  # by the address of a communicator
        for process, entry in known:
            if isinstance(entry, _Message):
                gpus[process, entry.communicator] = entry.gpu
            gpu = gpus.get((process, entry.communicator)) if process in of_several else None
            if gpu is None and process in of_several:
                file.notes[NO_OWNER] += 1
                continue
            log = logs.setdefault((process, gpu), _Log(process))
            if isinstance(entry, _Call):
                _add_call(log, entry)
            else:
                _add_communicator(log, entry)
        return [_process_trace(self.form, file, log) for log in logs.values()]


def _processes_of_several_ranks(
    entries: Iterable[tuple[Process, _Call | _Message]],
) -> set[Process]:
    """Those that are several ranks of their largest communicator, on a GPU each."""
    members: dict[Process, dict[int, dict[int | None, bytes | None]]] = {}
    for process, entry in entries:
        if isinstance(entry, _Message):
            of_size = members.setdefault(process, {}).setdefault(entry.number(b"nranks") or 0, {})
            of_size[entry.number(b"rank")] = entry.gpu
    largest = {process: by_size[max(by_size)] for process, by_size in members.items()}
    return {process for process, gpus in largest.items() if len({*gpus.values()} - {None}) > 1}


def _messages(text: bytes) -> Iterator[_Message]:
    """The messages in a line: of several ranks, where their output is glued together."""
    header, *messages = text.split(MESSAGE_MARK)
    for message in messages:
        process = _process_of(header)
        words = message.split()
        if process is not None and words:
            name = RANK_BEFORE.sub(b"", message).partition(b":")[0]
            yield _Message(process, name, dict(pairwise(words)))
        header = message


def _process_of(header: bytes) -> Process | None:
    """Of `[time] host:process:thread [GPU]`, behind which a message begins."""
    words = header[-LONGEST_HEADER_BYTES:].split()
    parts = words[-2].rsplit(b":", 2) if len(words) > 1 else []
    return (parts[0], parts[1]) if len(parts) == 3 and parts[1].isdigit() else None


def _known_number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= MOST_DIGITS else None


def _host_in(text: bytes, hosts: set[bytes]) -> bytes:
    """The host that a text ends with, which may be glued to the end of a message; empty where it
    is none that begins a line, and only the number tells the process."""
    ends = (text[place:] for place in range(len(text)))
    return next((end for end in ends if end in hosts), b"")


def _entry_of(message: _Message) -> _Call | _Message | None:
    """A call, or the beginning of a communicator; None for what is neither, or is cut."""
    if b"opCount" not in message.values:
        known = message.number(b"rank") is not None and message.number(b"nranks")
        return message if known and b"Init" in message.values else None
    given = next((word for word in message.values if word.startswith(RANKS_MARK)), RANKS_MARK)
    ranks = _known_number(given.removeprefix(RANKS_MARK).partition(b"]")[0])
    datatype = message.number(b"datatype")
    count = message.number(b"count")
    if ranks is None or datatype is None or count is None:
        return None
    call = _Call(message.communicator, ranks, message.number(b"globalrank"), {})
    operation = operation_named(message.name.decode(errors="replace"))
    if operation is None or datatype >= len(NCCL_TYPES):
        return call
    dtype = NCCL_TYPES[datatype]
    input_bytes, output_bytes = rank_bytes(operation, count * ITEM_BYTES[dtype], ranks)
    call.fields.update(
        operation=operation, dtype=dtype, input_bytes=input_bytes, output_bytes=output_bytes
    )
    if operation in (*POINT_TO_POINT, *ROOTED):
        call.fields["peer" if operation in POINT_TO_POINT else "root"] = message.number(b"root")
    return call


def _add_communicator(log: _Log, message: _Message) -> None:
    """Versions log its start, its completion or both, in any of which its id may be missing."""
    address = message.communicator
    rank = message.number(b"rank") or 0
    ranks = message.number(b"nranks") or 0
    has_begun = message.values[b"Init"].startswith(b"COMPLETE")
    started = log.communicators.get(address)
    if has_begun and started is not None and not started.has_begun:
        started.has_begun = True
        return
    is_split = b"parent" in message.values
    if not is_split:
        log.world = max(log.world or (0, 0), (ranks, rank))
    name = _communicator_name(log, message)
    if name is not None:
        # up to 2.22, two splits into the same ranks have the same id
        log.named[name] += 1
        name = f"{name} {log.named[name]}"
    if name is not None or not is_split:
        log.communicators[address] = _Communicator(name, has_begun)


def _communicator_name(log: _Log, message: _Message) -> str | None:
    """Its id; from 2.23 on NCCL makes that of a split from what it says about it: the parent, how
    many splits that had, and the color."""
    values = {word: value.decode(errors="replace") for word, value in message.values.items()}
    given = values.get(b"commId", NO_ID)
    if given != NO_ID:
        return given
    parent = log.communicators.get(message.values.get(b"parent", b""))
    if parent is None or parent.name is None:
        return None
    count = values.get(b"splitCount", values.get(b"childCount", ""))
    return f"{parent.name} {count} {values.get(b'color', '')}"


def _add_call(log: _Log, call: _Call) -> None:
    log.rank = call.rank if log.rank is None else log.rank
    if not call.fields:
        log.notes[UNKNOWN_CALLS] += 1
        return
    group = RankGroup(_name_of_group(log, call.communicator), None, call.ranks)
    log.calls.append({**call.fields, "group": group})


def _name_of_group(log: _Log, address: bytes) -> str:
    communicator = log.communicators.get(address)
    if communicator is not None and communicator.name is not None:
        return communicator.name
    log.notes[NO_COMMUNICATOR if communicator is None else NAMELESS] += 1
    return b" ".join([*log.process, address]).decode(errors="replace")


def _process_trace(form: str, file: ForeignFile, log: _Log) -> RankTrace:
    """Its rank is that in its largest communicator, which is the world's."""
    if not (log.calls or log.notes):
        log.notes[NO_CALLS] = 1
    world, recorded = (None, log.rank) if log.world is None else log.world
    rank = rank_of(file, recorded)
    return RankTrace(file.name, form, rank, numbered(log.calls, rank), world, notes=log.notes)
