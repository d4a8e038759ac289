"""What the imports must be beyond the floors, which import-linter holds (setup.cfg, `make
check`)."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest
from loops import for_each
from places import ROOT

import commbench
from commbench.cli.jobs import HERE
from commbench.config.compose import ConfigComposer

PACKAGE = Path(commbench.__file__).parent
FORBIDDEN_NAMES = {"utils", "util", "common", "base", "helpers", "misc"}
LIBRARIES = {"torch", "mpi4py", "cupy", "numba", "llvmlite", "pynvml"}  # measured or slow to import
PURE = {
    "__future__", "collections", "dataclasses", "functools", "hashlib", "itertools", "math",
    "numpy", "re", "typing",
    "pathlib",  # the files of a traffic matrix and of a workload
}  # fmt: skip
COMPILED = "commbench.engines.native"


@dataclass(frozen=True)
class Import:
    target: str
    line: int
    lazy: bool  # inside a function, or for type checkers only


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def imports_of(source: str, package: list[str]) -> Iterator[Import]:
    yield from _imports(ast.parse(source), package, lazy=False)


def _imports(node: ast.AST, package: list[str], lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        inside = inside or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, inside) for alias in child.names)
        if isinstance(child, ast.ImportFrom):
            above = package[: len(package) - child.level + 1] if child.level else []
            yield Import(
                ".".join([*above, *([child.module] if child.module else [])]), child.lineno, inside
            )
        yield from _imports(child, package, inside)


MODULES = {  # the package's own file is exempt: lazy public names
    module_name(file): file
    for file in sorted(PACKAGE.rglob("*.py"))
    if file != PACKAGE / "__init__.py"
}


@cache
def imports_of_module(module: str) -> list[Import]:
    file = MODULES[module]
    return list(imports_of(file.read_text(), list(file.relative_to(PACKAGE.parent).parent.parts)))


def room_of(module: str) -> str:
    return module.split(".")[1] if module.startswith("commbench.") else module


def in_room(room: str) -> Iterator[tuple[str, Import]]:
    return (
        (name, imported)
        for name in MODULES
        if room_of(name) == room
        for imported in imports_of_module(name)
    )


def test_the_picture_in_the_design_document_is_the_package() -> None:
    """docs/design.md draws the packages from the top down, in the order that import-linter
    holds."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    layers = setup["importlinter:contract:floors"]["layers"].replace("|", " ").split()
    picture = re.findall(r"```\n(.*?)```", (ROOT / "docs" / "design.md").read_text(), flags=re.S)[0]
    drawn = re.findall(r"^(\S+) ", picture, flags=re.M)
    assert drawn == [layer for layer in layers if layer != "__main__"]
    assert set(drawn) == {
        path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()
    }


def test_names_given_with_a_file_in_the_design_document_stand_in_it() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    named = re.findall(r"`((?:\w+/)+\w+\.py)` \(`(\w+)`", text)
    assert named
    for file, name in named:
        path = ROOT / file if file.startswith("tests/") else ROOT / "commbench" / file
        assert re.search(rf"\b{name}\b", path.read_text()), f"{file}: {name}"


def test_no_module_is_called_utils_or_alike() -> None:
    assert [name for name in MODULES if name.rpartition(".")[2].strip("_") in FORBIDDEN_NAMES] == []


def test_benchmarks_need_neither_clock_nor_library() -> None:
    foreign = [
        f"{module}:{imported.line} {imported.target}"
        for module, imported in in_room("benchmarks")
        if (
            imported.target.split(".")[0] not in PURE
            and room_of(imported.target) not in ("benchmarks", "core", "workloads")
        )
    ]
    assert foreign == []


@pytest.mark.parametrize("room", ["results", "stats", "analysis", "report"])
def test_what_reads_needs_no_library_that_is_measured(room: str) -> None:
    targets = {imported.target for _, imported in in_room(room)}
    assert not {target.split(".")[0] for target in targets} & (LIBRARIES | {"hydra"})


@for_each("module", [name for name in MODULES if name != COMPILED])
def test_measured_libraries_are_imported_late(module: str) -> None:
    early = [
        f"line {imported.line}: {imported.target}"
        for imported in imports_of_module(module)
        if not imported.lazy and imported.target.split(".")[0] in LIBRARIES
    ]
    assert early == []


def test_the_compiled_engine_is_imported_late() -> None:
    everything = (imported for name in MODULES for imported in imports_of_module(name))
    lazily = [imported.lazy for imported in everything if imported.target == COMPILED]
    assert lazily and all(lazily)


def test_what_is_used_of_the_inside_of_hydra_is_in_one_file_and_still_there() -> None:
    """Hydra makes a launcher only with its callbacks, and its default launcher has no public
    name."""
    names = {
        name: file.relative_to(PACKAGE).as_posix()
        for file in MODULES.values()
        for name in re.findall(r"\bhydra\._internal[.\w]*", file.read_text())
    }
    assert set(names.values()) == {"cli/jobs.py", "config/user_files.py"}
    assert all(resolve_name(name) for name in names), "Hydra has moved it"
    with ConfigComposer() as composer:
        assert composer.hydra_config([]).hydra.launcher["_target_"] == HERE, "Hydra has renamed it"


IMPORT_ALL = f"""
import importlib, pkgutil, sys
import commbench
names = [one.name for one in pkgutil.walk_packages(commbench.__path__, "commbench.")]
for name in names:
    if name != "{COMPILED}":
        importlib.import_module(name)
print(len(names), *sorted({LIBRARIES!r} & set(sys.modules)))
"""


def test_importing_everything_loads_no_measured_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=60
    )
    count, *loaded = done.stdout.split() or [done.stderr]
    assert int(count) >= len(MODULES)
    assert loaded == []
