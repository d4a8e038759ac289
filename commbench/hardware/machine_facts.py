"""Facts about a process and its machine, such as `host.kernel`: flat, JSON-able; without a source the key is missing.

`collect()` runs on every rank; `differences([...])` compares all ranks; `by_node([...], nodes)` is what run.json keeps.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from commbench.core.fact_scopes import scope_of

from . import cuda_ipc, gpu, host, network, resource_limits, software, topology
from .software import without_digests
from .sources import Facts, fact_text

COLLECTORS: dict[str, Callable[[], Facts]] = {
    "host": host.collect,
    "resource_limits": resource_limits.collect,
    "software": software.collect,
    "network": network.collect,
    "topology": topology.collect,
    "gpu": gpu.collect,
    "peer_access": gpu.collect_peer_access,
    "ipc": cuda_ipc.collect,
}
MISSING = "missing"  # no JSON text looks like this, so it cannot be mistaken for a value
NODE = "host.boot_id"  # the same in all containers of a machine

RanksByValue = dict[str, list[int]]


def collect() -> Facts:
    """All facts of this process and its machine; a collector that fails leaves `<name>.error`."""
    facts: Facts = {}
    for name, collect_some in COLLECTORS.items():
        try:
            facts |= collect_some()
        except Exception as error:  # facts explain a run, they must never end one
            facts[f"{name}.error"] = fact_text(repr(error))
    return facts


def differences(facts_by_rank: Sequence[Mapping[str, Any]]) -> dict[str, RanksByValue]:
    """fact -> JSON text of each value -> the ranks that have it, for facts that should be equal but differ.

    Different masked values are distinguished by numbers.
    """
    differing = {}
    for key in sorted({key for facts in facts_by_rank for key in facts}):
        scope = scope_of(key).ranks
        if scope == "ignore":
            continue
        by_value: RanksByValue = defaultdict(list)
        for rank, facts in enumerate(facts_by_rank):
            by_value[json.dumps(facts[key], sort_keys=True, default=str) if key in facts else MISSING].append(rank)
        if len(by_value) > 1 and not (scope == "node" and _agree_inside_nodes(by_value, facts_by_rank)):
            differing[key] = _without_digests(by_value)
    return differing


def by_node(facts_by_rank: Sequence[Mapping[str, Any]], nodes: Sequence[int]) -> list[dict[str, Any]]:
    """The facts of the first rank of each node, in the order of the nodes' numbers, as they may be recorded."""
    first: dict[int, Mapping[str, Any]] = {}
    for node, facts in zip(nodes, facts_by_rank, strict=True):
        first.setdefault(node, facts)
    return [
        {
            key: without_digests(value) if isinstance(value, str) else value
            for key, value in first[node].items()
            if scope_of(key).record == "yes"
        }
        for node in sorted(first)
    ]


def _without_digests(by_value: RanksByValue) -> RanksByValue:
    texts = [without_digests(value) for value in by_value]
    return {
        text if texts.count(text) == 1 else f"{text} ({texts[:index].count(text) + 1})": ranks
        for index, (text, ranks) in enumerate(zip(texts, by_value.values(), strict=True))
    }


def _agree_inside_nodes(by_value: RanksByValue, facts_by_rank: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every node has one value only; ranks without a known node count as one node."""
    values_on: dict[Any, set[str]] = defaultdict(set)
    for value, ranks in by_value.items():
        for rank in ranks:
            values_on[facts_by_rank[rank].get(NODE)].add(value)
    return all(len(values) == 1 for values in values_on.values())
