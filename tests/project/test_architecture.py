"""What import-linter does not see of the imports (setup.cfg, `make check`), and the picture of the
packages."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

from places import ROOT

import commbench
from commbench.cli.jobs import HERE
from commbench.config.compose import ConfigComposer

PACKAGE = Path(commbench.__file__).parent
BESIDE = ("features", "cluster")  # of the core
COMPILED = "commbench.engines.native"
MEASURED = {"torch", "mpi4py", "cupy", "numba", "llvmlite", "pynvml"}  # or slow to import


def test_the_picture_in_the_design_document_is_the_package() -> None:
    """docs/design.md draws the packages from the top down, in the order that import-linter
    holds."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    layers = setup["importlinter:contract:floors"]["layers"].replace("|", " ").split()
    picture = re.findall(r"```\n(.*?)```", (ROOT / "docs" / "design.md").read_text(), flags=re.S)[0]
    drawn = re.findall(r"^(\S+) ", picture, flags=re.M)
    assert drawn == [layer for layer in layers if layer != "__main__"]
    code = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert set(drawn) == code - {"conf"}


def test_names_given_with_a_file_in_the_design_document_stand_in_it() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    named = re.findall(r"`((?:\w+/)+\w+\.py)` \(`(\w+)`", text)
    assert named
    for file, name in named:
        path = ROOT / file if file.startswith("tests/") else ROOT / "commbench" / file
        assert re.search(rf"\b{name}\b", path.read_text()), f"{file}: {name}"


def test_what_is_used_of_the_inside_of_hydra_is_in_one_file_and_still_there() -> None:
    """Hydra makes a launcher only with its callbacks, and its default launcher has no public
    name."""
    names = {
        name: file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        for name in re.findall(r"\bhydra\._internal[.\w]*", file.read_text())
    }
    assert set(names.values()) == {"cli/jobs.py", "config/user_files.py"}
    assert all(resolve_name(name) for name in names), "Hydra has moved it"
    with ConfigComposer() as composer:
        assert composer.hydra_config([]).hydra.launcher["_target_"] == HERE, "Hydra has renamed it"


IMPORT_ALL = f"""
import importlib, pkgutil, sys
import commbench, commbench_replay
for package in commbench, commbench_replay:
    for one in pkgutil.walk_packages(package.__path__, f"{{package.__name__}}."):
        if one.name != "{COMPILED}":
            importlib.import_module(one.name)
print("imported", *sorted({MEASURED!r} & set(sys.modules)))
"""


def test_importing_everything_loads_no_measured_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["imported"], done.stderr
