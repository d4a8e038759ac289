"""GPUs that a rank has not for itself: shared with another rank, or used by processes of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from commbench.core.ranges import format_ranges

UUID = "gpu.own.uuid"


def lacking(facts: Mapping[str, Any]) -> str | None:
    """Why a rank that needs a GPU has none."""
    reason = facts.get("gpu.own.reason")
    return None if reason is None else f"no GPU for device=cuda: {reason}; make one visible, or take device=cpu"


def duplicate(facts: Sequence[Mapping[str, Any]], nodes: Sequence[Sequence[int]], backend: str) -> str | None:
    """One line about ranks of one node that would use one GPU, for a backend that can't; None where there are none."""
    shared = [(ranks, node) for node in nodes for ranks in _by_uuid(facts, node) if len(ranks) > 1]
    if not shared:
        return None
    ranks, node = shared[0]
    mine = facts[ranks[0]]
    more = f", and so for {len(shared) - 1} more" if len(shared) > 1 else ""
    return (
        f"ranks {format_ranges(ranks)} on {mine.get('host.hostname')} have the same GPU, {_name(mine)}{more}, "
        f"and {backend} needs one for each rank: start at most as many ranks a node as it has GPUs "
        f"({len(node)} ranks here, {mine.get('gpu.own.visible')} visible), "
        "or give each its own with CUDA_VISIBLE_DEVICES"
    )


def busy(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each GPU of a rank that others compute on."""
    first = {one[UUID]: one for one in reversed(facts) if one.get("gpu.own.users")}
    return [
        f"{one.get('host.hostname')}: {_name(one)} is in use by {one['gpu.own.users']}; they disturb what is measured"
        for one in reversed(first.values())
    ]


def _by_uuid(facts: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> list[list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        if UUID in facts[rank]:
            found[facts[rank][UUID]].append(rank)
    return list(found.values())


def _name(facts: Mapping[str, Any]) -> str:
    """GPU 3 (NVIDIA H100 80GB HBM3, GPU-...)"""
    number = facts.get("gpu.own.index")
    return f"GPU{'' if number is None else f' {number}'} ({facts.get('gpu.own.name')}, {facts.get(UUID)})"
