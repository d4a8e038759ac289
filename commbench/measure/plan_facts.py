"""What the plan needs to know about the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlanFacts:
    """All ranks agree on it: the least that a node has, unless a field says otherwise."""

    memory_bytes: int  # that may be allocated on a node now
    # the last level, of the CPU or GPU that has the buffers: the largest that a node has
    cache_bytes: int
    cores: int  # that the ranks of a node share
    gpu_bytes: int | None = None  # free on the fullest GPU
    gpus: int = 1  # that the ranks of a node share
