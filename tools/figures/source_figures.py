"""What can be counted in the source: long lines, statements that assign several values, tokens,
comparisons with texts."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache

WIDTH = 100  # columns, as ruff has them
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@cache
def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def long_lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if len(line) > WIDTH]


def token_count(source: str) -> int:
    """Tokens without comments, line ends and indentation."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in LAYOUT for token in tokens)


def saved_lines(source: str) -> list[str]:
    """Assignments of several values to several names in one statement, as `a, b = x, y`, but no
    swap, whose values have to be read before the first name is set."""
    assignments = [
        node
        for node in nodes_of(source)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    ]
    return [ast.unparse(node) for node in assignments if not _is_swap(node)]


def _is_swap(node: ast.Assign) -> bool:
    targets = {
        ast.dump(child) for child in ast.walk(node.targets[0]) if isinstance(child, ast.Name)
    }
    stored = {name.replace("Store()", "Load()") for name in targets}
    return any(ast.dump(child) in stored for child in ast.walk(node.value))


def bare_comparisons(source: str) -> list[str]:
    """Comparisons of a value in a row, a mapping or a column with a text, as `row["status"] ==
    "ok"`: no type says which texts there are."""
    compared = (node for node in nodes_of(source) if isinstance(node, ast.Compare))
    return [ast.unparse(node) for node in compared if _is_bare(node)]


def _is_bare(node: ast.Compare) -> bool:
    operands = [node.left, *node.comparators]
    looked_up = any(_is_looked_up(operand) for operand in operands)
    return looked_up and any(_texts(operands))


def _is_looked_up(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "get"
    return isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice)


def _texts(nodes: Iterable[ast.expr]) -> Iterator[bool]:
    for node in nodes:
        items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        for item in items:
            yield isinstance(item, ast.Constant) and isinstance(item.value, str)
