"""The core only gets smaller: features are folders beside it, which can be deleted."""

from __future__ import annotations

import tokenize
from pathlib import Path

from places import ROOT

LIMIT = Path(__file__).with_name("core_tokens")
BESIDE = ("features", "cluster")
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
SLACK = 1_000  # by which the limit may exceed what is there


def tokens(file: Path) -> int:
    """Names, numbers, strings and operators: neither comments nor line breaks count."""
    with file.open("rb") as source:
        return sum(token.type not in LAYOUT for token in tokenize.tokenize(source.readline))


def test_the_core_has_at_most_as_many_tokens_as_before() -> None:
    """The limit is lowered whenever the core gets smaller, and never raised."""
    package = ROOT / "commbench"
    files = [
        file
        for file in package.rglob("*.py")
        if file.relative_to(package).parts[0] not in (*BESIDE, "conf")
    ]
    count = sum(map(tokens, files))
    limit = int(LIMIT.read_text())
    assert count <= limit, f"{count - limit} tokens more than {LIMIT.name}: take some away"
    assert count > limit - SLACK, f"write {count} into {LIMIT.name}"
