"""Facts of many ranks side by side: where they differ, and one copy for each node."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from .software import without_digests

MISSING = "missing"  # no JSON text looks like this, so it can't be mistaken for a value
NODE = "host.boot_id"  # the same in all containers of a machine
# Differ between ranks or from moment to moment without meaning anything.
VARYING = frozenset(
    {
        NODE,
        "host.cpu_affinity",
        "host.cpu_current_mhz",
        "host.cpu_steal_jiffies",
        "host.cpu_total_jiffies",
        "host.load_1min",
        "host.memory_available_bytes",
        "limits.memory_allocatable_bytes",
        "limits.shm_free_bytes",
        "limits.swap_free_bytes",
    }
)
# Differ between nodes as they should; a difference inside one node means separate containers.
OF_A_NODE = frozenset({"host.hostname"})
OF_A_NODE_PREFIXES = ("ipc.platform.",)
OF_A_NODE_SUFFIXES = (".ipv4", ".uuid")

NOT_RECORDED = frozenset({"run.digest"})  # of all that was configured, credentials too: only to compare ranks

Groups = dict[str, list[int]]


def differences(facts_by_rank: Sequence[Mapping[str, Any]]) -> dict[str, Groups]:
    """key -> JSON text of each value -> the ranks that have it, for keys that should be equal and aren't.

    Masked values that differ are told apart by numbers.
    """
    keys = sorted({key for facts in facts_by_rank for key in facts} - VARYING)
    grouped = {key: _groups(key, facts_by_rank) for key in keys}
    return {
        key: _written(groups)
        for key, groups in grouped.items()
        if len(groups) > 1 and not (_is_of_a_node(key) and _agree_inside_nodes(groups, facts_by_rank))
    }


def by_node(facts_by_rank: Sequence[Mapping[str, Any]], nodes: Sequence[int]) -> list[dict[str, Any]]:
    """The facts of the first rank of each node, in the order of the nodes' numbers, as they may be written down."""
    first: dict[int, Mapping[str, Any]] = {}
    for node, facts in zip(nodes, facts_by_rank, strict=True):
        first.setdefault(node, facts)
    return [_recorded(first[node]) for node in sorted(first)]


def _recorded(facts: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in facts.items() if key not in NOT_RECORDED}
    return {key: without_digests(value) if isinstance(value, str) else value for key, value in kept.items()}


def _written(groups: Groups) -> Groups:
    texts = [without_digests(value) for value in groups]
    return {
        text if texts.count(text) == 1 else f"{text} ({texts[:place].count(text) + 1})": ranks
        for place, (text, ranks) in enumerate(zip(texts, groups.values(), strict=True))
    }


def _groups(key: str, facts_by_rank: Sequence[Mapping[str, Any]]) -> Groups:
    groups: Groups = defaultdict(list)
    for rank, facts in enumerate(facts_by_rank):
        value = json.dumps(facts[key], sort_keys=True, default=str) if key in facts else MISSING
        groups[value].append(rank)
    return dict(groups)


def _is_of_a_node(key: str) -> bool:
    return key in OF_A_NODE or key.startswith(OF_A_NODE_PREFIXES) or key.endswith(OF_A_NODE_SUFFIXES)


def _agree_inside_nodes(groups: Groups, facts_by_rank: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no two values meet on one node; ranks that don't know their node are taken as being on one."""
    values_on: dict[Any, set[str]] = defaultdict(set)
    for value, ranks in groups.items():
        for rank in ranks:
            values_on[facts_by_rank[rank].get(NODE)].add(value)
    return all(len(values) == 1 for values in values_on.values())
