"""From overrides to checked jobs: Hydra composes the configuration, which is then checked; nothing
is started.

An experiment's file lists its worlds, part by part and for each scale; `requested_jobs` makes the
jobs of these too.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from omegaconf.resolvers import oc
from yaml import YAMLError  # type: ignore[import-untyped]

from commbench.core.errors import ConfigError, no_permission
from commbench.core.secrets import MAP_ENTRY, MASK, is_secret
from commbench.core.states import STAGES
from commbench.core.suggestions import did_you_mean
from commbench.core.terminal import first_line, one_line

from .keys import (
    GROUPS,
    NO_STAGE,
    OVERRIDES,
    Kind,
    check_file_override,
    check_file_settings,
    is_text,
    list_refusal,
    unknown_key,
)
from .settings import Job, job_of
from .user_files import search_path

WORD = re.compile(r"(?:[^\s']|'[^']*')+")  # of a line of parts: spaces within quotes belong to it
EVERY = "all"  # benchmark=all
ENV_RESOLVER = "oc.env"
COMPOSED_GROUPS = (*GROUPS, "experiment")
EXPERIMENT = "experiment="
CPU = "cpu"
TIMING = "timing"
SOAK = "timing=soak"
SOAK_KEYS = ("timing.duration_s", "timing.interval_s")  # only this timing has them
SEARCHED = "hydra.searchpath="
COMPUTED_HYDRA_KEYS = ("runtime", "searchpath", "overrides.task", "job.override_dirname")
# formats that are made of stored results
OTHER_WRITERS = {
    "csv": "commbench export RUN prints it; ",
    "json": "jsonl is a row a line, run.json has the record of the run; ",
    "xml": "writer=junit writes junit.xml; ",
    "html": "commbench report RUN --html FILE writes it; ",
}
STAGE_ORDER = (NO_STAGE, *STAGES)
# quoted texts, and the words between commas and brackets, in a value and in a map of values
WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,\[\]'"]+""")
MAPPED_WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,:{}\[\]'"]+""")
# what Hydra reads as a number or a truth value
NOT_A_TEXT = re.compile(
    r"[+-]?(?=[._]*\d)[\d_]*(?:\.[\d_]*)?(?:e[+-]?[\d_]+)?|[+-]?(?:inf|nan)|true|false",
    re.IGNORECASE,
)


def quoted_path(path: Path) -> str:
    """A path as the value of an override, whatever characters it has."""
    escaped = str(path).replace("'", r"\'")
    return f"'{escaped}'"


def working_folder() -> Path:
    """Raises ConfigError where it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "the working directory is gone: it was removed; change to another one"
        ) from error


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
                    _check_hydras_part(composed, chosen)
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
        parsed = self._parsed(overrides)
        self._check(overrides, multirun=True)
        of_parts = self._of_soaks(overrides)
        shared = [
            override.input_line or ""
            for text, override in zip(overrides, parsed, strict=True)
            if not override.is_sweep_override() and text not in of_parts
        ]
        return self._with_all_benchmarks(shared)

    def checked_first(self, overrides: Sequence[str]) -> list[str]:
        """The overrides that don't need the parts of an experiment to be checked."""
        of_parts = self._of_soaks(overrides)
        return [word for word in overrides if word not in of_parts]

    def _of_soaks(self, overrides: Sequence[str]) -> list[str]:
        """The overrides that only those parts of an experiment take that are soaks."""
        if SOAK in overrides or not any(word.startswith(EXPERIMENT) for word in overrides):
            return []
        keys = self.keys_of(overrides)
        return [word for word, key in zip(overrides, keys, strict=True) if key in SOAK_KEYS]

    def options(self, group: str) -> list[str]:
        """The names of a group's files."""
        own = (
            ()
            if self._config_dir is None
            else (path.stem for path in (self._config_dir / group).glob("*.yaml"))
        )
        return sorted({*_packaged_options(group), *own})

    def _parsed(self, overrides: Sequence[str]) -> list[Override]:
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        for override in overrides:
            if override not in self._overrides:
                text = _normalized(override)
                try:
                    (parsed,) = parser.parse_overrides([text])
                # a number of 5000 digits, 1000 brackets
                except (HydraException, ValueError, RecursionError) as error:
                    raise ConfigError(_unreadable(text)) from error
                if not parsed.key_or_group:
                    raise ConfigError(_unreadable(text))
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
                key is None or key.axis or key.kind is Kind.OTHER
            )
            if isinstance(value, list) and not takes_list:
                raise list_refusal(name, value)
            if name in COMPOSED_GROUPS and not override.is_delete():
                known = self.options(name) + ([EVERY] if name == "benchmark" else [])
                for choice in _choices(override):
                    if choice not in known:
                        seen = "null" if choice is None else choice
                        hint = OTHER_WRITERS.get(seen, "") if name == "writer" else ""
                        raise ConfigError(
                            f"{name}={seen} is unknown; {hint or did_you_mean(seen, known)}allowed:"
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


def _check_hydras_part(config: DictConfig, chosen: Sequence[str]) -> None:
    """Raises ConfigError where a file sets what makes Hydra load code, start programs or write
    files.

    So all that Hydra reads below `hydra` must be what it is without the user's files.
    """
    given = [word for word in chosen if word.lstrip("+~").startswith("hydra")]
    expected = _hydra_settings(compose("config", overrides=given, return_hydra_config=True))
    composed = _hydra_settings(config)
    for key in sorted({*composed, *expected}):
        if composed.get(key) != expected.get(key):
            raise ConfigError(
                f"a file sets hydra.{key}; give hydra.{key}=... on the command line, and a sweep as"
                " a line of `parts`"
            )


def _hydra_settings(config: DictConfig) -> dict[str, Any]:
    """Each key below `hydra` with its value, without those that Hydra computes."""
    node: Any = OmegaConf.to_container(config.hydra, resolve=False)
    words = node["overrides"]["hydra"]
    node["overrides"]["hydra"] = [word for word in words if not word.startswith(SEARCHED)]
    settings = dict[str, Any]()
    for group, values in node.items():
        inner = values.items() if isinstance(values, dict) else [("", values)]
        settings |= {f"{group}.{name}".rstrip("."): value for name, value in inner}
    computed = tuple(f"{key}." for key in COMPUTED_HYDRA_KEYS)
    return {key: value for key, value in settings.items() if not f"{key}.".startswith(computed)}


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
    return [list(point) for point in product(*choices.values())]


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


def _normalized(override: str) -> str:
    """The override in Hydra's grammar, which has no new keys and exact numbers in env, and no
    comparisons in expect."""
    key, _, value = override.partition("=")
    name = key.lstrip("+").removeprefix("env.")
    if value.strip("'") == MASK and key.lstrip("+").startswith("env."):
        return f"++env.{name}={_exported_secret(name)}"
    if name == "env" and value[:1] == "{":
        value = MAP_ENTRY.sub(_exported_entry, value)
    if (
        key.startswith("env.")
        and value not in ("", "null")
        and value[0] not in '[{"'
        and not set(value) & set("',(")
    ):
        return f"++{key}='{value}'"  # 1e3 stays 1e3
    if name == "env" or key.lstrip("+").startswith("env."):
        pattern = MAPPED_WORDS if value[:1] == "{" else WORDS
        sign = "++" if override.startswith(("env.", "env={")) else ""
        return f"{sign}{key}={pattern.sub(_text_word, value)}"
    if is_text(name):
        return f"{key}={WORDS.sub(_text_word, value)}"
    if key == "expect" and set(value) & set("<>") and not set(value) & set("'\""):
        texts = [f"'{text.strip()}'" for text in value.strip("[]").split(",")]
        return f"expect=[{','.join(texts)}]" if value.startswith("[") else f"expect='{value}'"
    return override


def _exported_secret(name: str) -> str:
    """A value that was recorded as ***, quoted. Raises ConfigError where it is not exported."""
    if name not in os.environ:
        raise ConfigError(
            f"env.{name} is a credential and was not recorded; export {name}=... and try again"
        )
    return _quoted(os.environ[name])


def _exported_entry(match: re.Match[str]) -> str:
    name, colon, value = match.groups()
    is_masked = value.strip("'") == MASK
    return f"{name}{colon}{_exported_secret(name)}" if is_masked else match[0]


def _text_word(match: re.Match[str]) -> str:
    """A word of a value as text: 1.10 is neither 1.1 nor a number, and may have parameters with
    equals signs."""
    word = match[0].strip()
    quoted = word[:1] in ("'", '"')
    needs_quotes = NOT_A_TEXT.fullmatch(word) or ("=" in word and not quoted)
    return f"'{word}'" if needs_quotes else match[0]


def _quoted(text: str) -> str:
    """A string literal of Hydra's grammar, where a backslash is literal except right before a
    quote."""
    escaped = re.sub(r"(?<!\\)(\\*)'", r"\1\1\\'", text)
    return f"'{escaped}{escaped[len(escaped.rstrip(chr(92))) :]}'"


def override_texts(*given: str | Mapping[str, Any]) -> list[str]:
    """Overrides given from Python in the form of the command line: a mapping becomes one for each
    key that it sets.

    Raises ConfigError for a key that is not a text and for a value of an unsupported type.
    """
    texts: list[str] = []
    for item in given:
        if isinstance(item, str):
            texts.append(item)
            continue
        if not isinstance(item, Mapping):
            raise ConfigError(
                f"{item!r} is not an override; give KEY=VALUE texts, a dict, or keywords:"
                " backend='gloo'"
            )
        for key, value in item.items():
            if not isinstance(key, str):
                raise ConfigError(f"{key!r} is not a key; keys are texts, such as 'timing.visits'")
            if isinstance(value, Mapping) and value:
                texts += override_texts({f"{key}.{name}": entry for name, entry in value.items()})
            else:
                texts.append(f"{key}={_value_text(key, value)}")
    return texts


def _value_text(key: str, value: Any) -> str:
    """A value in Hydra's grammar. Texts in brackets are lists and maps, as on the command line."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (list, tuple, range)):
        return f"[{','.join(_value_text(key, entry) for entry in value)}]"
    if isinstance(value, Mapping):  # an empty one; others are keys of their own
        return "{}"
    if isinstance(value, (str, Path)):
        text = str(value)
        plain = re.fullmatch(r"[\w./:*+%@-]+|[\[{].*[\]}]", text, re.ASCII)
        return text if plain and text.lower() != "null" else _quoted(text)
    if (
        isinstance(value, (int, float))
        or hasattr(value, "__index__")
        or hasattr(value, "__float__")
    ):
        return str(value)  # numpy's numbers too
    raise ConfigError(
        f"{key}={value!r} is a {type(value).__name__}; give a text, number, boolean, None, list or"
        " dict"
    )


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


def _unreadable(override: str) -> str:
    key, sign, value = override.lstrip("+").partition("=")
    if not sign:
        return f"{override!r} is neither KEY=VALUE nor a command (doctor)"
    if not key:
        return f"{override!r} has no key; write KEY=VALUE"
    return (
        f"can't read {key}={value}; text with special characters needs quotes within quotes:"
        f" \"{key}='TEXT'\""
    )


def _hydra_message(error: BaseException) -> str:
    """One line with what was seen and what is allowed, from the many of Hydra's message."""
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


@dataclass(frozen=True)
class RequestedJobs:
    """The jobs of a command line. `fresh_worlds`: each job needs its own world.

    `refused`: why parts of `experiment` can't run in this installation; `smaller`: its overrides
    with scale=cpu.
    """

    jobs: tuple[Job, ...]
    fresh_worlds: bool
    experiment: str | None = None
    refused: tuple[str, ...] = ()
    smaller: str | None = None


def requested_jobs(
    composer: ConfigComposer, overrides: Sequence[str], multirun: bool
) -> RequestedJobs:
    """Every job of the command line, checked; raises ConfigError for mistakes of the user."""
    # before an experiment's parts: the user's mistakes first
    jobs = composer.jobs(composer.checked_first(overrides), multirun)
    names = [
        override.removeprefix(EXPERIMENT)
        for override in overrides
        if override.startswith(EXPERIMENT)
    ]
    if not names or names[-1] == "null":
        return RequestedJobs(tuple(jobs), multirun)
    if "," in names[-1]:
        raise ConfigError(f"{EXPERIMENT}{names[-1]} names several; run one experiment at a time")
    part_jobs: list[Job] = []
    refused: list[str] = []
    for part in experiment_parts(composer, overrides):
        try:
            part_jobs += composer.jobs(part, multirun=True)
        except ConfigError as error:
            refused.append(str(error))
    without_part = {
        json.dumps(
            {key: value for key, value in job.config.items() if key != "part"}, sort_keys=True
        ): job
        for job in part_jobs
    }
    chosen = in_run_order(list(without_part.values()))
    shrinks = CPU in jobs[0].config["parts"] and jobs[0].config["scale"] != CPU
    smaller = f"{EXPERIMENT}{names[-1]} scale={CPU}" if shrinks else None
    return RequestedJobs(
        tuple(chosen),
        multirun or len(chosen) != 1,
        names[-1],
        tuple(dict.fromkeys(refused)),
        smaller,
    )


def experiment_parts(composer: ConfigComposer, overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each part of the experiment at its scale. The user's overrides replace those
    of the file.

    A group from the user, as timing=quick, also removes the part's keys below it. Where some parts
    are soaks and others not, the soaks keep their timing, and take SOAK_KEYS, which the others do
    not have; with `part`, all words are for that part.
    """
    config = composer.config(composer.plain(overrides))
    lines = [WORD.findall(str(line)) for line in config.parts.get(str(config.scale)) or ()]
    if not lines:
        return [list(overrides)]
    keys_of_lines = [composer.keys_of_file(line) for line in lines]
    soaks = [SOAK in line for line in lines]
    keys_of_words = dict(zip(overrides, composer.keys_of(overrides), strict=True))
    parts = []
    for number in range(1, len(lines) + 1) if config.part is None else [config.part]:
        meant = keys_of_words
        if config.part is None and any(soaks) and not all(soaks):
            meant = _meant_for(soaks[number - 1], keys_of_words)
        given = set(meant.values())
        keys = keys_of_lines[number - 1]
        kept = [word for word, key in keys.items() if not given & {key, key.partition(".")[0]}]
        parts.append([f"part={number}", *kept, *meant])
    return parts


def _meant_for(is_soak: bool, keys_of_words: Mapping[str, str]) -> dict[str, str]:
    """The user's words, with their keys, without those about timing that are for other parts."""
    if is_soak:
        others = [
            key
            for key in keys_of_words.values()
            if key.partition(".")[0] == TIMING and key not in SOAK_KEYS
        ]
    else:
        others = [] if SOAK in keys_of_words else list(SOAK_KEYS)
    return {word: key for word, key in keys_of_words.items() if key not in others}
