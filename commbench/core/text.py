"""Text from files, users and other programs, made safe to print: it may hold escape sequences."""

from __future__ import annotations

import re

# control characters (C0 except the newline, DEL, C1), bidirectional controls, unpaired surrogates
UNPRINTABLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
LONGEST_LINE = 1600  # characters; the end of a message says what is allowed


def printable(text: str) -> str:
    r"""The text with all that a terminal would act on written as \x1b or \u202e; newlines stay."""
    return UNPRINTABLE.sub(lambda match: _escaped(match[0]), text)


def one_line(text: str) -> str:
    """The text in one printable line of about LONGEST_LINE characters at most; a longer one loses its middle."""
    line = " ".join(part for part in printable(text.replace("\t", " ")).split("\n") if part.strip())
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
