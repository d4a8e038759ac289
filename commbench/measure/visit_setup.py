"""What one visit of a case is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from commbench.config.settings import Settings
from commbench.core.case import Planned
from commbench.core.program import Group
from commbench.core.protocols import Communicator, Control
from commbench.runtime.heartbeat import Progress

from .samples import Samples
from .time_limits import block_deadline_s

Sink = Callable[[Samples], None]  # receives the samples of a running soak, on rank 0


@dataclass(frozen=True)
class VisitSetup:
    """`communicator` and `control` are of the ranks of the case's layout only, `groups` the
    communicators of those groups of the case of which this process hosts a rank.

    `empty_sample_s` is used on rank 0 (see Conditions). With `slow_start`, known on rank 0, the
    first visit warms up for a second: TCP takes that long to reach its rate. `visit` is that of
    Mode, known on rank 0.
    """

    planned: Planned
    communicator: Communicator
    control: Control
    settings: Settings
    empty_sample_s: Mapping[str, float]
    sink: Sink
    progress: Progress
    number: int = 1  # of the visits of its case in this start of the run
    first_block_k: int | None = None  # of the first visit, which later ones keep
    slow_start: bool = False
    visit: str = ""
    groups: Mapping[Group, Communicator] = field(default_factory=dict)

    @property
    def deadline_s(self) -> float:
        """Of a block, and of a meeting of the ranks."""
        return block_deadline_s(self.planned, self.settings)
