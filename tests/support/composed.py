"""Settings as the command line composes them, and what a plan must know of a machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import yaml
from places import BENCHMARKS, ROOT

from commbench.config.compose import ConfigComposer
from commbench.config.settings import Settings
from commbench.core.case import Benchmark
from commbench.measure.plan_facts import PlanFacts

FACTS = PlanFacts(memory_bytes=2**40, cache_bytes=2**20, cores=8)


@cache
def settings_of(*words: str) -> Settings:
    """The settings of the only job of a command line."""
    with ConfigComposer() as composer:
        (job,) = composer.jobs(words, multirun=False)
    return job.settings


@cache
def every_benchmark() -> dict[str, Benchmark]:
    """Name -> benchmark, made from their files without Hydra: modules of tests need them when they
    are imported."""
    nodes = {name: yaml.safe_load(file.read_text()) for name, file in sorted(BENCHMARKS.items())}
    return {name: resolve_name(node["_target_"])() for name, node in nodes.items()}


def written_in(file: Path) -> dict[str, Any]:
    """The keys of a group's file; those that take the value of a key of config.yaml have it."""
    return {
        name: _keys()[value[2:-1]] if str(value).startswith("${") else value
        for name, value in yaml.safe_load(file.read_text()).items()
    }


@cache
def _keys() -> dict[str, Any]:
    """Of config.yaml, with their defaults."""
    return dict(yaml.safe_load((ROOT / "conf" / "config.yaml").read_text()))
