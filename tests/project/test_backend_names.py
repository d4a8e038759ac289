"""No backend is named outside of backends/ and the features that have one."""

from __future__ import annotations

import ast
from pathlib import Path

from loops import for_each
from places import BACKENDS, PACKAGES, ROOT

FILES = {
    str(file.relative_to(package.parent)): file.read_text()
    for package in PACKAGES
    for file in sorted(package.rglob("*.py"))
}
# of a feature: FOLDER/backend/NAME.yaml
FOLDERS = {str(file.parents[1].relative_to(ROOT)) for file in BACKENDS.values()}
OUTSIDE = [
    name
    for name in FILES
    if not name.startswith("commbench/backends/") and str(Path(name).parent) not in FOLDERS
]


def decisions(source: str) -> list[str]:
    """Comparisons with a backend's name: `x == "gloo"`, `x in ("gloo", "nccl")`, `case "gloo":`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "startswith"
        ):
            parts = list(node.args)
        words = (
            child.value
            for part in parts
            for child in ast.walk(part)
            if isinstance(child, ast.Constant)
        )
        lines += [
            f"line {getattr(node, 'lineno', 0)}: {word}" for word in words if word in BACKENDS
        ]
    return lines


@for_each("file", OUTSIDE)
def test_no_backend_is_named_outside_of_backends(file: str) -> None:
    assert decisions(FILES[file]) == []


def test_no_benchmark_speaks_of_a_backend() -> None:
    for file, source in FILES.items():
        if file.startswith("commbench/benchmarks/"):
            words = {
                node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)
            }
            assert not words & {*BACKENDS}, file


def test_what_the_simulated_world_is_stands_in_one_place() -> None:
    """`Case.has_model_clock`, `Backend.hosts_ranks`, `World.is_hosted`."""
    words = ('"virtual"', 'launchers == "none"', 'launchers != "none"')
    places = {file for file, source in FILES.items() for word in words if word in source}
    expected = {"core/variables.py", "core/protocols.py", "features/simulated/backend.py"}
    assert places == {f"commbench/{file}" for file in expected}
