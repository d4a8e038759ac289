"""What there is to choose from: every key with its values, and the operations of each backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from textwrap import fill
from typing import Any

from commbench.config.compose import ConfigComposer, resolved
from commbench.config.keys import GROUPS, TIMERS
from commbench.config.targets import construct
from commbench.core.annexes import parts
from commbench.core.errors import ConfigError
from commbench.core.protocols import Backend
from commbench.core.terminal import TableColumn, Terminal, table_text
from commbench.measure.plan import plan
from commbench.measure.plan_facts import PlanFacts
from commbench.runtime.control import hosted_world

WIDTH = 100  # of the text of --keys
HYDRA_LINES = ("  - _self_", "  # Hydra", "  - override hydra")  # of config.yaml
KEYED_GROUPS = ("backend", "timing", "launcher")  # whose files have keys that people set
# by the values of in_place that an operation supports: in place, out of place; None: no matter
FORM_NAMES = {
    frozenset(): "-",
    frozenset({None}): "yes",
    frozenset({True}): "in",
    frozenset({False}): "out",
    frozenset({True, False}): "both",
}


def keys_text(config_dir: str | None = None) -> str:
    """`commbench --keys`: the configuration file without Hydra's own keys, the values of every
    group, and the keys of their files."""
    conf = files("commbench.conf")
    folders = (conf, *map(files, parts()))
    own = (conf / "config.yaml").read_text().partition("\nhydra:")[0].rstrip().splitlines()
    lines = [line for line in own if not line.startswith(HYDRA_LINES)]
    with ConfigComposer(config_dir) as composer:
        options = {group: composer.options(group) for group in (*GROUPS, "experiment")}
    lines += [
        "",
        "# Values of each group",
        *(
            fill(f"{group}: {', '.join(names)}", WIDTH, subsequent_indent="  ")
            for group, names in options.items()
        ),
    ]
    for group in KEYED_GROUPS:
        for name in options[group]:
            paths = (folder / group / f"{name}.yaml" for folder in folders)
            # empty where it is in --config-dir
            text = next((path.read_text() for path in paths if path.is_file()), "")
            keys = [
                line
                for line in text.splitlines()
                if line and not line.startswith(("_target_", "#", "name:", "launcher: null"))
            ]
            lines += ["", f"# {group}={name}: {group}.KEY=VALUE", *keys] if keys else []
    return "\n".join(lines)


def operations_text(config_dir: str | None = None) -> str:
    """`commbench --operations`: a table of what each backend can measure and in which form."""
    overrides = [
        "backend=gloo",
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
    rows = {benchmark.name: [benchmark.name] for benchmark in settings.benchmarks}
    for backend in usable:
        device = backend.devices[0]
        own = replace(
            settings,
            backend=backend,
            device=device,
            axes={**settings.axes, "timer": TIMERS[device][:1]},
        )
        planned = plan(own, hosted_world(1, 4)[0], PlanFacts(2**62, 0, 64))
        for name, row in rows.items():
            forms = {
                job.case.in_place
                for job in planned
                if job.skip is None and job.case.benchmark == name
            }
            row.append(FORM_NAMES[frozenset(forms)])
    heads = ["operation", *(backend.name for backend in usable)]
    return table_text([*map(TableColumn, heads)], list(rows.values()), Terminal())


def backends(composer: ConfigComposer) -> dict[str, Backend | ConfigError]:
    """All backends by name; for one that can't be built its error."""
    names = composer.options("backend")
    try:
        parameters = _composed_together(composer, names)
    except ConfigError:  # of one file: the others can be built without it
        parameters = {}
    built = dict[str, Backend | ConfigError]()
    for name in names:
        try:
            own = parameters.get(name) or resolved(composer.config([f"backend={name}"]))["backend"]
            built[name] = construct(own, f"backend {name}", ())
        except ConfigError as error:
            built[name] = error
    return built


def _composed_together(composer: ConfigComposer, names: Sequence[str]) -> dict[str, Any]:
    """The files of several backends, by name: to compose each by itself takes Hydra 0.2 s. Raises
    ConfigError."""
    config = composer.config([f"+backend@backends.{name}={name}" for name in names])
    parameters: dict[str, Any] = resolved(config)["backends"]
    return parameters
