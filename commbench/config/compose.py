"""From overrides to checked jobs: Hydra composes the configuration, which is then checked; nothing
is started."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from hydra import compose, initialize_config_module
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from omegaconf.resolvers import oc
from yaml import YAMLError  # type: ignore[import-untyped]

from commbench.core.annexes import INSTALL_REPLAY, parts
from commbench.core.errors import ConfigError, no_permission
from commbench.core.secrets import is_secret
from commbench.core.states import STAGES
from commbench.core.suggestions import did_you_mean
from commbench.core.terminal import first_line, one_line

from .keys import (
    GROUPS,
    NO_STAGE,
    OVERRIDES,
    KeyKind,
    is_text,
    list_refusal,
    unknown_key,
)
from .overrides import normalized, unreadable
from .restricted import SEARCHED, check_file_override, check_file_settings, check_hydras_part
from .settings import Job, job_of
from .user_files import search_path

EVERY = "all"  # benchmark=all
ENV_RESOLVER = "oc.env"
COMPOSED_GROUPS = (*GROUPS, "experiment")
MODEL = "backend.model."  # keys of a planted machine, which is no variable of a case
SOAK_KEYS = ("timing.duration_s", "timing.interval_s")  # only timings of soaks have them
ELSEWHERE = {
    "writer=csv": "commbench export RUN prints it; ",
    "writer=json": "jsonl is a row a line, run.json has the record of the run; ",
    "writer=xml": "writer=junit writes junit.xml; ",
    "writer=html": "commbench report RUN --html FILE writes it; ",
    "benchmark=replay": f"commbench-replay has it: {INSTALL_REPLAY}; ",
}
STAGE_ORDER = (NO_STAGE, *STAGES)


def working_folder() -> Path:
    """Raises ConfigError where it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "the working directory is gone: it was removed; change to another one"
        ) from error


class FeatureFiles(SearchPathPlugin):
    """Operations, backends, launchers, experiments, writers and timings lie with their features."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in parts():
            search_path.append("commbench", f"pkg://{package}")


class ConfigComposer:
    """Context in which Hydra composes commbench's configuration, with a folder of the user's own
    files."""

    # of commbench's own files, by overrides
    _packaged: ClassVar[dict[tuple[object, ...], DictConfig]] = {}

    def __init__(self, config_dir: str | None = None) -> None:
        folder = working_folder()  # which Hydra needs
        self._config_dir = None if config_dir is None else folder / config_dir
        self._composed = self._packaged if config_dir is None else {}
        self._overrides: dict[str, Override] = {}  # a cache: parsing takes ms
        if self._config_dir is not None and not self._config_dir.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is not a folder")
        mode = os.R_OK | os.X_OK
        if config_dir is not None and not os.access(config_dir, mode, effective_ids=True):
            raise ConfigError(f"--config-dir {no_permission(config_dir)}")

    def __enter__(self) -> ConfigComposer:
        GlobalHydra.instance().clear()
        Plugins.instance().register(FeatureFiles)
        self._context = initialize_config_module(
            "commbench.conf", version_base="1.3", job_name="commbench"
        )
        self._context.__enter__()
        OmegaConf.register_new_resolver(ENV_RESOLVER, _resolved_env, replace=True)
        return self

    def __exit__(self, *_: object) -> None:
        OmegaConf.register_new_resolver(ENV_RESOLVER, oc.env, replace=True)
        self._context.__exit__(None, None, None)
        GlobalHydra.instance().clear()

    def jobs(self, overrides: Sequence[str], multirun: bool) -> list[Job]:
        """Every job of the command line, checked; raises ConfigError, in one line, if any is
        wrong."""
        try:
            return self._jobs(overrides, multirun)
        except ConfigError as error:
            raise ConfigError(one_line(str(error))) from error
        # in a file, a reference to a key that does not exist
        except OmegaConfBaseException as error:
            raise ConfigError(one_line(_hydra_message(error))) from error

    def _jobs(self, overrides: Sequence[str], multirun: bool) -> list[Job]:
        parsed = self._parsed(overrides)
        try:
            self._check(overrides, multirun)
            given = [override.input_line or "" for override in parsed]
            points = _sweep_points(parsed) if multirun else [given]
        except HydraException as error:
            raise ConfigError(f"{_hydra_message(error)}; list the values: -m KEY=A,B") from error
        if not points:
            raise ConfigError("this sweep has no jobs; give each key at least one value")
        jobs = []
        for point in map(self._with_all_benchmarks, points):
            config = self.config(point)
            check_file_settings(config, self._given_keys(point))
            jobs.append(job_of(resolved(config), point))
        return in_run_order(jobs) if multirun else jobs

    def config(self, overrides: Iterable[str], hydra: bool = False) -> DictConfig:
        """A composed configuration, with Hydra's own part if `hydra`; raises ConfigError.

        Composing files takes Hydra 0.2 s, so jobs that choose the same files set their values in
        copies of one result.
        """
        searched = (
            [] if self._config_dir is None else [f"{SEARCHED}[{search_path(self._config_dir)}]"]
        )
        parsed = self._parsed(list(overrides))
        chosen = [override.input_line or "" for override in parsed if not _sets_value(override)]
        try:
            if (files := (hydra, *chosen)) not in self._composed:
                composed = compose(
                    "config", overrides=[*searched, *chosen], return_hydra_config=True
                )
                if self._config_dir is not None:
                    check_hydras_part(composed, chosen)
                if not hydra:
                    with open_dict(composed):
                        del composed["hydra"]
                self._composed[files] = composed
            config = copy.deepcopy(self._composed[files])
            for override in filter(_sets_value, parsed):
                _set_value(config, override)
        except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
            raise ConfigError(_hydra_message(error)) from error
        return config

    def hydra_config(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration that the jobs of a sweep share, with Hydra's own part, which names the
        launcher."""
        return self.config(self.plain(overrides), hydra=True)

    def keys_of(self, overrides: Sequence[str]) -> list[str]:
        """The key or group that each override sets."""
        return [parsed.key_or_group for parsed in self._parsed(overrides)]

    def _given_keys(self, overrides: Sequence[str]) -> set[str]:
        """The keys that overrides set, each variable of a mapping by its own name."""
        keys = set[str]()
        for parsed in self._parsed(overrides):
            value = parsed.value()
            if parsed.key_or_group == "env" and isinstance(value, dict):
                keys.update(f"env.{name!s}" for name in value)
            else:
                keys.add(parsed.key_or_group)
        return keys

    def keys_of_file(self, overrides: Sequence[str]) -> dict[str, str]:
        """The key of each override in an experiment's file. Raises ConfigError for what only the
        user may give."""
        keys = dict(zip(overrides, self.keys_of(overrides), strict=True))
        for override, key in keys.items():
            check_file_override(key, override)
        return keys

    def plain(self, overrides: Sequence[str]) -> list[str]:
        """The overrides that all jobs of a sweep share."""
        self._check(overrides, multirun=True)
        parsed = self._parsed(self.of_all_parts(overrides))
        shared = [each.input_line or "" for each in parsed if not each.is_sweep_override()]
        return self._with_all_benchmarks(shared)

    def of_all_parts(self, overrides: Sequence[str]) -> list[str]:
        """The overrides without those that only soaks among the parts of an experiment take."""
        keys = dict(zip(overrides, self.keys_of(overrides), strict=True))
        shared = [word for word in overrides if keys[word] not in SOAK_KEYS]
        has_parts = "experiment" in keys.values() and not self.is_soak(shared)
        return shared if has_parts else [*overrides]

    def is_soak(self, overrides: Sequence[str]) -> bool:
        """Whether their timing has a duration; not of words that can't be composed."""
        try:
            return OmegaConf.select(self.config(overrides), SOAK_KEYS[0]) is not None
        except ConfigError:
            return False

    def options(self, group: str) -> list[str]:
        """The names of a group's files."""
        folder = self._config_dir
        own = () if folder is None else (folder / group).glob("*.yaml")
        return sorted({*_packaged_options(group), *(path.stem for path in own)})

    def _parsed(self, overrides: Sequence[str]) -> list[Override]:
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        for override in overrides:
            if override not in self._overrides:
                text = normalized(override)
                try:
                    (parsed,) = parser.parse_overrides([text])
                # a number of 5000 digits, 1000 brackets
                except (HydraException, ValueError, RecursionError) as error:
                    raise ConfigError(unreadable(text)) from error
                if not parsed.key_or_group:
                    raise ConfigError(unreadable(text))
                self._overrides[override] = parsed
        return [self._overrides[override] for override in overrides]

    def swept_env(self, overrides: Sequence[str]) -> list[str]:
        """A line for each environment variable with commas, which may be one value."""
        pairs = zip(overrides, self._parsed(overrides), strict=True)
        return [
            _comma_text(override, parsed.key_or_group)
            for override, parsed in pairs
            if parsed.key_or_group.startswith("env.")
            and parsed.is_sweep_override()
            and not set(override) & set("'\"(")
        ]

    def _check(self, overrides: Sequence[str], multirun: bool) -> None:
        """Raises ConfigError for mistakes that Hydra reports in four lines or not at all."""
        for text, override in zip(overrides, self._parsed(overrides), strict=True):
            name = override.key_or_group
            value = override.value()
            key = OVERRIDES.get(name)
            if override.is_sweep_override() and not multirun:
                raise ConfigError(_comma_text(text, name))
            takes_list = name != "experiment" and (
                key is None or key.axis or key.kind is KeyKind.OTHER
            )
            if isinstance(value, list) and not takes_list:
                raise list_refusal(name, value)
            if name in COMPOSED_GROUPS and not override.is_delete():
                known = self.options(name) + ([EVERY] if name == "benchmark" else [])
                for choice in _choices(override):
                    if choice not in known:
                        seen = "null" if choice is None else choice
                        hint = ELSEWHERE.get(f"{name}={seen}") or did_you_mean(seen, known)
                        raise ConfigError(
                            f"{name}={seen} is unknown; {hint}allowed:"
                            f" {', '.join(known) or 'none yet'}"
                        )

    def _with_all_benchmarks(self, overrides: Iterable[str]) -> list[str]:
        """benchmark=all becomes the names of its group's files."""
        names = ",".join(self.options("benchmark"))
        every = (f"benchmark={EVERY}", f"benchmark=[{EVERY}]")
        return [f"benchmark=[{names}]" if override in every else override for override in overrides]


@cache
def _packaged_options(group: str) -> tuple[str, ...]:
    return tuple(GlobalHydra.instance().config_loader().get_group_options(group))


def _sets_value(override: Override) -> bool:
    """Whether the override sets a value, and neither chooses files nor adds or deletes a key."""
    name, _, inner = override.key_or_group.partition(".")
    is_value = bool(inner) or name not in GROUPS
    changes = not (override.is_add() or override.is_delete())
    return name in OVERRIDES and override.package is None and is_value and changes


def _set_value(config: DictConfig, override: Override) -> None:
    key = override.key_or_group
    force_add = override.is_force_add()
    try:
        OmegaConf.update(config, key, override.value(), merge=True, force_add=force_add)
    except (ConfigAttributeError, ConfigKeyError) as error:
        raise ConfigError(unknown_key(key)) from error


def _sweep_points(overrides: Iterable[Override]) -> list[list[str]]:
    """The overrides of each job of a sweep: all combinations of the listed values."""
    choices: dict[str, list[str]] = {}  # the last override of a key counts
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            values = [override.get_value_element_as_str()]
        elif override.is_discrete_sweep():
            values = list(override.sweep_string_iterator())
        else:
            raise ConfigError(
                f"{override.input_line} is not a list of values; list the values: -m KEY=A,B"
            )
        choices[key] = [f"{key}={value}" for value in values]
    points = [list(point) for point in product(*choices.values())]
    models = [key for key in choices if key.startswith(MODEL) and len(choices[key]) > 1]
    return points if "label" in choices else [_labelled(point, models) for point in points]


def _labelled(point: list[str], models: Sequence[str]) -> list[str]:
    """A label tells the rows of different models apart, which have the same variables."""
    own = [word.removeprefix(MODEL) for word in point if word.partition("=")[0] in models]
    label = " ".join(own).translate({ord("="): " ", ord("'"): None, ord('"'): None})
    return [*point, f"label='{label}'"] if own else point


def resolved(config: DictConfig) -> dict[str, Any]:
    """A composed configuration with its references resolved; raises ConfigError."""
    try:
        raw = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(
            one_line(f"the configuration has a broken reference: {first_line(error)}")
        ) from error
    assert isinstance(raw, dict)
    _write_references(config, raw, filter(is_text, config))
    if isinstance(config.get("env"), DictConfig):
        _write_references(config["env"], raw["env"], config["env"])
    return {str(key): value for key, value in raw.items()}


def _write_references(config: DictConfig, raw: dict[Any, Any], names: Iterable[Any]) -> None:
    """Texts that refer to a number, as env.NAME=${timing.duration_s}, are that number as text."""
    for name in names:
        if OmegaConf.is_interpolation(config, name) and isinstance(raw[name], bool | int | float):
            raw[name] = str(raw[name])


def _resolved_env(name: str, default: str | None = "\0") -> Any:
    """oc.env, but not for credentials: the value of every key is written into every result."""
    if is_secret(str(name)):
        raise ConfigError(
            f"${{oc.env:{name}}} would write a credential into every result; export it to the ranks"
            " instead"
        )
    return oc.env(name) if default == "\0" else oc.env(name, default)


def _choices(override: Override) -> Iterator[str | None]:
    """The names that a group override selects, in all points of a sweep."""
    values: Iterable[Any] = [override.value()]
    if override.is_sweep_override():
        values = override.sweep_iterator() if override.is_discrete_sweep() else ()
    for value in values:
        for choice in value if isinstance(value, list) else [value]:
            name = None if choice is None else str(choice)
            if name is not None and name.startswith("["):
                yield from (part.strip() for part in name.strip("[]").split(","))
            else:
                yield name


def in_run_order(jobs: list[Job]) -> list[Job]:
    """trial is the outermost axis; within a trial the order is shuffled by seed, so that drift
    affects all jobs. The stages of an acceptance keep their order."""
    ordered = []
    for trial in sorted({job.settings.trial for job in jobs}):
        group = [job for job in jobs if job.settings.trial == trial]
        random.Random(f"{group[0].settings.seed}/{trial}").shuffle(group)
        ordered += sorted(group, key=lambda job: STAGE_ORDER.index(job.settings.stage))
    return ordered


def _comma_text(override: str, name: str) -> str:
    """What a value with commas may mean."""
    raw = override.partition("=")[2]
    key = OVERRIDES.get(name)
    inside = f"in one run: {name}=[{raw}]; " if key is not None and key.axis else ""
    outside = f"a run for each: commbench -m {name}={raw}; as text: \"{name}='{raw}'\""
    return f"{name}={raw} has commas: {inside}{outside}"


def _hydra_message(error: BaseException) -> str:
    """One line with what was seen and what is allowed, from the many of Hydra's message."""
    cause = error.__cause__
    text = " ".join(str(error).split())
    options = getattr(error, "options", None)
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, name = str(missing).rpartition("/")
        allowed = f"allowed: {', '.join(options)}" if options else "no file has this name"
        return f"{group}={name} is unknown; {allowed}"
    if "Could not override" in text or "not in struct" in text:
        return unknown_key(text.split("'")[1] if "'" in text else text)
    return text if cause is None or first_line(cause) in text else f"{text}: {first_line(cause)}"
