"""Text from elsewhere, made fit for a terminal: files, host names and users may hold escape sequences."""

from __future__ import annotations

import re

# control characters (C0 but for the newline, DEL, C1), signs that reverse the direction of text, half characters
UNPRINTABLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
LONGEST_LINE = 1600  # characters; the end of a message says what is allowed


def printable(text: str) -> str:
    r"""The same text with what a terminal would act on written as \x1b or \u202e; newlines stay."""
    return UNPRINTABLE.sub(lambda match: _escaped(match[0]), text)


def one_line(text: str) -> str:
    """The same in one line of at most about LONGEST_LINE characters; the middle of a longer one is left out."""
    line = " ".join(part for part in printable(text.replace("\t", " ")).split("\n") if part.strip())
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
