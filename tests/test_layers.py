"""The house of DESIGN section 3, held by its imports: lazy ones and those for type checkers count as well."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import commbench

PACKAGE = Path(commbench.__file__).parent
MODULES = {
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
ROOMS = """
0 words       contracts records clock units errors dtypes printable
1 parts       stats headline schema settings expectation keys options layout pairs timeline links bounds
1 parts       memory device_memory staging payload mpi_library folder earlier progress redaction address
1 parts       nvml nic_counters cuda_ipc ipc_memory ipc_probe
1 engines     engines
2 backends    backends
2 benchmarks  benchmarks
2 launchers   launchers
2 provenance  provenance
2 writers     writers
2 report      report
3 plan        plan
3 measure     measure contents deadlines stopping window global_clock
3 launch      launch keeper deaths segments
3 world       control node_control world pulse slurm entrance
3 rows        rows expect floor wiring gpu_bounds wire_load evidence
3 preflight   preflight difference shared_gpus
3 beacon      beacon
3 jobs        jobs experiments machine
4 session     session witness
4 doctor      doctor
5 app         app ab sweep
6 door        __main__
"""
FORBIDDEN_NAMES = {"utils", "util", "common", "base", "helpers", "misc"}
LIBRARIES = {"torch", "mpi4py", "cupy", "numba", "llvmlite", "pynvml"}
PURE = {"__future__", "collections", "dataclasses", "functools", "itertools", "math", "typing"}
BENCHMARKS_MAY = {f"commbench.{name}" for name in ("contracts", "records", "units", "errors", "dtypes", "payload")}
READERS = {"app", "__main__", "doctor", "ab"}  # who may open the report


@dataclass(frozen=True, order=True)
class Room:
    floor: int
    name: str


@dataclass(frozen=True)
class Import:
    target: str  # a module, commbench's or another's
    line: int
    lazy: bool  # inside a function, or for type checkers only


def house() -> dict[str, Room]:
    """First name below commbench -> its room."""
    rows = (line.split() for line in ROOMS.split("\n") if line)
    return {module: Room(int(floor), name) for floor, name, *modules in rows for module in modules}


HOUSE = house()


def room_of(module: str) -> Room:
    first = module.split(".")[1] if "." in module else module
    assert first in HOUSE, f"{module} has no room: add it to ROOMS, after reading DESIGN section 3"
    return HOUSE[first]


def imports_of(source: str, module: str, package: bool = False) -> list[Import]:
    return list(_imports(ast.parse(source), module.split(".") if package else module.split(".")[:-1], lazy=False))


def _imports(node: ast.AST, package: list[str], lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        inside = inside or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        for target in _targets(child, package):
            yield Import(target, getattr(child, "lineno", 0), inside)
        yield from _imports(child, package, inside)


def _targets(node: ast.AST, package: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        above = package[: len(package) - node.level + 1] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        return [_module(origin, alias.name) for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
        return [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return []


def _module(origin: str, name: str) -> str:
    """`from commbench import clock` imports commbench.clock, and so does `from commbench.clock import now_ns`."""
    return f"{origin}.{name}" if origin == "commbench" or f"{origin}.{name}" in MODULES else origin


def breaches(module: str, source: str, package: bool = False) -> list[str]:
    """Imports that the house does not allow."""
    own, found = room_of(module), []
    for one in imports_of(source, module, package):
        if one.target.split(".")[0] != "commbench":
            continue
        other = room_of(one.target)
        if other != own and other.floor >= own.floor:
            where = "the same floor" if other.floor == own.floor else "above"
            found.append(f"{module}:{one.line} imports {one.target}, a room on {where} ({own.name} -> {other.name})")
    return found


ALL_IMPORTS = {
    name: imports_of(file.read_text(), name, file.name == "__init__.py")
    for name, file in MODULES.items()
    if name != "commbench"  # exempt: lazy public names
}


def in_room(name: str) -> dict[str, list[Import]]:
    return {module: imports for module, imports in ALL_IMPORTS.items() if room_of(module).name == name}


@pytest.mark.parametrize("module", ALL_IMPORTS)
def test_imports_point_downwards(module: str) -> None:
    file = MODULES[module]
    assert breaches(module, file.read_text(), file.name == "__init__.py") == []


def test_every_room_exists() -> None:
    assert {module.split(".")[1] for module in ALL_IMPORTS} == set(HOUSE), "ROOMS names what is not there"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("commbench.plan", "from commbench.measure import measure"),
        ("commbench.plan", "import commbench.session"),
        ("commbench.plan", "def late():\n    from commbench import app"),
        ("commbench.plan", "if TYPE_CHECKING:\n    from commbench.jobs import Door"),
        ("commbench.plan", "importlib.import_module('commbench.world')"),
        ("commbench.stats", "from commbench.engines.native import NativeCall"),
        ("commbench.engines.virtual", "from commbench.memory import HostBuffer"),
        ("commbench.engines.virtual", "from ..memory import HostBuffer"),
        ("commbench.engines.virtual", "from .. import memory"),
        ("commbench.writers.console", "from commbench.report.load import load"),
        ("commbench.clock", "from commbench.stats import lag1"),
    ],
)
def test_a_planted_breach_is_found(module: str, source: str) -> None:
    assert len(breaches(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("commbench.world", "from commbench.control import Alone"),
        ("commbench.rows", "from commbench import clock, stats"),
        ("commbench.engines.native", "from .lowered import Lowered"),
        ("commbench.units", "from commbench.errors import ConfigError\nimport numpy"),
    ],
)
def test_a_neighbour_of_the_same_room_and_all_below_are_allowed(module: str, source: str) -> None:
    assert breaches(module, source) == []


def test_an_unknown_module_and_the_public_door_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"commbench\.shed has no room"):
        breaches("commbench.shed", "")
    with pytest.raises(AssertionError, match=r"commbench\.load has no room"):
        breaches("commbench.session", "from commbench import load")


def test_no_module_is_a_drawer_for_everything() -> None:
    assert [name for name in MODULES if name.rpartition(".")[2].strip("_") in FORBIDDEN_NAMES] == []


def test_benchmarks_are_pure() -> None:
    """L0 without the clock, the payload, and what needs neither machine nor library."""
    foreign = [
        f"{module}:{one.line} {one.target}"
        for module, imports in in_room("benchmarks").items()
        for one in imports
        if one.target.split(".")[0] not in PURE
        and not one.target.startswith("commbench.benchmarks")
        and one.target not in BENCHMARKS_MAY
    ]
    assert foreign == []


def test_the_report_needs_neither_engines_nor_torch() -> None:
    rooms, others = set(), set()
    for imports in in_room("report").values():
        rooms |= {room_of(one.target).name for one in imports if one.target.startswith("commbench.")}
        others |= {one.target.split(".")[0] for one in imports}
    assert rooms <= {"words", "parts", "report"}
    assert not others & (LIBRARIES | {"hydra"})


def test_only_the_door_opens_the_report() -> None:
    readers = {
        module.split(".")[1]
        for module, imports in ALL_IMPORTS.items()
        if any(one.target.startswith("commbench.report") for one in imports)
    }
    assert readers - {"report"} <= READERS


@pytest.mark.parametrize("module", [name for name in ALL_IMPORTS if name != "commbench.engines.native_loop"])
def test_measured_libraries_are_imported_late(module: str) -> None:
    early = [
        f"line {one.line}: {one.target}"
        for one in ALL_IMPORTS[module]
        if not one.lazy and one.target.split(".")[0] in LIBRARIES
    ]
    assert early == []


def test_only_the_native_engine_compiles() -> None:
    users = {name for name, imports in ALL_IMPORTS.items() for one in imports if one.target.endswith("native_loop")}
    assert users == {"commbench.engines.native"}


IMPORT_ALL = """
import importlib, pkgutil, sys
import commbench
names = [one.name for one in pkgutil.walk_packages(commbench.__path__, "commbench.")]
for name in names:
    if name != "commbench.engines.native_loop":
        importlib.import_module(name)
print(len(names), *sorted({"torch", "mpi4py", "cupy", "numba", "pynvml"} & set(sys.modules)))
"""


def test_importing_everything_loads_no_measured_library() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=60)
    count, *loaded = done.stdout.split() or [done.stderr]
    assert int(count) >= len(MODULES) - 1
    assert loaded == []
