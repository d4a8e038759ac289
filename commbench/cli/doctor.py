"""What would run here, and what is missing, without starting anything and without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from commbench.config.compose import ConfigComposer
from commbench.config.keys import TIMING_MODES
from commbench.config.settings import Settings
from commbench.config.targets import construct
from commbench.core.case import World
from commbench.core.errors import ConfigError
from commbench.core.layout import Layout
from commbench.core.protocols import Backend
from commbench.core.units import format_seconds
from commbench.hardware import machine_facts, resource_limits
from commbench.measure.plan import Facts, duration_s, plan
from commbench.world.identity import hosted_world

FORM_NAMES = {  # by the values of in_place that an operation can be measured with; None: it has no such axis
    frozenset(): "-",
    frozenset({None}): "yes",
    frozenset({True}): "in place",
    frozenset({False}): "apart",
    frozenset({True, False}): "in place, apart",
}


def facts_here() -> Facts:
    """What the plan has to know about this machine."""
    facts = machine_facts.collect()
    return Facts(
        resource_limits.memory_limit_bytes() or sys.maxsize,
        facts.get("host.cpu_llc_bytes") or 0,
        len(os.sched_getaffinity(0)),
    )


def plan_text(settings: Settings, world: World, facts: Facts) -> str:
    """The cases of a job with memory and time, in the order they would run."""
    if not settings.layouts:
        settings = replace(settings, layouts=(Layout(len(world.nodes), world.ranks_per_node),))
    jobs = plan(settings, world, facts)
    lines = [f"{'case':<58} {'memory / node':>14} {'at most':>9}  skipped because"]
    for job in jobs:
        memory = "" if job.skip else f"{job.node_bytes / 2**20:.0f} MiB"
        limit = "" if job.skip else format_seconds(duration_s(settings, job))
        lines.append(f"{job.case!s:<58} {memory:>14} {limit:>9}  {job.skip or ''}".rstrip())
    total = sum(duration_s(settings, job) for job in jobs)
    runs = sum(1 for job in jobs if not job.skip)
    lines.append(f"{len(jobs)} cases, {runs} to measure, at most {format_seconds(total)}; nothing was started")
    return "\n".join(lines)


def report(config_dir: str | None = None) -> str:
    """What this machine has, and which backends can run."""
    facts = machine_facts.collect()
    lines = ["machine"]
    for key in ("host.hostname", "host.cpu_model", "host.kernel", "limits.cpu_cores", "host.cpu_affinity"):
        if key in facts:
            lines.append(f"  {key:<24} {facts[key]}")
    lines.append(f"  {'memory available':<24} {(resource_limits.memory_limit_bytes() or 0) / 2**30:.1f} GiB")
    lines += ["libraries", *(f"  {key[9:]:<24} {facts[key]}" for key in sorted(facts) if key.startswith("versions."))]
    lines += ["GPU", f"  {facts.get('topology.reason') or 'nvidia-smi topo -m answers'}"]
    with ConfigComposer(config_dir) as composer:
        states = {name: _state(backend) for name, backend in backends(composer).items()}
        lines += ["backends", *(f"  {name:<24} {state}" for name, state in states.items())]
    return "\n".join(lines)


def _state(backend: Backend | ConfigError) -> str:
    """Why it can't run, or that it can."""
    if isinstance(backend, ConfigError):
        return str(backend)
    try:
        return backend.missing(backend.devices[0]) or "can run here"
    except ConfigError as error:
        return str(error)


def matrix(config_dir: str | None = None) -> str:
    """`commbench --operations`."""
    with ConfigComposer(config_dir) as composer:
        usable = [backend for backend in backends(composer).values() if not isinstance(backend, ConfigError)]
        return "\n".join(operations(composer, usable))


def operations(composer: ConfigComposer, backends: Sequence[Backend]) -> list[str]:
    """A Markdown table of what each backend can measure and in which form, from its declared tables."""
    overrides = ["backend=simulated", "benchmark=all", "in_place=[true,false]", "layout=1x4", "sizes=[960]"]
    settings = composer.jobs(overrides, multirun=False)[0].settings
    heads = [f"`{backend.name}` ({', '.join(backend.engines)})" for backend in backends]
    columns = [_forms(settings, backend) for backend in backends]
    lines = [f"| operation | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for benchmark in settings.benchmarks:
        cells = [FORM_NAMES[frozenset(column.get(benchmark.name, ()))] for column in columns]
        lines.append(f"| {' | '.join([f'`{benchmark.name}`', *cells])} |")
    return lines


def _forms(settings: Settings, backend: Backend) -> dict[str, set[bool | None]]:
    """The values of in_place of each operation that this backend does not skip."""
    device = backend.devices[0]
    settings = replace(settings, backend=backend, device=device, timing_modes=TIMING_MODES[device][:1])
    forms: dict[str, set[bool | None]] = {}
    for job in plan(settings, hosted_world(1, 4)[0], Facts(2**62, 0, 64)):
        if job.skip is None:
            forms.setdefault(job.case.benchmark, set()).add(job.case.in_place)
    return forms


def backends(composer: ConfigComposer) -> dict[str, Backend | ConfigError]:
    """All of conf/backend, as configured there; the error of one that can't be built."""
    found: dict[str, Backend | ConfigError] = {}
    for name in composer.options("backend"):
        try:
            found[name] = construct(composer.group("backend", name), f"backend {name}", ())
        except ConfigError as error:
            found[name] = error
    return found
