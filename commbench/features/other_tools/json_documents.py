"""The documents of JSON in a file, one after the other, also where the last one is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from commbench.core.foreign import check_size, check_values

from .foreign_files import ForeignFile

MOST_BYTES = 64 * 2**20
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
NEXT = re.compile(r"\n(?=\{)")  # nested ones are indented
CLOSING = {"{": "}", "[": "]"}
DEEPEST = 64


class Document(NamedTuple):
    """`line`: where it begins. `is_cut`: what comes after its last whole value is missing."""

    value: dict[str, Any]
    line: int
    is_cut: bool


def documents(file: ForeignFile) -> Iterator[Document]:
    """The objects in a file; raises Unreadable, and ValueError for too many or too large values."""
    content = file.content()
    check_size(file.name, len(content), MOST_BYTES)
    text = content.decode("utf-8", "replace").removeprefix("\ufeff")
    decoder = json.JSONDecoder()
    at = text.find("{")
    line, counted = 1, 0
    while at >= 0:
        line += text.count("\n", counted, at)
        counted = at
        try:
            value, end = decoder.raw_decode(text, at)
            is_cut = False
        except ValueError:
            value, end = _until_cut(text, at)
            is_cut = True
        if isinstance(value, dict):
            check_values(value)
            yield Document(value, line, is_cut)
        at = text.find("{", end)


def _until_cut(text: str, start: int) -> tuple[Any, int]:
    """The value that begins there up to its last whole part, and where the next one may begin."""
    following = NEXT.search(text, start + 1)
    end = following.end() if following is not None else len(text)
    open_brackets: list[str] = []
    last, closing = start, ""
    for token in TOKEN.finditer(text, start, end):
        word = token[0]
        if word in CLOSING:
            open_brackets.append(CLOSING[word])
            if len(open_brackets) > DEEPEST:
                break
        elif word in ("}", "]"):
            if not open_brackets or open_brackets.pop() != word:
                break
            last, closing = token.end(), "".join(reversed(open_brackets))
        elif word == ",":
            last, closing = token.start(), "".join(reversed(open_brackets))
    try:
        return json.loads(text[start:last] + closing), end
    except ValueError:
        return None, end


def part(value: object, name: str) -> dict[str, Any]:
    """An object in an object; empty where there is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def parts(value: object, name: str) -> list[dict[str, Any]]:
    """The objects of a list in an object."""
    found = value.get(name) if isinstance(value, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def whole(value: object, least: int = 0) -> int:
    """A whole number; raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r:.40} is not a whole number from {least} on")
    return value


def text_of(value: object) -> str | None:
    """A text that says something; None for anything else."""
    return value if isinstance(value, str) and value.strip() else None
