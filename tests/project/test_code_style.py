"""One value a statement, names that say something, and no backend named outside of backends/."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from loops import for_each
from source_figures import nodes_of, saved_lines

import commbench

PACKAGE = Path(commbench.__file__).parent
FILES = {str(file.relative_to(PACKAGE)): file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}
SOURCES = [PACKAGE, *(PACKAGE.parent / name for name in ("tests", "tools", "notebooks"))]
BACKENDS = {"gloo", "nccl", "mpi", "cupy_nccl", "ipc_copy", "tcp", "simulated"} | {
    file.stem for file in (PACKAGE.parent / "conf" / "backend").glob("*.yaml")
}


def test_a_statement_assigns_one_value() -> None:
    assert saved_lines("a, b = x, y\nc, d = f()\ne, f = f, e\n") == ["a, b = (x, y)"]
    files = {file: file.read_text() for folder in SOURCES for file in folder.rglob("*.py")}
    assert {str(file): lines for file, text in files.items() if (lines := saved_lines(text))} == {}


def vague_names(source: str) -> set[str]:
    """Names of variables and parameters that do not say what they hold."""
    nodes = nodes_of(source)
    names = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.arg for node in nodes if isinstance(node, ast.arg)
    }
    return names & {"asked", "found", "heard", "it", "lacks", "one", "said", "told", "which"}


def test_names_say_what_they_hold() -> None:
    assert vague_names("found = [one for one in rows]\ndef f(told): pass") == {
        "found",
        "one",
        "told",
    }
    assert {file: names for file, source in FILES.items() if (names := vague_names(source))} == {}


def module_names(node: ast.AST) -> Iterator[str]:
    """Functions, classes and variables of a module, also those below an `if`, a `try` or a `with`,
    and the classes inside a class."""
    in_class = isinstance(node, ast.ClassDef)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield child.name
            yield from module_names(child)
        elif isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from module_names(child)
        elif isinstance(child, ast.FunctionDef) and not in_class:
            yield child.name
        elif isinstance(child, ast.Assign | ast.AnnAssign) and not in_class:
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def searched(name: str) -> tuple[str, str]:
    """A name as a reader would search for it: without its case, but a class is no function and no
    constant."""
    if name.isupper():
        return "constant", name.lower()
    return "class" if name.lstrip("_")[:1].isupper() else "function", name.lower()


def shared_names(files: Mapping[str, str]) -> set[tuple[str, str]]:
    """Names that stand in several modules."""
    modules: dict[tuple[str, str], set[str]] = {}
    for file, source in files.items():
        for name in module_names(ast.parse(source)):
            modules.setdefault(searched(name), set()).add(file)
    return {name for name, places in modules.items() if len(places) > 1}


def test_no_two_modules_share_a_name() -> None:
    """So that a search for a name leads to one place. An operation has the name of the step that it
    measures; the modules of hardware/ and the two processes are called alike."""
    planted = {
        "a.py": "A = b = 1\nclass TimeLine:\n  x = 1\n  class Inner: y = 1\ndef d(): e = 1\n",
        "b.py": "try:\n  import c\nexcept ImportError:\n  B = a = 1\nif B:\n  def d(): pass\n",
        "c.py": "class Timeline:\n  x = 2\n  def d(self): pass\nINNER = inner = 1\n",
        "d.py": "class Inner: pass\ny: int = 1\n",
    }
    classes = {("class", "inner"), ("class", "timeline")}
    assert shared_names(planted) == {("function", "d"), *classes}
    files = {file: source for file, source in FILES.items() if file != "__init__.py"}
    operations = {
        searched(name)
        for file, source in files.items()
        if file.startswith("benchmarks/")
        for name in module_names(ast.parse(source))
    }
    # of samples (measure/) and of a soak's rows (writers/)
    unsolved = {("class", "timeline")}
    assert shared_names(files) - operations - unsolved == {
        ("constant", "sources"),
        ("function", "collect"),
        ("function", "main"),
    }


def decisions(source: str) -> list[str]:
    """Comparisons with a backend's name: `x == "gloo"`, `x in ("gloo", "nccl")`, `case "gloo":`."""
    lines = []
    for node in nodes_of(source):
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


@for_each("file", [name for name in FILES if not name.startswith("backends/")])
def test_no_backend_is_named_outside_of_backends(file: str) -> None:
    assert decisions(FILES[file]) == []


@for_each(
    "source",
    [
        "if settings.backend.name == 'gloo': pass",
        "x = name in ('nccl', 'mpi')",
        "x = 'tcp' != name",
        "match name:\n    case 'mpi': pass",
        "name.startswith('gloo')",
    ],
)
def test_a_planted_decision_is_found(source: str) -> None:
    assert decisions(source)


def test_no_benchmark_speaks_of_a_backend() -> None:
    for file, source in FILES.items():
        if file.startswith("benchmarks/"):
            words = {
                node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)
            }
            assert not words & BACKENDS, file
