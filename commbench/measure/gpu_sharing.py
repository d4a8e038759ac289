"""GPUs that a rank shares with other ranks, or with other processes."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.core.units import format_ranges
from commbench.hardware.sources import Facts
from commbench.results.columns import grouped

GPU_UUID = "gpu.own.uuid"


def shared_gpu(facts: Sequence[Facts], nodes: Sequence[Sequence[int]], refusal: str) -> str | None:
    """One line about ranks of a node that would use the same GPU, which the backend refuses; None
    if there are none."""
    shared = [
        (ranks, node)
        for node in nodes
        for gpu, ranks in grouped(node, lambda rank: facts[rank].get(GPU_UUID)).items()
        if gpu is not None and len(ranks) > 1
    ]
    if not shared:
        return None
    ranks, node = shared[0]
    first = facts[ranks[0]]
    more = f", and so for {len(shared) - 1} more" if len(shared) > 1 else ""
    return (
        f"ranks {format_ranges(ranks)} on {first.get('host.hostname')} have the same GPU,"
        f" {_gpu_name(first)}{more}, and {refusal}: start at most as many"
        f" ranks a node as it has GPUs ({len(node)} ranks here, {first.get('gpu.own.visible')}"
        " visible), or give each its own with CUDA_VISIBLE_DEVICES"
    )


def busy_gpus(facts: Sequence[Facts]) -> list[str]:
    """A line for each GPU of a rank on which other processes compute."""
    in_use = {own[GPU_UUID]: own for own in facts if own.get("gpu.own.users")}
    return [
        f"{own.get('host.hostname')}: {_gpu_name(own)} is in use by {own['gpu.own.users']}; "
        "they disturb what is measured"
        for own in in_use.values()
    ]


def _gpu_name(facts: Facts) -> str:
    """GPU 3 (NVIDIA H100 80GB HBM3, GPU-...)"""
    number = facts.get("gpu.own.index")
    return (
        f"GPU{'' if number is None else f' {number}'} ({facts.get('gpu.own.name')},"
        f" {facts.get(GPU_UUID)})"
    )
