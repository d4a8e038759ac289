"""The core names features, and what they have, only where docs/design.md says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from places import ROOT

PACKAGE = ROOT / "commbench"
BESIDE = ("features", "cluster", "conf")  # of the core
# files whose texts mean something else
OTHERWISE = {
    "backends/mpi/backend.py": "a stream of a GPU",
    "backends/torch/distributed.py": "a stream of a GPU",
    "benchmarks/all_to_all_v.py": "an operation of the core, whose file is in `traffic`",
    "core/protocols.py": "an exchange of values between ranks",
    "runtime/rendezvous.py": "an exchange of addresses between ranks",
    "engines/native.py": "a copy that goes on where the last one ended",
}
CORE = {
    name: file
    for file in sorted(PACKAGE.rglob("*.py"))
    if (name := file.relative_to(PACKAGE).as_posix()).split("/")[0] not in BESIDE
}


def said(beginning: str) -> set[str]:
    """The files in the sentence of the document that begins so."""
    text = (ROOT / "docs" / "design.md").read_text()
    (sentence,) = re.findall(rf"{beginning}: (.*?)\. ", text.replace("\n", " "))
    return set(re.findall(r"`([\w/]+\.py)`", sentence))


def texts(source: str) -> Iterator[str]:
    """The strings of a module that are no docstrings."""
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def own_words() -> set[str]:
    """Operations and timings that lie with features, and the keys that only these timings have."""

    def keys(files: Iterator[Path]) -> set[str]:
        return {key for file in files for key in yaml.safe_load(file.read_text())}

    own = keys(PACKAGE.glob("features/*/timing/*.yaml"))
    others = keys((ROOT / "conf").glob("timing/*.yaml"))
    groups = ("benchmark", "timing")
    names = {file.stem for each in groups for file in PACKAGE.glob(f"features/*/{each}/*.yaml")}
    return names | (own - others)


def test_the_core_names_a_folder_of_features_where_it_must() -> None:
    folders = "|".join(path.parent.name for path in PACKAGE.glob("features/*/__init__.py"))
    named = re.compile(rf'(?:features|\{{FEATURES\}})\.(?:{folders})\b|feature="(?:{folders})"')
    naming = {name for name, file in CORE.items() if named.search(file.read_text())}
    assert naming == said("It names them in these files only"), "let SHOWING or another one say it"


def test_the_core_names_what_features_have_where_it_must() -> None:
    words = own_words()
    assert {"soak", "stream", "duration_s", "interval_s"} <= words
    named = re.compile(rf"\b(?:{'|'.join(sorted(words))})\b")
    naming = {
        name for name, file in CORE.items() if any(map(named.search, texts(file.read_text())))
    }
    expected = said("It names their operations, timings and keys of timings in these")
    assert naming - expected == {*OTHERWISE}, "ask a row, a shape or the settings"
    assert expected <= naming
