"""One call of a process group in a torch profile: its operation, its group, and what it moves.

A call is up to three nested events of one thread: an operator (c10d::allreduce_), the record of its
numbers (record_param_comms) and an annotation (nccl:all_reduce). Profiles of different years lack
different ones of them, so each fact has several sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from commbench_replay.json_stream import elements, whole
from commbench_replay.operations import POINT_TO_POINT, RankGroup, element_type

from .profile_events import ANNOTATION, OPERATOR, ProfileEvent
from .profiled_computation import ThreadName
from .protocol import (
    lacks_splits,
    listed,
    moved_fields,
    recorded_group,
    split_counts,
    strided,
)

# the root or the peer in Concrete Inputs
OTHER_RANK_AT = {
    **{"broadcast": 2, "reduce": 3, "gather": 3, "scatter": 3},
    **dict.fromkeys(POINT_TO_POINT, 2),
}
COALESCED = "coalesced"
UNKNOWN_GROUP = "?"
NO_GROUP = "groups: torch 2.4 or later records them"
NO_RANKS = "ranks of groups: torch 2.4 or later records them"
NO_SIZE = "sizes: profile(record_shapes=True), torch 2.4 or later"
NO_TYPE = "types of elements that commbench does not know"
NO_SPLITS = "splits of all_to_all_v: torch 2.4 or later, or profile(record_shapes=True)"
CUT_SPLITS = "splits of all_to_all_v, cut at 30 ranks: torch's ExecutionTraceObserver has all"


@dataclass(frozen=True, eq=False)
class ProfiledCall:
    """`event` is the outermost of its events."""

    event: ProfileEvent
    thread: ThreadName

    @property
    def _parts(self) -> list[ProfileEvent]:
        return [self.event, *self.event.inner]

    @cached_property
    def record(self) -> ProfileEvent | None:
        return next((part for part in self._parts if part.args.get("Collective name")), None)

    @cached_property
    def operator(self) -> ProfileEvent | None:
        return next((part for part in self._parts if OPERATOR.match(part.name)), None)

    @cached_property
    def annotation(self) -> ProfileEvent | None:
        return next((part for part in self._parts if ANNOTATION.match(part.name)), None)

    @property
    def spelling(self) -> str:
        """Of its operation; operation_named knows most of them."""
        if self.record is not None:
            return str(self.record.args["Collective name"])
        named = self.operator or self.annotation
        return "" if named is None else named.name.split(" ")[0]

    def group(self, groups: Mapping[str, RankGroup]) -> RankGroup:
        """`groups` are those that the file lists. Where no call says its group, but all groups of
        several ranks have the same ranks, those ranks."""
        if self.record is None:
            ranks = {group.ranks for group in groups.values() if group.size != 1}
            if len(ranks) == 1:
                (same,) = ranks
                return RankGroup("", same, len(same) if same else None)
            return RankGroup(UNKNOWN_GROUP)
        args = self.record.args
        size = whole(args.get("Group size"), 1)
        name = args.get("Process Group Name", args.get("Process Group ID"))
        ranks_listed = listed(args.get("Process Group Ranks")) or strided(
            args.get("Global rank start"), args.get("Global rank stride"), size
        )
        if name is None and not ranks_listed:
            return RankGroup(UNKNOWN_GROUP, None, size)
        return recorded_group(str(name), ranks_listed, size, groups.get(str(name)))

    def other_rank(self, operation: str, group: RankGroup) -> int | None:
        """The root or the peer, a rank in the group. Newer records have the peer's in the world."""
        args = {} if self.record is None else self.record.args
        in_world = whole(args.get("Dst Rank", args.get("Src Rank")))
        if in_world is not None and group.ranks is not None and in_world in group.ranks:
            return group.ranks.index(in_world)
        if "Rank" in args:
            return whole(args["Rank"])
        inputs = [] if self.operator is None else self.operator.args.get("Concrete Inputs")
        place = OTHER_RANK_AT[operation]
        if not isinstance(inputs, list) or place >= len(inputs):
            return None
        given = str(inputs[place])
        return int(given) if re.fullmatch(r"\d{1,9}", given) else None


@dataclass(frozen=True)
class CallSizes:
    """Elements that a rank gives and gets, in all and by rank, and the profile's name of their
    type. None is not known."""

    sent: int | None
    received: int | None
    dtype: object
    send_counts: tuple[int, ...] | None = None
    receive_counts: tuple[int, ...] | None = None


def moved(
    call: ProfiledCall, operation: str, work: ProfileEvent | None, ranks: int | None
) -> tuple[dict[str, Any], list[str]]:
    """The fields of what a call moves in a group of so many ranks, and what is not known of it.
    `work` is the annotation of its work."""
    if operation == "barrier":
        return moved_fields(operation, None, 0, 0), []
    sizes = _recorded_sizes(call) or _argument_sizes(call, operation, work, ranks)
    kind = element_type(sizes.dtype)
    fields = moved_fields(
        operation, kind, sizes.sent, sizes.received, sizes.send_counts, sizes.receive_counts
    )
    missing = []
    if sizes.sent is None or sizes.received is None:
        missing.append(NO_SIZE)
    elif kind is None and operation != "scatter":
        missing.append(NO_TYPE)  # of a scatter, the root's trace has it
    if lacks_splits(fields):
        args = {} if call.record is None else call.record.args
        is_cut = "..." in str(args.get("In split size"))
        missing.append(CUT_SPLITS if is_cut else NO_SPLITS)
    return fields, missing


def _recorded_sizes(call: ProfiledCall) -> CallSizes | None:
    """None where the record has no numbers."""
    if call.record is None or "In msg nelems" not in call.record.args:
        return None
    args = call.record.args
    return CallSizes(
        whole(args["In msg nelems"]),
        whole(args.get("Out msg nelems")),
        args.get("dtype"),
        listed(args.get("In split size")),
        listed(args.get("Out split size")),
    )


def _argument_sizes(
    call: ProfiledCall, operation: str, work: ProfileEvent | None, ranks: int | None
) -> CallSizes:
    """By the shapes of the arguments of the operator and of its work."""
    operator = call.operator
    tensors = _tensors(operator)
    if operator is not None and "base" in operator.name and len(tensors) >= 2:
        return _base_sizes(operator, *tensors[:2])
    if operator is not None and COALESCED in operator.name:
        return _coalesced_sizes(operator, operation, work, ranks)
    if operator is not None and operation == "scatter":
        return _scatter_sizes(operator, work, ranks)
    sent, dtype = next(iter(_tensors(work) or tensors), (None, None))
    return CallSizes(sent, _output_elements(operation, sent, ranks), dtype)


def _base_sizes(
    operator: ProfileEvent, output: tuple[int | None, object], given: tuple[int | None, object]
) -> CallSizes:
    """Of an operator on one tensor out and one in; an all_to_all has its splits behind them, which
    count rows."""
    received, dtype = output
    sent, _ = given
    inputs = operator.args.get("Concrete Inputs")
    if not isinstance(inputs, list) or len(inputs) < 5:
        return CallSizes(sent, received, dtype)
    return CallSizes(sent, received, dtype, *split_counts(inputs[4], inputs[3], sent, received))


def _coalesced_sizes(
    operator: ProfileEvent, operation: str, work: ProfileEvent | None, ranks: int | None
) -> CallSizes:
    """Of an operator on lists of tensors, outputs before inputs, or one list for both. Its work
    says their type, if they have only one."""
    kinds = {kind for _, kind in _tensors(work)}
    dtype = kinds.pop() if len(kinds) == 1 else None
    totals = [elements(shapes) for shapes in tensor_lists(operator)]
    if len(totals) > 1:
        return CallSizes(totals[1], totals[0], dtype)
    sent = totals[0] if totals else None
    return CallSizes(sent, _output_elements(operation, sent, ranks), dtype)


def _scatter_sizes(
    operator: ProfileEvent, work: ProfileEvent | None, ranks: int | None
) -> CallSizes:
    """The output is in the arguments of the operator. Only the root's work has inputs, and so their
    type."""
    outputs = next(iter(tensor_lists(operator)), [None])
    received = elements(outputs[0])
    sent = received * ranks if received is not None and ranks else None
    dtype = next((kind for _, kind in _tensors(work)), None)
    return CallSizes(sent, received, dtype)


def _tensors(event: ProfileEvent | None) -> list[tuple[int | None, object]]:
    """Elements and type of each argument that is a tensor."""
    args = event.args if event is not None else {}
    shapes = args.get("Input Dims")
    types = args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return []
    return [
        (elements(shape), kind)
        for shape, kind in zip(shapes, types, strict=False)
        if element_type(kind) is not None
    ]


def tensor_lists(operator: ProfileEvent) -> list[list[object]]:
    """The shapes of each argument that is a list of tensors. Of lists of lists torch records
    nothing."""
    shapes = operator.args.get("Input Dims")
    return [
        argument
        for argument in (shapes if isinstance(shapes, list) else [])
        if isinstance(argument, list) and argument and isinstance(argument[0], list)
    ]


def _output_elements(operation: str, sent: int | None, ranks: int | None) -> int | None:
    """How much a rank gets for what it gives."""
    if operation in ("all_gather", "gather"):
        return sent * ranks if sent is not None and ranks else None
    if operation in ("reduce_scatter", "scatter"):
        return sent // ranks if sent is not None and ranks else None
    return None if operation.startswith("all_to_all") else sent
