"""What would run here, and what is missing, without starting anything and without torch."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from commbench.config.compose import ConfigComposer, resolved
from commbench.config.keys import GROUPS, TIMING_MODES, construct
from commbench.core.errors import ConfigError
from commbench.core.protocols import Backend
from commbench.core.terminal import first_line
from commbench.hardware import host, machine_facts, resource_limits
from commbench.hardware.sources import ROOT, fact_text, run_command
from commbench.measure.plan import PlanFacts, plan
from commbench.world.control import hosted_world

ENGINE_CODE = "from commbench.engines import native; print(native.cache_problem or '')"
ENGINE_TIMEOUT_S = 60.0
KEYED_GROUPS = ("backend", "timing", "launcher")  # whose files have keys that people set
# by the values of in_place that an operation supports; None: in_place does not apply to it
FORM_NAMES = {
    frozenset(): "-",
    frozenset({None}): "yes",
    frozenset({True}): "in place",
    frozenset({False}): "out of place",
    frozenset({True, False}): "both",
}


def facts_here() -> PlanFacts:
    """What the plan needs to know about this machine."""
    cache_bytes = host.cache_facts(ROOT)["host.cpu_llc_bytes"] or 0
    return PlanFacts(
        resource_limits.allocatable_bytes() or sys.maxsize,
        cache_bytes,
        len(os.sched_getaffinity(0)),
    )


def machine_text(config_dir: str | None = None) -> str:
    """What this machine has, and which backends can run."""
    with ThreadPoolExecutor(1) as pool:
        engine_problem = pool.submit(native_engine_problem)
        facts = machine_facts.collect()
    lines = ["machine"]
    for key in (
        "host.hostname",
        "host.cpu_model",
        "host.kernel",
        "limits.cpu_cores",
        "host.cpu_affinity",
    ):
        if key in facts:
            lines.append(f"  {key:<24} {facts[key]}")
    lines.append(
        f"  {'memory available':<24} {(resource_limits.allocatable_bytes() or 0) / 2**30:.1f} GiB"
    )
    shm_bytes = facts.get("limits.shm_total_bytes")
    size = "no /dev/shm" if shm_bytes is None else f"{shm_bytes / 2**30:.1f} GiB in /dev/shm"
    lines.append(f"  {'shared memory':<24} {resource_limits.small_shm(facts) or size}")
    notes = [*folder_problems(), engine_problem.result()]
    notes += [str(facts[key]) for key in sorted(facts) if key.endswith(".error")]
    lines += [f"  {'note':<24} {line}" for line in notes if line is not None]
    lines += [
        "libraries",
        *(f"  {key[9:]:<24} {facts[key]}" for key in sorted(facts) if key.startswith("versions.")),
    ]
    lines += ["GPU", f"  {facts.get('topology.reason') or 'nvidia-smi topo -m answers'}"]
    if "gpu.driver_version" in facts:
        newest = facts.get("gpu.cuda_driver_version", "unknown")
        lines.append(
            f"  driver {facts['gpu.driver_version']}, CUDA {newest} at most, {facts['gpu.count']}"
            " GPU(s)"
        )
    with ConfigComposer(config_dir) as composer:
        built = backends(composer)
    lines.append("backends")
    for name, backend in built.items():
        try:
            reason = (
                str(backend)
                if isinstance(backend, ConfigError)
                else backend.missing(backend.devices[0])
            )
        except ConfigError as error:
            reason = str(error)
        except Exception as error:  # one library that fails must not hide the others
            reason = f"{type(error).__name__}: {first_line(error)}"
        lines.append(f"  {name:<24} {reason or 'can run here'}")
    return "\n".join(lines)


def native_engine_problem() -> str | None:
    """One line if engine=native can't run or is compiled at each start. A process of its own asks:
    numba takes 0.4 s to import, and no other command of this kind needs it."""
    done = run_command([sys.executable, "-c", ENGINE_CODE], ENGINE_TIMEOUT_S)
    if done is None:
        return f"engine=native did not load within {ENGINE_TIMEOUT_S:g} s"
    if done.returncode != 0:
        error = done.stderr.strip().rpartition("\n")[2]
        return f"engine=native can't be loaded, use engine=python: {fact_text(error)}"
    return fact_text(done.stdout) or None


def folder_problems() -> list[str]:
    """A line for each problem with the working directory and its results that would show up only
    later."""
    lines = []
    if any(Path(name).exists() for name in ("commbench.py", "torch.py", "mpi4py.py")):
        lines.append(
            "rename commbench.py, torch.py, mpi4py.py in this folder: `python -m`, `torchrun -m`"
            " import them"
        )
    results = Path("results")
    if results.is_dir() and not os.access(results, os.W_OK):
        try:
            owner = results.owner()
        except KeyError:  # no passwd entry, as in a container
            owner = f"user {results.stat().st_uid}"
        lines.append(
            f"{results.absolute()} belongs to {owner}: choose another folder with output=DIR"
        )
    return lines


def keys_text(config_dir: str | None = None) -> str:
    """`commbench --keys`: the configuration file, the values of every group, and the keys of their
    files."""
    from importlib.resources import files

    folder = files("commbench.conf")
    lines = [(folder / "config.yaml").read_text().partition("\nhydra:")[0].rstrip()]
    with ConfigComposer(config_dir) as composer:
        options = {group: composer.options(group) for group in (*GROUPS, "experiment")}
    lines += [
        "",
        "# Values of each group",
        *(f"{group}: {', '.join(names)}" for group, names in options.items()),
    ]
    for group in KEYED_GROUPS:
        for name in options[group]:
            file = folder / group / f"{name}.yaml"
            # else it is in --config-dir
            text = file.read_text().splitlines() if file.is_file() else []
            keys = [
                line
                for line in text
                if line and not line.startswith(("_target_", "#", "name:", "launcher: null"))
            ]
            lines += ["", f"# {group}={name}: {group}.KEY=VALUE", *keys] if keys else []
    return "\n".join(lines)


def operations_text(config_dir: str | None = None) -> str:
    """`commbench --operations`: a Markdown table of what each backend can measure and in which
    form."""
    overrides = [
        "backend=simulated",
        "benchmark=all",
        "in_place=[true,false]",
        "layout=1x4",
        "sizes=[960]",
    ]
    with ConfigComposer(config_dir) as composer:
        usable = [
            backend
            for backend in backends(composer).values()
            if not isinstance(backend, ConfigError)
        ]
        settings = composer.jobs(overrides, multirun=False)[0].settings
    rows = {benchmark.name: [f"`{benchmark.name}`"] for benchmark in settings.benchmarks}
    for backend in usable:
        device = backend.devices[0]
        own = replace(
            settings,
            backend=backend,
            device=device,
            axes={**settings.axes, "timing_mode": TIMING_MODES[device][:1]},
        )
        planned = plan(own, hosted_world(1, 4)[0], PlanFacts(2**62, 0, 64))
        for name, row in rows.items():
            forms = {
                job.case.in_place
                for job in planned
                if job.skip is None and job.case.benchmark == name
            }
            row.append(FORM_NAMES[frozenset(forms)])
    heads = [
        "operation",
        *(f"`{backend.name}` ({', '.join(backend.engines)})" for backend in usable),
    ]
    table = [heads, *rows.values()]
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def backends(composer: ConfigComposer) -> dict[str, Backend | ConfigError]:
    """The backends of conf/backend by name; for one that can't be built its error."""
    built: dict[str, Backend | ConfigError] = {}
    for name in composer.options("backend"):
        try:
            built[name] = construct(
                resolved(composer.config([f"backend={name}"]))["backend"], f"backend {name}", ()
            )
        except ConfigError as error:
            built[name] = error
    return built
