"""The table that all readers return: what each rank called, in which group, with how many bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .busy_times import BusyTimes

# operation of a table -> commbench's benchmark of that name, where there is one
OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
)
POINT_TO_POINT = ("send", "recv")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
NOT_A_TRANSFER = "wait"
NO_RANK = -1  # of a trace that does not say it
_LETTERS = {name.replace("_", ""): name for name in OPERATIONS}
_FORM = re.compile(r"_?(?:coalesced|base|into_tensor|tensor|single)(?=_|$)")

# spelling of a trace -> name here and bytes of an element
_ELEMENTS = {
    "float64": (8, ("double",)),
    "float32": (4, ("float",)),
    "float16": (2, ("half", "at::half", "c10::half")),
    "bfloat16": (2, ("c10::bfloat16", "at::bfloat16")),
    "float8_e4m3fn": (1, ("c10::float8_e4m3fn", "float8e4m3", "fp8_e4m3")),
    "float8_e5m2": (1, ("c10::float8_e5m2", "float8e5m2", "fp8_e5m2")),
    "int64": (8, ("long", "long int", "long long")),
    "int32": (4, ("int",)),
    "int16": (2, ("short", "short int")),
    "int8": (1, ("char", "signed char")),
    "uint64": (8, ("unsigned long", "unsigned long long")),
    "uint32": (4, ("unsigned int",)),
    "uint16": (2, ("unsigned short",)),
    "uint8": (1, ("byte", "unsigned char")),
    "bool": (1, ()),
    "complex64": (8, ("complexfloat", "c10::complex<float>")),
    "complex128": (16, ("complexdouble", "c10::complex<double>")),
}
ITEM_BYTES = {name: size for name, (size, _) in _ELEMENTS.items()}
_SPELLINGS = {
    spelling: name for name, (_, others) in _ELEMENTS.items() for spelling in (name, *others)
}


@dataclass(frozen=True)
class RankGroup:
    """`name` is the trace's own; `ranks` (of the world) and `size` are None where the trace does
    not say them."""

    name: str
    ranks: tuple[int, ...] | None = None
    size: int | None = None


@dataclass(frozen=True)
class RecordedCall:
    """One call of one rank. `sequence` counts this rank's collectives in the group, or its sends
    to (or receives from) a peer; `root` and `peer` are ranks in the group; None is not known.
    Counts are of elements. Times are of the rank's own clock; `beside_ns`: in how much of the
    call's time the rank computed. Neighbours of the same `batch` were begun together and waited for
    together."""

    rank: int
    group: RankGroup
    sequence: int
    operation: str
    dtype: str | None = None
    input_bytes: int | None = None
    output_bytes: int | None = None
    send_counts: tuple[int, ...] | None = None
    receive_counts: tuple[int, ...] | None = None
    root: int | None = None
    peer: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    step: int | None = None
    beside_ns: int | None = None
    batch: int | None = None

    @property
    def duration_ns(self) -> int | None:
        if self.start_ns is None or self.end_ns is None:
            return None
        return self.end_ns - self.start_ns

    @property
    def lacks_time(self) -> bool:
        """Whether it took a time that is not known: alone, or without bytes, nothing runs."""
        moves = self.operation == "barrier" or (self.input_bytes, self.output_bytes) != (0, 0)
        return self.duration_ns is None and self.group.size != 1 and moves

    @property
    def is_point_to_point(self) -> bool:
        return self.operation in POINT_TO_POINT


@dataclass(frozen=True)
class RankTrace:
    """What one file says about one rank.

    `others`: collectives of other libraries, by their kernels; `foreign`: calls of such without a
    kernel, by name. `notes`: what the file lacks, with the number of operations that lack it.
    `is_part`: the file ends early, or has work of the library that belongs to no operation, as that
    of CUDA graphs. `computing`: when the rank computes, where that is known.
    `window_ns`: from the start of its first step to the end of its last one, on its own clock.
    """

    source: str
    form: str
    rank: int
    operations: tuple[RecordedCall, ...]
    world_size: int | None = None
    step_ns: tuple[int, ...] = ()
    others: tuple[RecordedCall, ...] = ()
    foreign: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    is_part: bool = False
    computing: BusyTimes | None = None
    window_ns: tuple[int, int] | None = None


def operation_named(word: object) -> str | None:
    """The operation that a trace spells so (`_allgather_base`, `nccl:all_to_allv`); None for no
    communication and for an unknown word."""
    bare = _FORM.sub("", str(word).rpartition(":")[2].lower().strip("_"))
    return _LETTERS.get(bare.replace("_", ""))


def element_type(word: object) -> tuple[str, int] | None:
    """Name here and bytes of an element of a trace's type; None for an unknown one."""
    name = _SPELLINGS.get(str(word).strip().lower())
    return None if name is None else (name, ITEM_BYTES[name])


def rank_bytes(
    operation: str, count_bytes: int, ranks: int | None
) -> tuple[int | None, int | None]:
    """Bytes in and out of a rank for NCCL's count, which is of the smaller side."""
    many = count_bytes * ranks if ranks is not None else None
    if operation == "all_gather":
        return count_bytes, many
    if operation == "reduce_scatter":
        return many, count_bytes
    if operation in ("all_to_all", "gather", "scatter"):
        return many, many
    return count_bytes, count_bytes


def even(counts: Sequence[int] | None) -> bool:
    """Whether splits are those of an operation without splits."""
    return not counts or len(set(counts)) == 1


def numbered(operations: Sequence[Mapping[str, Any]], rank: int) -> tuple[RecordedCall, ...]:
    """Calls in the order in which a rank issued them, counted as RecordedCall.sequence says."""
    counts: dict[tuple[object, ...], int] = {}
    result = []
    for fields in operations:
        counted: tuple[object, ...] = (fields["group"].name,)
        if fields["operation"] in POINT_TO_POINT:
            counted = (*counted, fields["operation"], fields.get("peer"))
        sequence = counts.get(counted, 0)
        counts[counted] = sequence + 1
        result.append(RecordedCall(**{"rank": rank, "sequence": sequence, **fields}))
    return tuple(result)
