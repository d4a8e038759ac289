"""Every YAML composes, builds what it names, and says what it is."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from pathlib import Path

import pytest
import yaml
from composed import written_in
from loops import for_each
from places import BACKENDS, BENCHMARKS, EXPERIMENTS, LAUNCHERS

import commbench
from commbench.config.compose import COMPOSED_GROUPS, ConfigComposer, resolved
from commbench.config.keys import KEY_TABLE, KEYS, Key, KeyKind
from commbench.config.settings import Settings, from_config
from commbench.config.targets import construct
from commbench.measure.visits import coverage

CONF = Path(commbench.__file__).parent.parent / "conf"
FILES = sorted(
    {
        *CONF.glob("*/*.yaml"),
        *(
            file
            for group in (BACKENDS, BENCHMARKS, EXPERIMENTS, LAUNCHERS)
            for file in group.values()
        ),
    }
)
NAMES = [f"{file.parent.name}/{file.stem}" for file in FILES]
TARGETS = [file for file in FILES if "_target_" in (yaml.safe_load(file.read_text()) or {})]
CONFIG = (CONF / "config.yaml").read_text()
# group -> key
PACKAGES = {key.group: key.name for key in KEY_TABLE if key.kind is KeyKind.GROUP and key.axis}
OUTSIDE_KEYS = {"defaults", "hydra"}  # Hydra's own


@pytest.fixture(scope="module")
def composer() -> Iterator[ConfigComposer]:
    with ConfigComposer() as opened:
        yield opened


def override(name: str) -> str:
    group, _, option = name.partition("/")
    return f"{group}=[{option}]" if group in PACKAGES else f"{group}={option}"


def lines() -> list[list[str]]:
    """As few lines as have every file: one of each group; an experiment is alone."""
    groups: dict[str, list[str]] = {group: [] for group in COMPOSED_GROUPS}
    for name in NAMES:
        groups[name.partition("/")[0]].append(override(name))
    alone = [[word] for word in groups.pop("experiment")]
    return alone + [[word for word in words if word] for words in zip_longest(*groups.values())]


@for_each("words", lines())
def test_every_file_composes_and_builds(words: list[str], composer: ConfigComposer) -> None:
    (job,) = composer.jobs(words, multirun=False)
    assert isinstance(job.settings, Settings)
    assert set(words) <= set(job.overrides)


def test_every_folder_is_a_group_that_the_composer_knows() -> None:
    assert {file.parent.name for file in FILES} <= set(COMPOSED_GROUPS)


def test_no_group_has_folders_of_its_own() -> None:
    assert [path for path in CONF.glob("*/*") if path.is_dir() and path.name != "__pycache__"] == []


@for_each("file", TARGETS)
def test_a_target_exists_and_has_the_keys_that_are_written_down(file: Path) -> None:
    node = written_in(file)
    module, _, kind = node["_target_"].rpartition(".")
    built = getattr(importlib.import_module(module), kind)
    assert is_dataclass(built) and isinstance(built, type)
    assert set(node) - {"_target_"} <= {field.name for field in fields(built)}
    assert isinstance(construct(node, file.parent.name, ()), built)


@for_each("file", [file for file in TARGETS if file.parent.name == "backend"])
def test_a_backends_file_shows_the_defaults_of_its_class(file: Path) -> None:
    node = written_in(file)
    assert construct(node, "backend", ()) == construct(
        {"_target_": node["_target_"]}, "backend", ()
    )


def test_a_timing_carries_the_name_of_its_file() -> None:
    names = {
        file.stem: yaml.safe_load(file.read_text())["name"]
        for file in (CONF / "timing").glob("*.yaml")
    }
    assert names == {stem: stem for stem in names}


@pytest.mark.parametrize(
    ("name", "visits", "launches", "level"),
    [
        ("quick", 3, 1, 0.75),
        ("default", 6, 1, 0.95),
        ("rigorous", 3, 6, 0.95),
        ("fixed", 1, 1, None),
        ("soak", 1, 1, None),
    ],
)
def test_a_timing_has_the_visits_that_its_level_needs(
    composer: ConfigComposer, name: str, visits: int, launches: int, level: float | None
) -> None:
    """The interval of a single visit is that of its repetitions."""
    timing = composer.jobs([f"timing={name}"], multirun=False)[0].settings.timing
    assert (timing.visits, timing.launches) == (visits, launches)
    assert level is None or coverage(launches if launches > 1 else visits, 1) >= level


def test_a_fixed_number_of_repetitions_is_made_in_one_visit(composer: ConfigComposer) -> None:
    given = ["timing=rigorous", "timing.launches=3"]
    (kept,) = composer.jobs(given, multirun=False)
    (fixed,) = composer.jobs([*given, "timing.repetitions=50"], multirun=False)
    assert (kept.settings.timing.visits, kept.settings.timing.launches) == (3, 3)
    assert (fixed.settings.timing.visits, fixed.settings.timing.launches) == (1, 1)


@for_each("file", [*FILES, CONF / "config.yaml"])
def test_every_file_begins_with_a_comment(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 10


@for_each("file", [file for file in FILES if file.parent.name in PACKAGES])
def test_files_of_a_group_with_several_choices_name_their_package(file: Path) -> None:
    assert file.read_text().startswith(f"# @package {PACKAGES[file.parent.name]}.{file.stem}\n")


def test_a_file_is_named_after_what_it_builds(composer: ConfigComposer) -> None:
    for group in ("backend", "benchmark", "launcher", "writer"):
        for file in (file for file in FILES if file.parent.name == group):
            node = yaml.safe_load(file.read_text())
            if "_target_" in node:
                module, _, kind = node["_target_"].rpartition(".")
                built = getattr(importlib.import_module(module), kind)
                assert getattr(built, "name", file.stem) == file.stem


# ---------------------------------------------------------------- config.yaml


def test_every_key_is_one_that_settings_know(composer: ConfigComposer) -> None:
    composed = {str(key) for key in composer.config([])}
    assert composed <= set(KEYS)
    assert set(KEYS) <= composed, "a key without a default can't be given on the command line"
    assert isinstance(from_config(resolved(composer.config([]))), Settings)


def explained(text: str) -> dict[str, bool]:
    """Key -> whether a comment stands beside it."""
    commented = {}
    for line in text.splitlines():
        match = re.match(r"^(\s*)([A-Za-z_]+):(.*)$", line)
        if match:
            commented[match[2]] = "# " in match[3]
    return commented


def test_every_key_has_a_comment() -> None:
    """But budget, whose own keys have theirs; groups are explained by their files."""
    body = CONFIG.split("- _self_")[1].split("\nhydra:")[0]
    comments = explained(body)
    assert {"layout", "sizes", "budget", "memory_share", "seed"} <= set(comments)
    assert [key for key, has in comments.items() if not has and key != "budget"] == []


@for_each("key", [key for key in KEY_TABLE if key.choices])
def test_a_comment_names_every_choice(key: Key) -> None:
    (line,) = re.findall(rf"^{key.name}: .*$", CONFIG, re.MULTILINE)
    assert [choice for choice in key.choices if not re.search(rf"\b{choice}\b", line)] == []


def test_hydra_writes_nothing_of_its_own() -> None:
    node = yaml.safe_load(CONFIG)["hydra"]
    assert node["output_subdir"] is None
    assert node["run"]["dir"] == node["sweep"]["dir"] == node["sweep"]["subdir"] == "."
    assert node["job"]["chdir"] is False
    assert (
        "override hydra/job_logging: none" in CONFIG
        and "override hydra/hydra_logging: none" in CONFIG
    )


def test_the_installed_configuration_is_this_one() -> None:
    from importlib.resources import files

    assert (files("commbench.conf") / "config.yaml").read_text() == CONFIG
