"""The columns of a row that say how the traffic of its case is spread over ranks and nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from commbench.benchmarks.all_to_all_v import rank_loads
from commbench.core.case import Planned


def traffic_columns(
    planned: Planned, node_of: Callable[[int], int]
) -> dict[str, int | float | None]:
    """Empty where the operation has no traffic of its own. `node_of` gives the node of a rank of
    the world. What a rank sends to itself is not counted."""
    traffic = planned.benchmark.traffic_bytes(planned.case, planned.size)
    if traffic is None:
        return {}
    loads = rank_loads(traffic)
    nodes = np.array([node_of(rank) for rank in planned.members])
    same_node = nodes[:, None] == nodes
    between_nodes = int(traffic[~same_node].sum())
    own = int(np.trace(traffic))
    return {
        "busiest_bytes": int(loads.max()),
        "imbalance": float(loads.max() / loads.mean()) if loads.any() else None,
        "within_nodes_bytes": int(traffic.sum()) - own - between_nodes,
        "between_nodes_bytes": between_nodes,
    }
