"""YAML of strangers, in --config-dir and as expect: refused by name, before it is composed."""

from __future__ import annotations

import os
from pathlib import Path
from time import process_time

import pytest

from commbench.config.compose import ConfigComposer
from commbench.config.expectations import with_bounds
from commbench.config.user_files import DEEPEST, MOST_BYTES, MOST_REFERENCES, bounded_yaml
from commbench.core.errors import ConfigError

ALIASES = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)
)
REFERENCES = "k0: x\n" + "".join(
    f"k{n}: ${{timing.k{n - 1}}}${{timing.k{n - 1}}}\n" for n in range(1, 40)
)
HOSTILE = {
    "aliases": (ALIASES, "more than 20000 values, those of aliases included"),
    "merges": (MERGES, "more than 20000 values"),
    "references": (REFERENCES, f"more than {MOST_REFERENCES} references"),
    "deep": (f"a: {'[' * 3000}{']' * 3000}", "nest"),
    "deeper than allowed": (f"a: {'[' * DEEPEST}{']' * DEEPEST}", f"more than {DEEPEST} deep"),
    "many": (f"a: [{'1,' * 30_000}]", "more than 20000 values"),
    "large": (f"a: {'x' * MOST_BYTES}", "more than 1 MiB"),
    "itself": ("a: &a [*a]", r"\*a stands for no value"),
    "bytes": ("a: \x00", "(control|special) characters"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_beyond_the_bounds_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text, cause = HOSTILE[name]
    (tmp_path / "timing").mkdir()
    path = tmp_path / "timing" / "own.yaml"
    path.write_text(text)
    begun = process_time()
    with pytest.raises(ConfigError, match=cause) as refused:
        with_bounds(str(path))
    with (
        ConfigComposer(str(tmp_path)) as composer,
        pytest.raises(ConfigError, match=cause) as other,
    ):
        composer.jobs(["timing=own"], multirun=False)
    assert process_time() - begun < 10
    assert str(refused.value) == f"expect={other.value}"
    assert str(other.value).startswith(str(path)) and "\n" not in str(other.value)


def test_what_could_wait_forever_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "timing").mkdir()
    path = tmp_path / "timing" / "own.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a plain file"):
        with_bounds(str(path))
    with ConfigComposer(str(tmp_path)) as composer, pytest.raises(ConfigError, match="unknown"):
        composer.jobs(["timing=own"], multirun=False)


def test_the_largest_allowed_values_are_composed(tmp_path: Path) -> None:
    (tmp_path / "timing").mkdir()
    path = tmp_path / "timing" / "own.yaml"
    depth = DEEPEST - 1
    path.write_text(f"a: {'[' * depth}{']' * depth}\nb: &b [1, 2]\nc: [*b, *b]\n")
    assert bounded_yaml(path) == path.read_text()
    with ConfigComposer(str(tmp_path)) as composer:
        config = composer.config(["timing=own"])
    assert config.timing.c == [[1, 2], [1, 2]]
