"""Overrides -> checked jobs: Hydra composes, settings check, and nothing else happens."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from commbench.errors import ConfigError
from commbench.keys import FRESH_WORLD, first_line, unknown_key
from commbench.settings import Settings, from_config

CONFIG_MODULE = "commbench.conf"
EVERY = "all"  # benchmark=all
AXES = (
    "benchmark", "writer", "layout", "dtype", "sizes", "pairs", "window", "reduction", "in_place", "engine",
    "timing_mode", "expect",
)  # fmt: skip
GROUP_NAMES = ("backend", "benchmark", "timing", "launcher", "writer", "experiment")


@dataclass(frozen=True)
class Job:
    """One point of a sweep: its overrides and what they mean."""

    overrides: tuple[str, ...]
    settings: Settings
    config: dict[str, Any]

    @property
    def digest(self) -> str:
        """Equal on all ranks that were given the same configuration."""
        text = json.dumps({key: value for key, value in self.config.items() if key != "output"}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Door:
    """Hydra opened on commbench's configuration, and closed again."""

    def __init__(self, config_dir: str | None = None) -> None:
        self._config_dir = None if config_dir is None else Path(config_dir).absolute()
        if self._config_dir is not None and not self._config_dir.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is no folder")

    def __enter__(self) -> Door:
        GlobalHydra.instance().clear()
        self._context = initialize_config_module(CONFIG_MODULE, version_base="1.3", job_name="commbench")
        self._context.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)
        GlobalHydra.instance().clear()

    def jobs(self, overrides: Sequence[str], multirun: bool) -> list[Job]:
        """Every job of the command line, checked; raises ConfigError if any is wrong."""
        given = [_spelled(one) for one in overrides]
        parsed = self._parsed(given)
        try:
            self._check(parsed, multirun)
            points = self._points(parsed) if multirun else [tuple(given)]
        except HydraException as error:  # a kind of sweep that can't be listed
            raise ConfigError(f"{_explained(error)}; list the values: -m KEY=A,B") from error
        if not points:
            raise ConfigError("this sweep has no jobs; give each key at least one value")
        jobs = [self._job(self._everything(point)) for point in points]
        return _ordered(jobs) if multirun else jobs

    def config(self, overrides: Iterable[str], hydra: bool = False) -> DictConfig:
        """A composed configuration; raises ConfigError."""
        try:
            extra = [] if self._config_dir is None else [f"hydra.searchpath=[file://{self._config_dir}]"]
            return compose("config", overrides=[*extra, *overrides], return_hydra_config=hydra)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigError(_explained(error)) from error

    def sweep_of(self, overrides: Sequence[str]) -> list[str]:
        """The sweep that a configuration file asks for itself (hydra.mode=MULTIRUN), as overrides."""
        node = self.config(self.plain(overrides), hydra=True).hydra
        mode = str(OmegaConf.select(node, "mode") or "")
        params = OmegaConf.select(node, "sweeper.params") or {}
        return [f"{key}={value}" for key, value in params.items()] if mode.endswith("MULTIRUN") else []

    def plain(self, overrides: Sequence[str]) -> list[str]:
        """The overrides that are the same in every job of a sweep."""
        parsed = self._parsed([_spelled(one) for one in overrides])
        self._check(parsed, multirun=True)
        return self._everything(one.input_line or "" for one in parsed if not one.is_sweep_override())

    def options(self, group: str) -> list[str]:
        """The files of a group."""
        names = GlobalHydra.instance().config_loader().get_group_options(group)
        if self._config_dir is not None:
            names = [*names, *(path.stem for path in (self._config_dir / group).glob("*.yaml"))]
        return sorted({str(name) for name in names})

    def _parsed(self, overrides: Sequence[str]) -> list[Override]:
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        parsed = []
        for one in overrides:
            try:
                parsed += parser.parse_overrides([one])
            except HydraException as error:
                raise ConfigError(_unreadable(one)) from error
            if not parsed[-1].key_or_group:
                raise ConfigError(_unreadable(one))
        return parsed

    def _check(self, parsed: Sequence[Override], multirun: bool) -> None:
        """What Hydra would say in four lines, or not at all."""
        for one in parsed:
            key, value = one.key_or_group, one.value()
            if one.is_sweep_override() and not multirun:
                raw = (one.input_line or "").partition("=")[2]
                inside = f"in one world: {key}=[{raw}]; " if key in AXES else ""
                outside = f"in fresh worlds: commbench -m {key}={raw}; as text: \"{key}='{raw}'\""
                raise ConfigError(f"{key}={raw} has commas: {inside}{outside}")
            if key in (*FRESH_WORLD, "timing", "experiment") and isinstance(value, list):
                values = ",".join(str(item) for item in value)
                raise ConfigError(f"{key} takes one value a run; for several fresh worlds: commbench -m {key}={values}")
            if key in GROUP_NAMES and not one.is_delete():
                self._check_choices(key, one)

    def _check_choices(self, group: str, override: Override) -> None:
        known = self.options(group) + ([EVERY] if group == "benchmark" else [])
        for name in _choices(override):
            if name not in known:
                seen = "null" if name is None else name
                raise ConfigError(f"{group}={seen} is unknown; allowed: {', '.join(known) or 'none yet'}")

    def _points(self, parsed: list[Override]) -> list[tuple[str, ...]]:
        """All combinations of a sweep, in Hydra's own reading of its grammar."""
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        batches = BasicSweeper.split_arguments(parsed, max_batch_size=None)
        return [tuple(point) for batch in batches for point in batch]

    def _everything(self, point: Iterable[str]) -> list[str]:
        """benchmark=all is every file of its group."""
        names = ",".join(self.options("benchmark"))
        every = (f"benchmark={EVERY}", f"benchmark=[{EVERY}]")
        return [f"benchmark=[{names}]" if one in every else one for one in point]

    def group(self, group: str, name: str) -> dict[str, Any]:
        """The node of one file of a group."""
        node = OmegaConf.to_container(self.config([f"{group}={name}"])[group], resolve=True)
        assert isinstance(node, dict)
        return {str(key): value for key, value in node.items()}

    def _job(self, overrides: list[str]) -> Job:
        return job_of(self.config(overrides), overrides)


def job_of(config: DictConfig, overrides: Iterable[str]) -> Job:
    """Check a composed configuration; raises ConfigError."""
    settings = from_config(config)
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return Job(tuple(overrides), settings, {str(key): value for key, value in plain.items()})


def _spelled(override: str) -> str:
    """Spare users three traps of Hydra's grammar: new keys of env, numbers in env, and comparisons in expect."""
    key, _, value = override.partition("=")
    if key.startswith("env.") and value not in ("", "null") and value[0] not in '[{"' and not set(value) & set("',("):
        return f"++{key}='{value}'"  # 1e3 stays 1e3
    if override.startswith(("env.", "env={")):
        return f"++{override}"
    if key == "expect" and set(value) & set("<>") and not set(value) & set("'\""):
        texts = [f"'{one.strip()}'" for one in value.strip("[]").split(",")]
        return f"expect=[{','.join(texts)}]" if value.startswith("[") else f"expect='{value}'"
    return override


def _choices(override: Override) -> Iterator[str | None]:
    """The names that a group override asks for, in all points of a sweep."""
    if override.is_sweep_override():
        values: Iterable[Any] = override.sweep_iterator() if override.is_discrete_sweep() else ()
    else:
        values = [override.value()]
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            name = None if one is None else str(one)
            if name is not None and name.startswith("["):
                yield from (part.strip() for part in name.strip("[]").split(","))
            else:
                yield name


def _ordered(jobs: list[Job]) -> list[Job]:
    """launch is the outermost axis; within one launch the order is shuffled by seed, so that drift hits all alike."""
    launches = sorted({job.settings.launch for job in jobs})
    ordered = []
    for launch in launches:
        group = [job for job in jobs if job.settings.launch == launch]
        random.Random(f"{group[0].settings.seed}/{launch}").shuffle(group)
        ordered += group
    return ordered


def _unreadable(override: str) -> str:
    key, sign, value = override.lstrip("+").partition("=")
    if not sign:
        return f"{override!r} is neither KEY=VALUE nor a command (doctor)"
    if not key:
        return f"{override!r} has no key; write KEY=VALUE"
    return f"can't read {key}={value}; text with special characters needs quotes within quotes: \"{key}='TEXT'\""


def _explained(error: BaseException) -> str:
    """One line of Hydra's many: what was seen, what is allowed."""
    cause = error.__cause__
    text = " ".join(str(error).split())
    options = getattr(error, "options", None)
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, name = str(missing).rpartition("/")
        allowed = f"allowed: {', '.join(options)}" if options else f"conf/{group} has no such file"
        return f"{group}={name} is unknown; {allowed}"
    if "Could not override" in text or "not in struct" in text:
        return unknown_key(text.split("'")[1] if "'" in text else text)
    return text if cause is None or first_line(cause) in text else f"{text}: {first_line(cause)}"
