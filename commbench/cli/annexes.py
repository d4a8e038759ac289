"""What the annexes add to the commands of `cli`, by module name, so that each can be deleted.

Nothing imports an annex. Its own commands are rows of `COMMANDS` in main.py; a search for nodes is
named in measure/further_rounds.py; what it adds to a report stands in its module `reporting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from commbench.core.annexes import annex

if TYPE_CHECKING:  # a report needs pandas, a run does not
    from commbench.config.compose import ConfigComposer
    from commbench.config.experiments import RequestedJobs
    from commbench.config.settings import Job

STAGES = "commbench.cluster.acceptance.stages"


class Stages(Protocol):
    """Runs that are made in stages, in one folder."""

    def is_acceptance(self, requested: RequestedJobs) -> bool: ...

    def begin(
        self, composer: ConfigComposer, overrides: Sequence[str], jobs: Sequence[Job]
    ) -> tuple[Job, ...]:
        """The jobs of the stages that can run; says which can't. Raises ConfigError."""

    def run_new(
        self, overrides: Sequence[str], jobs: Sequence[Job], environment: Mapping[str, str]
    ) -> int:
        """Measure all stages in a new folder; returns the exit status."""

    def is_folder_of_stages(self, folder: Path) -> bool: ...

    def resume_stages(self, folder: Path, force: bool) -> int:
        """Measure what is missing; returns the exit status."""


def stages() -> Stages | None:
    """None where the annex is not there."""
    module: Stages | None = annex(STAGES)
    return module
