"""The strings of a module, of which a rule says which it may have."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


def texts(source: str) -> Iterator[str]:
    """All that are no docstrings."""
    tree = ast.parse(source)
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def compared_texts(source: str) -> Iterator[str]:
    """What values are compared with: `x == "a"`, `x in ("a", "b")`, `case "a":`,
    `x.startswith("a")`."""
    for node in ast.walk(ast.parse(source)):
        parts: Iterable[ast.AST] = ()
        match node:
            case ast.Compare(left, _, comparators):
                parts = (left, *comparators)
            case ast.MatchValue(value):
                parts = (value,)
            case ast.Call(ast.Attribute(attr="startswith"), arguments):
                parts = arguments
        for part in parts:
            for child in ast.walk(part):
                if isinstance(child, ast.Constant) and isinstance(child.value, str):
                    yield child.value
