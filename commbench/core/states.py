"""The words that say how far a case or a run has come, and what was measured of it.

They are texts in rows and in run.json; what reads one there has its type from here, so that mypy
refuses a comparison with any other word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

CaseStatus = Literal["ok", "skipped", "failed", "invalid"]
RunStatus = Literal["running", "done", "broken", "interrupted"]
# check: untimed
Phase = Literal["connect", "warmup", "measure", "check"]
PHASES: tuple[Phase, ...] = ("connect", "warmup", "measure")
FinalReason = Literal[
    "ci", "max_repetitions", "budget", "noise_stable", "fixed", "duration", "stopped"
]
# running: a soak that is written while it runs; interrupted: the case needs another visit
UnfinishedReason = Literal["running", "interrupted"]
StopReason = FinalReason | UnfinishedReason
STOP_REASONS: tuple[FinalReason, ...] = get_args(FinalReason)
UNFINISHED: tuple[UnfinishedReason, ...] = get_args(UnfinishedReason)
INTERRUPTED: UnfinishedReason = "interrupted"
# of an acceptance, in the order in which they run
Stage = Literal["alone", "pairs", "rails", "scaling", "soak"]
STAGES: tuple[Stage, ...] = get_args(Stage)
# of a bandwidth. memory: the measured rate of a copy; nvlink, pcie: what NCCL plans with for a link
# between GPUs; line: the line rate of a GPU's link to its host; network: that of an interface by
# its driver; told: by limit=
LimitKind = Literal["memory", "nvlink", "pcie", "line", "network", "told"]
Headline = Literal["initiator", "receiver", "max_over_ranks", "max_over_senders"]
HALF_ROUND_TRIP = "half a round trip"  # what is timed of a ping-pong (Shape.median_of)


def status_of_run(run: Mapping[str, Any]) -> RunStatus | None:
    """The status in run.json; None if it could not be read."""
    status: RunStatus | None = run.get("status")
    return status
