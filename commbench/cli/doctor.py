"""What would run here, and what is missing, without starting anything and without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commbench.config.compose import ConfigComposer
from commbench.config.keys import GROUPS, TIMING_MODES
from commbench.config.settings import Settings
from commbench.config.targets import construct
from commbench.core.errors import ConfigError
from commbench.core.protocols import Backend
from commbench.hardware import machine_facts, resource_limits
from commbench.measure.plan import Facts, plan
from commbench.world.rendezvous import hosted_world

KEYED_GROUPS = ("timing", "backend", "launcher")  # whose files have keys that people set
FORM_NAMES = {  # by the values of in_place that an operation can be measured with; None: it has no such axis
    frozenset(): "-",
    frozenset({None}): "yes",
    frozenset({True}): "in place",
    frozenset({False}): "out of place",
    frozenset({True, False}): "both",
}


def facts_here() -> Facts:
    """What the plan has to know about this machine."""
    facts = machine_facts.collect()
    return Facts(
        resource_limits.memory_limit_bytes() or sys.maxsize,
        facts.get("host.cpu_llc_bytes") or 0,
        len(os.sched_getaffinity(0)),
    )


def report(config_dir: str | None = None) -> str:
    """What this machine has, and which backends can run."""
    facts = machine_facts.collect()
    lines = ["machine"]
    for key in ("host.hostname", "host.cpu_model", "host.kernel", "limits.cpu_cores", "host.cpu_affinity"):
        if key in facts:
            lines.append(f"  {key:<24} {facts[key]}")
    lines.append(f"  {'memory available':<24} {(resource_limits.memory_limit_bytes() or 0) / 2**30:.1f} GiB")
    lines.append(f"  {'shared memory':<24} {resource_limits.small_shm(facts) or format_shm(facts)}")
    lines += [f"  {'note':<24} {line}" for line in surroundings()]
    lines += ["libraries", *(f"  {key[9:]:<24} {facts[key]}" for key in sorted(facts) if key.startswith("versions."))]
    lines += ["GPU", f"  {facts.get('topology.reason') or 'nvidia-smi topo -m answers'}"]
    if "gpu.driver_version" in facts:
        newest = facts.get("gpu.cuda_driver_version", "unknown")
        lines.append(f"  driver {facts['gpu.driver_version']}, CUDA {newest} at most, {facts['gpu.count']} GPU(s)")
    with ConfigComposer(config_dir) as composer:
        states = {name: _state(backend) for name, backend in backends(composer).items()}
        lines += ["backends", *(f"  {name:<24} {state}" for name, state in states.items())]
    return "\n".join(lines)


def format_shm(facts: Mapping[str, Any]) -> str:
    """The size of /dev/shm."""
    total = facts.get("limits.shm_total_bytes")
    return "no /dev/shm" if total is None else f"{total / 2**30:.1f} GiB in /dev/shm"


def surroundings() -> list[str]:
    """A line for each thing around the process that surprises later: the working directory, its results."""
    lines = []
    if any(Path(name).exists() for name in ("commbench.py", "torch.py", "mpi4py.py")):
        lines.append(
            "a commbench.py, torch.py or mpi4py.py lies here: `python -m` and `torchrun -m` import it; rename it"
        )
    results = Path("results")
    if results.is_dir() and not os.access(results, os.W_OK):
        try:
            owner = results.owner()
        except KeyError:  # no passwd entry, as in a container
            owner = f"user {results.stat().st_uid}"
        lines.append(f"{results.absolute()} belongs to {owner}: choose another folder with output=DIR")
    return lines


def _state(backend: Backend | ConfigError) -> str:
    """Why it can't run, or that it can."""
    if isinstance(backend, ConfigError):
        return str(backend)
    try:
        return backend.missing(backend.devices[0]) or "can run here"
    except ConfigError as error:
        return str(error)


def keys_text(config_dir: str | None = None) -> str:
    """`commbench --keys`: the configuration file, the values of every group, and the keys of those that have some."""
    from importlib.resources import files

    folder = files("commbench.conf")
    lines = [(folder / "config.yaml").read_text().partition("\nhydra:")[0].rstrip()]
    with ConfigComposer(config_dir) as composer:
        options = {group: composer.options(group) for group in (*GROUPS, "experiment")}
    lines += ["", "# Values of each group", *(f"{group}: {', '.join(names)}" for group, names in options.items())]
    for group, names in options.items():
        nodes = {name: _node_lines(folder / group / f"{name}.yaml") for name in names if group in KEYED_GROUPS}
        for name, node in nodes.items():
            lines += ["", f"# {group}={name}: {group}.KEY=VALUE", *node] if node else []
    return "\n".join(lines)


def _node_lines(file: Any) -> list[str]:
    """The lines of a group's file that are keys, with their comments."""
    if not file.is_file():  # of --config-dir
        return []
    text = file.read_text().splitlines()
    return [line for line in text if line and not line.startswith(("_target_", "#", "name:", "launcher: null"))]


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
    built: dict[str, Backend | ConfigError] = {}
    for name in composer.options("backend"):
        try:
            built[name] = construct(composer.group("backend", name), f"backend {name}", ())
        except ConfigError as error:
            built[name] = error
    return built
