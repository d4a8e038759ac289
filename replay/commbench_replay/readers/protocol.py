"""What every reader has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from commbench.features.other_tools.foreign_files import ForeignFile
from commbench.features.other_tools.foreign_readers import Reader
from commbench_replay.operations import NO_RANK, RankGroup, RankTrace, even

RANK_IN_NAME = re.compile(r"(?<![a-z])rank[-_ ]?([0-9]{1,7})(?![0-9])", re.I)
# not in worker-0, which is a pod, and where PyTorchJob has a master its rank is 1
WORKER_IN_NAME = re.compile(r"(?<![a-z])worker_?([0-9]{1,7})(?![0-9])", re.I)
# as tensorboard_trace_handler calls its files: <host>_<process>.<time>.pt.trace.json
MACHINE = re.compile(r"^[a-z0-9.-]+(?=_[0-9]+\.[0-9]+\.pt\.trace\.json)", re.I)
# other words name a rank where nothing follows: host_4021.<time> is a process of the machine "host"
RANK_LAST = re.compile(r"(?<![a-z])(?:host|eg|trace)[-_ ]?([0-9]{1,7})(?:_et)?(?:\.[a-z]+)*$", re.I)
LAST_NUMBER = re.compile(r"[._]([0-9]{1,7})(?:\.[A-Za-z]+)*$")
MOST_RANKS = 2**20
NO_FORMAT = "no trace that commbench knows"
TraceReader = Reader[list[RankTrace]]  # of the ranks in a file


def rank_of(file: ForeignFile, recorded: int | None, ends_with_rank: bool = False) -> int:
    """The rank that a trace says, else that its file's name says, else NO_RANK. `ends_with_rank`:
    what writes this format ends the name so; a number there may be a process elsewhere."""
    if recorded is not None:
        return recorded
    name = file.name.rpartition("/")[2]
    match = RANK_IN_NAME.search(name)
    if match is None and ends_with_rank:
        match = LAST_NUMBER.search(name)
    if match is None:
        match = WORKER_IN_NAME.search(MACHINE.sub("", name)) or RANK_LAST.search(name)
    return NO_RANK if match is None else int(match[1])


def listed(text: object) -> tuple[int, ...] | None:
    """The numbers of a list that a trace holds as text; None where it is cut, or is none."""
    if isinstance(text, list | tuple):
        words = [str(word) for word in text]
    elif isinstance(text, str) and text[:1] == "[" and text[-1:] == "]":
        words = text[1:-1].split(",") if text[1:-1].strip() else []
    else:
        return None
    numbers = [word.strip() for word in words]
    if not all(re.fullmatch(r"[0-9]{1,18}", number) for number in numbers):
        return None
    return tuple(map(int, numbers))


def split_counts(
    send_rows: object, receive_rows: object, sent: int | None, received: int | None
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Elements of each rank in an all_to_all, from splits that may count rows; None where splits
    are missing, or do not add up."""
    send_counts = listed(send_rows)
    receive_counts = listed(receive_rows)
    if not send_counts or not receive_counts or sent is None or received is None:
        return None, None
    row_elements = (sent + received) // (sum(send_counts) + sum(receive_counts) or 1)
    if [sum(send_counts) * row_elements, sum(receive_counts) * row_elements] != [sent, received]:
        return None, None
    return (
        tuple(count * row_elements for count in send_counts),
        tuple(count * row_elements for count in receive_counts),
    )


def strided(start: object, stride: object, size: int | None) -> tuple[int, ...] | None:
    """The ranks of a group with a regular stride; None where a trace gives none."""
    if not isinstance(start, int) or not isinstance(stride, int) or not size or size > MOST_RANKS:
        return None
    if start < 0 or stride < 0 or (stride == 0 and size > 1):
        return None
    return tuple(start + stride * index for index in range(size))


def recorded_group(
    name: str, ranks: tuple[int, ...] | None, size: int | None, configured: RankGroup | None
) -> RankGroup:
    """A group from what a call says about it and what the trace's list of groups does."""
    if not ranks and configured is not None:
        ranks = configured.ranks
        size = size or configured.size
    if ranks and size and len(ranks) != size:
        ranks = None
    return RankGroup(name, ranks or None, size or (len(ranks) if ranks else None))


def moved_fields(
    operation: str,
    kind: tuple[str, int] | None,
    sent: int | None,
    received: int | None,
    send_counts: tuple[int, ...] | None = None,
    receive_counts: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Fields of a call that gives and gets so many elements, of a type with its bytes. A barrier
    moves nothing, and an all_to_all whose splits are not even is an all_to_all_v."""
    if operation == "barrier":
        return {"operation": operation, "input_bytes": 0, "output_bytes": 0}
    if operation in ("all_to_all", "all_to_all_v"):
        are_known = bool(send_counts) and bool(receive_counts)
        are_even = received in (None, sent) and even(send_counts) and even(receive_counts)
        is_even = are_even and (are_known or operation == "all_to_all")
        operation = "all_to_all" if is_even else "all_to_all_v"
    has_splits = operation == "all_to_all_v"
    dtype, item_bytes = kind or (None, None)
    return {
        "operation": operation,
        "dtype": dtype,
        "input_bytes": _bytes_of(sent, item_bytes),
        "output_bytes": _bytes_of(received, item_bytes),
        "send_counts": send_counts or None if has_splits else None,
        "receive_counts": receive_counts or None if has_splits else None,
    }


def lacks_splits(fields: Mapping[str, Any]) -> bool:
    return fields["operation"] == "all_to_all_v" and None in (
        fields["send_counts"],
        fields["receive_counts"],
    )


def _bytes_of(elements: int | None, item_bytes: int | None) -> int | None:
    if elements == 0:
        return 0
    return None if elements is None or item_bytes is None else elements * item_bytes
