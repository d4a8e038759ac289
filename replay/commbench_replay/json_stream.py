"""A list inside a JSON document of any size, member by member, in bounded memory.

The standard library parses each member. Most events of a profile are of no interest: a word and the
border between two events are found many times faster than one is parsed, so those are skipped as
text.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from commbench.core.errors import Unreadable
from commbench.core.foreign import LARGEST_INTEGER
from commbench.core.terminal import one_line
from commbench.features.other_tools.foreign_files import ForeignFile

SEPARATOR = re.compile(r"\}\s*,\s*\{")
SPACE = re.compile(r"\s*")
LIST_END = re.compile(r"\}\s*\]")
# where a document begins, behind lines that some program has printed into its file
DOCUMENT = re.compile(r'^[ \t]*(\{\s*["}]|\[\s*[\]{])', re.MULTILINE)
DOCUMENT_BYTES = re.compile(DOCUMENT.pattern.encode(), re.MULTILINE)
# a backslash that begins no escape of JSON, as in a path of Windows, behind those that do or may
BACKSLASH = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4}|(?:u[0-9a-fA-F]{0,3})?\Z)|\\')
BAD_ESCAPE = "escape"  # in what Python's decoder says of one
DECODER = json.JSONDecoder(strict=False)  # with control characters in strings
UTF8_MARK = b"\xef\xbb\xbf"
REPLACEMENT = "\ufffd"
LARGEST_VALUE = 16 * 2**20  # characters
CUT_MARGIN = 8  # characters before the end of a cut text at which it may be wrong
NOT_UTF8 = "characters that are not UTF-8, read as a replacement"
BACKSLASHES = "files with backslashes that JSON does not allow, read as themselves"
NOT_JSON = "events that are not JSON, left out, as nothing is read from them"
TEXT_AROUND = "files with text before or after the data, left out"


class JsonList:
    """The members of list `key` of an object, or of a list that is the whole document.

    Members without any of the words `wanted` may be left out, if `skim`, which is given the text
    of whole members, returns True; such a member that is no JSON is left out. `outer` has the other
    keys, once all members were read. A file that is cut yields what it has; its `notes` say what is
    wrong with it.
    """

    def __init__(
        self,
        file: ForeignFile,
        key: str,
        wanted: Sequence[str] = (),
        skim: Callable[[str], bool] = bool,  # true of any text
    ) -> None:
        self.file = file
        self.key = key
        self._skim = skim
        self.outer: dict[str, Any] = {}
        # word -> where it stands next in the text
        self._next = dict.fromkeys(wanted, -1)
        self._parsed_until = 0
        self._chunks = file.chunks()
        self._decoder = getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._complete = False
        self._has_members = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            opening = self._opening()
            if opening == "[":
                self._at += 1
                yield from self._members()
            elif opening == "{":
                yield from self._object()
            else:
                raise self._refused("it begins with neither { nor [")
            self._check_rest()
        except _Cut:
            self.file.ended_early = True
        except (RecursionError, ValueError) as error:
            raise self._refused(one_line(str(error))) from error

    def _opening(self) -> str:
        """The character with which the document begins."""
        first = self._next_character()
        document = DOCUMENT.search(self._text)
        if document is None or not self._text[: document.start()].strip():
            return first
        self.file.notes[TEXT_AROUND] = 1
        self._at = document.start(1)
        return self._text[self._at]

    def _check_rest(self) -> None:
        """Say what stands behind the document."""
        self._at += 1
        try:
            has_rest = self._has_text()
        except Unreadable:  # behind the end of compressed data
            has_rest = True
        self.file.ended_early = False  # all of the document is there
        if self.file.notes[TEXT_AROUND] and not self._has_members:
            raise ValueError(f"text stands before it, and it has no {self.key}")
        if has_rest and self.file.notes[NOT_JSON]:
            raise ValueError("it is damaged, and goes on behind its end")
        if has_rest:
            self.file.notes[TEXT_AROUND] = 1

    def _has_text(self) -> bool:
        """Whether the text goes on."""
        try:
            self._next_character()
        except _Cut:
            return False
        return True

    def _object(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while self._next_character() != "}":
            key = self._value()
            self._expect(":")
            if key == self.key and self._next_character() == "[":
                self._at += 1
                yield from self._members()
                self._at += 1
            else:
                self.outer[str(key)] = self._value()
            if self._next_character() == ",":
                self._at += 1

    def _members(self) -> Iterator[dict[str, Any]]:
        self._has_members = True
        while self._next_character() != "]":
            if self._next and self._text[self._at] == "{" and self._skip() and self._more():
                continue
            try:
                member = self._value()
            except (RecursionError, ValueError):
                if not self._leave_out():
                    raise
                continue
            if isinstance(member, dict):
                yield member
            if self._next_character() == ",":
                self._at += 1

    def _leave_out(self) -> bool:
        """Go on behind a member that can't be parsed; whether it has none of the wanted words."""
        while True:
            ends = [pattern.search(self._text, self._at) for pattern in (SEPARATOR, LIST_END)]
            borders = [end for end in ends if end is not None]
            if borders:
                break
            if not self._more():
                return False
        border = min(borders, key=lambda each: each.start())
        damaged = self._text[self._at : border.start()]
        if not self._next or any(word in damaged for word in self._next):
            return False
        self.file.notes[NOT_JSON] += 1
        self._at = border.end() - 1
        return True

    def _skip(self) -> bool:
        """Go on to the last member that begins before the next wanted word; whether the text has
        no such word.

        What is skipped must be whole members: balanced braces, and no list that ends. Otherwise,
        and where `skim` says so, they are parsed, up to the word.
        """
        for word, place in self._next.items():
            if place < self._at:
                place = self._text.find(word, self._at)
                self._next[word] = place if place >= 0 else len(self._text)
        target = min(self._next.values())
        if self._at >= self._parsed_until:
            end = self._last_border(target)
            skipped = self._text[self._at : end]
            balanced = skipped.count("{") == skipped.count("}") and not LIST_END.search(skipped)
            if balanced and (not skipped or self._skim(skipped)):
                self._at = end
            else:
                self._parsed_until = target
        return target == len(self._text) and self._at >= self._parsed_until

    def _last_border(self, before: int) -> int:
        """Where the last member that begins before a place in the text does."""
        end = before
        while (end := self._text.rfind("}", self._at, end)) >= 0:
            border = SEPARATOR.match(self._text, end, before)
            if border is not None:
                return border.end() - 1
        return self._at

    def _value(self) -> Any:
        """The next value, read on until all of it is there."""
        self._next_character()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                goes_on = error.pos >= len(self._text) - CUT_MARGIN or "Unterminated" in error.msg
                if goes_on and self._more():
                    continue
                if BAD_ESCAPE in error.msg and self._allow_backslashes():
                    continue
                if goes_on:
                    raise _Cut from error
                raise
            # a number at the end of the text may go on
            if end < len(self._text) or not self._more():
                self._at = end
                return value

    def _allow_backslashes(self) -> bool:
        """Whether there were such that JSON does not allow."""
        text = self._text[self._at :]
        self._continue_with(with_escapes(self.file, text))
        return self._text != text

    def _expect(self, character: str) -> None:
        if self._next_character() != character:
            raise ValueError(f"{self._text[self._at]!r} stands where {character!r} should")
        self._at += 1

    def _next_character(self) -> str:
        while True:
            space = SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                raise _Cut

    def _more(self) -> bool:
        """Read the next part of the file; False at its end."""
        if self._complete:
            return False
        if len(self._text) - self._at > LARGEST_VALUE:
            raise self._refused(f"one value has more than {LARGEST_VALUE >> 20} MiB")
        chunk = next(self._chunks, b"")
        self._complete = not chunk
        final = self._complete and not self.file.ended_early
        self._continue_with(self._text[self._at :] + self._decoded(chunk, final))
        return not self._complete

    def _continue_with(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._parsed_until = 0
        self._next = dict.fromkeys(self._next, -1)

    def _decoded(self, chunk: bytes, final: bool) -> str:
        try:
            return self._decoder.decode(chunk, final)
        except UnicodeDecodeError:
            self._decoder.errors = "replace"
            text = self._decoder.decode(chunk, final)
            self._decoder.errors = "strict"
            self.file.notes[NOT_UTF8] += text.count(REPLACEMENT)
            return text

    def _refused(self, cause: str) -> Unreadable:
        return Unreadable(
            f"{self.file.name} is not the JSON of a trace, in its first {self.file.read_bytes}"
            f" bytes: {cause}; record it again, or leave it out"
        )


def document_head(head: bytes) -> bytes:
    """The beginning of the JSON in a file that begins so; empty where there is none."""
    text = head.removeprefix(UTF8_MARK)
    document = DOCUMENT_BYTES.search(text)
    return text[document.start(1) :] if document else b""


def small_document(file: ForeignFile, content: bytes) -> Any:
    """The JSON in a file of which all is read; raises ValueError."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("utf-8-sig", "replace")
        file.notes[NOT_UTF8] += text.count(REPLACEMENT)
    document = DOCUMENT.search(text)
    start = document.start(1) if document else 0
    try:
        value, end = DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        if BAD_ESCAPE not in error.msg:
            raise
        text = with_escapes(file, text)
        value, end = DECODER.raw_decode(text, start)
    if text[:start].strip() or text[end:].strip():
        file.notes[TEXT_AROUND] = 1
    return value


def with_escapes(file: ForeignFile, text: str) -> str:
    """The text with each backslash that begins no escape as one that stands for itself."""
    read = BACKSLASH.sub(lambda match: match[0] if match[1] is not None else r"\\", text)
    if read != text:
        file.notes[BACKSLASHES] = 1
    return read


class _Cut(Exception):
    """Raised where the text ends too early."""


def whole(value: object, least: int = 0) -> int | None:
    """A number of a trace as an integer; None where it is none, or does not fit 64 bits."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # NaN is in no range
    return int(value) if least <= value <= LARGEST_INTEGER else None


def elements(shape: object) -> int | None:
    """Elements of a tensor, or of all tensors in lists of any depth; None where a shape is none, or
    they do not fit 64 bits."""
    lengths = shape if isinstance(shape, list | tuple) else [None]
    if any(isinstance(length, list | tuple) for length in lengths):
        counts = [elements(part) for part in lengths]
        known = [count for count in counts if count is not None]
        return whole(sum(known)) if len(known) == len(counts) else None
    count = 1
    for length in map(whole, lengths):
        if length is None or count > LARGEST_INTEGER:
            return None
        count *= length
    return whole(count)


def nanoseconds(microseconds: object) -> int | None:
    """A time in microseconds, which may have decimals, in nanoseconds."""
    if not isinstance(microseconds, int | float) or not abs(microseconds) < LARGEST_INTEGER:
        return None
    return whole(round(microseconds * 1000))
