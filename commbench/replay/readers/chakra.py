"""Chakra execution traces (.et), protobuf: sizes, and durations where they come from a profile.

Of the message, four fields and the attributes matter, so forty lines read them; a generated module
would need the schema of every version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from commbench.core.errors import Unreadable
from commbench.replay.operations import POINT_TO_POINT, RankGroup, RankTrace, numbered
from commbench.replay.trace_files import TraceFile

from .protocol import rank_of

CHAKRA_SUFFIX = ".et"
# fields of a node
NODE_TYPE = 3
NODE_DURATION_US = 7
NODE_ATTRIBUTE = 10
SEND_NODE = 5
RECV_NODE = 6
COLLECTIVE_NODE = 7
COMM_TYPES = {
    0: "all_reduce",
    2: "all_gather",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
}
# Chakra does not say whether their comm_size is of one rank or of all
UNCLEAR_SIZE = ("all_gather", "reduce_scatter")
NO_CHAKRA_TYPES = "types of elements, which Chakra does not record"
UNCLEAR_SIZES = "bytes of all_gather and reduce_scatter, which are not clear in Chakra"
UNKNOWN_NODES = "communication of a kind that commbench does not know"


class Chakra:
    form = "Chakra"

    def recognises(self, file: TraceFile) -> bool:
        return file.name.endswith(CHAKRA_SUFFIX) and file.head[:1] not in (b"{", b"[", b"")

    def read(self, file: TraceFile) -> list[RankTrace]:
        content = file.content()
        notes: Counter[str] = Counter()
        fields = []
        try:
            for number, message in enumerate(_node_messages(content)):
                call = _node_fields(message, notes) if number else None
                if call is not None:
                    fields.append(call)
        except _CutMessage:
            file.ended_early = True
        except (ValueError, TypeError) as error:
            raise Unreadable(
                f"{file.name} is no Chakra trace: {error}; convert it again, or leave it out"
            ) from error
        rank = rank_of(file, None, ends_with_rank=True)
        return [RankTrace(file.name, self.form, rank, numbered(fields, rank), notes=notes)]


class _CutMessage(Exception):
    """Raised where the content ends inside a message."""


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise _CutMessage
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number has more than 64 bits")


def _node_messages(content: bytes) -> Iterator[bytes]:
    """The messages of a file, each after its length."""
    at = 0
    while at < len(content):
        size, at = _varint(content, at)
        if at + size > len(content):
            raise _CutMessage
        yield content[at : at + size]
        at += size


def _message_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field has the unknown wire type {wire}")
        if at + size > len(message):
            raise ValueError("a field is longer than its message")
        yield key >> 3, message[at : at + size]
        at += size


def _node_fields(message: bytes, notes: Counter[str]) -> dict[str, Any] | None:
    """The fields of an operation; None for other nodes, and for calls on the CPU side, whose
    operations have a node of their own."""
    node: dict[int, int | bytes] = {}
    attributes: dict[str, int | bytes] = {}
    for field, value in _message_fields(message):
        if field == NODE_ATTRIBUTE and isinstance(value, bytes):
            attribute, content = _attribute(value)
            attributes[attribute] = content
        else:
            node[field] = value
    kind = node.get(NODE_TYPE)
    if kind not in (SEND_NODE, RECV_NODE, COLLECTIVE_NODE) or attributes.get("is_cpu_op") == 1:
        return None
    number = attributes.get("comm_type", 0)
    operation = COMM_TYPES.get(number) if isinstance(number, int) else None
    if kind != COLLECTIVE_NODE:
        operation = POINT_TO_POINT[kind == RECV_NODE]
    if operation is None:
        notes[UNKNOWN_NODES] += 1
        return None
    size = attributes.get("comm_size")
    known = isinstance(size, int) and size < 2**63 and operation not in UNCLEAR_SIZE
    notes[NO_CHAKRA_TYPES] += 1
    if operation in UNCLEAR_SIZE:
        notes[UNCLEAR_SIZES] += 1
    name = attributes.get("pg_name", b"")
    duration_us = node.get(NODE_DURATION_US)
    peer = attributes.get("comm_dst" if operation == "send" else "comm_src")
    return {
        "group": RankGroup(name.decode(errors="replace") if isinstance(name, bytes) else ""),
        "operation": operation,
        "input_bytes": size if known else None,
        "output_bytes": size if known and operation != "all_to_all" else None,
        "peer": peer if isinstance(peer, int) and operation in POINT_TO_POINT else None,
        "elapsed_ns": duration_us * 1000 if isinstance(duration_us, int) else None,
    }


def _attribute(message: bytes) -> tuple[str, int | bytes]:
    """Name and value; proto3 leaves out a value of 0."""
    name = ""
    content: int | bytes = 0
    for number, value in _message_fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value.decode(errors="replace")
        else:
            content = value
    return name, content
