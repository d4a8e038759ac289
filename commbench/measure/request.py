"""What a rank is asked to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commbench.config.settings import Job
from commbench.runtime.recovery import EarlierStarts

from .expectations import ExpectationResult


@dataclass(frozen=True)
class Request:
    """A job, and what the command line knows about the run that it belongs to."""

    job: Job
    sweep_id: str | None = None
    folder: str | None = None  # made by the parent that started this world
    earlier: EarlierStarts | None = None  # of a run that is resumed
    config_dir: str | None = None
    # what those who read results say of settings, a folder and its rows
    judged: Callable[..., ExpectationResult] = lambda *_: ExpectationResult()
    # a parent started this world, reports how it ended, and starts a fresh one
    has_parent: bool = False
    problem: str | None = None  # why this rank's machine can't run the job: all ranks have to know
