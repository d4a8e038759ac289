"""Every regular expression of the package takes time in proportion to the text: what it is given is
foreign, or may be one day."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from time import process_time
from types import ModuleType
from typing import Any

import pytest
from places import PACKAGES

sre: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub")
PUMPS = ("a", "0", " ", "\t ", "-", "_", ".", ":", "/", "<", "(", "[", "\\", "'", '"', "a ", "0:")
LENGTHS = (1_000, 4_000, 16_000, 64_000)  # characters
MOST_GROWTH = 10  # from one length to the next; 4 if linear, 16 if quadratic
UNSEEN_S = 0.05


@dataclass(frozen=True)
class Use:
    place: str
    pattern: str | bytes
    flags: int
    method: str

    def __str__(self) -> str:
        return f"{self.place}:{self.method}"


def uses() -> Iterator[Use]:
    files = [(file, package) for package in PACKAGES for file in sorted(package.rglob("*.py"))]
    for path, package in files:
        tree = ast.parse(path.read_text())
        name = str(path.relative_to(package))
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in METHODS:
                continue
            owner = call.func.value
            if not isinstance(owner, ast.Name):
                continue
            if owner.id == "re" and isinstance(call.args[0], ast.Constant):
                yield Use(f"{name}:{call.lineno}", call.args[0].value, 0, call.func.attr)
            elif owner.id.isupper() and owner.id in compiled_in(tree):
                pattern = vars(import_module(module))[owner.id]
                place = f"{name}:{owner.id}"
                yield Use(place, pattern.pattern, pattern.flags & ~re.UNICODE, call.func.attr)


def compiled_in(tree: ast.Module) -> set[str]:
    """The names of a module that are expressions."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("re.compile(")
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def sample(nodes: Any) -> str:
    """A text that the nodes of an expression match, more or less."""
    return "".join(map(_node_sample, nodes))


def _node_sample(node: Any) -> str:
    kind, value = str(node[0]), node[1]
    if kind == "LITERAL":
        return chr(value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        return sample(value[2]) * max(value[0], 1)
    if kind == "SUBPATTERN":
        return sample(value[-1])
    if kind == "BRANCH":
        return sample(value[1][0])
    if kind in ("IN", "NOT_LITERAL", "ANY"):
        return _member(node)
    return ""


def _member(node: Any) -> str:
    """A character of a class."""
    for character in "a0 :-_./<([,;\n'\"\\=@x]})>{+":
        single = sre.SubPattern(sre.State(), [node])
        if _compiled(single).fullmatch(character):
            return character
    return "\x00"


def _compiled(parsed: Any) -> re.Pattern[str]:
    compiler: ModuleType = import_module(
        "re._compiler" if sys.version_info >= (3, 11) else "sre_compile"
    )
    pattern: re.Pattern[str] = compiler.compile(parsed)
    return pattern


def attacks(nodes: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """What to repeat, and what stands before it: at each place without a bound, and all of it."""
    if not before:
        yield from (("", pump) for pump in (*PUMPS, sample(nodes)) if pump)
    for place, node in enumerate(nodes):
        ahead = before + sample(nodes[:place])
        kind, value = str(node[0]), node[1]
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            if value[1] == sre.MAXREPEAT:
                yield from ((ahead, pump) for pump in (*PUMPS, sample(value[2])) if pump)
            yield from attacks(value[2], ahead or " ")
        elif kind == "SUBPATTERN":
            yield from attacks(value[-1], ahead or " ")


@pytest.mark.parametrize("use", sorted(set(uses()), key=str), ids=str)
def test_time_grows_with_the_length_of_the_text(use: Use) -> None:
    pattern = re.compile(use.pattern, use.flags)
    is_bytes = isinstance(use.pattern, bytes)
    text = use.pattern.decode("latin-1") if isinstance(use.pattern, bytes) else use.pattern
    for before, pump in set(attacks(sre.parse(text, use.flags & ~re.UNICODE))):
        last_s = UNSEEN_S
        for length in LENGTHS:
            attack = before + pump * (length // len(pump)) + "\x00"
            taken_s = seconds(pattern, use.method, attack.encode("latin-1") if is_bytes else attack)
            assert taken_s <= MOST_GROWTH * max(last_s, UNSEEN_S), (before, pump, length)
            last_s = taken_s


def seconds(pattern: Any, method: str, text: str | bytes) -> float:
    """The least of two: of this process, so that others do not count."""
    times = []
    for _ in range(2):
        begun = process_time()
        if method == "sub":
            pattern.sub(b"" if isinstance(text, bytes) else "", text)
        elif method == "finditer":
            list(pattern.finditer(text))
        else:
            getattr(pattern, method)(text)
        times.append(process_time() - begun)
        if times[-1] < UNSEEN_S:
            break
    return min(times)
