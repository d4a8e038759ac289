"""Whether the nodes are the same machines: the facts of each against those of most nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from commbench.analysis.machines import Record
from commbench.cluster.acceptance.verdict import StageResult
from commbench.results.fact_scopes import MISSING, scope_of
from commbench.stats.thresholds import EQUAL_MEMORY

# facts that must be equal on all nodes, beside those that end a run (scope `error`)
DECIDING_FACTS = (
    "host.cpu_model",
    "host.cpu_physical_cores",
    "host.cpu_sockets",
    "host.numa_nodes",
    "gpu.",
    "network.interface.",
    "network.rdma.",
)
# of these facts, those that say how good a card is, not which one it is
DECIDING_ENDINGS = (
    *("speed_mbit_per_s", "rate_gbit_per_s", "mtu_bytes", "fw_ver", "firmware", ".state"),
    *(".name", "memory_total_bytes", "driver_version", "count", "power_limit_w"),
)
# of GPUs that have them (hardware/gpu_health.py)
RIGHT_GPU_FACTS = {
    "remapping_failed": False,
    "fabric_state": "completed",
    "fabric_health": "healthy",
}
MEMORY = "host.memory_total_bytes"


def machine_results(facts: Sequence[Record], nodes: int) -> Iterator[StageResult]:
    """Each node against the majority of the nodes."""
    if not facts:
        yield from [StageResult(None, ("the nodes are simulated on one machine",))] * nodes
        return
    deciding = deciding_facts(facts)
    for node in range(nodes):
        lines = gpu_problems(facts[node])
        undecided = []
        for key, values in deciding.items():
            usual, count = Counter(values).most_common(1)[0]
            if 2 * count <= len(values):
                undecided.append(f"{key} is {values[node]} here; no value has a majority")
            elif values[node] != usual:
                lines.append(f"{key} is {values[node]}, and {usual} on {count} of {nodes} nodes")
        yield StageResult.of(lines, undecided)


def deciding_facts(facts: Sequence[Record]) -> dict[str, list[str]]:
    """The values by node of each fact that differs, and should not."""
    keys = sorted({key for node in facts for key in node if _is_deciding(key)})
    deciding = {}
    for key in keys:
        values = [str(node.get(key, MISSING)) for node in facts]
        # a card that few nodes have is no fault of theirs
        is_common = 2 * values.count(MISSING) < len(values)
        if is_common and len(set(values)) > 1:
            deciding[key] = values
    memory = [node.get(MEMORY) for node in facts]
    known = [value for value in memory if isinstance(value, int)]
    if known and max(known) - min(known) > EQUAL_MEMORY * max(known):
        deciding[MEMORY] = [str(value) for value in memory]
    return deciding


def other_differences(records: Sequence[Record], facts: Sequence[Record]) -> list[str]:
    """The facts in which the nodes of these runs differ without consequence."""
    differing = {
        key
        for record in records
        for key in (record.get("provenance") or {}).get("differences") or {}
        if scope_of(key).ranks == "record" and not key.endswith(".address")
    }
    return sorted(differing - set(deciding_facts(facts)))


def gpu_problems(facts: Mapping[str, Any]) -> list[str]:
    """What is wrong with the GPUs of a node by its facts `gpu.<index>.*`, a line each."""
    problems = []
    for key, value in facts.items():
        right = RIGHT_GPU_FACTS.get(key.rpartition(".")[2])
        if key.startswith("gpu.") and right is not None and value != right:
            problems.append(f"{key} is {value}, and must be {right}")
    return problems


def _is_deciding(key: str) -> bool:
    scope = scope_of(key)
    if scope.ranks == "error":
        return True
    if not key.startswith(DECIDING_FACTS) or key.startswith("network.interface.lo."):
        return False
    return key.startswith("host.") or key.endswith(DECIDING_ENDINGS)
