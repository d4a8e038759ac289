"""The parts of the pages in docs/ that tools write, between two marks with the name of the part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def rewrite(page: str, name: str, text: str) -> None:
    """Replace a part of a page."""
    before, _, after = _divided(page, name)
    temporary = (DOCS / page).with_suffix(".tmp")
    temporary.write_text(before + text + after)
    temporary.replace(DOCS / page)


def put_row(page: str, name: str, head: str, starts: Sequence[str], row: str) -> None:
    """Put a row into the table that is a part of a page, in place of the one that begins alike.
    `starts`: how the rows begin, in their order."""
    known = dict[str, str]()
    for line in (*_divided(page, name)[1].splitlines(), row):
        known |= {start: line for start in starts if line.startswith(start)}
    rewrite(page, name, head + "".join(f"{known[start]}\n" for start in starts if start in known))


def _divided(page: str, name: str) -> tuple[str, str, str]:
    """What stands before a part, in it and behind it."""
    text = (DOCS / page).read_text()
    marks = rf"(.*<!-- {name}: written by [^\n]*\n)(.*)(<!-- end of {name} -->\n.*)"
    divided = re.fullmatch(marks, text, re.DOTALL)
    assert divided is not None, f"{page} has no place for {name}"
    before, part, after = divided.groups()
    return before, part, after
