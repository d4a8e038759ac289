"""Settings as the command line composes them, and what a plan must know of a machine."""

from __future__ import annotations

from functools import cache

from commbench.config.compose import ConfigComposer
from commbench.config.settings import Settings
from commbench.measure.plan_facts import PlanFacts

FACTS = PlanFacts(memory_bytes=2**40, cache_bytes=2**20, cores=8)


@cache
def settings_of(*words: str) -> Settings:
    """The settings of the only job of a command line."""
    with ConfigComposer() as composer:
        (job,) = composer.jobs(words, multirun=False)
    return job.settings
