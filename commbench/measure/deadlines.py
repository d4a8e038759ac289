"""How long a case may take before somebody is called late."""

from __future__ import annotations

from commbench.config.settings import Settings
from commbench.core.case import Planned

BLOCK_S = 0.5  # the longest time without a decision
MEMORY_S_PER_BYTE = 1 / 0.2e9  # slow enough for a first touch on a busy machine


def deadline_s(job: Planned, settings: Settings) -> float:
    """How long a block of this case may take before the ranks that did not come are called missing."""
    return settings.budget.late_s + 20 * BLOCK_S + 10 * job.node_bytes * MEMORY_S_PER_BYTE


def patience_s(job: Planned, settings: Settings) -> float:
    """How long a rank that this case does not need waits for the next one."""
    return 3 * deadline_s(job, settings) + 3 * settings.case_s
