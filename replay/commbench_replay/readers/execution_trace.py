"""PyTorch execution traces (ExecutionTraceObserver), schemas 1.0.1 to 1.1.1: no times."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from commbench.features.other_tools.foreign_files import ForeignFile
from commbench_replay.json_stream import JsonList, document_head, elements, whole
from commbench_replay.operations import (
    NOT_A_TRANSFER,
    POINT_TO_POINT,
    ROOTED,
    RankGroup,
    RankTrace,
    element_type,
    numbered,
    operation_named,
)

from .protocol import listed, moved_fields, rank_of, recorded_group, strided

COMMUNICATION_NODE = "record_param_comms"
GROUPS_NODE = "## process_group:init ##"
NO_GROUP_RANKS = "ranks of groups: torch 2.4 or later records them in execution traces"
NO_DESCRIPTION = "calls of a library that execution traces do not describe (gloo): torch.profiler"
CALL_NODE = re.compile(r"c10d::_?[a-z]")
UNREADABLE_CALLS = "calls whose arguments are not those of a known version"
UNKNOWN_TYPES = "types of elements that commbench does not know, in execution traces"


class ExecutionTrace:
    form = "execution trace"

    def recognises(self, file: ForeignFile) -> bool:
        head = document_head(file.head)
        return head[:1] == b"{" and b'"schema"' in head and b'"nodes"' in head

    def read(self, file: ForeignFile) -> list[RankTrace]:
        groups: dict[str, RankGroup] = {}
        notes: Counter[str] = Counter()
        fields = []
        ranks: set[int | None] = set()
        undescribed = 0
        for node in JsonList(file, "nodes"):
            if node.get("name") == GROUPS_NODE:
                groups.update(_announced_groups(node))
            elif node.get("name") == COMMUNICATION_NODE:
                call = _call_fields(node, groups, notes)
                if call is not None:
                    ranks.add(call.pop("own_rank"))
                    fields.append((whole(node.get("id")) or 0, call))
            elif CALL_NODE.match(str(node.get("name"))):
                undescribed += operation_named(node["name"]) is not None
        if undescribed and not fields:
            notes[NO_DESCRIPTION] += undescribed
        fields.sort(key=lambda pair: pair[0])
        recorded = ranks - {None}
        rank = rank_of(file, recorded.pop() if len(recorded) == 1 else None)
        calls = numbered([call for _, call in fields], rank)
        return [RankTrace(file.name, self.form, rank, calls, notes=notes)]


def _announced_groups(node: Mapping[str, Any]) -> dict[str, RankGroup]:
    """The groups of the process, by name, and by address in schemas where calls have that."""
    values, _, _ = _arguments(node, "inputs")
    try:
        entries = json.loads(str(values[0])) if values else []
    except (ValueError, RecursionError):
        return {}
    result = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            size = whole(entry.get("group_size"), 1)
            # no ranks: all of the world
            ranks = listed(entry.get("ranks")) or strided(0, 1, size)
            name = str(entry.get("pg_name"))
            group = recorded_group(name, ranks, size, None)
            result[name] = group
            if "backend_id" in entry:
                result[str(entry["backend_id"])] = group
    return result


def _arguments(node: Mapping[str, Any], side: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Values, shapes and types of a node's inputs or outputs, in both layouts."""
    given = node.get(side)
    if isinstance(given, dict):
        parts = [given.get(name) for name in ("values", "shapes", "types")]
    else:
        parts = [given, node.get(f"{side[:-1]}_shapes"), node.get(f"{side[:-1]}_types")]
    values, shapes, types = (part if isinstance(part, list) else [] for part in parts)
    return values, shapes, types


def _call_fields(
    node: Mapping[str, Any], groups: Mapping[str, RankGroup], notes: Counter[str]
) -> dict[str, Any] | None:
    """The fields of an operation; None for what transfers nothing.

    Arguments are tensors (but for `wait`), a number, the group, a rank, the name, the splits, and
    from 2024 on the first rank, the stride and the size. The rank is the own one; of a send or
    receive the peer, and of a rooted operation the root, since the group has a name.
    """
    values, shapes, types = _arguments(node, "inputs")
    named = ((index, operation_named(value)) for index, value in enumerate(values))
    at, operation = next((pair for pair in named if pair[1] is not None), (0, None))
    if operation is None or at < 4 or not isinstance(values[at], str):
        if NOT_A_TRANSFER not in values:
            notes[UNREADABLE_CALLS] += 1
        return None
    listed_attributes = node.get("attrs")
    attributes = {
        str(entry.get("name")): entry.get("value")
        for entry in (listed_attributes if isinstance(listed_attributes, list) else [])
        if isinstance(entry, dict)
    }
    sent, kind = _tensor_elements(shapes[:1], types[:1])
    received = sent
    _, output_shapes, output_types = _arguments(node, "outputs")
    if output_shapes and output_types:
        received, _ = _tensor_elements(output_shapes[:1], output_types[:1])
    if kind is None and operation != "barrier":
        notes[UNKNOWN_TYPES] += 1
    splits = [listed(value) for value in values[at + 1 : at + 3]]
    group = _call_group(values, at, attributes, groups)
    if group.ranks is None:
        notes[NO_GROUP_RANKS] += 1
    rank = whole(values[at - 1])
    is_named = isinstance(values[at - 2], list)
    return {
        "own_rank": None if operation in (*POINT_TO_POINT, *ROOTED) else _in_world(rank, group),
        "group": group,
        **moved_fields(operation, kind, sent, received, *splits),
        "peer": rank if operation in POINT_TO_POINT else None,
        "root": rank if operation in ROOTED and is_named else None,
    }


def _in_world(rank: int | None, group: RankGroup) -> int | None:
    """The rank in the world of a rank in a group, where its ranks are known."""
    if rank is None or group.ranks is None:
        return rank
    return group.ranks[rank] if rank < len(group.ranks) else None


def _call_group(
    values: Sequence[Any],
    name_at: int,
    attributes: Mapping[str, Any],
    groups: Mapping[str, RankGroup],
) -> RankGroup:
    """The group of a call, from its attributes, its last arguments, or the process's groups."""
    given = values[name_at - 2]
    name = str(given[0]) if isinstance(given, list) and given else str(given)
    tail = values[name_at + 3 :]
    size = whole(attributes.get("pg_size"), 1) or (whole(tail[-1], 1) if tail else None)
    place = (attributes.get("global_rank_start"), attributes.get("global_rank_stride"))
    if len(tail) == 3 and None in place:
        place = (tail[0], tail[1])
    configured = groups.get(name)
    if configured is not None and configured.ranks is not None:
        return configured
    return recorded_group(name, strided(*place, size), size, configured)


def _tensor_elements(
    shapes: Sequence[object], types: Sequence[object]
) -> tuple[int | None, tuple[str, int] | None]:
    """Elements and type of an argument: a tensor, or a list of tensors of one type."""
    if not shapes or not types:
        return None, None
    words = re.findall(r"Tensor\(([^()]*)\)", str(types[0]))
    kinds = {element_type(word) for word in words}
    if len(kinds) != 1:
        return None, None
    return elements(shapes[0]), kinds.pop()
