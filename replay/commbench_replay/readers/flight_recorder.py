"""Dumps of torch's Flight Recorder, JSON or pickle: the last calls of each group, no durations."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from commbench.core.errors import Unreadable
from commbench.core.foreign import check_values
from commbench.core.terminal import one_line
from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.json_stream import document_head, elements, small_document, whole
from commbench_replay.operations import (
    POINT_TO_POINT,
    RankGroup,
    RankTrace,
    RecordedCall,
    element_type,
    operation_named,
)

from .protocol import lacks_splits, listed, moved_fields, rank_of, recorded_group, split_counts

PICKLE_MAGIC = b"\x80"
DUMP_WORDS = (b"pg_status", b"comm_lib_version", b"collective_seq_id")
PICKLE_WORDS = (b"pg_config", b"profiling_name")  # the first is in JSON of torch.profiler, too
NO_SPLITS_HERE = "splits of all_to_all_v, which Flight Recorder records from its version 2.11 on"
NO_GROUP_LIST = "ranks of groups, which this Flight Recorder dump does not list"
LOST_CALLS = "calls between two others that the ring has lost (TORCH_FR_BUFFER_SIZE)"
NO_SIZE_HERE = "sizes of coalesced operations"
NO_PARTS_HERE = "coalesced operations without their parts"
UNKNOWN_NAMES = "operations of unknown name"
BATCH_END = "coalesced"


class FlightRecorder:
    form = "Flight Recorder"

    def recognises(self, file: ForeignFile) -> bool:
        """Other programs write pickles, too, as torch its memory snapshots."""
        if file.head[:1] == PICKLE_MAGIC:
            return any(word in file.head for word in (*DUMP_WORDS, *PICKLE_WORDS))
        head = document_head(file.head)
        return head[:1] == b"{" and any(b'"%s"' % word in head for word in DUMP_WORDS)

    def read(self, file: ForeignFile) -> list[RankTrace]:
        content = file.content()
        dump = _plain_dump(file, content)
        entries = dump.get("entries")
        groups = _listed_groups(dump.get("pg_config"))
        notes: Counter[str] = Counter()
        rank = rank_of(file, None, ends_with_rank=True)
        calls: list[RecordedCall] = []
        for entry in entries if isinstance(entries, list | tuple) else []:
            if not isinstance(entry, dict):
                continue
            if str(entry.get("profiling_name")).rpartition(":")[2] == BATCH_END:
                _end_batch(calls, entry, notes)
                continue
            call = _entry_operation(entry, rank, groups, notes)
            if call is not None:
                calls.append(call)
        _note_lost(calls, notes)
        calls = _numbered(calls)
        return [RankTrace(file.name, self.form, rank, tuple(calls), notes=notes)]


class _PlainUnpickler(pickle.Unpickler):
    """Builds lists, dictionaries, tuples, texts, numbers and truth values; imports nothing."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which would run code")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {pid!r}, which is elsewhere")


def _plain_dump(file: ForeignFile, content: bytes) -> dict[str, Any]:
    try:
        if content[:1] == PICKLE_MAGIC:
            dump = _PlainUnpickler(io.BytesIO(content)).load()
            check_values(dump)
        else:
            dump = small_document(file, content)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # of a hostile pickle, any
        raise Unreadable(
            f"{file.name} is no Flight Recorder dump: {one_line(str(error))}; dump it again,"
            " as JSON with torch._C._distributed_c10d._dump_fr_trace_json()"
        ) from error
    if not isinstance(dump, dict) or "entries" not in dump:
        raise Unreadable(
            f"{file.name} is no Flight Recorder dump: it has no entries; leave it out, or dump it"
            " again"
        )
    return dump


def _listed_groups(configured: object) -> dict[str, RankGroup]:
    result = {}
    for entry in configured.values() if isinstance(configured, dict) else []:
        if isinstance(entry, dict) and entry.get("name"):
            name = str(entry["name"])
            result[name] = recorded_group(name, listed(entry.get("ranks")), None, None)
    return result


def _entry_operation(
    entry: Mapping[str, Any], rank: int, groups: Mapping[str, RankGroup], notes: Counter[str]
) -> RecordedCall | None:
    # "nccl:send 0->1": the ranks are in the group
    words = str(entry.get("profiling_name")).split(" ")
    operation = operation_named(words[0])
    if operation is None:
        notes[UNKNOWN_NAMES] += 1
        return None
    name = _group_name(entry)
    group = groups.get(name, RankGroup(name))
    pair = operation in POINT_TO_POINT
    sent, kind = _total_elements(entry, "input")
    received, output_kind = _total_elements(entry, "output")
    inputs = entry.get("input_sizes")
    if operation == "all_gather" and isinstance(inputs, list | tuple) and len(inputs) > 1:
        received = None  # gloo records the output of the first tensor only
        if sent is not None and group.size is not None:
            received = sent * group.size
    if pair:
        received = sent if received is None else received
        sent = received if sent is None else sent
    if operation != "barrier" and None in (sent, received):
        notes[NO_SIZE_HERE] += 1
    if group.ranks is None:
        notes[NO_GROUP_LIST] += 1
    splits = split_counts(
        entry.get("input_split_sizes"), entry.get("output_split_sizes"), sent, received
    )
    fields = moved_fields(operation, kind or output_kind, sent, received, *splits)
    if lacks_splits(fields):
        notes[NO_SPLITS_HERE] += 1
    start_ns, end_ns = _measured_ns(entry)
    return RecordedCall(
        rank,
        group,
        _sequence(entry, pair),
        **fields,
        peer=_peer_of(words) if pair else None,
        start_ns=start_ns,
        end_ns=end_ns,
    )


def _group_name(entry: Mapping[str, Any]) -> str:
    given = entry.get("process_group")
    return str(given[0]) if isinstance(given, list | tuple) and given else ""


def _sequence(entry: Mapping[str, Any], is_pair: bool) -> int:
    return whole(entry.get("p2p_seq_id" if is_pair else "collective_seq_id")) or 0


def _end_batch(calls: list[RecordedCall], entry: Mapping[str, Any], notes: Counter[str]) -> None:
    """Mark the calls before the end of a batch that have its number and group."""
    name = _group_name(entry)
    is_pair = entry.get("is_p2p") is True
    number = _sequence(entry, is_pair)
    first = len(calls)
    while first > 0 and (
        calls[first - 1].group.name == name
        and calls[first - 1].sequence == number
        and calls[first - 1].is_point_to_point == is_pair
    ):
        first -= 1
    if first == len(calls):
        notes[NO_PARTS_HERE] += 1
    calls[first:] = [replace(call, batch=first) for call in calls[first:]]


def _numbered(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """A dump counts sends and receives to all peers together, and a batch as one: count them as
    RecordedCall.sequence says. Other collectives keep their numbers, also after lost ones."""
    counts: Counter[tuple[RankGroup, str, int | None]] = Counter()
    last: dict[RankGroup, int] = {}
    result = []
    for call in calls:
        if call.is_point_to_point:
            key = (call.group, call.operation, call.peer)
            sequence = counts[key]
            counts[key] += 1
        else:
            sequence = max(call.sequence, last.get(call.group, -1) + 1)
            last[call.group] = sequence
        result.append(replace(call, sequence=sequence))
    return result


def _measured_ns(entry: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Start and end, of a call with a measured duration: completion is when the watchdog saw it."""
    start_ns = whole(entry.get("time_discovered_started_ns"), 1)
    duration_ms = entry.get("duration_ms")
    if start_ns is None or not isinstance(duration_ms, int | float) or not 0 < duration_ms < 1e9:
        return None, None
    return start_ns, start_ns + round(duration_ms * 1e6)


def _peer_of(words: list[str]) -> int | None:
    """The other rank in `send 0->1` and `recv 1<-0`."""
    peer = words[1].replace("<-", "->").partition("->")[2] if len(words) == 2 else ""
    return int(peer) if peer.isdecimal() and len(peer) < 8 else None


def _total_elements(
    entry: Mapping[str, Any], side: str
) -> tuple[int | None, tuple[str, int] | None]:
    """Elements of all tensors of a side, and their type."""
    shapes = entry.get(f"{side}_sizes")
    types = entry.get(f"{side}_dtypes")
    if not isinstance(shapes, list | tuple) or not isinstance(types, list | tuple):
        return None, None
    # an operation on several tensors may have no shapes
    unknown = "coalesced" in str(entry.get("profiling_name")).lower() and not all(shapes)
    if not shapes or not types or unknown:
        return None, None
    total = elements(shapes)
    return total, None if total is None else element_type(types[0])


def _note_lost(calls: list[RecordedCall], notes: Counter[str]) -> None:
    """Count the sequence numbers that are missing between a group's first and last call."""
    seen: dict[RankGroup, set[int]] = {}
    for call in calls:
        if not call.is_point_to_point:
            seen.setdefault(call.group, set()).add(call.sequence)
    lost = sum(max(numbers) - min(numbers) + 1 - len(numbers) for numbers in seen.values())
    if lost:
        notes[LOST_CALLS] += lost
